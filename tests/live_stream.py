"""A real stream under test: records on a real topic, shards consumed by a real query, and the answer they must give.

The answer comes from plain Python (:mod:`simulated_stream`) and the ledger's batches: which row was late follows from which batch read it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from deltalake import DeltaTable
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from simulated_stream import Answer, Key, Record, Simulated, answer

from hindcast.control.ledger import Ledger, LedgerRow
from hindcast.control.schema import ControlTable
from hindcast.control.shards import app_id
from hindcast.control.tables import ControlTables
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.stream.fenced_table import Fence

#: A pipeline module like the example's, for a topic of the test's own.
MODULE = """
from pyspark.sql import functions as F
from hindcast import Table, Topic, Window, pipeline

@pipeline(
    source=Topic("{topic}", schema="ticker string, ts timestamp, ask double NOT NULL", key="ticker"),
    event_time="ts", watermark="10 seconds", window=Window("5 seconds", slide="1 second"),
    sink=Table("{name}", keys=["window", "ticker"]), version={version}, shards={shards},
)
def {name}(trades):
    asks = F.min("ask").alias("min_ask"), F.count("*").alias("trades"), F.avg("ask").alias("avg_ask")
    return trades.groupBy("window", "ticker").agg(*asks)
"""


def declare(settings: Settings, topic: str, shards: int = 1, *, name: str = "stock_stats", version: int = 1) -> Path:
    """Write a pipeline's module into the settings' pipelines folder; return its file."""
    settings.pipelines_dir.mkdir(parents=True, exist_ok=True)
    path = settings.pipelines_dir / f"{name}.py"
    path.write_text(MODULE.format(topic=topic, shards=shards, name=name, version=version))
    return path


def on_topic(pipeline: Pipeline, topic: str, shards: int = 1) -> Pipeline:
    """The pipeline, reading another topic."""
    return replace(pipeline, source=replace(pipeline.source, name=topic), shards=shards)


def delete_records(bootstrap_servers: str, topic: str, earliest: Mapping[int, int]) -> None:
    """What retention does: each partition begins at this offset from now on."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    admin.delete_records({TopicPartition(topic, partition): offset for partition, offset in earliest.items()})
    admin.close()


def produce(bootstrap_servers: str, topic: str, records: Iterable[Record]) -> None:
    """Send the records to their partitions, in order; the broker must give them the offsets they expect."""
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", linger_ms=5)
    sent = []
    for record in records:
        if record.event_ms is None:
            value = record.poison
        else:
            at = datetime.fromtimestamp(record.event_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            value = json.dumps({"ticker": record.ticker, "ts": at, "ask": record.ask}).encode()
        sent.append((record, producer.send(topic, value, key=record.ticker.encode(), partition=record.partition)))
    producer.flush()
    for record, future in sent:
        assert future.get(timeout=10).offset == record.offset
    producer.close()


def ends(records: Iterable[Record]) -> dict[int, int]:
    """The end offset of each partition once all records are read."""
    return dict(Counter(record.partition for record in records))


def sink_rows(settings: Settings, name: str = "stock_stats") -> list[tuple[Key, Answer]]:
    """Every row of the sink, doubled ones twice."""
    table = DeltaTable(settings.table("sinks", name)).to_pyarrow_table().to_pylist()
    return [
        ((int(row["window"]["end"].timestamp() * 1000), row["ticker"]), (row["min_ask"], row["trades"], row["avg_ask"])) for row in table
    ]


def ledger(settings: Settings, name: str = "stock_stats") -> list[LedgerRow]:
    return Ledger(ControlTables(settings)).batches(name)


def all_filed(settings: Settings, name: str = "stock_stats") -> bool:
    """Whether the late and poison rows of every batch in the ledger are filed."""
    table = ControlTables(settings).open(ControlTable.LATE_ROWS)
    last = {row.shard: row.batch for row in ledger(settings, name)}
    recorded = {shard: Fence.of(table.transaction_version(app_id(name, shard))) for shard in last}
    return all(fence is not None and fence.batch >= last[shard] for shard, fence in recorded.items())


def check_chain(batches: list[LedgerRow]) -> None:
    """I1, I3 and I4 of the ledger: no gap in a shard's numbers or offsets, and epochs that never fall."""
    shards: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in batches:
        shards[row.shard].append(row)
    for rows in shards.values():
        assert [row.batch for row in rows] == list(range(1, len(rows) + 1))
        for before, after in pairwise(rows):
            assert after.start_offsets == before.end_offsets
            assert after.late_watermark_ms == before.watermark_ms
            assert all(after.floors.get(partition, 0) <= before.final_ms(partition) for partition in after.end_offsets)
            assert after.epoch >= before.epoch
            assert after.sink_version > before.sink_version


def check_answer(settings: Settings, records: list[Record], clockwork_of: Simulated, name: str = "stock_stats") -> None:
    """I1, I2 and I5: each closed window is in the sink once, with the value that the rows read in time give; no other is."""
    batches = ledger(settings, name)
    check_chain(batches)
    closed: dict[int, int] = {}
    for row in batches:
        for partition, end in row.end_offsets.items():
            closed[partition] = max(closed.get(partition, 0), row.final_ms(partition))
            for offset in range(row.start_offsets[partition], end):
                clockwork_of.thresholds[partition, offset] = row.late_ms(partition)
    asks: dict[Key, list[float]] = defaultdict(list)
    for record in records:
        late_ms = clockwork_of.thresholds[record.partition, record.offset]
        for end in clockwork_of.clockwork.window_ends(record.event_ms) if record.event_ms is not None else ():
            if late_ms < end <= closed[record.partition]:
                asks[end, record.ticker].append(record.ask)
    rows = sink_rows(settings, name)
    assert len(rows) == len(dict(rows)), "a row of the sink stands there twice"
    assert dict(rows) == {key: answer(found) for key, found in asks.items()}


def check_filed(settings: Settings, records: list[Record], clockwork_of: Simulated, name: str = "stock_stats") -> None:
    """I1 of what is in no result: the poison and the late rows are filed, each exactly once. Call after :func:`check_answer`."""
    tables, mine = ControlTables(settings), [("pipeline", "=", name)]
    poison = sorted((row["partition"], row["offset"]) for row in tables.rows(ControlTable.DEAD_LETTERS, mine))
    assert poison == sorted(record.place for record in records if record.event_ms is None)
    late = {}
    for record in records:
        if record.event_ms is not None:
            count = sum(end <= clockwork_of.thresholds[record.place] for end in clockwork_of.clockwork.window_ends(record.event_ms))
            late.update({record.place: count} if count else {})
    filed = [((row["partition"], row["offset"]), row["windows_late"]) for row in tables.rows(ControlTable.LATE_ROWS, mine)]
    assert len(filed) == len(dict(filed)), "a late row is filed twice"
    assert dict(filed) == late
