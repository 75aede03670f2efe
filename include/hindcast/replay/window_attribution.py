"""Give each replayed record the watermark that the stream had when it read it, and count its windows.

It uses Spark's own expressions only. The batch that read an offset is found by a broadcast join on
:mod:`hindcast.replay.offset_buckets`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.pipeline import Pipeline
from hindcast.replay import offset_buckets
from hindcast.replay.planner import ReplayPlan
from hindcast.spark.window_counts import EVENT_US, late_at_all
from hindcast.windows import MICROSECOND, WindowEnds

#: What :func:`attribute` adds. ``_late_us`` is the late watermark in microseconds. ``_windows_*`` count a
#: row's windows: those that were final when it came, those that the plan judges, and those that are both.
PLACED = ("_late_us", "_committed_at", "_inside", "_windows_late", "_windows_judged", "_windows_late_judged")
_SEGMENT_SCHEMA = (
    "_p int, _bucket long, _from long, _to long, _late_us long, _committed_at timestamp, _inside boolean"
)


def attribute(spark: SparkSession, parsed: DataFrame, plan: ReplayPlan, pipeline: Pipeline) -> DataFrame:
    """The parsed records with the :data:`PLACED` columns.

    ``_late_us`` is null for a record that no batch of the ledger has read. ``_inside`` is false for records
    before ``plan.start``: they were read for their windows only.
    """
    width = _bucket_width(plan)
    rows = pd.DataFrame(_rows(plan, width), columns=_names())
    segments = spark.createDataFrame(rows, schema=_SEGMENT_SCHEMA)
    offset = F.col("_offset")
    here = (
        (F.col("_partition") == F.col("_p"))
        & (offset_buckets.bucket("_offset", width) == F.col("_bucket"))
        & (offset >= F.col("_from"))
        & (offset < F.col("_to"))
    )
    placed = parsed.join(F.broadcast(segments), here, "left").drop("_p", "_bucket", "_from", "_to")
    return placed.withColumns(_window_counts(plan, pipeline))


def _names() -> list[str]:
    return [column.split()[0] for column in _SEGMENT_SCHEMA.split(", ")]


def _bucket_width(plan: ReplayPlan) -> int:
    records = sum(segment.end - segment.start for segment in plan.segments)
    return offset_buckets.width_of(records, len(plan.segments))


def _rows(plan: ReplayPlan, width: int) -> Iterator[tuple[object, ...]]:
    """The rows of :data:`_SEGMENT_SCHEMA`: each segment before and after the plan's start, once for each
    bucket.
    """
    for segment in plan.segments:
        partition = segment.partition
        begin = max(segment.start, plan.read_from[partition])
        end = min(segment.end, plan.end[partition])
        border = min(max(plan.start[partition], begin), end)
        for first, last, inside in ((begin, border, False), (border, end, True)):
            if first >= last:
                continue
            for bucket in offset_buckets.touched(first, last, width):
                yield partition, bucket, first, last, segment.late_ms * 1000, segment.row.committed_at, inside


def _window_counts(plan: ReplayPlan, pipeline: Pipeline) -> dict[str, Column]:
    """By arithmetic on microseconds, without making a row for each window."""
    names = ("_windows_late", "_windows_judged", "_windows_late_judged")
    if pipeline.re_execute:  # a row is late as a whole: it came when the watermark had passed its own time
        late_row = late_at_all(pipeline, F.col("_late_us"))
        usable_row = F.col("_reason").isNull().cast("long")
        return dict(zip(names, (late_row, usable_row, late_row), strict=True))
    if pipeline.window is None:
        return dict.fromkeys(names, F.lit(0).cast("long"))
    windows = WindowEnds.of(pipeline.window, MICROSECOND)

    def ending_by(limit: str) -> str:
        return windows.count_sql(EVENT_US, limit)

    after = f"{plan.windows_after_ms * 1000}L"
    to = f"{plan.windows_to_ms * 1000}L"
    late = ending_by("_late_us")
    judged = f"({ending_by(to)} - {ending_by(after)})"
    late_to = f"least({to}, _late_us)"
    late_judged = f"greatest({ending_by(late_to)} - {ending_by(after)}, 0L)"
    if plan.corrected:
        lost = f"cast(size({lost_windows(plan, pipeline)}) as bigint)"
        late_judged = f"CASE WHEN {late_judged} > 0 THEN {lost} ELSE 0L END"
    counts = {}
    for name, count in zip(names, (late, judged, late_judged), strict=True):
        counts[name] = F.expr(f"CASE WHEN _reason IS NULL THEN {count} ELSE 0L END")
    return counts


def lost_windows(plan: ReplayPlan, pipeline: Pipeline) -> str:
    """The judged windows that a usable row came too late for, and in which no correction has it.

    :returns: an expression of the array of their ends, in microseconds
    """
    assert pipeline.window is not None
    windows = WindowEnds.of(pipeline.window, MICROSECOND)
    after = f"{plan.windows_after_ms * 1000}L"
    judged_and_late_to = f"least({plan.windows_to_ms * 1000}L, _late_us)"
    lost = f"e > {after} AND e <= {judged_and_late_to} AND NOT {is_corrected(plan, 'e')}"
    return f"filter({windows.ends_sql(EVENT_US)}, e -> {lost})"


def is_corrected(plan: ReplayPlan, end: str) -> str:
    """Whether a correction of the window with that end (microseconds) was made of a range that holds the row.

    :returns: a condition, never null
    """
    conditions = []
    for one in plan.corrected:
        ends = ", ".join(f"{partition}, {offset}L" for partition, offset in sorted(one.end.items()))
        reached = f"coalesce(element_at(map({ends}), _partition), 0L)"
        in_range = f"{end} > {one.after_ms * 1000}L AND {end} <= {one.to_ms * 1000}L"
        conditions.append(f"({in_range} AND _offset < {reached})")
    any_of_them = " OR ".join(conditions) or "false"
    return f"({any_of_them})"
