"""Where a rewound pipeline goes on: which batches are kept, which shards follow, and what readers of the ledger leave out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_stream import Simulated, simulate, trades

from hindcast.control import reset, shards
from hindcast.control.desired import DesiredState, DesiredStates
from hindcast.control.history import History
from hindcast.control.leases import Lease, ShardState, StatusType
from hindcast.control.ledger import Ledger, LedgerRow, Undone
from hindcast.control.schema import ControlTable
from hindcast.control.tables import ControlTables
from hindcast.errors import RewindRefusedError
from hindcast.replay.runs import Runs
from hindcast.settings import Settings
from hindcast.testing import MemoryStore

RECORD = {"id": "one", "to": "the beginning", "by": "me", "reason": ""}


@pytest.fixture(scope="module")
def stream() -> Simulated:
    return simulate(trades(5, count=600, partitions=4, rate_ms=40.0), seed=5, shards=2)


def wanted(state: DesiredState, *, version: int = 1) -> Lease:
    detail = {"version": version, "shards": 2, "workers": 1}
    return Lease(stream_id="p", status_type=StatusType.PIPELINE, status_value="active", state=state, detail=detail)


def paused(state: DesiredState = DesiredState.PAUSED) -> tuple[MemoryStore, list[Lease]]:
    """A store with two free shards of a pipeline, given up in epoch 3."""
    store = MemoryStore()
    made = shards.create(store, "p", 1, 2, {0: 0, 1: 0})
    given_up = [lease.evolve(epoch=3, state=ShardState.CLOSED, checkpoint={**lease.checkpoint, "fingerprint": "f"}) for lease in made]
    store.commit(store.read(), [*given_up, wanted(state)])
    return store, given_up


def some(*, kept: bool = True) -> reset.Cut:
    rows = simulate(trades(5, count=50, partitions=2, rate_ms=40.0), seed=5, shards=2).ledger
    return reset.Cut(
        sink_version=4 if kept else -1,
        offsets={0: 5, 1: 6},
        floors={0: 700, 1: 800} if kept else {},
        last={"v1.g0.s0": 2, "v1.g0.s1": 0},
        kept=tuple(rows[:1]) if kept else (),
        undone=tuple(rows[1:]),
    )


def lease(store: MemoryStore, name: str) -> Lease:
    return next(found for found in store.read().leases.values() if found.status_value == name)


@given(share=st.floats(0, 1))
def test_a_cut_keeps_every_batch_of_a_version_and_none_that_read_past_the_target(stream: Simulated, share: float) -> None:
    """Kept and undone are the whole ledger, parted at one version; each partition goes on where the kept batches left it."""
    history = History.of(stream.ledger)
    target = {p: int(end * share) for p, end in history.committed.items()}
    found = reset.cut(stream.ledger, target, {})
    assert [*found.kept, *found.undone] == list(history.rows)
    assert all(row.sink_version <= found.sink_version for row in found.kept)
    assert all(row.sink_version > found.sink_version for row in found.undone)
    assert all(found.offsets[p] <= max(target[p], history.first[p]) for p in target)
    kept = History.of(found.kept)
    assert {p: o for p, o in found.offsets.items() if p in kept.chains} == kept.committed
    for shard, last in found.last.items():
        assert last == max((row.batch for row in found.kept if row.shard == shard), default=0)


def test_the_beginning_keeps_nothing_and_knows_no_floor(stream: Simulated) -> None:
    """Not even batches that had read nothing."""
    found = reset.cut(stream.ledger, None, {9: 4})
    assert (found.kept, found.sink_version, found.floors) == ((), -1, {})
    assert found.offsets == {**History.of(stream.ledger).first, 9: 4}


def test_a_partition_that_came_later_goes_on_under_what_was_final_for_the_others(stream: Simulated) -> None:
    """Its keys may come from any of them."""
    found = reset.cut(stream.ledger, History.of(stream.ledger).committed, {9: 4})
    assert found.offsets[9] == 4
    assert found.floors[9] == max(found.floors[p] for p in found.offsets if p != 9) > 0


def test_shards_are_followed_by_waiting_ones_that_nobody_opens(stream: Simulated) -> None:
    """Step 1: the old are ended in a new epoch, the new wait though their parents are TERMINATED; asked again, it is done once."""
    store, planned = paused()
    for _ in range(2):
        reset.begin(store, "p", 1, planned, some(), RECORD)
    for name in ("v1.g0.s0", "v1.g0.s1"):
        assert (lease(store, name).state, lease(store, name).epoch, lease(store, name).lease_owner) == ("TERMINATED", 4, "")
    follower = lease(store, "v1.g1.s0")
    assert (follower.state, follower.parent_shard_ids) == ("WAIT", ["v1.g0.s0"])
    assert follower.checkpoint == {"start_offsets": {"0": 5}, "floors": {"0": 700}, "fingerprint": "f"}
    assert shards.opened(store.read().leases) == []
    assert len(reset.unfinished(store.read().leases, "p")) == 2
    reset.end(store, "p", RECORD["id"])
    assert lease(store, "v1.g1.s0").state == "OPEN"
    assert reset.unfinished(store.read().leases, "p") == []
    assert reset.end(store, "p", RECORD["id"]) == []


def test_another_query_may_begin_anew() -> None:
    """Where nothing is kept the followers do not ask for the query that made it."""
    store, planned = paused()
    reset.begin(store, "p", 1, planned, some(kept=False), RECORD)
    assert lease(store, "v1.g1.s1").checkpoint == {"start_offsets": {"1": 6}, "floors": {}}


@pytest.mark.parametrize("state", [DesiredState.RUNNING, DesiredState.DRAINED])
def test_only_a_paused_pipeline_is_rewound(state: DesiredState) -> None:
    """One that was resumed between plan and commit neither."""
    store, planned = paused(state)
    with pytest.raises(RewindRefusedError, match="hindcast pause p"):
        reset.begin(store, "p", 1, planned, some(), RECORD)
    assert lease(store, "v1.g0.s0") == planned[0]


def test_shards_that_changed_hands_since_the_plan_are_left_alone() -> None:
    """What the plan would keep may not be all that is there."""
    store, planned = paused()
    store.commit(store.read(), [planned[0].evolve(epoch=4)])
    with pytest.raises(RewindRefusedError, match="changed hands"):
        reset.begin(store, "p", 1, planned, some(), RECORD)


def test_a_reset_waits_through_a_resume() -> None:
    """Wanting the pipeline running while its rewind is cut short starts nothing on what is half taken back."""
    store, planned = paused()
    reset.begin(store, "p", 1, planned, some(), RECORD)
    DesiredStates(store).set_state("p", DesiredState.RUNNING)
    snapshot = store.read()
    assert not any(shards.wanted(row, snapshot, lambda *_: True) for row in snapshot.leases.values() if row.status_type == "shard")
    assert shards.to_reshard(snapshot.leases.values()) == []


def test_the_ledger_leaves_out_what_was_taken_back(settings_factory: Callable[..., Settings], stream: Simulated) -> None:
    """Also a batch that an older owner files afterwards; those of the shards that follow count."""
    tables = ControlTables(settings_factory())
    ledger = Ledger(tables)
    rows = [replace(row, pipeline="p") for row in History.of(stream.ledger).rows]
    ledger.append(rows)
    found = reset.cut(rows, {p: end // 2 for p, end in History.of(rows).committed.items()}, {})
    version = rows[-1].sink_version + 3
    ledger.append(reset.reset_row("p", 1, "t", shard, last, 9, found.offsets, version) for shard, last in found.last.items())
    follower = replace(rows[-1], shard="v1.g1.s0", batch=1, sink_version=version + 1)
    ledger.append([replace(rows[-1], batch=rows[-1].batch + 1, sink_version=version - 1), follower])
    assert sorted(map(_name, ledger.batches("p", 1))) == sorted(map(_name, [*found.kept, follower]))
    assert ledger.undone("p", 1) == [Undone(found.sink_version, version)]
    assert ledger.batches("p", 1, "v1.g1.s0") == [follower]


def _name(row: LedgerRow) -> tuple[str, int]:
    return row.shard, row.batch


def test_a_verdict_on_what_was_taken_back_is_no_beginning(settings_factory: Callable[..., Settings]) -> None:
    """The range since the last verdict begins where a verdict on what is kept ended."""
    tables = ControlTables(settings_factory())
    now = datetime.now(UTC)
    for number, sink_version in enumerate((3, 8)):
        name, plan = f"r{number}", f'{{"end": {{"0": {sink_version}}}}}'
        tables.append(ControlTable.RUNS, [{"run_id": name, "pipeline": "p", "state": "succeeded", "plan": plan, "finished_at": now}])
        verdict = {"run_id": name, "pipeline": "p", "version": 1, "sink_version": sink_version, "windows_to_ms": number, "judged_at": now}
        tables.append(ControlTable.VERDICTS, [verdict])
    assert Runs(tables).judged_to("p", 1) == {0: 8}
    assert Runs(tables).judged_to("p", 1, undone=[Undone(4, 9)]) == {0: 3}
