"""A real stream under test: records on a real topic, shards consumed by a real query, and the answer they
must give.

The answer comes from plain Python (:mod:`support.simulated_stream`) and the ledger's batches: which row was
late follows from which batch read it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from support.shapes import APPEND, Shape
from support.simulated_stream import Record, Simulated

from hindcast.partitions import app_id
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import Fence
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.table_names import ControlTable

#: A pipeline module like the example's, for a topic of the test's own.
MODULE = APPEND.module("{name}", "{topic}", "{version}", "{shards}")  # type: ignore[arg-type] - to be formatted again


def declare(
    settings: Settings,
    topic: str,
    shards: int = 1,
    *,
    name: str = "stock_stats",
    version: int = 1,
    shape: Shape = APPEND,
) -> Path:
    """Write a pipeline's module into the settings' pipelines folder; return its file."""
    settings.pipelines_dir.mkdir(parents=True, exist_ok=True)
    path = settings.pipelines_dir / f"{name}.py"
    path.write_text(shape.module(name, topic, version, shards))
    return path


def on_topic(pipeline: Pipeline, topic: str, shards: int = 1) -> Pipeline:
    """The pipeline, reading another topic."""
    return replace(pipeline, source=replace(pipeline.source, name=topic), shards=shards)


def delete_records(bootstrap_servers: str, topic: str, earliest: Mapping[int, int]) -> None:
    """What retention does: each partition begins at this offset from now on."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    admin.delete_records({TopicPartition(topic, partition): offset for partition, offset in earliest.items()})
    admin.close()


def produce(bootstrap_servers: str, topic: str, records: Iterable[Record], shape: Shape = APPEND) -> None:
    """Send the records to their partitions, in order; the broker must give them the offsets they expect."""
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", linger_ms=5)
    topics, sent = shape.topics(topic), []
    for record in records:
        number, partition = divmod(record.partition, TOPIC_STRIDE)
        value = shape.value(record)
        sent.append(
            (record, producer.send(topics[number], value, key=record.ticker.encode(), partition=partition))
        )
    producer.flush()
    for record, future in sent:
        assert future.get(timeout=10).offset == record.offset
    producer.close()


def ends(records: Iterable[Record]) -> dict[int, int]:
    """The end offset of each partition once all records are read."""
    return dict(Counter(record.partition for record in records))


def sink_rows(settings: Settings, name: str = "stock_stats", shape: Shape = APPEND) -> list[tuple[Any, Any]]:
    """Every row of the sink, doubled ones twice."""
    rows = _table(settings, settings.table("sinks", name)).to_pyarrow_table().to_pylist()
    return [shape.result(row) for row in rows]


def _table(settings: Settings, url: str) -> DeltaTable:
    return DeltaTable(url, storage_options=settings.storage_options or None)


def ledger(settings: Settings, name: str = "stock_stats") -> list[LedgerRow]:
    return Ledger(ControlTables(settings)).batches(name)


def all_filed(settings: Settings, name: str = "stock_stats", shape: Shape = APPEND) -> bool:
    """Whether the late and poison rows of every batch in the ledger are filed, in each table that they go
    to.
    """
    last = {row.shard: row.batch for row in ledger(settings, name)}
    urls = [
        ControlTables(settings).url(table) for table in (ControlTable.DEAD_LETTERS, ControlTable.LATE_ROWS)
    ]
    urls += [settings.table("sinks", own) for own in shape.tables(name)[1:]]
    for url in urls:
        if not DeltaTable.is_deltatable(url, settings.storage_options or None):
            return False
        table = _table(settings, url)
        recorded = {shard: Fence.of(table.transaction_version(app_id(name, shard))) for shard in last}
        if any(fence is None or fence.batch < last[shard] for shard, fence in recorded.items()):
            return False
    return True


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
            assert all(
                after.floors.get(partition, 0) <= before.final_ms(partition)
                for partition in after.end_offsets
            )
            assert after.epoch >= before.epoch
            assert after.sink_version > before.sink_version


def check_answer(
    settings: Settings,
    records: list[Record],
    clockwork_of: Simulated,
    name: str = "stock_stats",
    shape: Shape = APPEND,
) -> None:
    """I1, I2 and I5: each closed window is in the sink once, with the value that the rows read in time give;
    no other is.
    """
    batches = ledger(settings, name)
    check_chain(batches)
    closed: dict[int, int] = {}
    for row in batches:
        for partition, end in row.end_offsets.items():
            closed[partition] = max(closed.get(partition, 0), row.final_ms(partition))
            for offset in range(row.start_offsets[partition], end):
                clockwork_of.thresholds[partition, offset] = row.late_ms(partition)
    rows = sink_rows(settings, name, shape)
    assert len(rows) == len(dict(rows)), "a row of the sink stands there twice"
    assert dict(rows) == shape.expected(records, clockwork_of.thresholds, closed)


def check_filed(
    settings: Settings,
    records: list[Record],
    clockwork_of: Simulated,
    name: str = "stock_stats",
    shape: Shape = APPEND,
) -> None:
    """I1 of what is in no result: the poison and the late rows are filed, each exactly once. Call after
    :func:`check_answer`.
    """
    tables, mine = ControlTables(settings), [("pipeline", "=", name)]
    poison = sorted((row["partition"], row["offset"]) for row in tables.rows(ControlTable.DEAD_LETTERS, mine))
    assert poison == sorted(record.place for record in records if record.event_ms is None)
    late = {}
    for record in records:
        count = shape.windows_late(record, clockwork_of.thresholds[record.place])
        if count:
            late[record.place] = count
    filed = [
        ((row["partition"], row["offset"]), row["windows_late"])
        for row in tables.rows(ControlTable.LATE_ROWS, mine)
    ]
    assert len(filed) == len(dict(filed)), "a late row is filed twice"
    assert dict(filed) == late
    for own in shape.tables(name)[1:]:
        kept = _table(settings, settings.table("sinks", own)).to_pyarrow_table().to_pylist()
        assert sorted((row["partition"], row["offset"]) for row in kept) == sorted(late), (
            f"{own} has each late row once"
        )
