"""Make records for a trial from a topic's schema: rows whose event times go on, some late, some twice, some
malformed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from hindcast.pipeline import Pipeline, Topic, parse_duration
from hindcast.stream.trial import Batch
from hindcast.testing import Record, Value

#: Shares of all rows.
LATE, TWICE, MALFORMED = 0.05, 0.05, 0.01
#: Of the records of a topic with tombstones.
TOMBSTONES = 0.1
#: The rows of a trial reach over so many times the watermark and the window, so that most windows close.
_SPANS = 10
#: Few, so that rows meet: in a group, in a join, in a running result.
_WORDS = ("amber", "birch", "cedar", "delta", "ember")
_NUMBERS = 20
_START = datetime(2026, 1, 1, tzinfo=UTC)
_NOT_JSON = b"{this is no JSON"


def sample_batches(pipeline: Pipeline, *, batches: int, rows: int, seed: int) -> list[Batch]:
    """Records for each topic of a pipeline. The same seed makes the same records.

    :param rows: of each topic in each batch
    """
    rng = random.Random(seed)
    reach = parse_duration(pipeline.watermark)
    if pipeline.window is not None:
        reach += parse_duration(pipeline.window.duration)
    step = reach * _SPANS / (batches * rows)
    sources = {}
    for topic in pipeline.topics:
        sources[topic.name] = _records(rng, topic, _values(rng, pipeline, topic, step, reach))
    return [_batch(sources, rows) for _ in range(batches)]


def _batch(sources: Mapping[str, Iterator[Value | Record]], rows: int) -> Batch:
    return {name: [next(records) for _ in range(rows)] for name, records in sources.items()}


def _records(rng: random.Random, topic: Topic, values: Iterator[Value]) -> Iterator[Value | Record]:
    """The values, with what the function asks for of their records: keys that come again, a header, and now
    and then a tombstone.
    """
    if not topic.record_columns:
        yield from values
        return
    for value in values:
        sent = value
        if topic.tombstones and rng.random() < TOMBSTONES:
            sent = None
        yield Record(sent, rng.choice(_WORDS).encode(), [("trace", b"1")])


def _values(
    rng: random.Random, pipeline: Pipeline, topic: Topic, step: timedelta, reach: timedelta
) -> Iterator[Value]:
    """Endless values of one topic. A late row is so late that its windows are closed."""
    schema = StructType.fromDDL(topic.schema)
    assert isinstance(schema, StructType)
    at = _START
    last: Value = None
    while True:
        at += step
        drawn = rng.random()
        if drawn < MALFORMED:
            yield _NOT_JSON
        elif drawn < MALFORMED + TWICE and last is not None:
            yield last
        else:
            event = at
            if drawn < MALFORMED + TWICE + LATE:
                event = at - 2 * reach
            last = _row(rng, schema, {pipeline.event_time_of(topic): event})
            yield last


def _row(rng: random.Random, schema: StructType, known: Mapping[str, Any]) -> dict[str, Any]:
    row = {}
    for field in schema.fields:
        if field.name in known:
            row[field.name] = known[field.name]
        else:
            row[field.name] = _value(rng, field.dataType)
    return row


def _value(rng: random.Random, kind: DataType) -> Any:
    """Any value of the type; None of one that is not known here."""
    if isinstance(kind, StringType):
        return rng.choice(_WORDS)
    if isinstance(kind, BooleanType):
        return rng.random() < 1 / 2
    if isinstance(kind, DecimalType):
        return rng.randrange(_NUMBERS) if kind.precision > kind.scale + 1 else 0
    if isinstance(kind, IntegralType):
        return rng.randrange(_NUMBERS)
    if isinstance(kind, FractionalType):
        return rng.randrange(_NUMBERS * 64) / 64  # sums of sixty-fourths are exact
    if isinstance(kind, TimestampType):
        return _START + timedelta(seconds=rng.randrange(_NUMBERS))
    if isinstance(kind, TimestampNTZType):
        return (_START + timedelta(seconds=rng.randrange(_NUMBERS))).replace(tzinfo=None)
    if isinstance(kind, DateType):
        return date(2026, 1, 1) + timedelta(days=rng.randrange(_NUMBERS))
    if isinstance(kind, ArrayType):
        return [_value(rng, kind.elementType) for _ in range(rng.randrange(3))]
    if isinstance(kind, MapType):
        return {rng.choice(_WORDS): _value(rng, kind.valueType)}
    if isinstance(kind, StructType):
        return _row(rng, kind, {})
    return None
