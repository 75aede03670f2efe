"""How many windows a row falls into, and for how many of them it was late. Spark's own expressions only."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.pipeline import TOPIC_STRIDE, Pipeline


def window_counts(pipeline: Pipeline) -> tuple[Column, Column]:
    """(windows a row falls into, those of them that end at or before ``_late_watermark_ms``), both long, by arithmetic.

    With slide S and length L, the windows of an event at t start at floor(t / S) * S - k * S for k from 0 while that is above t - L.
    """
    if pipeline.window is None:
        late = late_at_all(pipeline, F.col("_late_watermark_ms") * F.lit(1000)) if pipeline.re_execute else F.lit(0).cast("long")
        return F.lit(int(pipeline.re_execute)).cast("long"), late
    length, slide = (int(delta.total_seconds() * 1_000_000) for delta in (pipeline.window.length, pipeline.window.step))
    at = F.unix_micros("_event_at")
    newest_start = at - F.pmod(at, F.lit(slide))
    total = F.ceil((F.lit(length) - (at - newest_start)) / F.lit(slide)).cast("long")
    newest_end = newest_start + F.lit(length)
    first_late = F.ceil((newest_end - F.col("_late_watermark_ms") * F.lit(1000)) / F.lit(slide)).cast("long")
    late = total - F.least(F.greatest(first_late, F.lit(0)), total)
    return total, late


def late_at_all(pipeline: Pipeline, watermark_us: Column) -> Column:
    """1 for a usable row that came when the watermark had reached its event time, so that an operator with state may have dropped it."""
    waited_for = [index for index, topic in enumerate(pipeline.topics) if topic.watermark]
    counts = F.expr(f"_partition div {TOPIC_STRIDE}").isin(waited_for)
    return F.coalesce((F.col("_reason").isNull() & counts & (F.unix_micros("_event_at") <= watermark_us)), F.lit(False)).cast("long")
