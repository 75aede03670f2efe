"""The shapes of pipeline that faults are tried on, and the answer that each must give, worked out in plain
Python.

A shape knows how its pipeline is declared, how a record is written on its topics, and what the sink holds
once every record was read. The answer rests on the records and on the watermark of the batch that read each
of them, and on nothing of Spark's.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from support.simulated_stream import Clockwork, Record, answer

from hindcast.pipeline import TOPIC_STRIDE

Place = tuple[int, int]  # partition, offset
#: A row of the sink: what names it, and what it says.
Result = tuple[Any, Any]

_WINDOWED = """
from pyspark.sql import functions as F
from hindcast import Format, Table, Topic, Window, pipeline
{before}
@pipeline(
    source=Topic("{topic}", schema="ticker string, ts timestamp, ask double NOT NULL", key="ticker"{source}),
    event_time="ts", watermark="10 seconds", window=Window("5 seconds", slide="1 second"),
    sink=Table("{name}", keys=["window", "ticker"]), version={version}, shards={shards},{more}
)
def {name}(trades):
    asks = F.min("ask").alias("min_ask"), F.count("*").alias("trades"), F.avg("ask").alias("avg_ask")
    return trades.groupBy("window", "ticker").agg(*asks)
"""

_UPSERT = """
from pyspark.sql import functions as F
from hindcast import Mode, Table, Topic, pipeline

@pipeline(
    source=Topic("{topic}", schema="ticker string, ts timestamp, ask double NOT NULL", key="ticker"),
    event_time="ts", watermark="10 seconds",
    sink=Table("{name}", keys=["ticker"], mode=Mode.UPSERT), version={version}, shards={shards},
)
def {name}(trades):
    asks = F.min("ask").alias("min_ask"), F.count("*").alias("trades"), F.avg("ask").alias("avg_ask")
    return trades.groupBy("ticker").agg(*asks)
"""

_JOIN = """
from pyspark.sql import functions as F
from hindcast import Table, Topic, pipeline

SCHEMA = "id string NOT NULL, ticker string, ts timestamp, ask double NOT NULL"

@pipeline(
    source=Topic("{topic}", schema=SCHEMA, key="ticker"), joined=[Topic("{topic}-quotes", schema=SCHEMA, key="ticker")],
    event_time="ts", watermark="10 seconds", re_execute=True,
    sink=Table("{name}", keys=["ticker", "trade", "quote"]), version={version}, shards={shards},
)
def {name}(trades, quotes):
    left = trades.select("ticker", F.col("ts").alias("traded_at"), F.col("id").alias("trade"))
    right = quotes.select(F.col("ticker").alias("quoted"), F.col("ts").alias("quoted_at"), F.col("id").alias("quote"))
    after = F.col("traded_at") >= F.col("quoted_at")
    soon = F.col("traded_at") <= F.col("quoted_at") + F.expr("INTERVAL 1 SECOND")
    return left.join(right, (F.col("ticker") == F.col("quoted")) & after & soon).select("ticker", "trade", "quote")
"""

_AVRO_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Trade",
        "fields": [
            {"name": "ticker", "type": "string"},
            {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "ask", "type": "double"},
        ],
    }
)

_KEEP_LATE = """
def keep(late):
    return late.select("ticker", F.col("_partition").alias("partition"), F.col("_offset").alias("offset"))
"""


@dataclass(frozen=True)
class Shape:
    """Windows of JSON records, appended: the shape that the others vary."""

    name: str = "append"
    #: Whether a batch may replace rows of the sink.
    upserts: bool = False
    clockwork: Clockwork = field(default_factory=Clockwork)

    def module(self, name: str, topic: str, version: int, shards: int) -> str:
        return _WINDOWED.format(
            name=name, topic=topic, version=version, shards=shards, before="", source="", more=""
        )

    def topics(self, topic: str) -> tuple[str, ...]:
        """Its topics in the order in which partitions are numbered."""
        return (topic,)

    def tables(self, name: str) -> tuple[str, ...]:
        """Its tables, the sink first."""
        return (name,)

    def spread(self, records: Sequence[Record]) -> list[Record]:
        """The records of a feed, dealt to the topics."""
        return list(records)

    def value(self, record: Record) -> bytes | None:
        """What is sent for a record."""
        if record.event_ms is None:
            return record.poison
        return self.encoded(record, record.event_ms)

    def encoded(self, record: Record, event_ms: int) -> bytes:
        return json.dumps({"ticker": record.ticker, "ts": iso(event_ms), "ask": record.ask}).encode()

    def windows_late(self, record: Record, late_ms: int) -> int:
        """For how many of its windows a record was late, if the batch that read it had this watermark before
        it.
        """
        if record.event_ms is None:
            return 0
        return sum(end <= late_ms for end in self.clockwork.window_ends(record.event_ms))

    def expected(
        self, records: Iterable[Record], late_ms: Mapping[Place, int], closed_ms: Mapping[int, int]
    ) -> dict[Any, Any]:
        """What the sink must hold.

        :param late_ms: the watermark before the batch that read the record
        :param closed_ms: of each partition, up to which event time its windows are closed
        """
        asks: dict[Any, list[float]] = defaultdict(list)
        for record in records:
            for end in self.clockwork.window_ends(record.event_ms) if record.event_ms is not None else ():
                if late_ms[record.place] < end <= closed_ms[record.partition]:
                    asks[end, record.ticker].append(record.ask)
        return {key: answer(found) for key, found in asks.items()}

    def result(self, row: Mapping[str, Any]) -> Result:
        """A row of the sink as :meth:`expected` has it."""
        key = int(row["window"]["end"].timestamp() * 1000), row["ticker"]
        return key, (row["min_ask"], row["trades"], row["avg_ask"])


@dataclass(frozen=True)
class Upsert(Shape):
    """A running total for each ticker, whose row each batch replaces. Nothing is late."""

    name: str = "upsert"
    upserts: bool = True

    def module(self, name: str, topic: str, version: int, shards: int) -> str:
        return _UPSERT.format(name=name, topic=topic, version=version, shards=shards)

    def windows_late(self, record: Record, late_ms: int) -> int:
        return 0

    def expected(
        self, records: Iterable[Record], late_ms: Mapping[Place, int], closed_ms: Mapping[int, int]
    ) -> dict[Any, Any]:
        asks: dict[str, list[float]] = defaultdict(list)
        for record in records:
            if record.event_ms is not None:
                asks[record.ticker].append(record.ask)
        return {ticker: answer(found) for ticker, found in asks.items()}

    def result(self, row: Mapping[str, Any]) -> Result:
        return row["ticker"], (row["min_ask"], row["trades"], row["avg_ask"])


@dataclass(frozen=True)
class Join(Shape):
    """Two topics joined in time, re-executed: a trade meets each quote of its ticker of the second before it.

    A record that comes at or before the watermark meets nobody; of the others each pair is in the sink.
    """

    name: str = "join"
    within_ms: int = 1_000

    def module(self, name: str, topic: str, version: int, shards: int) -> str:
        return _JOIN.format(name=name, topic=topic, version=version, shards=shards)

    def topics(self, topic: str) -> tuple[str, ...]:
        return topic, f"{topic}-quotes"

    def spread(self, records: Sequence[Record]) -> list[Record]:
        """One to the trades, the next to the quotes."""
        return [
            replace(record, partition=record.partition + TOPIC_STRIDE * (number % 2))
            for number, record in enumerate(records)
        ]

    def encoded(self, record: Record, event_ms: int) -> bytes:
        row = {"id": _id(record), "ticker": record.ticker, "ts": iso(event_ms), "ask": record.ask}
        return json.dumps(row).encode()

    def windows_late(self, record: Record, late_ms: int) -> int:
        return int(record.event_ms is not None and record.event_ms <= late_ms)

    def expected(
        self, records: Iterable[Record], late_ms: Mapping[Place, int], closed_ms: Mapping[int, int]
    ) -> dict[Any, Any]:
        trades: dict[str, list[Record]] = defaultdict(list)
        quotes: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if record.event_ms is not None and record.event_ms > late_ms[record.place]:
                side = trades if record.partition < TOPIC_STRIDE else quotes
                side[record.ticker].append(record)
        met = {}
        for ticker, left in trades.items():
            for trade in left:
                for quote in quotes[ticker]:
                    assert trade.event_ms is not None
                    assert quote.event_ms is not None
                    if 0 <= trade.event_ms - quote.event_ms <= self.within_ms:
                        met[ticker, _id(trade), _id(quote)] = None
        return met

    def result(self, row: Mapping[str, Any]) -> Result:
        return (row["ticker"], row["trade"], row["quote"]), None


@dataclass(frozen=True)
class Avro(Shape):
    """Windows of Avro records."""

    name: str = "avro"

    def module(self, name: str, topic: str, version: int, shards: int) -> str:
        source = ", format=Format.AVRO, avro_schema=AVRO"
        before = f"\nAVRO = {_AVRO_SCHEMA!r}\n"
        return _WINDOWED.format(
            name=name, topic=topic, version=version, shards=shards, before=before, source=source, more=""
        )

    def encoded(self, record: Record, event_ms: int) -> bytes:
        ticker = record.ticker.encode()
        return _zigzag(len(ticker)) + ticker + _zigzag(event_ms) + struct.pack("<d", record.ask)


@dataclass(frozen=True)
class LateSink(Shape):
    """Windows whose late rows go to a table of the pipeline's own, too."""

    name: str = "late_sink"

    def module(self, name: str, topic: str, version: int, shards: int) -> str:
        more = f'\n    late=keep, late_sink=Table("{self.tables(name)[1]}"),'
        return _WINDOWED.format(
            name=name, topic=topic, version=version, shards=shards, before=_KEEP_LATE, source="", more=more
        )

    def tables(self, name: str) -> tuple[str, ...]:
        return name, f"{name}_late"


def iso(event_ms: int) -> str:
    return (
        datetime.fromtimestamp(event_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _id(record: Record) -> str:
    return f"{record.partition}-{record.offset}"


def _zigzag(number: int) -> bytes:
    """A whole number as Avro writes it (Avro specification, "Binary Encoding")."""
    left = (number << 1) ^ (number >> 63)
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


APPEND = Shape()
SHAPES: dict[str, Shape] = {shape.name: shape for shape in (APPEND, Upsert(), Join(), Avro(), LateSink())}
#: Those whose result is made of windows that close.
WINDOWED = ("append", "avro", "late_sink")
#: Those of one topic, whose state can be made from its rows alone, and dealt anew to other shards.
OF_ONE_TOPIC = ("append", "upsert", "avro", "late_sink")


def placed(records: list[Record]) -> list[Record]:
    """The records at the offsets that their topics give them."""
    offsets: dict[int, int] = {}
    made = []
    for record in records:
        offset = offsets.get(record.partition, 0)
        made.append(replace(record, offset=offset))
        offsets[record.partition] = offset + 1
    return made
