"""Compare the version beside the active one with it, at equal offsets.

Both have read all records below a barrier, for each partition the lesser of what they have read and filed. Every window that is final in
both by then is compared, key by key, on the columns that both have. A version may differ from the one before, that is what it is for; it
must not lack windows or have a key twice. Two streams of the same rules differ only where a row came late for one of them alone, since
they batch differently: such windows are named. All other differences are of the versions' own rules.

Without windows only tables that hold the very same offsets can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import catalog
from hindcast.errors import TryLaterError
from hindcast.leases.delta_store import LeaseTable
from hindcast.pipeline import Mode, Pipeline
from hindcast.replay.inputs import audited_batches
from hindcast.settings import Settings
from hindcast.shards.active_version import Rollout
from hindcast.shards.version_changes import Refusal, Versions
from hindcast.shards.version_events import record_changes
from hindcast.spark.session import cached
from hindcast.tables.control_tables import ControlTables, utc_from_ms
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.ledger import Ledger, Offsets, offsets_to_json
from hindcast.tables.ledger_history import History
from hindcast.tables.schema import ControlTable
from hindcast.verdict.compare import Comparison, Kind, Sides, compare

SAMPLES = 20


@dataclass(frozen=True)
class _Barrier:
    """The offsets up to which both have read and filed, and the windows that both have closed by then: after < end <= to."""

    offsets: Offsets
    after_ms: int
    to_ms: int


def compare_versions(session: Callable[[], SparkSession], settings: Settings, name: str) -> dict[str, Any]:
    """Compare, and keep the result in an event. Counts are exact; up to 20 rows that differ are kept.

    :returns: {pipeline, version, with, offsets, windows_after_ms, windows_to_ms, until, windows, rows, same, only_old, only_new, changed,
        rounding, doubled, by_column, columns_only_old, columns_only_new, missing_windows, causes, samples, failed, passed, change, number}:
        ``change`` is the pipeline's last change when it was begun, ``number`` counts the pipeline's comparisons
    :raises VersionRefusedError: where no version is beside the active one, or their keys differ
    :raises TryLaterError: where there is nothing yet that both have read
    """
    found = catalog.load(settings.pipelines_dir)
    standing = record_changes(ControlTables(settings), Versions(LeaseTable(settings)).of(name))
    if standing.beside is None:
        cure = f"`hindcast reprocess {name}` starts a new version."
        raise Refusal(name, standing.active, "compared")("no version is beside it", cure)
    new, old = found.of(name, standing.beside.version), found.of(name, standing.active)
    if new.sink.keys != old.sink.keys:
        problem = f"its keys are {new.sink.keys}, those of version {old.version} {old.sink.keys}"
        raise Refusal(name, new.version, "compared")(problem, 'It can be promoted with --despite "reason".')
    tables = ControlTables(settings)
    barrier = _barrier(tables, new, old, standing)
    spark = session()
    with ExitStack() as kept:
        frames = [kept.enter_context(cached(_closed(spark, settings, one, barrier))) for one in (new, old)]
        kinds = [{field.name: field.dataType.simpleString() for field in frame.schema.fields} for frame in frames]
        common = [column for column in kinds[1] if kinds[0].get(column) == kinds[1][column]]
        keyed = new.window is not None or new.re_execute or new.sink.mode is Mode.UPSERT
        keys = list(new.sink.keys) if keyed else []
        late = kept.enter_context(cached(_late_for_one(spark, tables, new, old, barrier))) if new.window is not None else None
        sides = [frame.select(*[f"`{column}`" for column in common]) for frame in frames]
        result = compare(Sides(sides[0], sides[1], sides[1], keys, late), SAMPLES)
        missing = _missing_windows(frames[0], frames[1], late) if new.window is not None else 0
    row = _row(new, old, barrier, result, missing) | {
        "change": standing.changes,
        "number": 1 + max((one.get("number", 0) for one in _comparisons(tables, name)), default=0),
        "columns_only_old": sorted(set(kinds[1]) - set(common)),
        "columns_only_new": sorted(set(kinds[0]) - set(common)),
    }
    message = (
        f"{name}: version {new.version} was compared with version {old.version} over {result.windows_compared} windows: "
        f"{row['same']} rows are the same, {row['changed']} changed, {row['only_old']} only in the old, {row['only_new']} only in the new."
    )
    severity = Severity.INFO if row["passed"] else Severity.WARNING
    cure = "" if row["passed"] else f"Find out why: {'; '.join(row['failed'])}."
    EventLog(tables).record(EventKind.VERSIONS_COMPARED, message, severity=severity, cure=cure, pipeline=name, comparison=row)
    return row


def newest_comparison(tables: ControlTables, name: str, version: int, active: int, change: int) -> dict[str, Any] | None:
    """The newest comparison of a version with the active one, begun after the pipeline's change of that number; None where there is none.

    Comparisons are numbered. Two that were made at once have the same number: then the one that failed counts.
    """
    found = [one for one in _comparisons(tables, name) if (one["version"], one["with"]) == (version, active)]
    since = [one for one in found if one.get("change", -1) >= change]
    return max(since, key=lambda one: (one["number"], bool(one["failed"])), default=None)


def _comparisons(tables: ControlTables, name: str) -> list[dict[str, Any]]:
    events = tables.rows(ControlTable.EVENTS, [("pipeline", "=", name), ("kind", "=", EventKind.VERSIONS_COMPARED.value)])
    return [json.loads(event["detail"])["comparison"] for event in events]


def _barrier(tables: ControlTables, new: Pipeline, old: Pipeline, standing: Rollout) -> _Barrier:
    assert standing.beside is not None
    histories = []
    for one in (new, old):
        rows = Ledger(tables).batches(one.name, one.version)
        filed = audited_batches(tables, rows)
        histories.append(History.of(row for row in rows if row.batch <= filed[row.shard]))
    read = [history.committed for history in histories]
    offsets = {partition: min(read[0].get(partition, 0), read[1].get(partition, 0)) for partition in read[0].keys() | read[1].keys()}
    if new.window is None:
        if read[0] != read[1] or not read[0]:
            how = f"`hindcast drain {new.name}` lets both reach the topic's end; compare them then."
            raise TryLaterError(reason=f"Without windows {new.name} is compared where both versions have read the very same. {how}")
        return _Barrier(offsets, 0, 0)
    partitions = [partition for partition, end in offsets.items() if end > 0]
    to_ms = min(history.horizon_ms(offsets, partitions) for history in histories)
    seams = [standing.beside.seam_ms or 0, *(one.to_ms for one in standing.earlier)]
    after_ms = max(seams)
    if to_ms <= after_ms:
        raise TryLaterError(reason=f"No window of {new.name} is final in both versions {new.version} and {old.version} yet.")
    return _Barrier(offsets, after_ms, to_ms)


def _closed(spark: SparkSession, settings: Settings, pipeline: Pipeline, barrier: _Barrier) -> DataFrame:
    frame = spark.read.format("delta").load(settings.table("sinks", pipeline.sink.name))
    if pipeline.window is None:
        return frame
    end = F.unix_micros("window.end")
    return frame.where((end > barrier.after_ms * 1000) & (end <= barrier.to_ms * 1000))


def _late_for_one(spark: SparkSession, tables: ControlTables, new: Pipeline, old: Pipeline, barrier: _Barrier) -> DataFrame:
    """Windows (``end_ms``) for which rows were late in one of the versions alone, and how many (``late_rows``)."""
    filed = spark.read.format("delta").load(tables.url(ControlTable.LATE_ROWS)).where(F.col("pipeline") == new.name)
    sides = []
    for one in (new, old):
        assert one.window is not None
        windows = F.window("event_at", one.window.duration, one.window.slide or one.window.duration)
        rows = filed.where(F.col("version") == one.version).select("partition", "offset", "watermark_ms", windows.alias("window"))
        end_ms = F.unix_millis("window.end")
        inside = (end_ms > barrier.after_ms) & (end_ms <= F.least(F.col("watermark_ms"), F.lit(barrier.to_ms)))
        sides.append(rows.where(inside).select("partition", "offset", end_ms.alias("end_ms")))
    alone = sides[0].exceptAll(sides[1]).unionByName(sides[1].exceptAll(sides[0]))
    return alone.groupBy("end_ms").agg(F.count("*").alias("late_rows"))


def _missing_windows(new: DataFrame, old: DataFrame, late: DataFrame | None) -> int:
    """Windows that only the old version has rows of, and for which no row was late in one of them alone."""
    ends = [frame.select(F.unix_millis("window.end").alias("end_ms")).distinct() for frame in (new, old)]
    lacking = ends[1].join(ends[0], "end_ms", "left_anti")
    return (lacking.join(late, "end_ms", "left_anti") if late is not None else lacking).count()


def _row(new: Pipeline, old: Pipeline, barrier: _Barrier, result: Comparison, missing_windows: int) -> dict[str, Any]:
    differing = result.missing + result.extra + result.doubled + result.changed
    failed = [
        *([f"{missing_windows} windows are only in version {old.version}"] if missing_windows else []),
        *([f"{result.doubled} rows of version {new.version} have keys of others"] if result.doubled else []),
    ]
    return {
        "pipeline": new.name,
        "version": new.version,
        "with": old.version,
        "offsets": json.loads(offsets_to_json(barrier.offsets)),
        "windows_after_ms": barrier.after_ms,
        "windows_to_ms": barrier.to_ms,
        "windows": result.windows_compared,
        "rows": result.rows_compared,
        "same": result.rows_compared - result.missing - result.extra - result.changed,
        "only_old": result.missing,
        "only_new": result.extra,
        "changed": result.changed,
        "rounding": result.rounding,
        "doubled": result.doubled,
        "by_column": result.by_column,
        "missing_windows": missing_windows,
        "causes": {"late_in_one_version": result.unexplained_late, "version": max(0, differing - result.unexplained_late)},
        "samples": [_sample(asdict(sample)) for sample in result.samples[:SAMPLES]],
        "until": utc_from_ms(barrier.to_ms).isoformat(),
        "failed": failed,
        "passed": not failed,
    }


#: How the verdict calls it, with the new version for the stream and the old one for the hindcast, and how it is called here.
_KINDS = {Kind.MISSING: "only_old", Kind.EXTRA: "only_new", Kind.CHANGED: "changed", Kind.DOUBLED: "doubled"}


def _sample(found: dict[str, Any]) -> dict[str, Any]:
    kind = _KINDS[found["kind"]] if found["cause"] != "rounding" else "rounding"
    return {"kind": kind, "keys": found["keys"], "column": found["column"], "new": found["stream_value"], "old": found["hindcast_value"]}
