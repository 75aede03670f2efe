"""The lease core in simulated worlds: random histories, every short one, and faults built in that must be
found.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from simulation import random_histories, search
from simulation.actions import VERSION_WEIGHTS, Action, act
from simulation.mutants import MUTANTS, mutated
from simulation.world import MOST_SHARDS, MOST_WORKERS, World

from hindcast.leases import store
from hindcast.leases.lease import REMOVED, TRANSITIONS, Lease, ShardState
from hindcast.shards.pipeline_row import ChangeKind

numbers = st.integers(0, random_histories.SPREAD - 1)
actions = st.sampled_from([name for name, weight in VERSION_WEIGHTS.items() for _ in range(weight)])
#: Drawn histories that are played in all: `make test-fast` plays fewer.
DRAWN, PARTS = int(os.environ.get("HISTORIES", "2000")), 10
#: Histories in which each mutant must be found; the slowest needs about forty.
HISTORIES, STEPS = 100, 60


class LeaseMachine(RuleBasedStateMachine):
    """2 to 5 workers and 1 to 8 shards; whatever happens to them, every oracle holds once the faults have
    ended.
    """

    @initialize(workers=st.integers(2, MOST_WORKERS), shards=st.integers(1, MOST_SHARDS))
    def begin(self, workers: int, shards: int) -> None:
        self.world = World(workers, shards)

    @rule(name=actions, who=numbers, what=numbers, size=numbers)
    def happen(self, name: str, who: int, what: int, size: int) -> None:
        """One of the actions of :data:`simulation.actions.WEIGHTS`, on some worker and some shard."""
        act(self.world, Action(name, who, what, size))

    def teardown(self) -> None:
        """Heal, and let the oracles read the whole history."""
        if hasattr(self, "world"):
            self.world.heal()
            assert not self.world.breaches()


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_histories_hold(part: int) -> None:
    """No oracle breaks, whatever the seed."""
    for number in range(DRAWN // PARTS):
        assert not random_histories.play(*random_histories.draw(f"{part}/{number}", STEPS)).breaches(), (
            f"SEED={part}/{number}"
        )


def test_most_histories_that_have_versions_promote_one_and_back_out() -> None:
    """The oracles of readers and promotions see nothing else."""
    seen: Counter[str] = Counter()
    for number in range(60):
        workers, shards, drawn_actions = random_histories.draw(f"versions/{number}", STEPS)
        if random_histories.has_versions(drawn_actions):
            seen.update(
                {
                    "histories",
                    *random_histories.changes(random_histories.play(workers, shards, drawn_actions)),
                }
            )
    assert seen["histories"] > 20
    for change in (ChangeKind.PROMOTED, ChangeKind.BACKED_OUT):
        assert seen[change] > seen["histories"] / 2, seen


#: A rewind ends a shard that was given up: unit tests of `recovery`. A version that is discarded seldom has a
#: shard in CLOSING.
NOT_DRAWN = {(ShardState.CLOSED, ShardState.TERMINATED), (ShardState.CLOSING, REMOVED)}


def test_histories_take_every_step_of_a_shards_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has no step that is never taken; that no other one is taken, each commit checks."""
    taken: set[tuple[str, str]] = set()
    check_step = store._check_step

    def noting(before: Lease | None, lease: Lease, *, called_off: bool) -> None:
        check_step(before, lease, called_off=called_off)
        if before is not None and before.state != lease.state:
            taken.add((before.state, lease.state))

    monkeypatch.setattr(store, "_check_step", noting)
    for number in range(100):
        random_histories.play(*random_histories.draw(f"steps/{number}", STEPS))
    table = {(first, second) for first, others in TRANSITIONS.items() for second in others}
    assert table - NOT_DRAWN <= taken <= table


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(
    max_examples=max(DRAWN // 10, 20),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("kept", random_histories.KEPT)
def test_what_was_found_once_stays_mended(kept: str) -> None:
    """Histories that have broken an oracle break none any more."""
    assert not random_histories.play(*random_histories.KEPT[kept]).breaches()


@pytest.mark.parametrize("owned", [False, True], ids=["a free shard", "an owned shard"])
def test_every_history_of_eight_coarse_moves_holds(owned: bool) -> None:
    """All interleavings of two workers and one shard, from a free shard on and from one that is being
    consumed.
    """
    found = search.explore(8 if owned else 6, search.COARSE, owned=owned)
    assert not found.breaches
    assert found.histories > (1_000_000 if owned else 10_000)


def test_every_history_of_three_fine_moves_holds() -> None:
    """With every answer of the store, and with each thread of a worker moving by itself."""
    found = search.explore(3, search.FINE, owned=True)
    assert not found.breaches
    assert found.histories > 4_000


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_by_an_oracle(name: str) -> None:
    """The oracles can fail: with this fault in the code one of them does."""
    with mutated(name):
        found = random_histories.first_breach("mutant", HISTORIES, STEPS)
    assert found is not None, f"{HISTORIES} histories do not tell the mutant from the code"


def test_a_seed_repeats_its_history() -> None:
    """The same seed gives the same actions, and they give the same history."""
    first, second = (random_histories.play(*random_histories.draw("7", 40)).history for _ in range(2))
    assert first == second


def test_a_breach_is_shrunk_to_what_causes_it() -> None:
    """What is left of a history that breaks an oracle still breaks it, in fewer actions."""
    with mutated("take before expiry"):
        workers, shards, actions = next(
            history
            for history in random_histories.histories("shrink", STEPS)
            if "I3 one owner" in {b.oracle for b in random_histories.play(*history).breaches()}
        )
        fewer = random_histories.shrink(workers, shards, actions, "I3 one owner")
        assert len(fewer) < len(actions)
        assert "I3 one owner" in {
            breach.oracle for breach in random_histories.play(workers, shards, fewer).breaches()
        }
