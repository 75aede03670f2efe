"""The protocol of a rewind on real tables, without a JVM: what each step leaves, and a death between any
two.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from support.crashes import die_before
from support.paused_pipeline import EPOCH, Paused, write_as
from support.simulated_platform import SINK_SCHEMA

from hindcast.errors import FenceMovedError, LeaseLostError, RangeNotYetConsumedError, RewindRefusedError
from hindcast.installation import Installation
from hindcast.partitions import ShardId, app_id, offsets_to_json
from hindcast.pipeline import Table
from hindcast.recovery.abandon_rewind import abandon
from hindcast.replay.inputs import check_not_rewound, read_ledger
from hindcast.replay.wait_for_stream import Awaited, read_progress
from hindcast.shards.shard_row import awaiting_rewind
from hindcast.tables.compaction import compact
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import BatchCommit, Fence
from hindcast.tables.ledger import Ledger
from hindcast.tables.table_names import ControlTable


def test_the_sink_is_what_it_was_and_nothing_else_stays(paused: Paused) -> None:
    """To the middle: the rows of the version that is kept, the late and poison rows of its batches, and
    shards that begin there.
    """
    found = paused.plan(paused.middle)
    was = paused.rows(found.point.sink_version)
    record = paused.rewind(paused.middle)
    assert paused.rows() == was
    assert record["rows_kept"] == was.total() > 0
    kept = {record.place for row in found.point.kept for record in paused.stream.read_in(row)}
    assert paused.filed(ControlTable.LATE_ROWS) == set(paused.stream.late) & kept != set()
    assert paused.filed(ControlTable.DEAD_LETTERS) == paused.stream.poison & kept
    in_ledger = Ledger(ControlTables(paused.settings)).batches("stock_stats", 1)
    assert in_ledger == sorted(found.point.kept, key=lambda row: (row.shard, row.batch))
    begin = {}
    for lease in paused.store.read().leases.values():
        if lease.state == "OPEN":
            begin.update({int(p): o for p, o in lease.checkpoint["start_offsets"].items()})
    assert begin == found.point.offsets
    assert all(begin[p] <= offset for p, offset in paused.middle.items())


def test_the_beginning_leaves_an_empty_table(paused: Paused) -> None:
    """And a ledger without batches."""
    paused.rewind(None)
    assert paused.rows() == Counter()
    assert paused.sink.to_pyarrow_table().schema.names == SINK_SCHEMA.names
    assert Ledger(ControlTables(paused.settings)).batches("stock_stats") == []
    assert paused.filed(ControlTable.LATE_ROWS) == paused.filed(ControlTable.DEAD_LETTERS) == set()


def test_no_replay_is_planned_beside_a_rewind(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink lacks what a rewind took back, and the ledger says so later only. Also a rewind that has ended
    since the ledger was read is noticed; an earlier one is no matter.
    """
    found = paused.plan(paused.middle)
    installation = paused.installation
    ledger = read_ledger(installation, paused.pipeline)

    def check() -> Awaited:
        with pytest.raises(RangeNotYetConsumedError) as refused:
            check_not_rewound(installation, paused.pipeline, ledger)
        awaited: Awaited = refused.value.awaited
        assert Awaited.from_json(awaited.to_json()) == awaited
        return awaited

    die_before(monkeypatch, "reset.1", partial(paused.run, found))
    check_not_rewound(installation, paused.pipeline, ledger)
    for step in range(2, 6):
        action = partial(paused.run, found) if step == 2 else paused.complete
        die_before(monkeypatch, f"reset.{step}", action)
        assert not read_progress(installation, check()).met
    paused.complete()
    progress = read_progress(installation, check())
    assert progress.met
    assert progress.paused
    check_not_rewound(installation, paused.pipeline, read_ledger(installation, paused.pipeline))


@pytest.mark.parametrize("target", ["middle", "beginning"])
def test_a_death_between_any_two_steps_ends_as_one_that_was_not_cut_short(
    paused: Paused, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Before step 1 all is as it was; after it no other rewind begins, and the same call takes the next
    steps.
    """
    found = paused.plan(paused.middle if target == "middle" else None)
    before = paused.rows()
    for step in range(1, 6):
        action = partial(paused.run, found) if step <= 2 else paused.complete
        die_before(monkeypatch, f"reset.{step}", action)
        assert bool(awaiting_rewind(paused.store.leases(), "stock_stats")) is (step > 1)
        assert (paused.rows() == before) is (step <= 2)
        if step > 1:
            with pytest.raises(RewindRefusedError, match="cut short"):
                paused.plan(None)
    assert paused.complete() is not None
    assert paused.complete() is None
    assert paused.rows().total() == found.rows_kept
    assert len(Ledger(ControlTables(paused.settings)).batches("stock_stats")) == len(found.point.kept)
    assert sum('"reset"' in str(entry.get("hindcast")) for entry in paused.sink.history()) == 1


def test_an_owner_that_wakes_writes_nothing_any_more(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it committed before step 2 goes with the rest; after it, its commits and its late rows are
    refused, its ledger rows unread.
    """
    found = paused.plan(paused.middle)
    die_before(monkeypatch, "reset.2", partial(paused.run, found))
    zombie = paused.app()
    last = zombie.recorded()
    assert last is not None
    woken = Fence(last.epoch, last.batch + 1)
    assert zombie.commit(woken, [], after=last) > 0
    assert paused.complete() is not None
    with pytest.raises((LeaseLostError, FenceMovedError)):
        zombie.commit(Fence(last.epoch, woken.batch + 1), [], after=woken)
    audit = paused.app(table=ControlTables(paused.settings).url(ControlTable.LATE_ROWS))
    with pytest.raises(LeaseLostError):
        audit.commit(woken, [], after=last)
    ledger = Ledger(ControlTables(paused.settings))
    late = next(row for row in found.point.undone if row.shard == "v1.g0.s0")
    ledger.append([replace(late, batch=woken.batch)])
    assert len(ledger.batches("stock_stats")) == len(found.point.kept)


def test_files_that_were_joined_since_are_parted_again(paused: Paused) -> None:
    """A compaction has moved rows that are kept and rows that are taken back into one file."""
    found = paused.plan(paused.middle)
    was = paused.rows(found.point.sink_version)
    compact(paused.sink, {})
    assert len(paused.sink.file_uris()) == 1
    paused.rewind(paused.middle)
    assert paused.rows() == was


def test_a_compaction_that_is_under_way_is_refused(paused: Paused) -> None:
    """It has read files that the rewind took out; landing after it would bring their rows back."""
    stale = paused.sink
    version = stale.version()
    paused.rewind(paused.middle)
    rows = paused.rows()
    alone = CommitProperties(app_transactions=[Transaction("hindcast/compaction", version)])
    with pytest.raises(Exception, match=r"(?i)conflict|concurrent|transaction"):
        stale.create_write_transaction([], "append", stale.schema(), commit_properties=alone)
    assert paused.rows() == rows


def test_a_rewind_follows_a_rewind(paused: Paused) -> None:
    """The second one counts what the first has kept, and no more."""
    first = paused.rewind(paused.middle)
    with pytest.raises(RewindRefusedError, match="nothing was read after it"):
        paused.plan({int(p): ends[0] for p, ends in first["partitions"].items()})
    second = paused.rewind({int(p): ends[0] // 2 for p, ends in first["partitions"].items()})
    assert second["rows_kept"] + second["rows_replaced"] == first["rows_kept"]
    assert paused.rows().total() == second["rows_kept"]
    rows = ControlTables(paused.settings).rows(ControlTable.CHECKPOINTS)
    taken_back = [(row["shard"], row["epoch"]) for row in rows if row["batch"] < 0]
    # Once by the first rewind, and once by the second: of an older generation no epoch is raised.
    assert taken_back.count(("v1.g0.s0", EPOCH + 1)) == 1
    assert taken_back.count(("v1.g0.s0", 0)) == 1
    opened = [name for name, state in paused.states().items() if state == "OPEN"]
    assert {ShardId.parse(name).generation for name in opened} == {2}


def test_a_table_that_another_wrote_to_since_the_plan_is_not_restored(paused: Paused) -> None:
    """A person reads the plan before the rewind is done: another writer of that time is found, too, and the
    leases stay as they are.
    """
    plan = paused.plan(None)
    write_as(paused.sink_url, "bar/v1/v1.g0.s0")
    leases = dict(paused.store.read().leases)
    with pytest.raises(RewindRefusedError, match="bar, version 1, has written"):
        paused.run(plan)
    assert dict(paused.store.read().leases) == leases


def test_a_late_sink_of_its_own_is_emptied_at_the_beginning_alone(paused: Paused) -> None:
    """Its rows do not say which batch they are of; an owner that was thought dead adds no more."""
    url = paused.settings.table("sinks", "too_late")
    paused.pipeline = replace(paused.pipeline, late=lambda rows: rows, late_sink=Table("too_late"))
    assert "too_late do not say which batch" in paused.refusal(paused.middle)["problem"]
    DeltaTable.create(url, SINK_SCHEMA)
    apps = [app_id("stock_stats", name) for name in ("v1.g0.s0", "v1.g0.s1")]
    for app in apps:
        write_as(url, app)
    paused.rewind(None)
    assert len(DeltaTable(url).to_pyarrow_table()) == 0
    assert [Fence.of(DeltaTable(url).transaction_version(app)) for app in apps] == [Fence(EPOCH + 1, 1)] * 2
    with pytest.raises(LeaseLostError):
        paused.app(table=url).commit(Fence(EPOCH, 2), [], after=Fence(EPOCH, 1))


def test_a_late_sink_that_has_no_row_yet_is_not_made(paused: Paused) -> None:
    """It is made with the first late row."""
    paused.pipeline = replace(paused.pipeline, late=lambda rows: rows, late_sink=Table("too_late"))
    paused.rewind(None)
    assert not Path(paused.settings.table("sinks", "too_late")).exists()


def test_rows_of_others_in_the_shared_tables_stay(paused: Paused) -> None:
    """Late and poison rows of another pipeline, and of another version of this one, are not this
    rewind's to delete.
    """
    tables = ControlTables(paused.settings)
    other = {"pipeline": "bar", "shard": "v1.g0.s0", "batch": 99, "partition": 100, "offset": 1}
    later = {"pipeline": "stock_stats", "shard": "v2.g0.s0", "batch": 99, "partition": 101, "offset": 1}
    for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
        tables.append(name, [other, later])
    paused.rewind(None)
    for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
        assert paused.filed(name) == {(100, 1), (101, 1)}


def test_each_end_of_a_rewind_is_an_event(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning, that it was called off, and the end of another one; each with the record of its rewind."""
    found = paused.plan(paused.middle)
    die_before(monkeypatch, "reset.2", partial(paused.rewind, paused.middle))
    abandon(paused.installation, paused.pipeline, by="you", reason="")
    record = paused.rewind(paused.middle)
    assert (record["by"], record["reason"], record["rows_kept"]) == ("me", "a test", found.rows_kept)
    rows = sorted(ControlTables(paused.settings).rows(ControlTable.EVENTS), key=lambda row: row["at"])
    kinds = ["pipeline_rewinding", "pipeline_rewind_abandoned", "pipeline_rewinding", "pipeline_rewound"]
    assert [row["kind"] for row in rows] == kinds
    for row in rows:
        assert row["pipeline"] == "stock_stats"
        assert found.to in row["message"]
    ids = [json.loads(row["detail"])["id"] for row in rows]
    assert ids[0] == ids[1] != ids[2] == ids[3] == record["id"]
    assert rows[0]["message"] == f"me rewinds stock_stats to {found.to}: a test."
    assert rows[1]["message"].startswith("you called off the rewind of stock_stats")
    assert rows[1]["message"].endswith("no reason given.")


def test_a_rewind_that_is_refused_is_no_event(paused: Paused) -> None:
    """Nothing has begun."""
    plan = paused.plan(None)
    write_as(paused.sink_url, "bar/v1/v1.g0.s0")
    with pytest.raises(RewindRefusedError):
        paused.run(plan)
    assert ControlTables(paused.settings).rows(ControlTable.EVENTS) == []


def test_every_access_of_a_rewind_has_the_stores_options(
    paused: Paused, options_seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its plan, its steps and the commit that calls it off; those to a table for late rows, too."""
    options = {"allow_http": "true"}
    paused.installation = Installation(paused.settings.model_copy(update={"storage_options": options}))
    url = paused.settings.table("sinks", "too_late")
    DeltaTable.create(url, SINK_SCHEMA)
    options_seen.clear()
    die_before(monkeypatch, "reset.2", partial(paused.rewind, paused.middle))
    paused.abandon()
    paused.rewind(paused.middle)
    paused.pipeline = replace(paused.pipeline, late=lambda rows: rows, late_sink=Table("too_late"))
    paused.rewind(None)
    assert len(options_seen) > 50
    assert set(map(str, options_seen)) == {"{'allow_http': 'true'}"}


def test_the_commit_of_a_rewind_says_what_it_is(paused: Paused) -> None:
    """Readers of the sink's log tell it from a batch; it has read nothing, and the fence of each shard keeps
    its batch in the new epoch.
    """
    fences = {name: paused.app(name).recorded() for name in ("v1.g0.s0", "v1.g0.s1")}
    found = paused.plan(paused.middle)
    record = paused.rewind(paused.middle)
    (entry,) = [entry for entry in paused.sink.history() if entry.get("hindcast_reset") == record["id"]]
    commit = BatchCommit.from_history(entry)
    assert (commit.kind, commit.pipeline, commit.version, commit.worker) == ("reset", "stock_stats", 1, "me")
    assert (commit.shard, commit.epoch, commit.batch) == ("", 0, 0)
    assert (commit.watermark_ms, commit.late_watermark_ms) == (0, 0)
    assert commit.start_offsets == commit.end_offsets == found.point.offsets
    for name, before in fences.items():
        assert before is not None
        assert paused.app(name).recorded() == Fence(EPOCH + 1, before.batch)
    rows = [row for row in ControlTables(paused.settings).rows(ControlTable.CHECKPOINTS) if row["batch"] < 0]
    assert {row["shard"]: -1 - row["batch"] for row in rows} == found.point.last
    for row in rows:
        assert (row["pipeline"], row["version"], row["topic"]) == ("stock_stats", 1, "trades")
        assert (row["epoch"], row["sink_version"]) == (EPOCH + 1, entry["version"])
        assert row["start_offsets"] == row["end_offsets"] == offsets_to_json(found.point.offsets)


def test_a_shard_that_had_no_batch_is_fenced_too(paused: Paused) -> None:
    """Its first batch may be under way: it is refused, and its ledger says that none is kept."""
    paused.add_idle_shard("v1.g0.s2")
    paused.rewind(None)
    assert paused.app("v1.g0.s2").recorded() == Fence(EPOCH + 1, 0)
    with pytest.raises(LeaseLostError):
        paused.app("v1.g0.s2").commit(Fence(EPOCH, 1), [], after=None)
    rows = ControlTables(paused.settings).rows(ControlTable.CHECKPOINTS, [("shard", "=", "v1.g0.s2")])
    assert [(row["batch"], row["epoch"]) for row in rows] == [(-1, EPOCH + 1)]
