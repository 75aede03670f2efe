"""A take-over writes its seal only into a sink that holds all that the ledger knows, and says where the shard
stands.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql.types import DoubleType, IntegerType, StructField, StructType, TimestampType
from support.crashes import CrashError, crash_at

from hindcast.errors import (
    CheckpointRefusedError,
    LeaseLostError,
    OffsetGapError,
    PipelineError,
    SinkCommitsLostError,
)
from hindcast.leases.lease import Lease
from hindcast.partitions import app_id
from hindcast.pipeline import FORM, Mode, Table
from hindcast.recovery import takeover
from hindcast.recovery.rebuild_state import CheckpointRef
from hindcast.recovery.takeover import ShardPosition
from hindcast.settings import Settings
from hindcast.shards.resharding import create
from hindcast.spark import query_signature
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable
from hindcast.tables.ledger import Ledger
from hindcast.testing import MemoryStore

SCHEMA = pa.schema([("n", pa.int64())])
PIPELINE: Any = SimpleNamespace(name="p", file="p.py", source=SimpleNamespace(name="trades"))


def taken(settings: Settings, lease: Lease) -> FencedTable:
    """The sink as the owner of the lease sees it, sealed."""
    shard = lease.status_value
    sink = FencedTable(settings.table("sinks", "t"), {}, app_id("p", shard))
    sink.create(SCHEMA)
    ledger = Ledger(ControlTables(settings))
    takeover.seal(sink, PIPELINE, lease, "w", takeover.known_batches(ledger, sink, PIPELINE, lease))
    return sink


def commit(sink: FencedTable, lease: Lease, number: int = 1, **fields: Any) -> BatchCommit:
    """The owner's next batch: nine records, none of which is in a row."""
    batch = BatchCommit(
        kind="batch",
        pipeline="p",
        version=1,
        shard=lease.status_value,
        epoch=lease.epoch,
        batch=number,
        worker="w",
        start_offsets={0: 9 * number - 9},
        end_offsets={0: 9 * number},
        **{"late_watermark_ms": 0, "watermark_ms": 0, **fields},
    )
    sink.commit(Fence(lease.epoch, number), [], batch.as_metadata(), after=Fence(lease.epoch, number - 1))
    return batch


@pytest.fixture
def lease() -> Lease:
    """The only shard of a pipeline, which begins at offset 4."""
    (lease,) = create(MemoryStore(), "p", 1, 1, {0: 4})
    return lease


def test_a_batch_that_lands_while_the_sink_is_read_is_where_the_new_owner_starts(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner was in time: its batch came before the seal, so the seal stands on it, and the ledger
    gets it.
    """
    (old,) = create(MemoryStore(), "p", 1, 1, {0: 0})
    its = taken(settings, old)
    sink = FencedTable(its.url, {}, its.app)
    read = sink.reached

    def meanwhile() -> tuple[Fence | None, int]:
        monkeypatch.setattr(sink, "reached", read)
        found = read()
        commit(its, old, watermark_ms=500)
        return found

    monkeypatch.setattr(sink, "reached", meanwhile)
    new = old.given_to("new")
    position, missing = takeover.seal(sink, PIPELINE, new, "new", [])
    assert (position.fence, position.end_offsets, position.watermark_ms) == (Fence(new.epoch, 1), {0: 9}, 500)
    assert [batch.batch for batch in missing] == [1]
    assert sink.recorded() == Fence(new.epoch, 1)


def test_no_shard_is_sealed_where_another_shards_batch_is_lost(settings: Settings) -> None:
    """The lost commit's place stays free, so restoring its file is all that is needed."""
    one, other = create(MemoryStore(), "p", 1, 2, {0: 0, 1: 0})
    sink = taken(settings, one)
    commit(sink, one)
    Ledger(ControlTables(settings)).append([next(sink.commits(sink.version())).as_ledger_row("topic")])
    newest = max((Path(sink.url) / "_delta_log").glob("*.json"))
    text = newest.read_text()
    newest.unlink()
    with pytest.raises(SinkCommitsLostError, match=f"Restore the table {re.escape(sink.url)}") as caught:
        taken(settings, other)
    assert (
        caught.value.fields.items()
        >= {
            "pipeline": "p",
            "shard": other.status_value,
            "table": sink.url,
            "found": int(newest.stem) - 1,
            "known": int(newest.stem),
        }.items()
    )
    assert not newest.exists()
    newest.write_text(text)
    taken(settings, other)
    assert DeltaTable(sink.url).version() == int(newest.stem) + 1


def test_a_seal_says_where_the_shard_stands(settings: Settings, lease: Lease) -> None:
    """After its last batch, under that batch's watermarks and in that batch's query, however often it changes
    hands.
    """
    sink = taken(settings, lease)
    last = commit(sink, lease, watermark_ms=500, late_watermark_ms=300, checkpoint="c", base=0, floors={0: 7})
    filed = last.as_ledger_row("trades")
    new = lease
    for owner in ("one", "another"):
        new = new.given_to(owner)
        position, missing = takeover.seal(sink, PIPELINE, new, owner, [filed])
        assert position == ShardPosition(Fence(new.epoch, 1), {0: 9}, 500, CheckpointRef("c", 0, {0: 7}))
        assert missing == []
        found = next(sink.commits(sink.version()))
        sealed = replace(last, kind="seal", epoch=new.epoch, worker=owner, start_offsets={0: 9})
        assert found == replace(sealed, sink_version=found.sink_version, committed_ms=found.committed_ms)


def test_a_shard_of_the_first_generation_begins_with_nothing(settings: Settings, lease: Lease) -> None:
    """Its query's first batch is its own first batch, at the offsets of the lease."""
    sink = taken(settings, lease)
    new = lease.given_to("new")
    found = takeover.seal(sink, PIPELINE, new, "new", [])
    assert found == (
        ShardPosition(Fence(new.epoch, 0), {0: 4}, 0, CheckpointRef(lease.status_value, 1, {})),
        [],
    )
    sealed = next(sink.commits(sink.version()))
    assert (sealed.watermark_ms, sealed.late_watermark_ms, sealed.start_offsets) == (0, 0, {0: 4})
    assert (
        takeover.seal(sink, PIPELINE, new.given_to("next"), "next", [])[0].incarnation == found[0].incarnation
    )


def test_a_shard_of_a_later_generation_begins_by_rewinding(settings: Settings, lease: Lease) -> None:
    """It has no checkpoint yet, its first batch is the one that rewinds, and what was final for its parents
    stays so.
    """
    child = lease.evolve(
        parent_shard_ids=["v1.g0.s9"], checkpoint={"start_offsets": {"0": 4}, "floors": {"0": 700}}
    )
    sink = FencedTable(settings.table("sinks", "t"), {}, app_id("p", child.status_value))
    sink.create(SCHEMA)
    position, missing = takeover.seal(sink, PIPELINE, child, "w", [])
    assert (position, missing) == (
        ShardPosition(Fence(child.epoch, 0), {0: 4}, 0, CheckpointRef("", 0, {0: 700})),
        [],
    )
    assert position.spark_batch == 0


def test_batches_that_the_ledger_lacks_are_filed_the_oldest_first(settings: Settings, lease: Lease) -> None:
    """Their owner died between sink and ledger: the ledger gets those that came after its last one, from the
    sink's log.
    """
    sink, ledger = taken(settings, lease), Ledger(ControlTables(settings))
    for number in (1, 2, 3):
        commit(sink, lease, number)
    filed = [
        batch.as_ledger_row("trades")
        for batch in sink.commits(sink.version())
        if batch.batch == 1 and batch.kind == "batch"
    ]
    ledger.append(filed)
    _, missing = takeover.seal(
        sink, PIPELINE, lease.given_to("new"), "new", takeover.known_batches(ledger, sink, PIPELINE, lease)
    )
    assert [batch.batch for batch in missing] == [2, 3]
    assert takeover.repair_ledger(ledger, PIPELINE, missing) == [
        batch.as_ledger_row("trades") for batch in missing
    ]
    assert ledger.batches("p", 1) == [*filed, *(batch.as_ledger_row("trades") for batch in missing)]


def forget(sink: FencedTable, *versions: int) -> None:
    """The log loses these commits, as after a checkpoint of all and a cleanup of some."""
    DeltaTable(sink.url).create_checkpoint()
    for version in versions:
        (Path(sink.url) / "_delta_log" / f"{version:020d}.json").unlink()


def test_a_shard_that_was_quiet_for_longer_than_the_log_goes_on(settings: Settings) -> None:
    """The ledger has its last batch and the fence confirms it. The log lacks all commits of the shard."""
    quiet, busy = create(MemoryStore(), "p", 1, 2, {0: 0, 1: 0})
    sink = taken(settings, quiet)
    last = commit(sink, quiet, watermark_ms=500, late_watermark_ms=300, checkpoint="c", base=3, floors={0: 7})
    ledger = Ledger(ControlTables(settings))
    ledger.append([next(sink.commits(sink.version())).as_ledger_row("trades")])
    other = taken(settings, busy)
    for number in (1, 2, 3):
        commit(other, busy, number)
    forget(sink, *range(sink.version()))
    assert list(sink.commits(sink.version())) == []
    new = quiet.given_to("new")
    position, missing = takeover.seal(
        sink, PIPELINE, new, "new", takeover.known_batches(ledger, sink, PIPELINE, new)
    )
    assert position == ShardPosition(Fence(new.epoch, 1), {0: 9}, 500, CheckpointRef("c", 3, {0: 7}))
    assert missing == []
    sealed = next(sink.commits(sink.version()))
    assert (sealed.kind, sealed.late_watermark_ms) == ("seal", last.late_watermark_ms)


@pytest.mark.parametrize("filed", [True, False])
def test_the_records_that_the_last_batch_left_out_are_known(settings: Settings, *, filed: bool) -> None:
    """Spark may run that batch once more, for its state: from the ledger, or from the commit."""
    lease = create(MemoryStore(), "p", 1, 1, {0: 0})[0]
    sink = taken(settings, lease)
    commit(sink, lease, excluded={0: {4: "KeyError"}})
    ledger = Ledger(ControlTables(settings))
    if filed:
        ledger.append([next(sink.commits(sink.version())).as_ledger_row("trades")])
    new = lease.given_to("new")
    position, missing = takeover.seal(
        sink, PIPELINE, new, "new", takeover.known_batches(ledger, sink, PIPELINE, new)
    )
    assert position.excluded == {0: {4: "KeyError"}}
    takeover.repair_ledger(ledger, PIPELINE, missing)
    assert [row.excluded for row in ledger.excluding("p", 1)] == [{0: {4: "KeyError"}}]


def test_only_the_few_commits_after_the_ledgers_row_are_read(settings: Settings) -> None:
    """A worker died before it filed its last batches, and others have committed since. What the log has lost
    before and after these batches is not needed.
    """
    quiet, busy = create(MemoryStore(), "p", 1, 2, {0: 0, 1: 0})
    sink = taken(settings, quiet)
    commit(sink, quiet, 1)
    filed = next(sink.commits(sink.version())).as_ledger_row("trades")
    commit(sink, quiet, 2)
    commit(sink, quiet, 3)
    reached = sink.version()
    other = taken(settings, busy)
    for number in (1, 2, 3):
        commit(other, busy, number)
    forget(sink, *range(filed.sink_version + 1), *range(reached + 1, sink.version()))
    position, missing = takeover.seal(sink, PIPELINE, quiet.given_to("new"), "new", [filed])
    assert position.end_offsets == {0: 27}
    assert [batch.batch for batch in missing] == [2, 3]


def test_a_batch_that_neither_ledger_nor_log_has_is_not_passed_over(settings: Settings, lease: Lease) -> None:
    """A seal knows where the shard is, and not how it came there: the ledger would have a gap for good."""
    sink = taken(settings, lease)
    commit(sink, lease, 1)
    filed = next(sink.commits(sink.version())).as_ledger_row("trades")
    commit(sink, lease, 2)
    lost = sink.version()
    new = lease.given_to("new")
    takeover.seal(sink, PIPELINE, new, "new", [filed])
    forget(sink, lost)
    with pytest.raises(OffsetGapError, match="log entry has expired") as caught:
        takeover.seal(sink, PIPELINE, new.given_to("third"), "third", [filed])
    assert caught.value.fields["batch"] == 3
    assert sink.recorded() == Fence(new.epoch, 2)


def test_the_checkpoint_of_an_older_hindcasts_row_is_in_its_commit(settings: Settings, lease: Lease) -> None:
    """Such a row does not name it. If the log has lost the commit, the state is rebuilt."""
    sink = taken(settings, lease)
    commit(sink, lease, watermark_ms=500, checkpoint="c", base=3, floors={0: 7})
    filed = replace(next(sink.commits(sink.version())).as_ledger_row("trades"), checkpoint=None, base=None)
    position, _ = takeover.seal(sink, PIPELINE, lease.given_to("one"), "one", [filed])
    assert position.incarnation == CheckpointRef("c", 3, {0: 7})
    forget(sink, *range(sink.version()))
    position, _ = takeover.seal(sink, PIPELINE, lease.given_to("one").given_to("another"), "another", [filed])
    assert (position.end_offsets, position.watermark_ms) == ({0: 9}, 500)
    assert position.incarnation == CheckpointRef("", 0, {0: 7})


def test_a_sink_that_lacks_a_batch_of_the_shard_is_not_sealed(settings: Settings, lease: Lease) -> None:
    """The refusal says which batch is lost and where the sink ends; a seal would stay on top when the lost
    commit is restored.
    """
    sink = taken(settings, lease)
    commit(sink, lease)
    known = replace(next(sink.commits(sink.version())).as_ledger_row("trades"), batch=3, end_offsets={0: 27})
    version = sink.version()
    with pytest.raises(OffsetGapError, match=f"Restore the table {re.escape(sink.url)}") as caught:
        takeover.seal(sink, PIPELINE, lease.given_to("new"), "new", [known])
    fields = {
        "pipeline": "p",
        "shard": lease.status_value,
        "batch": 4,
        "start": {0: 27},
        "recorded": "batch 1, offsets {0: 9}",
    }
    assert caught.value.fields.items() >= fields.items()
    assert sink.version() == version


def test_a_sink_whose_log_has_forgotten_the_last_batch_is_not_sealed(
    settings: Settings, lease: Lease
) -> None:
    """Where the shard is, is not known any more: it can only begin again."""
    sink = FencedTable(settings.table("sinks", "t"), {}, app_id("p", lease.status_value))
    sink.create(SCHEMA)
    sink.commit(Fence(lease.epoch, 6), [], after=None)
    with pytest.raises(
        OffsetGapError, match=r"log entry has expired.*Raise the pipeline's version"
    ) as caught:
        takeover.seal(sink, PIPELINE, lease.given_to("new"), "new", [])
    fields = {"pipeline": "p", "shard": lease.status_value, "batch": 7, "start": "an unknown place"}
    assert caught.value.fields.items() >= fields.items()
    assert sink.recorded() == Fence(lease.epoch, 6)


def test_who_comes_after_a_newer_owner_seals_nothing(settings: Settings, lease: Lease) -> None:
    """Its lease was taken while it slept."""
    sink = taken(settings, lease.evolve(epoch=lease.epoch + 2))
    with pytest.raises(LeaseLostError):
        takeover.seal(sink, PIPELINE, lease.given_to("late"), "late", [])
    assert sink.recorded() == Fence(lease.epoch + 2, 0)


def test_a_death_before_a_step_leaves_it_to_the_next_owner(
    settings: Settings, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the seal nothing is written; before the repair the ledger is as it was; a query is not yet
    accepted.
    """
    sink, ledger = taken(settings, lease), Ledger(ControlTables(settings))
    commit(sink, lease)
    version, new = sink.version(), lease.given_to("new")
    crash_at(monkeypatch, "takeover.2", 1)
    with pytest.raises(CrashError):
        takeover.seal(sink, PIPELINE, new, "new", [])
    assert sink.version() == version
    crash_at(monkeypatch, "takeover.3", 1)
    _, missing = takeover.seal(sink, PIPELINE, new, "new", [])
    with pytest.raises(CrashError):
        takeover.repair_ledger(ledger, PIPELINE, missing)
    assert ledger.batches("p") == []
    crash_at(monkeypatch, "takeover.4", 1)
    with pytest.raises(CrashError):
        takeover.check_query(PIPELINE, new, "f")


def test_a_checkpoint_is_used_by_the_query_that_made_it_alone(lease: Lease) -> None:
    """A shard that has none yet takes any; of another query the refusal says what can be done."""
    made = lease.evolve(checkpoint={**lease.checkpoint, "fingerprint": "f"})
    takeover.check_query(PIPELINE, lease, "f")
    takeover.check_query(PIPELINE, made, "f")
    with pytest.raises(
        CheckpointRefusedError, match=r"query has changed.*Undo the change of p.py.*hindcast rebuild p"
    ) as caught:
        takeover.check_query(PIPELINE, made, "another")
    name = lease.status_value
    assert caught.value.fields.items() >= {"pipeline": "p", "shard": name, "path": name}.items()


@pytest.mark.parametrize(
    ("batch", "start", "follows"), [(6, 9, True), (5, 9, False), (7, 9, False), (6, 8, False), (6, 10, False)]
)
def test_a_batch_begins_where_the_sink_ends(lease: Lease, batch: int, start: int, follows: bool) -> None:
    """With the next number, at the very offsets; rows would be lost or repeated otherwise."""
    position = ShardPosition(Fence(2, 5), {0: 9}, 500, CheckpointRef("c", 1, {}))
    if follows:
        position.check_follows(PIPELINE, lease, batch, {0: start})
        return
    with pytest.raises(OffsetGapError, match=f"hindcast rebuild p --shard {lease.status_value}") as caught:
        position.check_follows(PIPELINE, lease, batch, {0: start})
    fields = {
        "pipeline": "p",
        "shard": lease.status_value,
        "batch": batch,
        "start": {0: start},
        "recorded": "batch 5, offsets {0: 9}",
    }
    assert caught.value.fields.items() >= fields.items()


def test_what_is_final_stays_final_for_a_partition_that_came_from_another_shard() -> None:
    """The later of the sink's watermark and of what the query's first batch began with; without the latter,
    the watermark.
    """
    assert ShardPosition(
        Fence(2, 5), {0: 9, 1: 9, 2: 9}, 500, CheckpointRef("c", 1, {0: 400, 1: 600})
    ).floors() == {0: 500, 1: 600, 2: 500}
    assert ShardPosition(Fence(2, 5), {0: 9}, 0, CheckpointRef("c", 1, {})).floors() == {0: 0}


def test_a_results_columns_may_be_null_and_its_instants_are_utc() -> None:
    """Whether Spark proves a column non-null depends on the plan, not on what the table promises."""
    frame: Any = SimpleNamespace(
        schema=StructType([StructField("n", IntegerType(), False), StructField("at", TimestampType(), False)])
    )
    assert query_signature.table_schema(frame) == pa.schema(
        [("n", pa.int32()), ("at", pa.timestamp("us", tz="UTC"))]
    )


class Analysed:
    """What a take-over asks of a frame: its columns. And Spark's analysed plan as text."""

    def __init__(self, columns: list[str], plan: str = "Project") -> None:
        self.columns = columns
        self.plan = plan

    @property
    def schema(self) -> StructType:
        return StructType([StructField(name, DoubleType()) for name in self.columns])


#: Stands for the session: what Spark would do with it is told by the stand-ins below.
SESSION = "the session"


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pipeline of one topic whose transformation has this result, or fails."""

    def make(
        result: Analysed | Exception,
        *,
        topics: int = 1,
        mode: Mode = Mode.APPEND,
        deleted: str = "",
        **fields: Any,
    ) -> Any:
        def transform(frames: list[str], pipeline: Any) -> Analysed:
            assert (
                frames == ["windows of t0", *(f"t{number}" for number in range(1, topics))]
                and pipeline.name == "p"
            )
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(
            query_signature.parsed_records,
            "empty",
            lambda spark, pipeline: pipeline.topics if spark == SESSION else [],
        )
        monkeypatch.setattr(
            query_signature.transformation,
            "assign_windows",
            lambda frame, pipeline: f"windows of {frame}" if pipeline else "",
        )
        monkeypatch.setattr(query_signature.transformation, "transform", transform)
        monkeypatch.setattr(query_signature, "analysed_plan", lambda frame: frame.plan)
        names = [f"t{number}" for number in range(topics)]
        sink = Table("t", keys=["ticker", "user"], mode=mode, deleted=deleted)
        values = {
            "name": "p",
            "file": "p.py",
            "line": 7,
            "window": None,
            "re_execute": False,
            "ratio_bound": {},
            "tolerance": {},
            "topics": names,
            "sink": sink,
            **fields,
        }
        return SimpleNamespace(**values)

    return make


def refusal(pipeline: Any) -> dict[str, Any]:
    """What the refusal of the pipeline tells; nothing if it is not refused."""
    spark: Any = SESSION
    try:
        query_signature.empty_result(spark, pipeline)
    except PipelineError as error:
        return error.fields
    return {}


@pytest.mark.parametrize("column", ["gone", "ask"])
def test_what_says_that_a_row_is_deleted_is_a_boolean_of_the_result(declared: Any, column: str) -> None:
    """A missing column, and a number."""
    result = Analysed(["ticker", "user", "ask"], "Aggregate")
    said = refusal(declared(result, mode=Mode.UPSERT, deleted=column))["problem"]
    assert said == f"deleted={column!r} is no boolean column of the result (ticker, user, ask)"


KEYS = ["ticker", "user"]


def test_a_transformation_that_does_not_fit_is_refused_by_name(declared: Any) -> None:
    """With the keys that the result lacks, or the first line of what Spark says of it."""
    assert refusal(declared(Analysed(KEYS))) == {}
    fields = {"file": "p.py", "line": 7, "pipeline": "p", "form": FORM}
    lacks = "is not a column of the result"
    assert refusal(declared(Analysed(["user", "n"]))) == {
        **fields,
        "problem": f"the sink's key 'ticker' {lacks} (user, n)",
    }
    both = f"the sink's key 'ticker' {lacks} (n); the sink's key 'user' {lacks} (n)"
    assert refusal(declared(Analysed(["n"]))) == {**fields, "problem": both}
    unknown = AnalysisException(message="no column aks\nsecond line")
    assert refusal(declared(unknown)) == {
        **fields,
        "problem": "the transformation cannot be analysed: no column aks",
    }


@pytest.mark.parametrize(
    ("plan", "fields", "kept"),
    [
        ("Project\n+- Filter", {}, ""),
        ("Aggregate [n]", {}, "Aggregate"),
        ("Project\n+- Aggregate [n]", {"mode": Mode.UPSERT}, ""),
        ("Project\n+- Deduplicate [id]", {"mode": Mode.UPSERT}, "Deduplicate"),
        ("Project\n:- Deduplicate [id]\n+- Aggregate [n]", {}, "Aggregate, Deduplicate"),
        ("Join Inner", {}, ""),
        ("Join Inner", {"topics": 2}, "Join"),
        ("Join Inner", {"topics": 2, "re_execute": True}, ""),
        ("Aggregate [n]", {"window": "five seconds"}, ""),
    ],
)
def test_state_that_is_not_declared_is_refused(
    declared: Any, plan: str, fields: dict[str, Any], kept: str
) -> None:
    """A verdict and a rewinding would take the query for another kind. A running total is declared, and a
    table stands still.
    """
    found = refusal(declared(Analysed(KEYS, plan), **fields)).get("problem", "")
    assert (
        found.startswith(f"it keeps state ({kept}), so results depend on which rows come together")
        if kept
        else not found
    )
