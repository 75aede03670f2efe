"""How a batch is cut into tasks, so that no shard keeps the others of its worker from their cores for long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.live_stream import on_topic

from hindcast import catalog
from hindcast.settings import Settings, project_root
from hindcast.spark import kafka_source

if TYPE_CHECKING:
    from conftest import Broker

pytestmark = pytest.mark.integration

RECORDS = 100
PARTITIONS = 4
MOST = 30
#: The offsets that each task of each batch read, in their order.
Tasks = list[list[list[int]]]
Read = Callable[..., Tasks]


@pytest.fixture
def read(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    settings_factory: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Read:
    """Read partitions of so many records each as the stream of an example reads them."""
    monkeypatch.setattr(kafka_source, "MAX_RECORDS_PER_TASK", MOST)
    settings = settings_factory(bootstrap_servers=broker.bootstrap_servers)
    examples = catalog.load(project_root() / "include" / "pipelines")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.send(topic, str(number).encode(), partition=partition)
    producer.close()
    tasks: Tasks = []

    def note(frame: DataFrame, _: int) -> None:
        of_task = defaultdict[int, list[int]](list)
        for row in frame.select("offset", F.spark_partition_id().alias("task")).collect():
            of_task[row.task].append(row.offset)
        tasks.append(list(of_task.values()))

    def made(example: str, partitions: int = 1) -> Tasks:
        pipeline = on_topic(examples[example], topic)
        raw = kafka_source.stream(
            spark, settings, pipeline, pipeline.source, dict.fromkeys(range(partitions), 0)
        )
        writer = raw.writeStream.foreachBatch(note).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
        return tasks

    return made


def test_a_task_reads_a_part_of_a_batch(read: Read) -> None:
    """However much one batch has of a partition."""
    (batch,) = read("stock_stats")
    assert all(len(offsets) <= MOST for offsets in batch)
    read_once = sorted(offset for offsets in batch for offset in offsets)
    assert read_once == list(range(RECORDS))


def test_a_task_reads_all_that_a_batch_has_of_a_partition_if_order_may_count(read: Read) -> None:
    """So the batches are small there."""
    batches = read("sentences")
    assert all(len(batch) == 1 and len(batch[0]) <= MOST for batch in batches)
    assert [offset for batch in batches for offset in batch[0]] == list(range(RECORDS))


def test_a_few_tasks_read_many_partitions(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard of many partitions costs no task for each of them; a partition is read in its order."""
    monkeypatch.setattr(kafka_source, "MAX_RECORDS_PER_TASK", RECORDS)
    monkeypatch.setattr(kafka_source, "MAX_TASKS", 2)
    (batch,) = read("stock_stats", PARTITIONS)
    assert sorted(batch) == [2 * list(range(RECORDS))] * 2


def test_each_partition_has_its_task_if_order_may_count(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever tasks there are otherwise."""
    monkeypatch.setattr(kafka_source, "MAX_RECORDS_PER_TASK", RECORDS)
    monkeypatch.setattr(kafka_source, "MAX_TASKS", 2)
    (batch,) = read("sentences", PARTITIONS)
    assert batch == [list(range(RECORDS))] * PARTITIONS
