"""Where a rewound pipeline resumes: which batches are kept, which shards follow, and what readers of the
ledger leave out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulated_stream import Simulated, simulate, trades

from hindcast.errors import RewindRefusedError
from hindcast.leases.lease import REMOVED, Lease, LeaseKey, ShardState, StatusType
from hindcast.recovery import rewind_point
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.replay.run_table import Runs
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import DesiredState
from hindcast.shards.shard_row import awaiting_rewind
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger, LedgerRow, Undone
from hindcast.tables.ledger_history import History
from hindcast.tables.table_names import ControlTable
from hindcast.testing import MemoryStore

RECORD = {"id": "one", "to": "the beginning", "by": "me", "reason": ""}


@pytest.fixture(scope="module")
def stream() -> Simulated:
    return simulate(trades(5, count=600, partitions=4, rate_ms=40.0), seed=5, shards=2)


def wanted(state: DesiredState, *, version: int = 1) -> Lease:
    detail = {"version": version, "shards": 2, "workers": 1}
    return Lease(
        stream_id="p", status_type=StatusType.PIPELINE, status_value="active", state=state, detail=detail
    )


def paused(state: DesiredState = DesiredState.PAUSED) -> tuple[MemoryStore, list[Lease]]:
    """A store with two free shards of a pipeline, given up in epoch 3."""
    store = MemoryStore()
    made = resharding.create(store, "p", 1, 2, {0: 0, 1: 0})
    given_up = [
        lease.evolve(epoch=3, state=ShardState.CLOSED, checkpoint={**lease.checkpoint, "fingerprint": "f"})
        for lease in made
    ]
    store.commit(store.read(), [*given_up, wanted(state)])
    return store, given_up


def some(*, kept: bool = True) -> rewind_point.RewindPoint:
    rows = simulate(trades(5, count=50, partitions=2, rate_ms=40.0), seed=5, shards=2).ledger
    return rewind_point.RewindPoint(
        sink_version=4 if kept else -1,
        offsets={0: 5, 1: 6},
        floors={0: 700, 1: 800} if kept else {},
        last={"v1.g0.s0": 2, "v1.g0.s1": 0},
        kept=tuple(rows[:1]) if kept else (),
        undone=tuple(rows[1:]),
    )


def lease(store: MemoryStore, name: str, pipeline: str = "p") -> Lease:
    return store.read().leases[LeaseKey(pipeline, StatusType.SHARD, name)]


@given(share=st.floats(0, 1))
def test_a_point_keeps_every_batch_of_a_version_and_none_that_read_past_the_target(
    stream: Simulated, share: float
) -> None:
    """Kept and undone are the whole ledger, parted at one version; each partition resumes where the kept
    batches left it.
    """
    history = History.of(stream.ledger)
    target = {p: int(end * share) for p, end in history.committed.items()}
    found = rewind_point.find(stream.ledger, target, {})
    assert [*found.kept, *found.undone] == list(history.rows)
    assert all(row.sink_version <= found.sink_version for row in found.kept)
    assert all(row.sink_version > found.sink_version for row in found.undone)
    assert all(found.offsets[p] <= max(target[p], history.first[p]) for p in target)
    kept = History.of(found.kept)
    assert {p: o for p, o in found.offsets.items() if p in kept.chains} == kept.committed
    for shard, last in found.last.items():
        assert last == max((row.batch for row in found.kept if row.shard == shard), default=0)


def test_a_batch_that_ends_at_the_target_is_kept(stream: Simulated) -> None:
    """So is one of a partition that the target does not name; the next batch of a partition that it names is
    not.
    """
    rows = History.of(stream.ledger).rows
    first = rows[0]
    partition, end = next(iter(sorted(first.end_offsets.items())))
    found = rewind_point.find(rows, {partition: end}, {})
    assert first in found.kept
    assert found.undone[0] == next(row for row in rows if row.end_offsets.get(partition, 0) > end)
    assert first.end_offsets.keys() > {partition}


def test_a_target_that_no_batch_has_read_past_takes_nothing_back(stream: Simulated) -> None:
    """All is kept, and each partition resumes where it is."""
    history = History.of(stream.ledger)
    for found in (
        rewind_point.find(stream.ledger, history.committed, {}),
        rewind_point.find(stream.ledger, {}, {}),
    ):
        assert (found.kept, found.undone) == (history.rows, ())
        assert found.offsets == history.committed


def test_each_partition_resumes_under_the_watermark_of_its_own_shard(stream: Simulated) -> None:
    """Shards are not equally far: a partition that is kept is under its own last watermark, and one that is
    not begins where it began.
    """
    rows = [
        replace(row, watermark_ms=1_000 * (number + 1))
        for number, row in enumerate(History.of(stream.ledger).rows)
    ]
    chains = History.of(rows).chains
    found = rewind_point.find(rows, History.of(rows).committed, {})
    assert found.floors == {p: chain[-1].watermark_ms for p, chain in chains.items()}
    assert len(set(found.floors.values())) == 2
    alone = rows[0].end_offsets
    only = [row for row in rows if row.shard != rows[0].shard]
    first = rewind_point.find(
        [rows[0], *only], {**alone, **{p: -1 for p in chains if p not in alone}}, dict.fromkeys(chains, 7)
    )
    assert first.kept == (rows[0],)
    assert first.offsets == {p: alone.get(p, chains[p][0].start) for p in chains}
    assert first.floors == dict.fromkeys(chains, 1_000)
    assert list(first.offsets) == sorted(chains)


def test_a_batch_that_read_no_partition_finished_nothing(stream: Simulated) -> None:
    """Kept alone it leaves every partition where it began, with nothing final."""
    rows = History.of(stream.ledger).rows
    empty = replace(rows[0], start_offsets={}, end_offsets={})
    found = rewind_point.find([empty, *rows[1:]], dict.fromkeys(range(4), -1), {9: 4})
    assert found.kept == (empty,)
    assert (found.offsets[9], set(found.floors.values())) == (4, {0})


def test_the_beginning_keeps_nothing_and_knows_no_floor(stream: Simulated) -> None:
    """Not even batches that had read nothing."""
    found = rewind_point.find(stream.ledger, None, {9: 4})
    assert (found.kept, found.sink_version, found.floors) == ((), -1, {})
    assert found.offsets == {**History.of(stream.ledger).first, 9: 4}


def test_a_partition_that_came_later_resumes_under_what_was_final_for_the_others(stream: Simulated) -> None:
    """Its keys may come from any of them."""
    found = rewind_point.find(stream.ledger, History.of(stream.ledger).committed, {9: 4})
    assert found.offsets[9] == 4
    assert found.floors[9] == max(found.floors[p] for p in found.offsets if p != 9) > 0


def test_shards_are_followed_by_waiting_ones_that_nobody_opens(stream: Simulated) -> None:
    """Step 1: the old are ended in a new epoch, the new wait though their parents are TERMINATED; asked
    again, it is done once.
    """
    store, planned = paused()
    for _ in range(2):
        rewind_point.begin(store, "p", 1, planned, some(), RECORD)
    for name in ("v1.g0.s0", "v1.g0.s1"):
        assert (lease(store, name).state, lease(store, name).epoch, lease(store, name).lease_owner) == (
            "TERMINATED",
            4,
            "",
        )
    follower = lease(store, "v1.g1.s0")
    assert (follower.state, follower.parent_shard_ids) == ("WAIT", ["v1.g0.s0"])
    assert follower.checkpoint == {"start_offsets": {"0": 5}, "floors": {"0": 700}, "fingerprint": "f"}
    assert resharding.opened(store.read().leases) == []
    assert len(awaiting_rewind(store.read().leases.values(), "p")) == 2
    rewind_point.end(store, "p", RECORD["id"])
    assert lease(store, "v1.g1.s0").state == "OPEN"
    assert awaiting_rewind(store.read().leases.values(), "p") == []
    assert rewind_point.end(store, "p", RECORD["id"]) == []


def test_another_query_may_begin_again() -> None:
    """If nothing is kept, the followers do not ask for the query that made it."""
    store, planned = paused()
    rewind_point.begin(store, "p", 1, planned, some(kept=False), RECORD)
    assert lease(store, "v1.g1.s1").checkpoint == {"start_offsets": {"1": 6}}


@pytest.mark.parametrize("state", [DesiredState.RUNNING, DesiredState.DRAINED])
def test_only_a_paused_pipeline_is_rewound(state: DesiredState) -> None:
    """One that was resumed between plan and commit neither."""
    store, planned = paused(state)
    with pytest.raises(RewindRefusedError, match="hindcast pause p"):
        rewind_point.begin(store, "p", 1, planned, some(), RECORD)
    assert lease(store, "v1.g0.s0") == planned[0]


def test_shards_that_changed_hands_since_the_plan_are_left_alone() -> None:
    """What the plan would keep may not be all that is there."""
    store, planned = paused()
    store.commit(store.read(), [planned[0].evolve(epoch=4)])
    with pytest.raises(RewindRefusedError, match="has taken one of its shards"):
        rewind_point.begin(store, "p", 1, planned, some(), RECORD)


def refusal(store: MemoryStore, version: int = 1) -> tuple[str, str]:
    """What the rewind is refused for, and the cure."""
    with pytest.raises(RewindRefusedError) as caught:
        rewind_point.check_still("p", version, "the place", store.read().leases)
    fields = caught.value.fields
    assert (fields["pipeline"], fields["to"]) == ("p", "the place")
    return fields["problem"], fields["cure"]


def test_a_refusal_says_why_and_what_to_do() -> None:
    """A pipeline that is not still, or that has nothing to take back, is named with the place it was to go
    to.
    """
    store, planned = paused()
    rewind_point.check_still("p", 1, "the place", store.read().leases)
    problem, cure = refusal(MemoryStore())
    assert "not paused" in problem and "`hindcast pause p`" in cure
    problem, cure = refusal(store, 2)
    assert problem.startswith("version 1 is the active one and version 2") and "the version that runs" in cure
    store.commit(store.read(), [planned[1].evolve(lease_owner="w")])
    problem, cure = refusal(store)
    assert problem == "w still holds v1.g0.s1" and "`hindcast resume p`" in cure
    store.commit(store.read(), [planned[1].evolve(state=REMOVED)])
    store.commit(store.read(), [planned[1].evolve(state=ShardState.WAIT)])
    problem, cure = refusal(store)
    assert problem == "v1.g0.s1 waits for its parents" and "`hindcast resume p`" in cure
    store.commit(store.read(), [shard.evolve(state=REMOVED) for shard in planned])
    problem, cure = refusal(store)
    assert "no shards yet" in problem and "nothing to take back" in cure


def test_a_plan_that_is_out_of_date_says_to_ask_again() -> None:
    """The place is in it, as in the refusal of a pipeline that runs."""
    store, planned = paused()
    store.commit(store.read(), [planned[0].evolve(epoch=4)])
    with pytest.raises(RewindRefusedError, match="has taken one of its shards") as caught:
        rewind_point.begin(store, "p", 1, planned, some(), RECORD)
    fields = caught.value.fields
    assert (fields["pipeline"], fields["to"]) == ("p", RECORD["to"]) and "Give the command again" in fields[
        "cure"
    ]
    store, planned = paused(DesiredState.RUNNING)
    with pytest.raises(RewindRefusedError) as caught:
        rewind_point.begin(store, "p", 1, planned, some(), RECORD)
    assert caught.value.fields["to"] == RECORD["to"]


def test_a_pipeline_of_one_shard_is_rewound(stream: Simulated) -> None:
    """Its follower begins where the point says, and remembers of the rewind what the later steps need, or the
    way back.
    """
    store = MemoryStore()
    (only,) = resharding.create(store, "p", 1, 1, {0: 0, 1: 0})
    store.commit(store.read(), [wanted(DesiredState.PAUSED), only.evolve(detail={**only.detail, "more": 1})])
    found = some()
    rewind_point.begin(store, "p", 1, [only], found, RECORD)
    follower = lease(store, "v1.g1.s0")
    record = {
        **RECORD,
        "sink_version": found.sink_version,
        "last": found.last,
        "states": {"v1.g0.s0": "OPEN"},
    }
    assert follower.detail == {"partitions": [0, 1], "modulus": only.detail["modulus"], "reset": record}
    rewind_point.end(store, "p", RECORD["id"])
    assert lease(store, "v1.g1.s0").detail == {"partitions": [0, 1], "modulus": only.detail["modulus"]}
    store = MemoryStore()
    store.commit(store.read(), [wanted(DesiredState.PAUSED), only])
    rewind_point.begin(store, "p", 1, [only], found, RECORD)
    rewind_point.undo(store, "p", RECORD["id"])
    assert (lease(store, "v1.g0.s0").state, len(store.read().leases)) == ("OPEN", 2)


def recent(lease: Lease) -> bool:
    """Whether it was changed just now, in UTC."""
    at = lease.updated_at
    return (
        at is not None and at.tzinfo is UTC and timedelta(0) <= datetime.now(UTC) - at < timedelta(minutes=1)
    )


def test_each_step_dates_the_leases_that_it_changes() -> None:
    """`hindcast leases` shows when; the step that is called off, too."""
    store, planned = paused()
    store.commit(store.read(), [shard.evolve(updated_at=None) for shard in planned])
    rewind_point.begin(store, "p", 1, planned, some(), RECORD)
    assert all(recent(lease(store, name)) for name in ("v1.g0.s0", "v1.g0.s1", "v1.g1.s0", "v1.g1.s1"))
    store.commit(store.read(), [lease(store, "v1.g1.s0").evolve(updated_at=None)])
    opened = rewind_point.end(store, "p", RECORD["id"])
    assert len(opened) == 2 and all(map(recent, opened))
    store, planned = paused()
    rewind_point.begin(store, "p", 1, planned, some(), RECORD)
    store.commit(
        store.read(), [lease(store, name).evolve(updated_at=None) for name in ("v1.g0.s0", "v1.g0.s1")]
    )
    rewind_point.undo(store, "p", RECORD["id"])
    assert recent(lease(store, "v1.g0.s0")) and recent(lease(store, "v1.g0.s1"))


def others() -> list[Lease]:
    """What a rewind of p must leave as it is: a pipeline with shards of the same names, a rewind of its own,
    and rows of other kinds.
    """
    shard = Lease(
        stream_id="q", status_type=StatusType.SHARD, status_value="v1.g0.s0", state=ShardState.TERMINATED
    )
    waits = shard.evolve(
        status_value="v1.g1.s0",
        state=ShardState.WAIT,
        parent_shard_ids=["v1.g0.s0"],
        detail={"reset": RECORD},
    )
    reshard = waits.evolve(stream_id="r", detail={})
    slot = Lease(stream_id="p", status_type=StatusType.SLOT, status_value="v1.g0.s0")
    return [shard, waits, reshard, slot]


@pytest.mark.parametrize("knows_states", [True, False])
def test_a_rewind_that_is_called_off_leaves_the_shards_as_they_were(knows_states: bool) -> None:
    """In the raised epoch, each in its state; a rewind that an older Hindcast began does not tell it. Other
    pipelines are left alone.
    """
    store, planned = paused()
    planned = [planned[0], planned[1].evolve(state=ShardState.OPEN)]
    store.commit(store.read(), [others()[0].evolve(state=ShardState.OPEN)])
    store.commit(store.read(), [*planned, *others()])
    rewind_point.begin(store, "p", 1, planned, some(), RECORD)
    if not knows_states:
        waiting = [lease(store, "v1.g1.s0", "p"), lease(store, "v1.g1.s1", "p")]
        for shard in waiting:
            shard.detail["reset"].pop("states")
        store.commit(store.read(), waiting)
    assert {one.status_value for one in awaiting_rewind(store.read().leases.values(), "p")} == {
        "v1.g1.s0",
        "v1.g1.s1",
    }
    assert rewind_point.undo(store, "p", "another") == []
    assert len(rewind_point.undo(store, "p", RECORD["id"])) == 4
    assert rewind_point.undo(store, "p", RECORD["id"]) == []
    left = store.read().leases
    assert [left[one.key] for one in others()] == others()
    assert {
        one.status_value: one.state
        for one in left.values()
        if one.stream_id == "p" and one.status_type == "shard"
    } == {"v1.g0.s0": "CLOSED", "v1.g0.s1": "OPEN" if knows_states else "CLOSED"}
    assert [left[one.key].epoch for one in planned] == [one.epoch + 1 for one in planned]


def test_a_row_of_the_ledger_takes_batches_back() -> None:
    """It is of the rewind's own commit, has read nothing and made nothing, and is in the epoch that the
    reset gave the shard.
    """
    row = rewind_point.reset_row("p", 1, "t", "v1.g0.s0", 4, 9, {0: 5}, 7)
    assert row.is_reset and row.kept == 4
    assert (row.pipeline, row.version, row.topic, row.shard, row.epoch, row.sink_version) == (
        "p",
        1,
        "t",
        "v1.g0.s0",
        9,
        7,
    )
    assert row.start_offsets == row.end_offsets == {0: 5}
    assert (row.worker, row.late_watermark_ms, row.watermark_ms, row.output_rows) == ("", 0, 0, 0)
    assert row.committed_at.tzinfo is UTC and datetime.now(UTC) - row.committed_at < timedelta(minutes=1)


def test_shards_without_batches_begin_where_they_were_made() -> None:
    """By partition, over all of them."""
    _, planned = paused()
    moved = [
        shard.evolve(
            checkpoint={"start_offsets": {p: 10 + int(p) for p in shard.checkpoint["start_offsets"]}}
        )
        for shard in planned
    ]
    assert rewind_point.starts(moved) == {0: 10, 1: 11}


def test_a_rewind_waits_through_a_resume() -> None:
    """Wanting the pipeline running while its rewind is cut short starts nothing on what is half taken
    back.
    """
    store, planned = paused()
    rewind_point.begin(store, "p", 1, planned, some(), RECORD)
    DesiredStates(store).set_state("p", DesiredState.RUNNING)
    snapshot = store.read()
    assert not any(
        resharding.wanted(row, snapshot, lambda *_: True)
        for row in snapshot.leases.values()
        if row.status_type == "shard"
    )
    assert resharding.to_reshard(snapshot.leases.values()) == []


def test_the_ledger_leaves_out_what_was_taken_back(
    settings_factory: Callable[..., Settings], stream: Simulated
) -> None:
    """Also a batch that an older owner files afterwards; those of the shards that follow count."""
    tables = ControlTables(settings_factory())
    ledger = Ledger(tables)
    rows = [replace(row, pipeline="p") for row in History.of(stream.ledger).rows]
    ledger.append(rows)
    found = rewind_point.find(rows, {p: end // 2 for p, end in History.of(rows).committed.items()}, {})
    version = rows[-1].sink_version + 3
    ledger.append(
        rewind_point.reset_row("p", 1, "t", shard, last, 9, found.offsets, version)
        for shard, last in found.last.items()
    )
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
        name = f"r{number}"
        end = {0: sink_version}
        plan = RecordedPlan(
            asked="", topic="t", start={0: 0}, end=end, read_from={0: 0}, sink_version=sink_version
        )
        run = {
            "run_id": name,
            "pipeline": "p",
            "version": 1,
            "state": "succeeded",
            "plan": plan.text(),
            "finished_at": now,
        }
        tables.append(ControlTable.RUNS, [run])
        verdict = {
            "run_id": name,
            "pipeline": "p",
            "version": 1,
            "sink_version": sink_version,
            "windows_to_ms": number,
            "judged_at": now,
        }
        tables.append(ControlTable.VERDICTS, [verdict])
    assert [judged.end for judged in Runs(tables).judged_ranges("p", 1)] == [{0: 3}, {0: 8}]
    assert [judged.end for judged in Runs(tables).judged_ranges("p", 1, undone=[Undone(4, 9)])] == [{0: 3}]
