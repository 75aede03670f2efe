"""A stream that others run, written with Structured Streaming alone: recorded, judged, and its defects
found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.crashes import die_before
from support.live_stream import delete_records, ends, produce
from support.shard_harness import Shard
from support.simulated_stream import Record, trades

from hindcast import Hindcast
from hindcast.settings import Settings
from hindcast.stream.late_and_dead_rows import Audit

if TYPE_CHECKING:
    from conftest import Broker

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

_SCHEMA = "ticker string, ts timestamp, ask double"
_WINDOWED = """
from pyspark.sql import functions as F
from hindcast import Topic, Window, verified

@verified(
    table="{table}", checkpoint="{checkpoint}", keys=["window", "ticker"],
    source=Topic("{topic}", schema="ticker string, ts timestamp, ask double"),
    event_time="ts", watermark="10 seconds", window=Window("5 seconds", slide="1 second"), version={version},
)
def asks(trades):
    return trades.groupBy("window", "ticker").agg(F.min("ask").alias("min_ask"), F.count("*").alias("trades"))
"""
_ADOPTED = """
from pyspark.sql import functions as F
from hindcast import Table, Topic, Window, pipeline

@pipeline(
    sink=Table("asks", keys=["window", "ticker"], url="{table}"),
    source=Topic("{topic}", schema="ticker string, ts timestamp, ask double"),
    event_time="ts", watermark="10 seconds", window=Window("5 seconds", slide="1 second"), version={version},
)
def asks(trades):
    return trades.groupBy("window", "ticker").agg(F.min("ask").alias("min_ask"), F.count("*").alias("trades"))
"""
_ROW_BY_ROW = """
from hindcast import Topic, verified

@verified(
    table="{table}", checkpoint="{checkpoint}",
    source=Topic("{topic}", schema="ticker string, ts timestamp, ask double"),
    event_time="ts", watermark="10 seconds", version={version},
)
def asks(trades):
    return trades.where("ask >= 50").select("ticker", "ask")
"""


@dataclass
class Foreign:
    """The query, its topic of two partitions, and its declaration in a home of its own."""

    spark: SparkSession
    hindcast: Hindcast
    servers: str
    topic: str
    folder: Path
    records: list[Record]
    windowed: bool
    sent: int = 0

    @property
    def table(self) -> Path:
        return self.folder / "table"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def declare(self, text: str = "", version: int = 1) -> None:
        text = text or (_WINDOWED if self.windowed else _ROW_BY_ROW)
        folder = self.hindcast.settings.pipelines_dir
        folder.mkdir(parents=True, exist_ok=True)
        named = {"table": self.table, "checkpoint": self.checkpoint, "topic": self.topic}
        (folder / "asks.py").write_text(text.format(version=version, **named))

    def run(self, count: int) -> None:
        """The topic gets so many records more; the query reads them in small batches, and stops."""
        produce(self.servers, self.topic, self.records[self.sent : self.sent + count])
        self.sent += count
        source = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 80)
            .load()
        )
        rows = source.select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("t")).select("t.*")
        writer = self._answer(rows).writeStream.format("delta").outputMode("append")
        query = (
            writer.option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.table))
        )
        query.awaitTermination()

    def _answer(self, rows: DataFrame) -> DataFrame:
        if not self.windowed:
            return rows.where("ask >= 50").select("ticker", "ask")
        grouped = rows.withWatermark("ts", "10 seconds").groupBy(
            F.window("ts", "5 seconds", "1 second"), "ticker"
        )
        return grouped.agg(F.min("ask").alias("min_ask"), F.count("*").alias("trades"))

    def forget_batches(self, kept: int) -> None:
        """What Spark does after a hundred batches: only the newest are left."""
        numbers = sorted(int(file.name) for file in (self.checkpoint / "offsets").glob("[0-9]*"))
        for number in numbers[:-kept]:
            for folder in ("offsets", "commits"):
                (self.checkpoint / folder / str(number)).unlink()
                (self.checkpoint / folder / f".{number}.crc").unlink(missing_ok=True)

    def judge(self) -> dict[str, Any]:
        """The verdict on all since the last one."""
        return Hindcast(self.hindcast.settings, self.spark).pipeline("asks").validate(since_last_verdict=True)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of its table, in some order."""
        return sorted(DeltaTable(str(self.table)).to_pyarrow_table().to_pylist(), key=str)

    def kinds(self, verdict: dict[str, Any]) -> dict[str, int]:
        found = ("missing", "extra", "changed", "doubled")
        return {kind: verdict[kind] for kind in found if verdict[kind]}


Make = Callable[..., Foreign]


@pytest.fixture
def foreign(
    spark: SparkSession,
    broker: Broker,
    topic_factory: Callable[..., str],
    settings_factory: Callable[..., Settings],
    tmp_path: Path,
) -> Make:
    """Make the query's topic and declaration; it has run over no record yet."""

    def make(*, windowed: bool = True) -> Foreign:
        settings = settings_factory(bootstrap_servers=broker.bootstrap_servers)
        settings = settings.model_copy(update={"pipelines_dir": settings.home / "pipelines"})
        records = trades(7, count=1_200, partitions=2, rate_ms=100.0)
        made = Foreign(
            spark,
            Hindcast(settings, spark),
            broker.bootstrap_servers,
            topic_factory(partitions=2),
            tmp_path / "lake",
            records,
            windowed,
        )
        made.declare()
        return made

    return make


def test_a_sound_stream_is_right_and_a_planted_defect_is_found(foreign: Make) -> None:
    """Late rows are its late rows, what is malformed is a dead letter, and the topic may lose what was judged.
    In the second interval someone deletes rows of the table.
    """
    stream = foreign()
    stream.run(300)
    verdict = stream.judge()
    assert verdict["passed"], verdict
    assert verdict["unexplained"] == 0
    assert verdict["late_rows"] > 0
    assert stream.hindcast.dead_letters("asks")
    # Open windows need the last ten seconds and the length of a window: a tenth of a second a record.
    delete_records(stream.servers, stream.topic, ends(stream.records[: stream.sent - 260]))
    stream.run(300)
    newest = (
        DeltaTable(str(stream.table)).to_pyarrow_table()["window"].combine_chunks().field("end").to_pylist()
    )
    DeltaTable(str(stream.table)).delete(f"window.end = '{max(newest).isoformat()}'")
    verdict = stream.judge()
    assert stream.kinds(verdict).keys() == {"missing"}


def test_a_row_by_row_stream_is_judged_by_what_its_commits_brought(foreign: Make) -> None:
    """Of what Spark no longer tells nothing is said. A batch that is appended once more, as a job without a
    transaction does after a crash, is found in its interval alone.
    """
    stream = foreign(windowed=False)
    stream.run(300)
    stream.forget_batches(2)
    assert stream.judge()["passed"]
    stream.run(150)
    table = DeltaTable(str(stream.table))
    write_deltalake(table, table.to_pyarrow_table().slice(0, 5), mode="append")
    assert stream.kinds(stream.judge()).keys() == {"doubled"}
    stream.run(150)
    assert stream.judge()["passed"]


def test_a_record_of_windows_begins_with_what_spark_still_has(foreign: Make) -> None:
    """Windows that rows before it may have fallen into are not judged, and all later ones are."""
    stream = foreign()
    stream.run(400)
    stream.forget_batches(2)
    assert stream.hindcast.pipeline("asks").record().batches == 1
    stream.run(400)
    verdict = stream.judge()
    assert verdict["passed"], verdict
    assert verdict["rows_compared"] > 0


def test_an_adopted_stream_goes_on_without_a_seam(foreign: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever adopts it dies before each step once. The query runs on, and its table takes nothing of it."""
    stream = foreign()
    stream.run(300)
    assert stream.judge()["passed"]
    stream.run(100)
    stream.declare(_ADOPTED)
    hindcast = Hindcast(stream.hindcast.settings, stream.spark)
    for step in (1, 2, 3, 4):
        die_before(
            monkeypatch, f"adopt.{step}", lambda: hindcast.pipeline("asks").adopt(str(stream.checkpoint))
        )
    rows = stream.rows()
    stream.run(100)
    assert stream.rows() == rows
    adopted = hindcast.pipeline("asks").adopt(str(stream.checkpoint))
    assert adopted.offsets == ends(stream.records[:400])
    assert [lease.status_value for lease in adopted.shards] == ["v1.g1.s0"]

    shard = Shard(
        stream.spark,
        hindcast.settings,
        hindcast.catalog["asks"],
        stream.servers,
        2,
        store=hindcast.lease_table,
        sent=stream.records[:500],
    )
    owner = shard.start("its stream was taken over")
    shard.consume(owner)
    shard.send(stream.records[500:700])
    shard.consume(owner)
    shard.renew()
    shard.retire(owner)
    audit = Audit(stream.spark, hindcast, shard.pipeline, shard.app, owner.lease.epoch)
    own = hindcast.ledger.batches("asks", 1, "v1.g1.s0")
    while audit.run(own) < own[-1].batch:
        pass
    assert len(stream.rows()) > len(rows)
    for asked in ({"since_last_verdict": True}, {"everything": True}):
        verdict = hindcast.pipeline("asks").validate(**asked)
        assert verdict["passed"], verdict
        assert (verdict["unexplained"], verdict["doubled"]) == (0, 0)
