"""What the audit files: which windows a row is late for, and why a row is poison."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from hindcast import Window, catalog
from hindcast.pipeline import Pipeline
from hindcast.settings import project_root
from hindcast.spark import parsed_records, transformation, window_counts
from hindcast.stream import late_and_dead_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return catalog.load(project_root() / "include" / "pipelines")["stock_stats"]


@pytest.mark.parametrize(
    ("length", "slide"),
    [
        ("5 seconds", "1 second"),
        ("5 seconds", "5 seconds"),
        ("7 seconds", "3 seconds"),
        ("1 minute", "45 seconds"),
    ],
)
def test_the_arithmetic_of_windows_is_sparks_own(
    spark: SparkSession, pipeline: Pipeline, length: str, slide: str
) -> None:
    """Counting windows by arithmetic gives what Spark's window function gives, at every edge of a
    millisecond.
    """
    windowed = replace(pipeline, window=Window(length, slide=slide))
    edges = [AT + timedelta(seconds=second, milliseconds=ms) for second in range(-8, 9) for ms in (-1, 0, 1)]
    rows = spark.createDataFrame(
        [
            (at, late)
            for at in edges
            for late in (0, *(int((AT + timedelta(seconds=s)).timestamp() * 1000) for s in range(-6, 12, 3)))
        ],
        "ts timestamp, _late_watermark_ms long",
    )
    total, late = window_counts.window_counts(windowed)
    counted = rows.withColumn("_event_at", F.col("ts")).select(
        "ts", "_late_watermark_ms", total.alias("total"), late.alias("late")
    )
    exploded = (
        transformation.assign_windows(rows, windowed)
        .groupBy("ts", "_late_watermark_ms")
        .agg(
            F.count("*").alias("total"),
            F.sum((F.unix_millis("window.end") <= F.col("_late_watermark_ms")).cast("long")).alias("late"),
        )
    )
    assert sorted(map(tuple, counted.collect())) == sorted(map(tuple, exploded.collect()))


POISON = [
    (None, "no value"),
    (b"", "does not parse"),
    (b"{bad", "does not parse"),
    (b"[1, 2]", "does not parse"),
    (b'"text"', "does not parse"),
    (b'{"ticker": "A", "ts": "2026-01-01T12:00:00Z", "ask": "cheap"}', "does not parse"),
    (b'{"ticker": "A", "ts": "yesterday", "ask": 1.0}', "does not parse"),
    (b'{"ticker": "\xff\xfe", "ts": "2026-01-01T12:00:00Z", "ask": 1.0', "does not parse"),
    (b"\x00\x00\x00", "does not parse"),
    (b'{"a":' * 2000, "does not parse"),
    (b'{"ticker": "A", "ask": 1.0}', "no ts"),
    (b'{"ticker": "A", "ts": null, "ask": 1.0}', "no ts"),
    (b'{"ticker": "A", "ts": "2026-01-01T13:00:00.001Z", "ask": 1.0}', "more than 1 hour in the future"),
    (b'{"ticker": "A", "ts": "9999-12-31T23:59:59Z", "ask": 1.0}', "more than 1 hour in the future"),
]
GOOD = [
    b'{"ticker": "A", "ts": "2026-01-01T12:00:00Z", "ask": 1.0}',
    b'{"ticker": "A", "ts": "2026-01-01T13:00:00.000Z", "ask": 1.0}',
    b'{"ticker": null, "ts": "2026-01-01T12:00:00Z", "ask": null, "venue": {"x": [1]}}',
    '{"ticker": "Ä€", "ts": "2026-01-01T12:00:00+00:00", "ask": 1}'.encode(),
]


def test_poison_is_named_and_its_neighbours_are_unharmed(spark: SparkSession, pipeline: Pipeline) -> None:
    """Each kind of poison gets its reason, with bytes and place kept; every good row between them parses."""
    values = [value for pair in zip([value for value, _ in POISON], GOOD * 4, strict=False) for value in pair]
    kafka = [(None, value, "trades", 0, offset, AT) for offset, value in enumerate(values)]
    raw = spark.createDataFrame(
        kafka, "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
    )
    parsed = parsed_records.parse(raw, pipeline)
    rows = {row["_offset"]: row for row in parsed.collect()}
    for number, (value, reason) in enumerate(POISON):
        row = rows[2 * number]
        assert row["_reason"] is not None, value
        assert reason in row["_reason"], value
        assert row["_value"] == value
    assert [row["_offset"] for row in rows.values() if row["_reason"] is None] == [
        2 * number + 1 for number in range(len(POISON))
    ]
    filed = late_and_dead_rows.dead_letters(parsed.withColumn("_batch", F.lit(1)), {})
    assert filed.count() == len(POISON)


def test_a_field_that_must_be_there_and_is_not_is_poison(spark: SparkSession, pipeline: Pipeline) -> None:
    """A producer that drops, renames or nulls a NOT NULL field fills the dead letters: nothing is nulled out
    in silence (F20).
    """
    schema = "ticker string NOT NULL, ts timestamp, ask double NOT NULL"
    strict = replace(pipeline, source=replace(pipeline.source, schema=schema))
    whole = '"ticker": "A", "ts": "2026-01-01T12:00:00Z"'
    values = [
        f'{{{whole}, "ask": 1.0}}',
        f"{{{whole}}}",
        f'{{{whole}, "price": 1.0}}',
        f'{{{whole}, "ask": null}}',
        '{"ask": 1.0}',
    ]
    kafka = [(None, value.encode(), "trades", 0, offset, AT) for offset, value in enumerate(values)]
    raw = spark.createDataFrame(
        kafka, "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
    )
    reasons = [row["_reason"] for row in parsed_records.parse(raw, strict).orderBy("_offset").collect()]
    assert reasons == [None, "no ask", "no ask", "no ask", "no ts"]
    assert parsed_records.usable(parsed_records.parse(raw, strict)).count() == 1
