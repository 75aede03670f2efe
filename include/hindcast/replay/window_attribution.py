"""Give each replayed record the watermark that the stream had when it read it, and count its windows. Spark's own expressions only.

The batch that read an offset is found by a broadcast join. An equality on (partition, bucket of offsets) keeps it a hash join: a join on
the range alone would compare each record with every batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.pipeline import Pipeline
from hindcast.replay.planner import ReplayPlan
from hindcast.spark.window_counts import late_at_all

#: What :func:`attribute` adds. ``_late_us`` is the late watermark in microseconds, ``_windows_*`` count a row's windows: those that were
#: final when it came, those that the plan judges, and those that are both.
PLACED = ("_late_us", "_committed_at", "_inside", "_windows_late", "_windows_judged", "_windows_late_judged")
_PER_BUCKET = 2  # batches to compare with in a bucket of average size
_SEGMENT_SCHEMA = "_p int, _bucket long, _from long, _to long, _late_us long, _committed_at timestamp, _inside boolean"


def attribute(spark: SparkSession, parsed: DataFrame, plan: ReplayPlan, pipeline: Pipeline) -> DataFrame:
    """The parsed records with the :data:`PLACED` columns; ``_late_us`` is null for a record that no batch of the ledger has read.

    ``_inside`` is false for records before ``plan.start``, which were read for their windows only.
    """
    width = _bucket_width(plan)
    segments = spark.createDataFrame(pd.DataFrame(_rows(plan, width), columns=_names()), schema=_SEGMENT_SCHEMA)
    offset = F.col("_offset")
    here = (
        (F.col("_partition") == F.col("_p"))
        & (F.expr(f"_offset div {width}L") == F.col("_bucket"))
        & (offset >= F.col("_from"))
        & (offset < F.col("_to"))
    )
    placed = parsed.join(F.broadcast(segments), here, "left").drop("_p", "_bucket", "_from", "_to")
    return placed.withColumns(_window_counts(plan, pipeline))


def _names() -> list[str]:
    return [column.split()[0] for column in _SEGMENT_SCHEMA.split(", ")]


def _bucket_width(plan: ReplayPlan) -> int:
    records = sum(segment.end - segment.start for segment in plan.segments)
    return max(1, records * _PER_BUCKET // max(1, len(plan.segments)))


def _rows(plan: ReplayPlan, width: int) -> Iterator[tuple[object, ...]]:
    for segment in plan.segments:
        begin, end = max(segment.start, plan.read_from[segment.partition]), min(segment.end, plan.end[segment.partition])
        border = min(max(plan.start[segment.partition], begin), end)
        for first, last, inside in ((begin, border, False), (border, end, True)):
            for bucket in range(first // width, (last - 1) // width + 1) if first < last else ():
                yield segment.partition, bucket, first, last, segment.late_ms * 1000, segment.row.committed_at, inside


def _window_counts(plan: ReplayPlan, pipeline: Pipeline) -> dict[str, Column]:
    """By arithmetic on microseconds, without making a row for each window.

    The windows of a moment t end at first, first + slide, ..., last, with first = t - pmod(t - length, slide) + slide and
    last = t - pmod(t, slide) + length: the least multiple of the slide above t - length, and the greatest not above t, each plus length.
    """
    names = ("_windows_late", "_windows_judged", "_windows_late_judged")
    if pipeline.re_execute:  # a row is late as a whole: it came when the watermark had passed its own time
        late = late_at_all(pipeline, F.col("_late_us"))
        usable_row = F.col("_reason").isNull().cast("long")
        return dict(zip(names, (late, usable_row, late), strict=True))
    if pipeline.window is None:
        return dict.fromkeys(names, F.lit(0).cast("long"))
    first, last, slide = _window_ends(pipeline)

    def ending_by(limit: str) -> str:
        return f"(CASE WHEN {limit} < {first} THEN 0L ELSE (least({limit}, {last}) - {first}) div {slide}L + 1 END)"

    after, to = f"{plan.windows_after_ms * 1000}L", f"{plan.windows_to_ms * 1000}L"
    usable = "_reason IS NULL"
    judged = f"({ending_by(to)} - {ending_by(after)})"
    late_judged = f"greatest({ending_by(f'least({to}, _late_us)')} - {ending_by(after)}, 0L)"
    if plan.corrected:
        late_judged = f"CASE WHEN {late_judged} > 0 THEN cast(size({lost_windows(plan, pipeline)}) as bigint) ELSE 0L END"
    expressions = (ending_by("_late_us"), judged, late_judged)
    return {name: F.expr(f"CASE WHEN {usable} THEN {value} ELSE 0L END") for name, value in zip(names, expressions, strict=True)}


def _window_ends(pipeline: Pipeline) -> tuple[str, str, int]:
    """The first and the last end of a row's windows, as expressions, and the slide between two; all in microseconds."""
    assert pipeline.window is not None
    length, slide = (int(duration.total_seconds() * 1_000_000) for duration in (pipeline.window.length, pipeline.window.step))
    time = "unix_micros(_event_at)"
    return f"({time} - pmod({time} - {length}L, {slide}L) + {slide}L)", f"({time} - pmod({time}, {slide}L) + {length}L)", slide


def lost_windows(plan: ReplayPlan, pipeline: Pipeline) -> str:
    """The ends, in microseconds, of a usable row's judged windows that it came too late for and no correction has it in: an array."""
    first, last, slide = _window_ends(pipeline)
    wanted = f"e > {plan.windows_after_ms * 1000}L AND e <= least({plan.windows_to_ms * 1000}L, _late_us)"
    return f"filter(sequence({first}, {last}, {slide}L), e -> {wanted} AND NOT {is_corrected(plan, 'e')})"


def is_corrected(plan: ReplayPlan, end: str) -> str:
    """Whether a correction of the window with that end (microseconds) was made of a range that holds the row: a condition, never null."""
    conditions = []
    for one in plan.corrected:
        ends = ", ".join(f"{partition}, {offset}L" for partition, offset in sorted(one.end.items()))
        reached = f"coalesce(element_at(map({ends}), _partition), 0L)"
        conditions.append(f"({end} > {one.after_ms * 1000}L AND {end} <= {one.to_ms * 1000}L AND _offset < {reached})")
    return f"({' OR '.join(conditions) or 'false'})"
