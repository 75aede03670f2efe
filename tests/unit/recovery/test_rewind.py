"""The protocol of a rewind on real tables, without a JVM: what each step leaves, and a death between any two of them."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from support.shard_harness import CrashError, crash_at
from support.simulated_platform import SINK_SCHEMA, store
from support.simulated_stream import Simulated, simulate, trades

from hindcast import catalog
from hindcast.delta.application_ids import applications
from hindcast.errors import FenceMovedError, LeaseLostError, RewindRefusedError, StoreUnavailableError
from hindcast.leases.lease import ShardState
from hindcast.partitions import Offsets, ShardId, app_id, offsets_to_json
from hindcast.pipeline import Pipeline, Table
from hindcast.recovery import rewind as reset
from hindcast.settings import Settings, project_root
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import DesiredState
from hindcast.tables.compaction import COMPACTION, compact
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable
from hindcast.tables.ledger import Ledger
from hindcast.tables.ledger_history import History
from hindcast.tables.schema import ControlTable
from hindcast.testing import MemoryStore

EPOCH = 1
#: Hours for which Delta keeps a file that was replaced.
WEEK = 7 * 24


@dataclass
class Broker:
    """What a broker answers of the topic's partitions: where each begins and ends, and which offset the asked time has."""

    earliest: Offsets
    latest: Offsets
    at: Offsets


@dataclass
class Paused:
    """A pipeline of two shards that has streamed, and is paused."""

    settings: Settings
    store: MemoryStore
    pipeline: Pipeline
    stream: Simulated
    broker: Broker

    @property
    def sink(self) -> DeltaTable:
        return DeltaTable(self.settings.table("sinks", self.pipeline.sink.name))

    def rows(self) -> Counter[str]:
        return Counter(map(str, self.sink.to_pyarrow_table().to_pylist()))

    def filed(self, name: ControlTable) -> set[tuple[int, int]]:
        return {(row["partition"], row["offset"]) for row in ControlTables(self.settings).rows(name)}

    def plan(self, target: Offsets | datetime | None) -> reset.RewindPlan:
        return reset.make_plan(self.settings, self.store, self.pipeline, target)

    def rewind(self, target: Offsets | None) -> dict[str, Any]:
        return reset.run(self.settings, self.store, self.pipeline, self.plan(target), by="me", reason="a test")

    def carry_on(self) -> dict[str, Any] | None:
        return reset.carry_on(self.settings, self.store, self.pipeline)

    def abandon(self) -> dict[str, Any] | None:
        return reset.abandon(self.settings, self.store, self.pipeline, by="me", reason="a test")

    def app(self, name: str = "v1.g0.s0", table: str = "") -> FencedTable:
        return FencedTable(table or self.settings.table("sinks", self.pipeline.sink.name), {}, app_id(self.pipeline.name, name))

    @property
    def middle(self) -> Offsets:
        return {p: end // 2 for p, end in History.of(self.stream.ledger).committed.items()}


@pytest.fixture
def paused(settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> Paused:
    stream = simulate(trades(4, count=400, partitions=4, rate_ms=100.0), seed=4, shards=2, even=True)
    stream.ledger = [replace(row, batch=row.batch + 1) for row in stream.ledger]
    settings, leases = settings_factory(), MemoryStore()
    store(settings, stream, "stock_stats")
    pipeline = replace(catalog.load(project_root() / "include" / "pipelines")["stock_stats"], shards=2)
    made = resharding.create(leases, "stock_stats", 1, 2, dict.fromkeys(range(4), 0))
    leases.commit(leases.read(), [lease.evolve(epoch=EPOCH, state=ShardState.CLOSED) for lease in made])
    states = DesiredStates(leases)
    states.declare(pipeline, 1)
    states.set_state("stock_stats", DesiredState.PAUSED)
    ends = History.of(stream.ledger).committed
    broker = Broker(dict.fromkeys(ends, 0), dict(ends), {})  # it has dropped nothing

    class Asked:
        """Asks that broker."""

        def __init__(self, *_: Any) -> None: ...
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...
        def earliest(self, topic: str) -> dict[int, int]:
            assert topic == "trades"
            return broker.earliest

        def latest(self, topic: str) -> dict[int, int]:
            assert topic == "trades"
            return broker.latest

        def at_time(self, topic: str, at: datetime) -> dict[int, int]:
            assert (topic, at.tzinfo) == ("trades", UTC)
            return broker.at

    monkeypatch.setattr(reset, "TopicOffsets", Asked)
    return Paused(settings, leases, pipeline, stream, broker)


def test_the_sink_is_what_it_was_and_nothing_else_stays(paused: Paused) -> None:
    """To the middle: the rows of the version that is kept, the late and poison rows of its batches, and shards that begin there."""
    found = paused.plan(paused.middle)
    was = Counter(map(str, DeltaTable(paused.sink.table_uri, version=found.cut.sink_version).to_pyarrow_table().to_pylist()))
    told = paused.rewind(paused.middle)
    assert paused.rows() == was and told["rows_kept"] == was.total() > 0
    kept = {record.place for row in found.cut.kept for record in paused.stream.read_in(row)}
    assert paused.filed(ControlTable.LATE_ROWS) == set(paused.stream.late) & kept != set()
    assert paused.filed(ControlTable.DEAD_LETTERS) == paused.stream.poison & kept
    assert Ledger(ControlTables(paused.settings)).batches("stock_stats", 1) == sorted(
        found.cut.kept, key=lambda row: (row.shard, row.batch)
    )
    opened = [lease for lease in paused.store.read().leases.values() if lease.state == "OPEN"]
    begin = {int(p): o for lease in opened for p, o in lease.checkpoint["start_offsets"].items()}
    assert begin == found.cut.offsets and all(begin[p] <= offset for p, offset in paused.middle.items())


def test_the_beginning_leaves_an_empty_table(paused: Paused) -> None:
    """And a ledger without batches."""
    paused.rewind(None)
    assert paused.rows() == Counter() and paused.sink.to_pyarrow_table().schema.names == SINK_SCHEMA.names
    assert Ledger(ControlTables(paused.settings)).batches("stock_stats") == []
    assert paused.filed(ControlTable.LATE_ROWS) == paused.filed(ControlTable.DEAD_LETTERS) == set()


@pytest.mark.parametrize("target", ["middle", "beginning"])
def test_a_death_between_any_two_steps_ends_as_one_that_was_not_cut_short(
    paused: Paused, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Before step 1 all is as it was; after it no other rewind begins, and the same call goes on."""
    found = paused.plan(paused.middle if target == "middle" else None)
    before = paused.rows()
    for step in range(1, 6):
        crash_at(monkeypatch, f"reset.{step}", 1)
        what = partial(reset.run, plan=found, by="me", reason="") if step <= 2 else reset.carry_on
        with pytest.raises(CrashError):
            what(paused.settings, paused.store, paused.pipeline)
        assert bool(reset.rewind_point.unfinished(paused.store.read().leases, "stock_stats")) is (step > 1)
        assert (paused.rows() == before) is (step <= 2)
        if step > 1:
            with pytest.raises(RewindRefusedError, match="cut short"):
                paused.plan(None)
    crash_at(monkeypatch, "", 1)
    assert paused.carry_on() is not None
    assert paused.carry_on() is None
    assert paused.rows().total() == found.rows_kept
    assert len(Ledger(ControlTables(paused.settings)).batches("stock_stats")) == len(found.cut.kept)
    assert sum('"reset"' in str(entry.get("hindcast")) for entry in paused.sink.history()) == 1


def test_an_owner_that_wakes_writes_nothing_any_more(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it committed before step 2 goes with the rest; after it, its commits and its late rows are refused, its ledger rows unread."""
    found = paused.plan(paused.middle)
    crash_at(monkeypatch, "reset.2", 1)
    with pytest.raises(CrashError):
        reset.run(paused.settings, paused.store, paused.pipeline, found, by="me", reason="")
    crash_at(monkeypatch, "", 1)
    zombie = paused.app()
    last = zombie.recorded()
    assert last is not None
    woken = Fence(last.epoch, last.batch + 1)
    assert zombie.commit(woken, [], after=last) > 0
    assert paused.carry_on() is not None
    with pytest.raises((LeaseLostError, FenceMovedError)):
        zombie.commit(Fence(last.epoch, woken.batch + 1), [], after=woken)
    audit = paused.app(table=ControlTables(paused.settings).url(ControlTable.LATE_ROWS))
    with pytest.raises(LeaseLostError):
        audit.commit(woken, [], after=last)
    ledger = Ledger(ControlTables(paused.settings))
    late = next(row for row in found.cut.undone if row.shard == "v1.g0.s0")
    ledger.append([replace(late, batch=woken.batch)])
    assert len(ledger.batches("stock_stats")) == len(found.cut.kept)


def test_files_that_were_joined_since_are_parted_again(paused: Paused) -> None:
    """A compaction has moved rows that are kept and rows that are taken back into one file."""
    found = paused.plan(paused.middle)
    was = Counter(map(str, DeltaTable(paused.sink.table_uri, version=found.cut.sink_version).to_pyarrow_table().to_pylist()))
    compact(paused.sink, {})
    assert len(paused.sink.file_uris()) == 1
    paused.rewind(paused.middle)
    assert paused.rows() == was


def test_a_compaction_that_is_under_way_is_refused(paused: Paused) -> None:
    """It has read files that the reset took out; landing beside it would bring their rows back."""
    stale = paused.sink
    version = stale.version()
    paused.rewind(paused.middle)
    rows = paused.rows()
    alone = CommitProperties(app_transactions=[Transaction("hindcast/compaction", version)])
    with pytest.raises(Exception, match=r"(?i)conflict|concurrent|transaction"):
        stale.create_write_transaction([], "append", stale.schema(), commit_properties=alone)
    assert paused.rows() == rows


def replaced(paused: Paused, hours: float) -> None:
    """All files of the sink give way to one with the same rows, as if so many hours ago."""
    sink, now = paused.sink, time.time()
    rows = sink.to_pyarrow_table()
    path = Path(paused.settings.table("sinks", paused.pipeline.sink.name)) / f"joined-{uuid.uuid4().hex}.parquet"
    pq.write_table(rows, path)
    added = AddAction(path.name, path.stat().st_size, {}, int(now * 1000), False, f'{{"numRecords": {rows.num_rows}}}')
    at_ms = int((now - hours * 3600) * 1000)
    paths = pa.table(sink.get_add_actions())["path"].to_pylist()
    sink.create_write_transaction([added, *(RemoveAction(path, False, at_ms) for path in paths)], "append", sink.schema())


def vacuum(paused: Paused) -> None:
    """Delete all that no commit names now, as a vacuum does after the retention."""
    paused.sink.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def states(paused: Paused) -> dict[str, str]:
    return {key.status_value: lease.state for key, lease in paused.store.read().leases.items() if key.status_type == "shard"}


def cut_short(paused: Paused, monkeypatch: pytest.MonkeyPatch, step: str, what: Callable[[], Any]) -> None:
    """Do it and die before the step."""
    crash_at(monkeypatch, step, 1)
    with pytest.raises(CrashError):
        what()
    crash_at(monkeypatch, "", 1)


@pytest.mark.parametrize(("hours", "refused"), [(WEEK + 1, True), (WEEK - 23, True), (WEEK - 25, False), (0, False)])
def test_files_near_the_retention_are_refused(paused: Paused, hours: float, refused: bool) -> None:
    """They are still there, but a vacuum may delete them meanwhile. Files that are still named have no age."""
    found = paused.plan(paused.middle)
    replaced(paused, hours)
    if not refused:
        assert paused.rewind(paused.middle)["rows_kept"] == found.rows_kept == paused.rows().total()
        return
    with pytest.raises(RewindRefusedError, match=f"version {found.cut.sink_version} of its sink is too near to Delta's retention"):
        paused.plan(paused.middle)
    assert paused.rewind(None)["rows_kept"] == 0, "the beginning needs no file"


def test_the_retention_of_the_table_itself_counts(paused: Paused) -> None:
    """In whatever unit it is written; nothing is far enough from one that is shorter than the margin."""
    replaced(paused, 30)
    for retention, refused in (
        ("interval 3 days", False),
        ("interval 53 hours", True),
        ("interval 2 weeks", False),
        ("interval 9 minutes", True),
    ):
        paused.sink.alter.set_table_properties({"delta.deletedFileRetentionDuration": retention})
        if refused:
            with pytest.raises(RewindRefusedError, match="retention"):
                paused.plan(paused.middle)
        else:
            assert paused.plan(paused.middle).rows_kept > 0


@pytest.mark.parametrize("step", range(1, 6))
def test_a_vacuum_between_any_two_steps_leaves_a_way(paused: Paused, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Before the table is put back its files may go: then all can be as before. Afterwards none is needed that could go."""
    replaced(paused, 0)
    found, before, stood = paused.plan(paused.middle), paused.rows(), states(paused)
    begin = partial(reset.run, paused.settings, paused.store, paused.pipeline, found, by="me", reason="")
    cut_short(paused, monkeypatch, f"reset.{step}", begin)
    vacuum(paused)
    if step > 2:
        assert paused.carry_on() is not None
        assert paused.rows().total() == found.rows_kept
        return
    if step == 2:
        with pytest.raises(RewindRefusedError, match=r"retention.*--abandon"):
            paused.carry_on()
        assert paused.abandon() is not None
    assert (paused.rows(), states(paused)) == (before, stood)
    with pytest.raises(RewindRefusedError, match="later place, or to the beginning"):
        paused.plan(paused.middle)
    assert paused.rewind(None)["rows_kept"] == 0


def test_a_vacuum_that_began_before_the_table_is_put_back_finds_nothing_to_delete(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewind that was cut short is carried on days later: what came near the retention since is not named again."""
    replaced(paused, WEEK - 0.5)
    before = paused.rows()
    monkeypatch.setattr(reset, "PLAN_MARGIN_HOURS", 0)
    with pytest.raises(RewindRefusedError, match=r"too near to Delta's retention.*--abandon"):
        paused.rewind(paused.middle)
    assert paused.abandon() is not None
    assert paused.rows() == before


@pytest.mark.parametrize("step", [1, 2])
def test_a_death_while_it_is_called_off_is_ended_by_the_same_call(paused: Paused, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Leases and rows as before, in a raised epoch: an owner that was thought dead writes nothing, the next one does."""
    found, before, stood = paused.plan(paused.middle), paused.rows(), states(paused)
    run = partial(reset.run, paused.settings, paused.store, paused.pipeline, found, by="me", reason="")
    cut_short(paused, monkeypatch, "reset.2", run)
    cut_short(paused, monkeypatch, f"abandon.{step}", paused.abandon)
    if step == 2:
        with pytest.raises(RewindRefusedError, match="it was called off"):
            paused.carry_on()
    assert paused.abandon() is not None
    assert (paused.rows(), states(paused)) == (before, stood)
    assert paused.abandon() is None and paused.carry_on() is None
    zombie = paused.app()
    last = zombie.recorded()
    assert last is not None and last.epoch == EPOCH + 1
    with pytest.raises(LeaseLostError):
        zombie.commit(Fence(EPOCH, last.batch + 1), [], after=last)
    assert zombie.commit(Fence(EPOCH + 2, last.batch), [], after=last) > 0
    kinds = {row["kind"] for row in ControlTables(paused.settings).rows(ControlTable.EVENTS)}
    assert {"pipeline_rewinding", "pipeline_rewind_abandoned"} <= kinds
    assert paused.rewind(paused.middle)["rows_kept"] == found.rows_kept == paused.rows().total()


def test_of_calling_off_and_putting_back_only_one_lands(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is about to put the table back while another one calls it off takes no step any more; the other way round it is refused."""
    commit, before, stood = reset._commit, paused.rows(), states(paused)

    def overtaken(table: Any, pipeline: Any, begun: Any, kind: str, *rest: Any) -> int:
        monkeypatch.setattr(reset, "_commit", commit)
        assert paused.abandon() is not None
        return commit(table, pipeline, begun, kind, *rest)

    monkeypatch.setattr(reset, "_commit", overtaken)
    with pytest.raises(RewindRefusedError, match="it was called off"):
        paused.rewind(paused.middle)
    assert (paused.rows(), states(paused)) == (before, stood)
    found = paused.plan(paused.middle)
    cut_short(paused, monkeypatch, "reset.3", partial(reset.run, paused.settings, paused.store, paused.pipeline, found, by="me", reason=""))
    with pytest.raises(RewindRefusedError, match="put back already"):
        paused.abandon()
    assert paused.carry_on() is not None
    assert paused.rows().total() == found.rows_kept


def test_a_rewind_follows_a_rewind(paused: Paused) -> None:
    """The second one counts what the first has kept, and no more."""
    first = paused.rewind(paused.middle)
    with pytest.raises(RewindRefusedError, match="nothing was read after it"):
        paused.plan({int(p): ends[0] for p, ends in first["partitions"].items()})
    second = paused.rewind({int(p): ends[0] // 2 for p, ends in first["partitions"].items()})
    assert second["rows_kept"] + second["rows_replaced"] == first["rows_kept"]
    assert paused.rows().total() == second["rows_kept"]
    assert {ShardId.parse(lease.status_value).generation for lease in paused.store.read().leases.values() if lease.state == "OPEN"} == {2}


def _write_as(url: str, app: str, schema: pa.Schema = SINK_SCHEMA) -> None:
    """Append a row as another application would."""
    row = dict.fromkeys(schema.names)
    properties = CommitProperties(app_transactions=[Transaction(app, 1)])
    write_deltalake(url, pa.Table.from_pylist([row], schema=schema), mode="append", commit_properties=properties)


@pytest.mark.parametrize("app", ["bar/v1/v1.g0.s0", "stock_stats/v2/v2.g0.s0"])
@pytest.mark.parametrize("late", [False, True], ids=["sink", "late_sink"])
def test_a_table_that_another_writes_to_is_not_put_back(paused: Paused, app: str, late: bool) -> None:
    """A rewind replaces all files of a table: if another pipeline or version has committed to it, nothing is changed and it is named."""
    url = paused.settings.table("sinks", "stock_stats")
    if late:
        url = paused.settings.table("sinks", "too_late")
        DeltaTable.create(url, SINK_SCHEMA)
        paused.pipeline = replace(paused.pipeline, late=lambda rows: rows, late_sink=Table("too_late"))
    _write_as(url, app)
    before = DeltaTable(url).version()
    name, version, _ = app.split("/")
    with pytest.raises(RewindRefusedError, match=f"{name}, version {version[1:]}, has written to {url}"):
        paused.plan(None)
    assert DeltaTable(url).version() == before


def test_a_table_that_another_wrote_to_since_the_plan_is_not_put_back(paused: Paused) -> None:
    """A person reads the plan before the rewind is done: who wrote meanwhile is found, too, and the leases stay as they are."""
    plan = paused.plan(None)
    _write_as(paused.sink.table_uri, "bar/v1/v1.g0.s0")
    leases = dict(paused.store.read().leases)
    with pytest.raises(RewindRefusedError, match="bar, version 1, has written"):
        reset.run(paused.settings, paused.store, paused.pipeline, plan, by="me", reason="")
    assert dict(paused.store.read().leases) == leases


def test_who_wrote_before_a_checkpoint_is_still_known(paused: Paused) -> None:
    """A table's log drops old commits; the applications stay in its checkpoint. Tidying a table is no one's writing."""
    _write_as(paused.sink.table_uri, "bar/v1/v1.g0.s0")
    compact(paused.sink, {})
    paused.sink.create_checkpoint()
    log = Path(paused.sink.table_uri) / "_delta_log"
    for commit in log.glob("*.json"):
        commit.unlink()
    _write_as(paused.sink.table_uri, "baz/v3/v3.g0.s0")
    assert applications(paused.sink.table_uri, {}) >= {"bar/v1/v1.g0.s0", "baz/v3/v3.g0.s0", COMPACTION}
    assert sorted(reset.others(paused.settings, paused.pipeline)) == ["bar, version 1,", "baz, version 3,"]


def test_what_is_not_exact_is_refused_with_the_cure(paused: Paused) -> None:
    """State that depends on batches begins anew, or not at all."""
    declared = replace(paused.pipeline, re_execute=True)
    with pytest.raises(RewindRefusedError, match="--to earliest"):
        reset.make_plan(paused.settings, paused.store, declared, paused.middle)
    assert reset.make_plan(paused.settings, paused.store, declared, None).rows_kept == 0


def refusal(paused: Paused, target: Offsets | datetime | None) -> dict[str, Any]:
    """What a plan is refused with: problem, cure, pipeline and place."""
    with pytest.raises(RewindRefusedError) as caught:
        paused.plan(target)
    assert caught.value.fields["pipeline"] == "stock_stats"
    return caught.value.fields


def test_a_time_leads_to_the_offsets_that_it_had(paused: Paused) -> None:
    """No further than the stream has read, and whatever records a partition has that it has not read at all."""
    paused.broker.at = {**paused.middle, 0: 1_000_000, 9: 7}
    paused.broker.latest[9] = 8
    at = datetime.now(UTC) - timedelta(hours=1)
    by_time, by_offsets = paused.plan(at), paused.plan({**paused.middle, 0: paused.broker.latest[0]})
    assert (by_time.cut, by_time.to) == (by_offsets.cut, at.isoformat())
    assert by_offsets.to == offsets_to_json({**paused.middle, 0: paused.broker.latest[0]})
    assert paused.plan(None).to == "the beginning"


def test_a_rewind_does_not_lead_forward(paused: Paused) -> None:
    """Neither to a time that has not come, nor to a partition that is not there, nor past what is read."""
    at = datetime.now(UTC) + timedelta(hours=1)
    told = refusal(paused, at)
    assert (told["to"], told["problem"]) == (at.isoformat(), "that time has not come") and "earlier time" in told["cure"]
    told = refusal(paused, {8: 0, 7: 0, 1: 0})
    assert told["problem"] == "it has no partition 7, 8" and told["cure"] == "Its partitions are 0, 1, 2, 3."
    end = paused.broker.latest[2]
    told = refusal(paused, {2: end + 1})
    assert told["problem"] == f"partition 2 is read up to {end}, before {end + 1}" and "smaller offsets" in told["cure"]
    told = refusal(paused, paused.broker.latest)
    assert told["problem"] == "nothing was read after it" and "earlier place" in told["cure"]
    paused.broker.latest[9] = 3
    assert refusal(paused, {9: 1})["problem"] == "partition 9 is read up to 0, before 1"


def test_a_topic_that_was_made_anew_is_not_read_again(paused: Paused) -> None:
    """It ends before the place, or lacks the partition: the records that would be read are others."""
    place = paused.plan(paused.middle).cut.offsets[1]
    paused.broker.latest[1] = place
    paused.plan(paused.middle)
    paused.broker.latest[1] = place - 1
    assert refusal(paused, paused.middle)["problem"] == f"the topic's partition 1 does not reach offset {place}: it was made anew"
    del paused.broker.latest[1]
    told = refusal(paused, None)
    assert told["problem"] == "the topic's partition 1 does not reach offset 0: it was made anew" and "Restore the topic" in told["cure"]


@pytest.mark.parametrize("archive", [False, True])
def test_what_the_topic_has_dropped_is_not_read_again(paused: Paused, archive: bool) -> None:
    """Where an archive has it, the batch that replays it is named."""
    paused.pipeline = replace(paused.pipeline, source=replace(paused.pipeline.source, archive=archive))
    paused.broker.earliest[3] = 1
    told = refusal(paused, None)
    assert "not all of it could be read again" in told["problem"] and "[0, 1)" not in told["problem"]
    assert "later place" in told["cure"] and offsets_to_json(paused.broker.earliest) in told["cure"]
    assert ("the archive of trades holds, `hindcast correct stock_stats`" in told["cure"]) is archive


def test_what_is_kept_must_be_in_the_ledger_and_filed(paused: Paused) -> None:
    """A batch that the ledger lacks would come back; late and poison rows that are not filed yet would be lost."""
    shutil.rmtree(ControlTables(paused.settings).url(ControlTable.LATE_ROWS))
    told = refusal(paused, paused.middle)
    assert told["problem"].startswith("late and poison rows of v1.g0.s") and "`hindcast resume stock_stats`" in told["cure"]
    assert paused.plan(None).rows_kept == 0, "the beginning keeps none"
    last = paused.app().recorded()
    assert last is not None
    paused.app().commit(Fence(last.epoch, last.batch + 1), [], after=last)
    told = refusal(paused, None)
    assert told["problem"] == "the ledger lacks the last batch of v1.g0.s0" and "`hindcast resume stock_stats`" in told["cure"]


def test_a_late_sink_of_its_own_is_emptied_at_the_beginning_alone(paused: Paused) -> None:
    """Its rows do not say which batch they are of; an owner that was thought dead adds no more."""
    url = paused.settings.table("sinks", "too_late")
    paused.pipeline = replace(paused.pipeline, late=lambda rows: rows, late_sink=Table("too_late"))
    assert "too_late does not say which batch" in refusal(paused, paused.middle)["problem"]
    DeltaTable.create(url, SINK_SCHEMA)
    apps = [app_id("stock_stats", name) for name in ("v1.g0.s0", "v1.g0.s1")]
    for app in apps:
        _write_as(url, app)
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
    """Late and poison rows of another pipeline, and of another version of this one, are not this reset's to delete."""
    tables = ControlTables(paused.settings)
    for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
        for number, (pipeline, shard) in enumerate((("bar", "v1.g0.s0"), ("stock_stats", "v2.g0.s0"))):
            tables.append(name, [{"pipeline": pipeline, "shard": shard, "batch": 99, "partition": 100 + number, "offset": 1}])
    paused.rewind(None)
    for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
        assert paused.filed(name) == {(100, 1), (101, 1)}


def test_a_plan_tells_what_it_would_do(paused: Paused) -> None:
    """By partition where it would go on and where it is; records are counted where batches were measured, else offsets are."""
    ends = History.of(paused.stream.ledger).committed
    plan = paused.plan({p: end * 9 // 10 for p, end in ends.items()})
    told = plan.as_dict()
    assert told["partitions"] == {str(p): [offset, ends[p]] for p, offset in plan.cut.offsets.items()}
    assert told["records_estimated"] == sum(row.input_rows or 0 for row in plan.cut.undone)
    assert (told["pipeline"], told["to"]) == ("stock_stats", plan.to)
    assert (told["batches_taken_back"], told["sink_version"]) == (len(plan.cut.undone), plan.cut.sink_version)
    assert told["rows_replaced"] + told["rows_kept"] == paused.rows().total() and told["rows_kept"] == plan.rows_kept
    assert told["windows_after"] == datetime.fromtimestamp(min(plan.cut.floors.values()) / 1000, UTC).isoformat()
    unmeasured = replace(plan.cut, undone=(replace(plan.cut.undone[0], input_rows=None), *plan.cut.undone[1:]))
    offsets = sum(ends[p] - offset for p, offset in plan.cut.offsets.items())
    assert replace(plan, cut=unmeasured).as_dict()["records_estimated"] == offsets
    unread = replace(unmeasured, offsets={**plan.cut.offsets, 9: 4})
    assert replace(plan, cut=unread).as_dict()["records_estimated"] == offsets
    assert replace(plan, cut=unread).as_dict()["partitions"]["9"] == [4, 4]
    assert paused.plan(None).as_dict()["windows_after"] is None


def test_each_end_of_a_rewind_is_told(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning is a warning with the ways out, in case that nothing follows; its end and its calling off need no cure."""
    found = paused.plan(paused.middle)
    cut_short(paused, monkeypatch, "reset.2", partial(paused.rewind, paused.middle))
    reset.abandon(paused.settings, paused.store, paused.pipeline, by="you", reason="")
    told = paused.rewind(paused.middle)
    assert told["by"] == "me" and told["reason"] == "a test" and told["rows_kept"] == found.rows_kept
    events = {}
    for row in sorted(ControlTables(paused.settings).rows(ControlTable.EVENTS), key=lambda row: row["at"]):
        events[row["kind"]] = row
        assert row["pipeline"] == "stock_stats" and found.to in row["message"]
        assert not {"last", "states"} & json.loads(row["detail"]).keys() and json.loads(row["detail"])["by"] == "me"
    begun, called_off, done = (events[f"pipeline_{kind}"] for kind in ("rewinding", "rewind_abandoned", "rewound"))
    assert (begun["severity"], called_off["severity"], done["severity"]) == ("warning", "info", "info")
    assert "`hindcast rewind stock_stats`" in begun["cure"] and "pipeline_rewound" in begun["cure"] and "--abandon" in begun["cure"]
    assert not called_off["cure"] and not done["cure"]
    assert "you called off" in called_off["message"] and "no reason given" in called_off["message"]
    assert "by me: a test" in done["message"] and "me rewinds stock_stats" in begun["message"] and "a test" in begun["message"]


def test_every_access_of_a_rewind_has_the_stores_options(paused: Paused, options_seen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its plan, its steps and its calling off; those of a late_sink, too."""
    paused.settings = paused.settings.model_copy(update={"storage_options": {"allow_http": "true"}})
    url = paused.settings.table("sinks", "too_late")
    DeltaTable.create(url, SINK_SCHEMA)
    options_seen.clear()
    cut_short(paused, monkeypatch, "reset.2", partial(paused.rewind, paused.middle))
    paused.abandon()
    paused.rewind(paused.middle)
    paused.pipeline = replace(paused.pipeline, late=lambda rows: rows, late_sink=Table("too_late"))
    paused.rewind(None)
    assert len(options_seen) > 50 and set(map(str, options_seen)) == {"{'allow_http': 'true'}"}


def test_a_sink_that_does_not_answer_is_named(paused: Paused) -> None:
    """Before anything is changed, with the store's own reason."""
    log = Path(paused.sink.table_uri.removeprefix("file://")) / "_delta_log"
    torn = log / f"{paused.sink.version() + 1:020d}.json"
    torn.write_text("no commit")
    with pytest.raises(StoreUnavailableError, match="could not be opened") as caught:
        reset._sink(paused.settings, paused.pipeline)
    assert caught.value.fields["table"] == paused.settings.table("sinks", "stock_stats")


def test_the_commit_of_a_rewind_says_what_it_is(paused: Paused) -> None:
    """Readers of the sink's log tell it from a batch; it has read nothing, and the fence of each shard keeps its batch in the new epoch."""
    fences = {name: paused.app(name).recorded() for name in ("v1.g0.s0", "v1.g0.s1")}
    found = paused.plan(paused.middle)
    told = paused.rewind(paused.middle)
    (entry,) = [entry for entry in paused.sink.history() if entry.get("hindcast_reset") == told["id"]]
    commit = BatchCommit.from_history(entry)
    assert (commit.kind, commit.pipeline, commit.version, commit.worker) == ("reset", "stock_stats", 1, "me")
    assert (commit.shard, commit.epoch, commit.batch, commit.watermark_ms, commit.late_watermark_ms) == ("", 0, 0, 0, 0)
    assert commit.start_offsets == commit.end_offsets == found.cut.offsets
    for name, before in fences.items():
        assert before is not None
        assert paused.app(name).recorded() == Fence(EPOCH + 1, before.batch)
    rows = [row for row in ControlTables(paused.settings).rows(ControlTable.CHECKPOINTS) if row["batch"] < 0]
    assert {(row["shard"], -1 - row["batch"], row["epoch"], row["sink_version"], row["topic"]) for row in rows} == {
        (shard, batch, EPOCH + 1, entry["version"], "trades") for shard, batch in found.cut.last.items()
    }


def test_a_shard_that_had_no_batch_is_fenced_too(paused: Paused) -> None:
    """Its first batch may be under way: it is refused, and its ledger says that none is kept."""
    rest = [lease for lease in paused.store.read().leases.values() if lease.status_value == "v1.g0.s1"]
    idle = rest[0].evolve(status_value="v1.g0.s2", detail={**rest[0].detail, "partitions": []}, checkpoint={"start_offsets": {}})
    paused.store.commit(paused.store.read(), [idle.evolve(state=ShardState.OPEN)])
    paused.store.commit(paused.store.read(), [idle])
    paused.rewind(None)
    assert paused.app("v1.g0.s2").recorded() == Fence(EPOCH + 1, 0)
    with pytest.raises(LeaseLostError):
        paused.app("v1.g0.s2").commit(Fence(EPOCH, 1), [], after=None)
    rows = [row for row in ControlTables(paused.settings).rows(ControlTable.CHECKPOINTS) if row["shard"] == "v1.g0.s2"]
    assert [(row["batch"], row["epoch"]) for row in rows] == [(-1, EPOCH + 1)]


def test_rows_that_an_older_owner_files_meanwhile_are_fenced_out(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal is set again on the place that it has reached, so that what it filed is deleted with the rest."""
    audit = paused.app(table=ControlTables(paused.settings).url(ControlTable.LATE_ROWS))
    commit, last = FencedTable.commit, audit.recorded()
    assert last is not None

    def beside(table: FencedTable, *arguments: Any, **options: Any) -> int:
        monkeypatch.undo()
        commit(audit, Fence(last.epoch, last.batch + 1), [], after=last)
        return commit(table, *arguments, **options)

    monkeypatch.setattr(FencedTable, "commit", beside)
    reset._seal(paused.app(table=audit.url), EPOCH + 1)
    assert audit.recorded() == Fence(EPOCH + 1, last.batch + 1)
    reset._seal(paused.app(table=audit.url), EPOCH + 1)
    assert audit.recorded() == Fence(EPOCH + 1, last.batch + 1), "an older owner writes no more, so it is set once"


def test_a_step_is_decided_anew_until_it_lands(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits longer and longer, but never long, and gives up after twenty attempts; other failures end it at once."""
    left: list[Exception] = []
    slept: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", slept.append)

    def work() -> str:
        if left:
            raise left.pop()
        return "landed"

    left += [CommitFailedError("a writer was faster")] * 3
    assert (reset._decided_anew("t", work), len(slept)) == ("landed", 3)
    for error, attempts in ((CommitFailedError("no luck"), 20), (DeltaError("no luck"), 1), (OSError("no luck"), 1)):
        left[:], slept[:] = [error] * 100, []
        with pytest.raises(StoreUnavailableError, match="The table t could not be written: no luck"):
            reset._decided_anew("t", work)
        assert len(slept) == attempts - 1 and len(left) == 100 - attempts
        assert not slept or (slept[0] <= 0.02 and 0.1 < max(slept) <= 1.0)


def test_a_log_that_has_lost_the_rewind_is_an_error(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether step 2 or its way back has landed is not guessed at."""
    cut_short(paused, monkeypatch, "reset.3", partial(paused.rewind, paused.middle))
    begun = reset._begun(paused.store, paused.pipeline)
    assert begun is not None
    with pytest.raises(StoreUnavailableError, match="its log has lost the commit of the rewind another") as caught:
        reset._landed(paused.sink, {**begun.told, "id": "another"})
    assert caught.value.fields["table"] == paused.sink.table_uri
    assert reset._landed(paused.sink, begun.told)["version"] == paused.sink.version()
