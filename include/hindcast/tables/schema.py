"""The columns of every control table. Instants are microseconds in UTC; a column named ``*_ms`` is epoch
milliseconds of event time.
"""

from __future__ import annotations

import pyarrow as pa

from hindcast.tables.table_names import ControlTable

INSTANT = pa.timestamp("us", tz="UTC")
TEXT = pa.string()
COUNT = pa.int64()
REAL = pa.float64()
FLAG = pa.bool_()


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


SCHEMAS: dict[ControlTable, pa.Schema] = {
    # One row for each thing that is leased; key = the first three columns. See hindcast.leases.lease.
    ControlTable.LEASES: _schema(
        stream_id=TEXT,
        status_type=TEXT,
        status_value=TEXT,
        checkpoint=TEXT,
        lease_counter=COUNT,
        lease_owner=TEXT,
        lease_stealer=TEXT,
        parent_shard_ids=pa.list_(TEXT),
        epoch=COUNT,
        state=TEXT,
        detail=TEXT,
        updated_at=INSTANT,
        schema_version=COUNT,
    ),
    # The ledger: one row for each batch committed to a sink. start_offsets and end_offsets are JSON
    # {partition: offset}, end exclusive. A row is late for a window in this batch iff window end <=
    # late_watermark_ms; windows with end <= watermark_ms are final after it. A row with a negative batch is a
    # reset: the sink's commit sink_version took back the shard's batches after -1 - batch. floors is JSON
    # {partition: ms}: what was final before the shard's query began, so it holds in addition to both
    # watermarks; empty at first. checkpoint and base name the query's checkpoint
    # (hindcast.recovery.rebuild_state.CheckpointRef). excluded is JSON {partition: {offset: error}}: the
    # records that the batch left out because the function raises on them; null if there are none.
    ControlTable.CHECKPOINTS: _schema(
        pipeline=TEXT,
        version=COUNT,
        shard=TEXT,
        epoch=COUNT,
        batch=COUNT,
        worker=TEXT,
        topic=TEXT,
        start_offsets=TEXT,
        end_offsets=TEXT,
        late_watermark_ms=COUNT,
        watermark_ms=COUNT,
        floors=TEXT,
        min_event_ms=COUNT,
        max_event_ms=COUNT,
        input_rows=COUNT,
        poison_rows=COUNT,
        output_rows=COUNT,
        batch_seconds=REAL,
        cpu_seconds=REAL,
        sink_version=COUNT,
        started_at=INSTANT,
        committed_at=INSTANT,
        checkpoint=TEXT,
        base=COUNT,
        excluded=TEXT,
        schema_version=COUNT,
    ),
    # One row each time a run changes state; the newest row of a run_id counts. plan and versions are JSON.
    ControlTable.RUNS: _schema(
        run_id=TEXT,
        pipeline=TEXT,
        version=COUNT,
        kind=TEXT,
        state=TEXT,
        plan=TEXT,
        hindcast_url=TEXT,
        input_rows=COUNT,
        output_rows=COUNT,
        dead_letters=COUNT,
        late_rows=COUNT,
        input_bytes=COUNT,
        seconds=REAL,
        rows_per_second=REAL,
        cpu_seconds=REAL,
        peak_memory_bytes=COUNT,
        stream_rows_per_second=REAL,
        stream_cpu_seconds=REAL,
        latency_p50_seconds=REAL,
        latency_p95_seconds=REAL,
        versions=TEXT,
        note=TEXT,
        started_at=INSTANT,
        finished_at=INSTANT,
        schema_version=COUNT,
    ),
    # change counts the changes of the pipeline's versions (promotions and others) when the judging began;
    # number counts its version's verdicts. They order verdicts of several hosts, whose clocks may differ.
    # judged_at is for people.
    ControlTable.VERDICTS: _schema(
        run_id=TEXT,
        pipeline=TEXT,
        version=COUNT,
        sink_version=COUNT,
        windows_after_ms=COUNT,
        windows_to_ms=COUNT,
        windows_compared=COUNT,
        rows_compared=COUNT,
        missing=COUNT,
        extra=COUNT,
        changed=COUNT,
        doubled=COUNT,
        unexplained=COUNT,
        late_differences=COUNT,
        rounding=COUNT,
        captured=REAL,
        captured_results=REAL,
        ratios=TEXT,
        input_rows=COUNT,
        late_rows=COUNT,
        dead_letters=COUNT,
        passed=FLAG,
        failed=TEXT,
        data_docs=TEXT,
        judged_at=INSTANT,
        change=COUNT,
        number=COUNT,
        bounds=TEXT,
        schema_version=COUNT,
    ),
    # Sample rows of what differs. keys is JSON; cause is late_rows, online, rounding, bound or unexplained.
    ControlTable.DIFFERENCES: _schema(
        run_id=TEXT,
        pipeline=TEXT,
        kind=TEXT,
        cause=TEXT,
        keys=TEXT,
        column=TEXT,
        stream_value=TEXT,
        hindcast_value=TEXT,
        late_rows=COUNT,
        found_at=INSTANT,
        schema_version=COUNT,
    ),
    # One row for each input record that came after at least one of its windows was final. key and value are
    # null once they were erased or have expired (hindcast.tables.side_rows).
    ControlTable.LATE_ROWS: _schema(
        pipeline=TEXT,
        version=COUNT,
        shard=TEXT,
        epoch=COUNT,
        batch=COUNT,
        topic=TEXT,
        partition=COUNT,
        offset=COUNT,
        event_at=INSTANT,
        broker_at=INSTANT,
        watermark_ms=COUNT,
        windows_late=COUNT,
        windows_total=COUNT,
        key=pa.binary(),
        value=pa.binary(),
    ),
    # traceback is what the pipeline's function raised, in full; null for other reasons, and if the owner that
    # had found the record died before it filed it. Contents are erased and expire as those of late rows.
    ControlTable.DEAD_LETTERS: _schema(
        pipeline=TEXT,
        version=COUNT,
        shard=TEXT,
        epoch=COUNT,
        batch=COUNT,
        topic=TEXT,
        partition=COUNT,
        offset=COUNT,
        broker_at=INSTANT,
        reason=TEXT,
        key=pa.binary(),
        value=pa.binary(),
        traceback=TEXT,
    ),
    # One row for each step of a run that sends mended letters back; see hindcast.kafka.redrive. letters and
    # ends (of the marks) are JSON.
    ControlTable.MENDED_LETTERS: _schema(
        run_id=TEXT,
        pipeline=TEXT,
        state=TEXT,
        letters=TEXT,
        ends=TEXT,
        noted_at=INSTANT,
        schema_version=COUNT,
    ),
    # What happened, for people: message says it in a sentence, cure says what to do (empty if nothing need be
    # done). detail is JSON.
    ControlTable.EVENTS: _schema(
        event_id=TEXT,
        at=INSTANT,
        severity=TEXT,
        kind=TEXT,
        pipeline=TEXT,
        shard=TEXT,
        worker=TEXT,
        epoch=COUNT,
        message=TEXT,
        cure=TEXT,
        detail=TEXT,
        schema_version=COUNT,
    ),
    # One row for each version of a pipeline: its verdicts in a few figures, however many they are. worst and
    # recent are JSON; see hindcast.tables.verdict_trends.
    ControlTable.VERDICT_TRENDS: _schema(
        pipeline=TEXT,
        version=COUNT,
        verdicts=COUNT,
        worst=TEXT,
        recent=TEXT,
        updated_at=INSTANT,
        schema_version=COUNT,
    ),
    # One row for each proof: the state of a re-execution at the end of a run's range. Offsets and batches are
    # JSON; see hindcast.tables.proofs.
    ControlTable.PROOFS: _schema(
        run_id=TEXT,
        pipeline=TEXT,
        version=COUNT,
        first_offsets=TEXT,
        start_offsets=TEXT,
        end_offsets=TEXT,
        sink_version=COUNT,
        based_on=TEXT,
        batches=TEXT,
        url=TEXT,
        made_at=INSTANT,
        schema_version=COUNT,
    ),
    # What the oldest batches of a version come to, up to some of the sink's versions. summary is JSON; see
    # hindcast.tables.ledger_bases.
    ControlTable.LEDGER_BASES: _schema(
        pipeline=TEXT, version=COUNT, sink_version=COUNT, summary=TEXT, made_at=INSTANT, schema_version=COUNT
    ),
}

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
