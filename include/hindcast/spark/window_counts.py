"""How many windows a row falls into, and for how many of them it was late. Spark's own expressions only."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.windows import MICROSECOND, WindowEnds

#: The event time of a parsed row in microseconds, as an expression.
EVENT_US = "unix_micros(_event_at)"


def window_counts(pipeline: Pipeline) -> tuple[Column, Column]:
    """Two long columns: the windows of a row, and those that end at ``_late_watermark_ms`` or before it."""
    if pipeline.window is None:
        return _without_window(pipeline, F.col("_late_watermark_ms") * F.lit(1000))
    windows = WindowEnds.of(pipeline.window, MICROSECOND)
    total = F.expr(windows.count_sql(EVENT_US))
    late = F.expr(windows.count_sql(EVENT_US, "(_late_watermark_ms * 1000L)"))
    return total, late


def _without_window(pipeline: Pipeline, watermark_us: Column) -> tuple[Column, Column]:
    """A row counts as one window if an operator with state may drop it for being late, else as none."""
    if not pipeline.re_execute:
        return F.lit(0).cast("long"), F.lit(0).cast("long")
    return F.lit(1).cast("long"), late_at_all(pipeline, watermark_us)


def late_at_all(pipeline: Pipeline, watermark_us: Column) -> Column:
    """1 for a usable row that came when the watermark had reached its event time, else 0.

    An operator with state may have dropped such a row.
    """
    waited_for = [index for index, topic in enumerate(pipeline.topics) if topic.watermark]
    counts = F.expr(f"_partition div {TOPIC_STRIDE}").isin(waited_for)
    late = F.unix_micros("_event_at") <= watermark_us
    return F.coalesce(F.col("_reason").isNull() & counts & late, F.lit(False)).cast("long")
