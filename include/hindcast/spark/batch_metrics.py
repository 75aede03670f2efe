"""What Spark measures of a query's batches: the rows of each source, their event times, and the lag."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress

from hindcast.tables.ledger import LedgerRow

_OBSERVED = "source"


def observed(parsed: DataFrame, source: int) -> DataFrame:
    """The parsed rows of the source with this number; Spark counts them as they pass."""
    event_ms = F.when(F.col("_reason").isNull(), F.unix_millis("_event_at"))
    return parsed.observe(
        f"{_OBSERVED}{source}",
        F.count(F.lit(1)).alias("rows"),
        F.count("_reason").alias("poison"),
        F.min(event_ms).alias("min_event_ms"),
        F.max(event_ms).alias("max_event_ms"),
    )


def completed(row: LedgerRow, progress: StreamingQueryProgress, sources: int) -> LedgerRow:
    """The batch with its measurements; unchanged if Spark has not reported every source yet."""
    found = []
    for number in range(sources):
        measured = progress["observedMetrics"].get(f"{_OBSERVED}{number}")
        if measured is None:
            return row
        found.append(measured)
    measured_seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
    return replace(
        row,
        input_rows=sum(each["rows"] for each in found),
        poison_rows=sum(each["poison"] for each in found),
        min_event_ms=min(_known(found, "min_event_ms"), default=None),
        max_event_ms=max(_known(found, "max_event_ms"), default=None),
        batch_seconds=measured_seconds or row.batch_seconds,
    )


def _known(found: Iterable[Any], name: str) -> list[int]:
    """The measurement of each source that has one: a source without usable rows has no event times."""
    values = [each[name] for each in found]
    return [value for value in values if value is not None]


def state_bytes(progress: StreamingQueryProgress) -> int | None:
    """The memory that the query's state takes, in bytes; None if it has no state."""
    if not progress.stateOperators:
        return None
    return sum(operator.memoryUsedBytes for operator in progress.stateOperators)


def lag_records(progress: StreamingQueryProgress) -> int | None:
    """How many records the topics' ends were ahead when the batch was planned.

    None before the first plan, and of a query that does not read topics.
    """
    if not all("Kafka" in source.description for source in progress.sources):
        return None
    if not progress.sources:
        return None
    behind = 0
    for source in progress.sources:
        ends = _offsets(source.endOffset)
        latest = _offsets(source.latestOffset)
        for topic, offsets in ends.items():
            known = latest.get(topic, {})
            for partition, offset in offsets.items():
                if partition in known:
                    behind += max(int(known[partition]) - int(offset), 0)
    return behind


def _offsets(text: str | None) -> dict[str, dict[str, Any]]:
    """Topic -> partition -> offset, from the JSON that Spark reports."""
    return json.loads(text or "null") or {}
