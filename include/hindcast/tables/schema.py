"""The columns of every control table and what they mean. ``docs/reference/tables.md`` is made from here.

Instants are microseconds in UTC; a column named ``*_ms`` is epoch milliseconds of event time.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hindcast.tables.table_names import ControlTable

INSTANT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Column:
    """One column of a control table. ``meaning`` is a phrase, with its unit."""

    type: pa.DataType
    meaning: str


def _text(meaning: str) -> Column:
    return Column(pa.string(), meaning)


def _count(meaning: str) -> Column:
    return Column(pa.int64(), meaning)


def _real(meaning: str) -> Column:
    return Column(pa.float64(), meaning)


def _instant(meaning: str) -> Column:
    return Column(INSTANT, meaning)


@dataclass(frozen=True)
class Described:
    """A control table: what a row is, and the columns in their order."""

    row: str
    columns: dict[str, Column]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, column.type) for name, column in self.columns.items()])


def _described(row: str, **columns: Column) -> Described:
    return Described(row, columns)


_PIPELINE = _text("its name")
_VERSION = _count("the pipeline's version")
_SCHEMA_VERSION = _count("of this row's form; a greater one than this Hindcast knows is refused")
_OFFSETS = "JSON {partition: offset}"
_WATERMARK = "epoch ms of event time"
_KEY = Column(pa.binary(), "the record's key; null once it was erased or has expired")
_VALUE = Column(pa.binary(), "the record's value; null once it was erased or has expired")
_TOPIC = _text("the topic of the record")
_PARTITION = _count("its partition")
_OFFSET = _count("its offset")
_BROKER_AT = _instant("the record's timestamp in Kafka")
_SHARD = _text("the shard that read it, as `v1.g0.s0`: version, generation, number")
_EPOCH = _count("the fencing token of the lease under which it was read")
_BATCH = _count("Spark's number of the batch that read it")

DESCRIBED: dict[ControlTable, Described] = {
    ControlTable.LEASES: _described(
        "Each thing that is leased: a shard, a worker's slot, and what is wanted of a pipeline. The first "
        "three columns are the key. `include/hindcast/leases/lease.py` has the states of a shard.",
        stream_id=_text("the pipeline; of a slot the fleet"),
        status_type=_text("`shard`, `slot` or `pipeline`"),
        status_value=_text("which of them: the shard's name, the slot's number"),
        checkpoint=_text("JSON: how far the owner is"),
        lease_counter=_count("grows with each renewal: a lease whose counter stands still has no live owner"),
        lease_owner=_text("the worker that holds it; empty if none does"),
        lease_stealer=_text("the worker that asks for it; empty if none does"),
        parent_shard_ids=Column(
            pa.list_(pa.string()), "the shards that must have ended before this one begins"
        ),
        epoch=_count("the fencing token: grows with each owner"),
        state=_text("of a shard: `WAIT`, `OPEN`, `CLOSING`, `CLOSED` or `TERMINATED`"),
        detail=_text("JSON: the shard's partitions and where they begin; what is wanted of a pipeline"),
        updated_at=_instant("when the row was written, by the writer's clock; for people"),
        schema_version=_SCHEMA_VERSION,
    ),
    ControlTable.CHECKPOINTS: _described(
        "The ledger: each batch that a shard committed to its sink. A record is late for a window in this "
        "batch if and only if the window ends at or before `late_watermark_ms`. Windows that end at or "
        "before `watermark_ms` are final after it. A row with a negative batch is a reset: the sink's "
        "commit `sink_version` took back the shard's batches after -1 - batch.",
        pipeline=_PIPELINE,
        version=_VERSION,
        shard=_text("as `v1.g0.s0`: version, generation, number"),
        epoch=_count("the fencing token of the lease under which it was committed"),
        batch=_count("Spark's number of the batch; negative for a reset"),
        worker=_text("who committed it"),
        topic=_text("the topic that it read"),
        start_offsets=_text(f"where the batch began: {_OFFSETS}"),
        end_offsets=_text(f"where it ended, exclusive: {_OFFSETS}"),
        late_watermark_ms=_count(f"what was late in it: {_WATERMARK}"),
        watermark_ms=_count(f"what is final after it: {_WATERMARK}"),
        floors=_text(
            "JSON {partition: ms}: what was final before the shard's query began, so it holds in addition to "
            "both watermarks; empty at first"
        ),
        min_event_ms=_count("the least event time of its records, epoch ms"),
        max_event_ms=_count("the greatest"),
        input_rows=_count("records that it read"),
        poison_rows=_count("those that are no valid rows"),
        output_rows=_count("rows that it wrote"),
        batch_seconds=_real("how long it took, s"),
        cpu_seconds=_real("its part of the worker's CPU, s"),
        sink_version=_count("the version of the sink that its commit made"),
        started_at=_instant("when Spark began it"),
        committed_at=_instant("when readers could first see it"),
        checkpoint=_text("the folder of the query's checkpoint"),
        base=_count("the batch with which that checkpoint began"),
        excluded=_text(
            "JSON {partition: {offset: error}}: the records that it left out because the function raises on "
            "them; null if there are none"
        ),
        schema_version=_SCHEMA_VERSION,
    ),
    ControlTable.RUNS: _described(
        "Each change of a replay's state; the newest row of a `run_id` counts.",
        run_id=_text("the run's name"),
        pipeline=_PIPELINE,
        version=_VERSION,
        kind=_text("`replay`, `benchmark` or `re-execution`"),
        state=_text("`planned`, then `succeeded` or `failed`; `refused` or `skipped` if nothing was run"),
        plan=_text("JSON: the offsets, the batches and the windows that are replayed"),
        hindcast_url=_text("where its answers are"),
        input_rows=_count("records of the range"),
        output_rows=_count("rows of the answer"),
        dead_letters=_count("records of the range that are no valid rows"),
        late_rows=_count("records of the range that came after some window of theirs was final"),
        input_bytes=_count("of keys and values"),
        seconds=_real("how long it took, s"),
        rows_per_second=_real("of all records read, also those before the range that only feed windows"),
        cpu_seconds=_real("CPU of all its processes, s"),
        peak_memory_bytes=_count("the sum of the greatest resident sizes of its processes: an upper bound"),
        stream_rows_per_second=_real("what the stream read of the same batches for each second it was busy"),
        stream_cpu_seconds=_real("CPU that the stream used for the same batches, s"),
        latency_p50_seconds=_real("median time from the broker's timestamp to the stream's commit, s"),
        latency_p95_seconds=_real("its 95th percentile, s"),
        versions=_text("JSON: the versions of Hindcast, PySpark, Delta and Python that ran"),
        note=_text("why it failed, was refused or skipped, what it left out, or what was slow"),
        started_at=_instant("when it began"),
        finished_at=_instant("when it ended; null while it runs"),
        schema_version=_SCHEMA_VERSION,
    ),
    ControlTable.VERDICTS: _described(
        "Each verdict on a run. `docs/how-to/read-a-verdict.md` explains the figures.",
        run_id=_text("the run that was judged"),
        pipeline=_PIPELINE,
        version=_VERSION,
        sink_version=_count("the version of the sink that was judged"),
        windows_after_ms=_count("windows that end after this were judged, epoch ms"),
        windows_to_ms=_count("and those that end at or before this"),
        windows_compared=_count("how many windows were judged"),
        rows_compared=_count("how many rows"),
        missing=_count("rows that the batch has and the stream lacks"),
        extra=_count("rows that the stream alone has"),
        changed=_count("rows that differ in a value"),
        doubled=_count("rows that the stream has more often"),
        unexplained=_count("differences that nothing explains: above 0 the verdict fails"),
        late_differences=_count("rows that differ in hindsight alone, which knows what came later"),
        rounding=_count("rows that differ by rounding alone"),
        captured=_real("the share of the input that the stream's answer holds, 0 to 1"),
        captured_results=_real("the share of the rows in hindsight that the stream has unchanged, 0 to 1"),
        ratios=_text("JSON: of each numeric column the worst and the mean of stream / hindsight"),
        input_rows=_count("records of the range"),
        late_rows=_count("those that came after some window of theirs was final"),
        dead_letters=_count("those that are no valid rows"),
        passed=Column(pa.bool_(), "whether no check failed"),
        failed=_text("the checks that failed, each a sentence; empty if none did"),
        data_docs=_text("the URL of the verdict's page of Great Expectations"),
        judged_at=_instant("when it was judged; for people"),
        change=_count(
            "how often the pipeline's versions had changed (promotions and others) when the judging began"
        ),
        number=_count(
            "which of its version's verdicts it is; with `change` it orders verdicts of several hosts"
        ),
        bounds=_text("JSON: what was measured against each bound that the pipeline declares"),
        schema_version=_SCHEMA_VERSION,
    ),
    ControlTable.DIFFERENCES: _described(
        "Samples of what differs in a verdict.",
        run_id=_text("the run that was judged"),
        pipeline=_PIPELINE,
        kind=_text("`missing`, `extra`, `changed`, `doubled` or another of `verdict/compare.py`"),
        cause=_text("`late_rows`, `online`, `rounding`, `bound` or `unexplained`"),
        keys=_text("JSON: the row's keys"),
        column=_text("the column that differs; empty if the whole row does"),
        stream_value=_text("JSON: what the stream has"),
        hindcast_value=_text("JSON: what the batch has"),
        late_rows=_count("how many late records the row's window had; null if that is not known"),
        found_at=_instant("`judged_at` of the verdict"),
        schema_version=_SCHEMA_VERSION,
    ),
    ControlTable.LATE_ROWS: _described(
        "Each input record that came after at least one of its windows was final.",
        pipeline=_PIPELINE,
        version=_VERSION,
        shard=_SHARD,
        epoch=_EPOCH,
        batch=_BATCH,
        topic=_TOPIC,
        partition=_PARTITION,
        offset=_OFFSET,
        event_at=_instant("its event time"),
        broker_at=_BROKER_AT,
        watermark_ms=_count("what was final when it came, epoch ms of event time"),
        windows_late=_count("how many of its windows were final"),
        windows_total=_count("how many windows it belongs to"),
        key=_KEY,
        value=_VALUE,
    ),
    ControlTable.DEAD_LETTERS: _described(
        "Each input record that is no valid row, or on which the pipeline's function raises.",
        pipeline=_PIPELINE,
        version=_VERSION,
        shard=_SHARD,
        epoch=_EPOCH,
        batch=_BATCH,
        topic=_TOPIC,
        partition=_PARTITION,
        offset=_OFFSET,
        broker_at=_BROKER_AT,
        reason=_text("why, in a few words"),
        key=_KEY,
        value=_VALUE,
        traceback=_text(
            "what the function raised, in full; null for other reasons, and if the owner that had found the "
            "record died before it filed it"
        ),
    ),
    ControlTable.MENDED_LETTERS: _described(
        "Each step of a run that sends mended letters back; `include/hindcast/kafka/redrive.py` has them.",
        run_id=_text("the run of `hindcast deadletters replay`"),
        pipeline=_PIPELINE,
        state=_text("`begun`, then `sent` or `undone`"),
        letters=_text("JSON: the places of the letters"),
        ends=_text("JSON: where the topic of marks ended when it began"),
        noted_at=_instant("when the row was written"),
        schema_version=_SCHEMA_VERSION,
    ),
    ControlTable.EVENTS: _described(
        "What happened, for people. [Events](events.md) has the kinds.",
        event_id=_text("of this event alone"),
        at=_instant("when it was written"),
        severity=_text("`info`, `warning` or `error`"),
        kind=_text("what happened, in one word"),
        pipeline=_text("whose it is; empty if it is no pipeline's"),
        shard=_text("of which shard; empty if of none"),
        worker=_text("who wrote it; empty if it was no worker"),
        epoch=_count("the fencing token of the lease; null if there is none"),
        message=_text("what happened, in a sentence"),
        cure=_text("what to do; empty if nothing need be done"),
        detail=_text("JSON: the particulars"),
        schema_version=_SCHEMA_VERSION,
    ),
    ControlTable.VERDICT_TRENDS: _described(
        "Each version of a pipeline: its verdicts in a few figures, however many they are.",
        pipeline=_PIPELINE,
        version=_VERSION,
        verdicts=_count("how many there were"),
        worst=_text("JSON: the worst value that each measure ever had, and of which verdict"),
        recent=_text("JSON: the figures of the newest 50 verdicts"),
        updated_at=_instant("when the newest of them was added"),
        schema_version=_SCHEMA_VERSION,
    ),
    ControlTable.PROOFS: _described(
        "Each proof: the state of the batch at the end of a run's range; the next verdict begins with it.",
        run_id=_text("the run that left it"),
        pipeline=_PIPELINE,
        version=_VERSION,
        first_offsets=_text(f"where the chain of proofs begins: {_OFFSETS}"),
        start_offsets=_text(f"where the run's range began: {_OFFSETS}"),
        end_offsets=_text(f"where it ended, exclusive: {_OFFSETS}"),
        sink_version=_count("the version of the sink that holds the batches up to there and no others"),
        based_on=_text("the run of the proof before; empty if the range began with the stream"),
        batches=_text("JSON {shard: number}: the last batch in the checkpoint of each shard"),
        url=_text("the folder with a checkpoint for each shard"),
        made_at=_instant("when it was made"),
        schema_version=_SCHEMA_VERSION,
    ),
    ControlTable.LEDGER_BASES: _described(
        "What the oldest batches of a version come to, so that a plan need not read them all.",
        pipeline=_PIPELINE,
        version=_VERSION,
        sink_version=_count("up to which version of the sink"),
        summary=_text("JSON: where each shard was, and what late and final was"),
        made_at=_instant("when it was made"),
        schema_version=_SCHEMA_VERSION,
    ),
}

SCHEMAS: dict[ControlTable, pa.Schema] = {name: described.schema for name, described in DESCRIBED.items()}

#: Tables whose rows are replaced, those of a version at once. Their files are never joined: a join that began
#: before a row was replaced would bring the old one back. The rows of a version have a file of their own.
REPLACED: frozenset[ControlTable] = frozenset(
    {ControlTable.VERDICT_TRENDS, ControlTable.PROOFS, ControlTable.LEDGER_BASES}
)

#: Tables of which ranges are read, and by what: their joined files are in this order, with bounds.
ORDERED_BY: dict[ControlTable, tuple[str, ...]] = {
    ControlTable.CHECKPOINTS: ("pipeline", "version", "sink_version", "batch"),
    ControlTable.LATE_ROWS: ("pipeline", "version", "offset", "broker_at"),
    ControlTable.DEAD_LETTERS: ("pipeline", "version", "offset", "broker_at"),
}

#: Columns that came later than their table. A table that lacks them gets them: null in the rows that it has.
LATER: dict[ControlTable, frozenset[str]] = {
    ControlTable.CHECKPOINTS: frozenset({"checkpoint", "base", "excluded"}),
    ControlTable.VERDICTS: frozenset({"change", "number", "bounds"}),
    ControlTable.DEAD_LETTERS: frozenset({"traceback"}),
    ControlTable.LATE_ROWS: frozenset({"key"}),
}

#: The leases are read at their newest version only, for milliseconds, and get a commit each second.
LEASES_RETENTION_SECONDS = 120
#: Versions of ``leases`` between two checkpoints: a cold open reads one small file for each version since the
#: last (nine: 4 ms of 17).
LEASES_CHECKPOINT_EVERY = 5
#: A reader of the other control tables may take minutes, so files that were replaced are kept for this long.
APPENDED_RETENTION_HOURS = 1
#: The log of the other control tables is kept for this long. Nobody reads these tables at an older version.
#: Each append lists the log, and some tables get several appends a second.
APPENDED_LOG_RETENTION_SECONDS = 300


def configuration(name: ControlTable) -> dict[str, str]:
    """Delta properties of a control table. Nobody reads an older version of one, so its log is short.

    (The sinks keep theirs for days, because verdicts and rewinds read older versions of them.)
    """
    if name is ControlTable.LEASES:
        kept = f"interval {LEASES_RETENTION_SECONDS} seconds"
        return {
            "delta.checkpointInterval": str(LEASES_CHECKPOINT_EVERY),
            "delta.logRetentionDuration": kept,
            "delta.deletedFileRetentionDuration": kept,
            "delta.dataSkippingNumIndexedCols": "0",  # the table is always read whole
        }
    return {
        "delta.checkpointInterval": "50",
        "delta.logRetentionDuration": f"interval {APPENDED_LOG_RETENTION_SECONDS} seconds",
        # Twice as long as files are kept, so that no checkpoint forgets a replaced file before the upkeep has
        # deleted it.
        "delta.deletedFileRetentionDuration": f"interval {2 * APPENDED_RETENTION_HOURS} hours",
        "delta.enableExpiredLogCleanup": "true",
    }
