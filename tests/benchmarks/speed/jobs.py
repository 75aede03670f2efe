"""What all sides of a run do with the trades: count them in windows, or keep each of them as a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarks.speed.workload import Answer, Key, Workload, epoch_ms
from deltalake import DeltaTable

Rows = Sequence[Mapping[str, Any]]


class Job(ABC):
    """One of them.

    :cvar name: as a person asks for it, and as the plain stream knows it
    :cvar heading: what the figures' page says of it before the rate
    :cvar does_flink: whether the Flink job knows it too
    """

    name: str
    heading: str
    does_flink: bool
    _module: str

    def module(self, pipeline: str, *, topic: str, shards: int) -> str:
        """The file of a pipeline of this name that does it. Its table has the same name."""
        return self._module.format(name=pipeline, topic=topic, shards=shards)

    @abstractmethod
    def rows_of_delta(self, table: str) -> list[dict[str, Any]]:
        """The rows of a side's Delta table, as :meth:`check` wants them."""

    @abstractmethod
    def check(self, load: Workload, start_ms: int, rows: Rows) -> int:
        """Compare what a side wrote with the answer; return how many rows there are.

        :param start_ms: when the first trade happened, epoch milliseconds
        :raises SystemExit: if it has another row, lacks one, or has one twice
        """


class Windows(Job):
    """Of each ticker in sliding windows: how many trades, the least and the mean price."""

    name = "windows"
    heading = "Windows"
    does_flink = True
    _module = """\
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast import Table, Topic, Window, pipeline


@pipeline(
    source=Topic("{topic}", schema="ticker string, ts timestamp, ask double", key="ticker"),
    event_time="ts",
    watermark="10 seconds",
    window=Window("5 seconds", slide="1 second"),
    sink=Table("{name}", keys=["window", "ticker"]),
    version=1,
    shards={shards},
)
def {name}(trades: DataFrame) -> DataFrame:
    return trades.groupBy("window", "ticker").agg(
        F.min("ask").alias("min_ask"), F.count("*").alias("trades"), F.avg("ask").alias("avg_ask")
    )
"""

    def rows_of_delta(self, table: str) -> list[dict[str, Any]]:
        """ticker, end_ms, trades, min_ask, avg_ask."""
        rows = DeltaTable(table).to_pyarrow_table().to_pylist()
        return [{**row, "end_ms": epoch_ms(row["window"]["end"])} for row in rows]

    def check(self, load: Workload, start_ms: int, rows: Rows) -> int:
        """The last windows are still open, for the watermark is behind. So a side must have each window up to its
        own last one, and nothing else.
        """
        found: dict[Key, Answer] = {}
        for row in rows:
            key = (row["ticker"], row["end_ms"])
            found[key] = (row["trades"], row["min_ask"], round(row["avg_ask"] * row["trades"] * 64))
        if not found:
            raise SystemExit("The answer has no row.")
        if len(found) != len(rows):
            raise SystemExit(f"The answer has {len(rows) - len(found)} rows more than once.")
        last = max(end for _, end in found)
        expected = {key: answer for key, answer in load.answers(start_ms).items() if key[1] <= last}
        if found != expected:
            wrong = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
            at = datetime.fromtimestamp(min(end for _, end in wrong) / 1000, UTC)
            raise SystemExit(
                f"The answer differs in {len(wrong)} of {len(expected)} rows, the first at {at:%H:%M:%S}."
            )
        return len(found)


class Copy(Job):
    """Each trade is a row: its fields are parsed, and nothing else is done with it."""

    name = "copy"
    heading = "Copy"
    does_flink = False
    _module = """\
from pyspark.sql import DataFrame

from hindcast import Table, Topic, pipeline


@pipeline(
    source=Topic("{topic}", schema="ticker string, ts timestamp, ask double", key="ticker"),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("{name}"),
    version=1,
    shards={shards},
)
def {name}(trades: DataFrame) -> DataFrame:
    return trades.select("ticker", "ts", "ask")
"""

    def rows_of_delta(self, table: str) -> list[dict[str, Any]]:
        """ticker, ts, ask."""
        return DeltaTable(table).to_pyarrow_table(columns=["ticker", "ts", "ask"]).to_pylist()

    def check(self, load: Workload, start_ms: int, rows: Rows) -> int:
        """A side has each trade of the load once."""
        found = Counter((row["ticker"], epoch_ms(row["ts"]), round(row["ask"] * 64)) for row in rows)
        sent = Counter((trade.ticker, trade.event_ms, trade.sixty_fourths) for trade in load.trades(start_ms))
        if found != sent:
            lacks = (sent - found).total()
            others = (found - sent).total()
            raise SystemExit(f"The copy lacks {lacks} of {sent.total()} trades and has {others} others.")
        return found.total()


WINDOWS, COPY = Windows(), Copy()
JOBS: dict[str, Job] = {job.name: job for job in (WINDOWS, COPY)}
