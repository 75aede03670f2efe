"""How many windows a row falls into, and for how many of them it was late. Spark's own expressions only."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.pipeline import TOPIC_STRIDE, Pipeline


def window_counts(pipeline: Pipeline) -> tuple[Column, Column]:
    """Two long columns: the windows a row falls into, and those that end at or before ``_late_watermark_ms``.

    With slide S and length L, the windows of an event at t start at floor(t / S) * S - k * S for k from 0
    while that is above t - L.
    """
    watermark_us = F.col("_late_watermark_ms") * F.lit(1000)
    if pipeline.window is None:
        return _without_window(pipeline, watermark_us)
    length_us = _microseconds(pipeline.window.length)
    slide_us = _microseconds(pipeline.window.step)
    at_us = F.unix_micros("_event_at")
    newest_start = at_us - F.pmod(at_us, F.lit(slide_us))
    newest_end = newest_start + F.lit(length_us)
    total = F.ceil((F.lit(length_us) - (at_us - newest_start)) / F.lit(slide_us)).cast("long")
    first_late = F.ceil((newest_end - watermark_us) / F.lit(slide_us)).cast("long")
    on_time = F.least(F.greatest(first_late, F.lit(0)), total)
    return total, total - on_time


def _without_window(pipeline: Pipeline, watermark_us: Column) -> tuple[Column, Column]:
    """A row counts as one window if an operator with state may drop it for being late, else as none."""
    if not pipeline.re_execute:
        return F.lit(0).cast("long"), F.lit(0).cast("long")
    return F.lit(1).cast("long"), late_at_all(pipeline, watermark_us)


def _microseconds(delta: timedelta) -> int:
    return int(delta.total_seconds() * 1_000_000)


def late_at_all(pipeline: Pipeline, watermark_us: Column) -> Column:
    """1 for a usable row that came when the watermark had reached its event time, else 0.

    An operator with state may have dropped such a row.
    """
    waited_for = [index for index, topic in enumerate(pipeline.topics) if topic.watermark]
    counts = F.expr(f"_partition div {TOPIC_STRIDE}").isin(waited_for)
    late = F.unix_micros("_event_at") <= watermark_us
    return F.coalesce(F.col("_reason").isNull() & counts & late, F.lit(False)).cast("long")
