"""Histories that are drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable

from protocols.history import BrokenPromiseError
from protocols.oracles import check_end
from protocols.world import World, world

Action = Callable[[World], None]
#: What may happen, and how often.
ACTIONS: dict[Action, float] = {
    World.resume: 60,
    World.run_one: 40,
    World.kill: 3,
    World.take_over: 5,
    World.grow: 6,
    World.pass_time: 4,
    World.sleep: 4,
    World.sleep_through_a_cut: 0.6,
    World.sleep_through_a_rewind: 0.2,
    World.sleep_in_an_audit_through_a_rewind: 0.6,
    World.sleep_in_the_upkeep: 0.4,
    World.expire: 1,
    World.maintain: 1.5,
    World.plan: 1,
    World.plan_slowly: 0.6,
    World.reshard: 0.6,
    World.grow_topic: 0.2,
    World.rewind: 2,
    World.correct: 0.4,
    World.cut_a_rewind_short: 0.5,
}
#: How often an action happens in histories that are about it.
OFTEN = 6.0
STEPS = 250
#: What histories must do now and then, by the names in :attr:`protocols.world.World.seen`.
WAYS = (
    "a commit that lost its answer",
    "a commit that failed",
    "a process killed in a commit",
    "a seal over a living owner",
    "a rebuilt state",
    "a rewind",
    "a rewind called off",
    "a generation of shards",
    "a topic that grew",
    "a log that was cut",
    "a base of the ledger",
    "a late row",
    "a record that raises",
    "a look at the past",
    "a correction",
    "files that were joined",
)


def play(seed: str, steps: int = STEPS, often: Action | None = None) -> World:
    """Play a history, heal, and check.

    :param often: what is to happen more often than in other histories
    :raises BrokenPromiseError: if something that was promised is not so, or the code fails in a way that it
        does not know itself; it names the seed
    """
    actions = list(ACTIONS)
    weights = [OFTEN if action == often else weight for action, weight in ACTIONS.items()]
    with world(seed) as made:
        try:
            made.grow()
            for _ in range(steps):
                made.rng.choices(actions, weights)[0](made)
            made.heal()
            check_end(made)
        except BrokenPromiseError as breach:
            raise BrokenPromiseError(f"SEED={seed}: {breach}") from breach
        except Exception as error:
            raise BrokenPromiseError(f"SEED={seed}: {type(error).__name__}: {error}") from error
        made.note_ways()
    return made


def first_breach(seed: str, histories: int, often: Action | None = None) -> str:
    """What the first of so many histories says that breaks an oracle or fails; empty if none does.

    :param often: as in :func:`play`
    """
    for number in range(histories):
        try:
            play(f"{seed}/{number}", often=often)
        except Exception as error:  # noqa: BLE001 - a mutant may end in any way
            return str(error) or type(error).__name__
    return ""
