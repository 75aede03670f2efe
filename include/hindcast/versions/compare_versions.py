"""Compare a pipeline's inactive version with the active one, at equal offsets.

Both have read all records below a barrier: for each partition the lesser of what they have read and filed.
Every window that is final in both by then is compared, key by key, on the columns that both have.

A version may differ from the one before, because that is its purpose. It must not lack windows or have a key
twice, and it may declare how large a share of the keys it changes (``changed_at_most``). Two streams of the
same rules differ only if a row came late for one of them alone, since they batch differently. Such windows
are named. All other differences come from the versions' own rules.

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

from hindcast.clock import utc_from_ms
from hindcast.errors import TryLaterError
from hindcast.installation import Installation
from hindcast.partitions import Offsets, offsets_to_json
from hindcast.pipeline import Pipeline
from hindcast.pipeline_checks import check_bounded_columns
from hindcast.replay.inputs import read_ledger
from hindcast.replay.wait_for_stream import filed_batches
from hindcast.settings import Settings
from hindcast.shards.active_version import Rollout
from hindcast.shards.version_changes import Refusal, Versions
from hindcast.shards.version_events import record_changes
from hindcast.spark.session import cached
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.fenced_sink import sink_end
from hindcast.tables.ledger_bases import batches_in
from hindcast.tables.ledger_history import History
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.bounds import number
from hindcast.verdict.compare import Comparison, Kind, Sides, compare

SAMPLES = 20


@dataclass(frozen=True)
class Barrier:
    """The offsets up to which both have read and filed.

    Also the windows that both have closed by then: after < end <= to. Without windows the versions of the two
    sinks that have these offsets and no others.
    """

    offsets: Offsets
    after_ms: int
    to_ms: int
    new_sink_version: int | None = None
    old_sink_version: int | None = None


@dataclass(frozen=True)
class _Compared:
    """What Spark found: the comparison, the windows that the new version lacks, and the columns of one
    version only.
    """

    result: Comparison
    missing_windows: int
    columns_only_old: list[str]
    columns_only_new: list[str]


def compare_versions(
    session: Callable[[], SparkSession], installation: Installation, name: str
) -> dict[str, Any]:
    """Compare, and keep the result in an event. Counts are exact; up to 20 rows that differ are kept.

    :returns: {pipeline, version, with, offsets, windows_after_ms, windows_to_ms, until, windows, rows, same,
        only_old, only_new, changed, rounding, doubled, changed_share, changed_at_most, by_column,
        columns_only_old, columns_only_new, missing_windows, causes, samples, failed, passed, change, number}:
        ``changed_share`` is the share of keys of which the versions differ, ``changed_at_most`` what the new
        version declares (None for nothing), ``change`` is the pipeline's last change when the comparison
        began, ``number`` counts the pipeline's comparisons
    :raises VersionRefusedError: if the pipeline has no inactive version, or the keys of the two differ
    :raises PipelineError: if the new version has a tolerance of a column that is no number of its result
    :raises TryLaterError: if there is nothing yet that both have read
    """
    found = installation.catalog
    tables = installation.tables
    rollout = record_changes(tables, Versions(installation.lease_table).of(name))
    if rollout.beside is None:
        cure = f"`hindcast reprocess {name}` starts a new version."
        raise Refusal(name, rollout.active, "compared")("there is no inactive version", cure)
    new = found.of(name, rollout.beside.version)
    old = found.of(name, rollout.active)
    if new.sink.keys != old.sink.keys:
        problem = f"its keys are {new.sink.keys}, those of version {old.version} {old.sink.keys}"
        raise Refusal(name, new.version, "compared")(problem, 'It can be promoted with --despite "reason".')
    barrier = _barrier(installation, new, old, rollout)
    compared = _compare(session(), installation, new, old, barrier)
    row = comparison_row(new, old, barrier, compared.result, compared.missing_windows)
    row["change"] = rollout.changes
    row["number"] = _next_number(tables, name)
    row["columns_only_old"] = compared.columns_only_old
    row["columns_only_new"] = compared.columns_only_new
    _record(installation.event_log, row)
    return row


def _compare(
    spark: SparkSession, installation: Installation, new: Pipeline, old: Pipeline, barrier: Barrier
) -> _Compared:
    """Compare the windows (without windows: all rows) of both sinks."""
    settings = installation.settings
    with ExitStack() as caches:
        new_closed = _closed(spark, settings, new, barrier, barrier.new_sink_version)
        old_closed = _closed(spark, settings, old, barrier, barrier.old_sink_version)
        new_rows = caches.enter_context(cached(new_closed))
        old_rows = caches.enter_context(cached(old_closed))
        new_types = _column_types(new_rows)
        check_bounded_columns(new, new_types)
        old_types = _column_types(old_rows)
        common = [column for column in old_types if new_types.get(column) == old_types[column]]
        late = None
        if new.window is not None:
            late = caches.enter_context(cached(_late_for_one(spark, installation.tables, new, old, barrier)))
        columns = [f"`{column}`" for column in common]
        stream = new_rows.select(*columns)
        hindsight = old_rows.select(*columns)
        keys: list[str] = []  # if a key may have several rows, whole rows are compared
        if new.compares_by_key:
            keys = list(new.sink.keys)
        sides = Sides(stream, hindsight, hindsight, keys, late, tolerance=new.tolerance)
        result = compare(sides, SAMPLES)
        missing_windows = 0
        if late is not None:
            missing_windows = _missing_windows(new_rows, old_rows, late)
    return _Compared(
        result,
        missing_windows,
        columns_only_old=sorted(set(old_types) - set(common)),
        columns_only_new=sorted(set(new_types) - set(common)),
    )


def _column_types(frame: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema.fields}


def _record(events: EventLog, row: dict[str, Any]) -> None:
    """Keep the comparison in an event."""
    name = row["pipeline"]
    versions = f"version {row['version']} was compared with version {row['with']}"
    same = f"{row['same']} rows are the same, {row['changed']} changed"
    alone = f"{row['only_old']} only in the old, {row['only_new']} only in the new"
    share = f"{row['changed_share']:.4%} of the keys differ"
    message = f"{name}: {versions} over {row['windows']} windows: {same}, {alone}; {share}."
    severity = Severity.INFO
    cure = ""
    if not row["passed"]:
        severity = Severity.WARNING
        cure = f"Find out why: {'; '.join(row['failed'])}."
    kind = EventKind.VERSIONS_COMPARED
    events.record(kind, message, severity=severity, cure=cure, pipeline=name, comparison=row)


def newest_comparison(
    tables: ControlTables, name: str, version: int, active: int, change: int
) -> dict[str, Any] | None:
    """The newest comparison of a version with the active one, begun after the pipeline's change of that
    number.

    None if there is none. Comparisons are numbered. Two that were made at once have the same number: then the
    one that failed counts.
    """
    since = []
    for one in _comparisons(tables, name):
        of_these = one["version"] == version and one["with"] == active
        if of_these and one.get("change", -1) >= change:
            since.append(one)
    return max(since, key=lambda one: (one["number"], bool(one["failed"])), default=None)


def _next_number(tables: ControlTables, name: str) -> int:
    """The number of the pipeline's next comparison."""
    numbers = [one.get("number", 0) for one in _comparisons(tables, name)]
    return 1 + max(numbers, default=0)


def _comparisons(tables: ControlTables, name: str) -> list[dict[str, Any]]:
    compared = ("kind", "=", EventKind.VERSIONS_COMPARED.value)
    events = tables.rows(ControlTable.EVENTS, [("pipeline", "=", name), compared])
    return [json.loads(event["detail"])["comparison"] for event in events]


def _barrier(installation: Installation, new: Pipeline, old: Pipeline, rollout: Rollout) -> Barrier:
    of_new = read_ledger(installation, new)
    of_old = read_ledger(installation, old)

    def barrier(new_history: History) -> Barrier:
        return of_old.answer(
            lambda old_history: _barrier_of(installation, new, old, rollout, new_history, old_history)
        )

    return of_new.answer(barrier)


def _barrier_of(
    installation: Installation,
    new: Pipeline,
    old: Pipeline,
    rollout: Rollout,
    all_new: History,
    all_old: History,
) -> Barrier:
    """:raises HistoryTooShortError: if one of the histories does not have the answer"""
    assert rollout.beside is not None
    new_history = _filed(installation, new, all_new)
    old_history = _filed(installation, old, all_old)
    new_read = new_history.committed
    old_read = old_history.committed
    offsets: Offsets = {}
    for partition in new_read.keys() | old_read.keys():
        offsets[partition] = min(new_read.get(partition, 0), old_read.get(partition, 0))
    if new.window is None:
        if new_read != old_read or not new_read:
            condition = "only if both versions have read the very same records"
            cure = f"`hindcast drain {new.name}` lets both reach the topic's end; compare them then."
            raise TryLaterError(reason=f"Without windows {new.name} is compared {condition}. {cure}")
        new_version = _sink_version(installation, new, new_history)
        return Barrier(offsets, 0, 0, new_version, _sink_version(installation, old, old_history))
    partitions = [partition for partition, end in offsets.items() if end > 0]
    new_horizon_ms = new_history.horizon_ms(offsets, partitions)
    old_horizon_ms = old_history.horizon_ms(offsets, partitions)
    to_ms = min(new_horizon_ms, old_horizon_ms)
    after_ms = rollout.beside.seam_ms or 0
    for served in rollout.earlier:
        after_ms = max(after_ms, served.to_ms)
    if to_ms <= after_ms:
        reason = f"No window of {new.name} is final in both versions {new.version} and {old.version} yet."
        raise TryLaterError(reason=reason)
    return Barrier(offsets, after_ms, to_ms)


def _filed(installation: Installation, pipeline: Pipeline, history: History) -> History:
    """What the version has read, up to the last batch whose late and poison rows are filed.

    :raises HistoryTooShortError: if a batch of the history's base is not filed
    """
    filed = filed_batches(installation.tables, pipeline.name, history.shards)
    history.audited(filed)
    return History(tuple(row for row in history.rows if row.batch <= filed[row.shard]), history.base)


def _sink_version(installation: Installation, pipeline: Pipeline, history: History) -> int:
    """The newest version of the sink.

    :raises TryLaterError: if it has a batch that is not in the history
    """
    settings = installation.settings
    end = sink_end(settings.sink(pipeline), settings.storage_options)
    assert end is not None, "the history has a batch"
    last: dict[str, int] = {}
    if history.base is not None:
        last.update(history.base.shards)
    for row in history.rows:
        last[row.shard] = max(row.batch, last.get(row.shard, 0))
    for shard, batch in batches_in(end, pipeline.name, pipeline.version).items():
        if batch > last.get(shard, 0):
            reason = f"Version {pipeline.version} of {pipeline.name} has committed a batch just now."
            raise TryLaterError(reason=f"{reason} Its late and poison rows are not filed yet.")
    return end.version


def _closed(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, barrier: Barrier, sink_version: int | None
) -> DataFrame:
    """The sink's rows of windows that the barrier has closed; without windows all rows.

    :param sink_version: None for the newest: what closed windows have does not change
    """
    reader = spark.read.format("delta")
    if sink_version is not None:
        reader = reader.option("versionAsOf", str(sink_version))
    frame = reader.load(settings.sink(pipeline))
    if pipeline.window is None:
        return frame
    end_us = F.unix_micros("window.end")
    return frame.where((end_us > barrier.after_ms * 1000) & (end_us <= barrier.to_ms * 1000))


def _late_for_one(
    spark: SparkSession, tables: ControlTables, new: Pipeline, old: Pipeline, barrier: Barrier
) -> DataFrame:
    """Windows (``end_ms``) for which rows were late in one of the versions alone, and how many
    (``late_rows``).
    """
    late_rows = spark.read.format("delta").load(tables.url(ControlTable.LATE_ROWS))
    filed = late_rows.where(F.col("pipeline") == new.name)
    new_late = _late_for_windows(filed, new, barrier)
    old_late = _late_for_windows(filed, old, barrier)
    alone = new_late.exceptAll(old_late).unionByName(old_late.exceptAll(new_late))
    return alone.groupBy("end_ms").agg(F.count("*").alias("late_rows"))


def _late_for_windows(filed: DataFrame, pipeline: Pipeline, barrier: Barrier) -> DataFrame:
    """The version's late rows, once for each window (``end_ms``) of the barrier that they were late for."""
    assert pipeline.window is not None
    duration = pipeline.window.duration
    windows = F.window("event_at", duration, pipeline.window.slide or duration).alias("window")
    own = filed.where(F.col("version") == pipeline.version)
    rows = own.select("partition", "offset", "watermark_ms", windows)
    end_ms = F.unix_millis("window.end")
    last_ms = F.least(F.col("watermark_ms"), F.lit(barrier.to_ms))
    inside = (end_ms > barrier.after_ms) & (end_ms <= last_ms)
    return rows.where(inside).select("partition", "offset", end_ms.alias("end_ms"))


def _missing_windows(new: DataFrame, old: DataFrame, late: DataFrame) -> int:
    """Windows that only the old version has rows of, and for which no row was late in one of them alone."""
    end_ms = F.unix_millis("window.end").alias("end_ms")
    new_ends = new.select(end_ms).distinct()
    old_ends = old.select(end_ms).distinct()
    lacking = old_ends.join(new_ends, "end_ms", "left_anti")
    return lacking.join(late, "end_ms", "left_anti").count()


def comparison_row(
    new: Pipeline, old: Pipeline, barrier: Barrier, result: Comparison, missing_windows: int
) -> dict[str, Any]:
    differing = result.missing + result.extra + result.doubled + result.changed
    same = result.rows_compared - differing
    failed = []
    if missing_windows:
        failed.append(f"{missing_windows} windows are only in version {old.version}")
    if result.doubled:
        failed.append(f"{result.doubled} rows of version {new.version} have keys of others")
    late = result.unexplained_late
    share = changed_share(differing, result.rows_compared)
    most = new.changed_at_most
    if most is not None and share > most:
        failed.append(_changed_too_much(new, share, most, differing, result, late))
    causes = {"late_in_one_version": late, "version": max(0, differing - late)}
    return {
        "pipeline": new.name,
        "version": new.version,
        "with": old.version,
        "offsets": json.loads(offsets_to_json(barrier.offsets)),
        "windows_after_ms": barrier.after_ms,
        "windows_to_ms": barrier.to_ms,
        "windows": result.windows_compared,
        "rows": result.rows_compared,
        "same": same,
        "only_old": result.missing,
        "only_new": result.extra,
        "changed": result.changed,
        "rounding": result.rounding,
        "doubled": result.doubled,
        "changed_share": share,
        "changed_at_most": most,
        "by_column": result.by_column,
        "missing_windows": missing_windows,
        "causes": causes,
        "samples": [_sample(asdict(sample)) for sample in result.samples[:SAMPLES]],
        "until": utc_from_ms(barrier.to_ms).isoformat(),
        "failed": failed,
        "passed": not failed,
    }


def changed_share(differing: int, rows: int) -> float:
    """The share of keys of which two versions differ; 0.0 if there are none."""
    if rows == 0:
        return 0.0
    return differing / rows


def _changed_too_much(
    new: Pipeline, share: float, most: float, differing: int, result: Comparison, late: int
) -> str:
    figure = f"{number(share)} of the keys changed ({differing} of {result.rows_compared}"
    if late:
        figure += f", {late} of them for rows that were late in one version alone"
    limit = f"changed_at_most of version {new.version} is {number(most)}"
    cure = "find out whether each change is meant; then declare a greater changed_at_most and compare again"
    return f"{figure}), and {limit}: {cure}"


#: The verdict's kind -> its name here. The verdict has the new version as the stream and the old one as the
#: hindcast.
_KINDS = {Kind.MISSING: "only_old", Kind.EXTRA: "only_new", Kind.CHANGED: "changed", Kind.DOUBLED: "doubled"}


def _sample(found: dict[str, Any]) -> dict[str, Any]:
    kind = _KINDS[found["kind"]]
    if found["cause"] == "rounding":
        kind = "rounding"
    return {
        "kind": kind,
        "keys": found["keys"],
        "column": found["column"],
        "new": found["stream_value"],
        "old": found["hindcast_value"],
    }
