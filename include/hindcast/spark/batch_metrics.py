"""What Spark measures of a query's batches: the rows of each source, their event times, how far the topics are ahead."""

from __future__ import annotations

import json
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress

from hindcast.tables.ledger import LedgerRow

_OBSERVED = "source"


def observed(parsed: DataFrame, source: int) -> DataFrame:
    """The parsed rows of the source of that number, counted as they pass."""
    event_ms = F.when(F.col("_reason").isNull(), F.unix_millis("_event_at"))
    return parsed.observe(
        f"{_OBSERVED}{source}",
        F.count(F.lit(1)).alias("rows"),
        F.count("_reason").alias("poison"),
        F.min(event_ms).alias("min_event_ms"),
        F.max(event_ms).alias("max_event_ms"),
    )


def completed(row: LedgerRow, progress: StreamingQueryProgress, sources: int) -> LedgerRow:
    """The batch with what was measured of it; as it is, where Spark has not reported every source yet."""
    found = [progress["observedMetrics"].get(f"{_OBSERVED}{number}") for number in range(sources)]
    if None in found:
        return row
    earliest, latest = ([each[name] for each in found if each[name] is not None] for name in ("min_event_ms", "max_event_ms"))
    return replace(
        row,
        input_rows=sum(each["rows"] for each in found),
        poison_rows=sum(each["poison"] for each in found),
        min_event_ms=min(earliest, default=None),
        max_event_ms=max(latest, default=None),
        batch_seconds=progress["durationMs"].get("triggerExecution", 0) / 1000 or row.batch_seconds,
    )


def lag_records(progress: StreamingQueryProgress) -> int | None:
    """How many records the topics' ends were ahead when the batch was planned; None before the first plan."""
    if not progress.sources:
        return None
    behind = 0
    for read in progress.sources:
        ends, latest = (json.loads(text or "null") or {} for text in (read.endOffset, read.latestOffset))
        for topic, offsets in ends.items():
            known = latest.get(topic, {})
            behind += sum(max(int(known[partition]) - int(offset), 0) for partition, offset in offsets.items() if partition in known)
    return behind
