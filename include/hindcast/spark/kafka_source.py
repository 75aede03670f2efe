"""The records of a topic as Kafka or its archive has them: as a stream, and of a range.

What is made of their values is in :mod:`hindcast.spark.parsed_records`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.kafka.security import spark_options
from hindcast.pipeline import TOPIC_STRIDE, Pipeline, Topic
from hindcast.settings import Settings
from hindcast.spark import decoded_values
from hindcast.spark.decoded_values import DECODED
from hindcast.tables.archive_schema import archive_url

#: What is known of each partition: an offset, for instance.
Of = TypeVar("Of")
#: The columns of a record of which rows are made, with Spark's types.
_RECORD = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
}
_HEADERS = {"headers": "array<struct<key: string, value: binary>>"}
#: A file of such records, without their headers.
RECORD_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
#: One batch of a stream reads at most so many records of a topic: a long backlog takes many batches, and each
#: of them renews, commits and can be drained.
MAX_RECORDS_PER_BATCH = 500_000
#: One task reads at most so many of them, for some tenths of a second. A worker's cores are shared by task:
#: after each, Spark's fair scheduler gives the core to the shard that has the fewest. So a shard with a long
#: backlog, or a version that catches up, never keeps the others from their cores for longer.
MAX_RECORDS_PER_TASK = 25_000
#: At most so many tasks read a batch of a shard with many partitions. By itself Spark takes one for each of
#: them, however few records it has.
MAX_TASKS = MAX_RECORDS_PER_BATCH // MAX_RECORDS_PER_TASK
#: How the consumers of Spark's tasks fetch. After each poll Spark asks the broker for the partition's first
#: and last offset. On the same connection the consumer has just asked for the records that follow, and a
#: broker answers a connection's requests in their order. By default it holds that one for up to half a second
#: if there are none yet: after the last record of each partition a task would wait for the next one to be
#: sent. By default a poll also returns at most 500 records, though a fetch may bring 1 MiB of them.
_FETCHES = {
    "kafka.fetch.max.wait.ms": "0",  # a task asks for records that are there, so it never asks in a circle
    "kafka.max.poll.records": "10000",
}


def kafka_options(settings: Settings, topic: str, partitions: Sequence[int]) -> dict[str, str]:
    """Options for reading exactly these partitions of a topic.

    Only committed records are read, and the query fails if data is gone.
    """
    return {
        **spark_options(settings),
        **_FETCHES,
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({topic: sorted(partitions)}),
        "failOnDataLoss": "true",
    }


def offsets_option(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets in the JSON that Spark's Kafka source takes: ``{"topic": {"0": 23}}``."""
    by_partition = {str(partition): offset for partition, offset in sorted(offsets.items())}
    return json.dumps({topic: by_partition})


def record_types(topic: Topic) -> dict[str, str]:
    """The columns of the topic's records of which :mod:`hindcast.spark.parsed_records` makes rows, and their
    types.
    """
    types = _kafka_types(topic)
    if topic.is_decoded:
        types |= DECODED
    return types


def _kafka_types(topic: Topic) -> dict[str, str]:
    """Those that Kafka has."""
    types = dict(_RECORD)
    if has_headers(topic):
        types |= _HEADERS
    return types


def record_ddl(topic: Topic) -> str:
    """:func:`record_types` as Spark's DDL."""
    return _ddl(record_types(topic))


def kafka_ddl(topic: Topic) -> str:
    """The columns of the topic's records that Kafka has, as Spark's DDL."""
    return _ddl(_kafka_types(topic))


def _ddl(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def has_headers(topic: Topic) -> bool:
    """Whether the function is given the records' headers."""
    return "_headers" in topic.record_columns


def of_topic(pipeline: Pipeline, topic: Topic, by_partition: Mapping[int, Of]) -> dict[int, Of]:
    """What is known of one topic's partitions, among those of the pipeline, by the topic's own numbers."""
    index = pipeline.topics.index(topic)
    found = {}
    for partition, known in by_partition.items():
        if partition // TOPIC_STRIDE == index:
            found[partition % TOPIC_STRIDE] = known
    return found


def stream(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    topic: Topic,
    start: Mapping[int, int],
    most: int = 0,
) -> DataFrame:
    """The topic's records as they come, unparsed, from ``start`` on (the pipeline's partitions).

    :param most: records of one batch at most; 0 for :func:`most_records`
    """
    begin = of_topic(pipeline, topic, start)
    reader = spark.readStream.format("kafka").options(**kafka_options(settings, topic.name, list(begin)))
    if not pipeline.re_execute:
        reader = reader.option("maxRecordsPerPartition", MAX_RECORDS_PER_TASK)
    if has_headers(topic):
        reader = reader.option("includeHeaders", "true")
    held = (
        reader.option("startingOffsets", offsets_option(topic.name, begin))
        .option("maxOffsetsPerTrigger", most or most_records(pipeline, len(begin)))
        .load()
    )
    if not pipeline.re_execute and len(begin) > MAX_TASKS:
        held = held.coalesce(MAX_TASKS)
    return with_decoded(held, topic, settings)


def most_records(pipeline: Pipeline, partitions: int) -> int:
    """How many records of a topic one batch reads at most.

    Where results depend on which rows came together they may depend on their order as well. There one task
    reads all that a batch has of a partition, so the batch itself is bounded.

    :param partitions: of the topic, as many as the shard has
    """
    if not pipeline.re_execute:
        return MAX_RECORDS_PER_BATCH
    return min(MAX_RECORDS_PER_BATCH, MAX_RECORDS_PER_TASK * partitions)


def kafka_range(
    spark: SparkSession,
    settings: Settings,
    topic: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
    *,
    headers: bool = False,
) -> DataFrame:
    """A topic's records of [start, end) of each of its own partitions, as Kafka has them.

    :param headers: add the column ``headers``
    """
    reader = spark.read.format("kafka").options(**kafka_options(settings, topic, list(start)))
    stop = {partition: end[partition] for partition in start}
    return (
        reader.option("startingOffsets", offsets_option(topic, start))
        .option("endingOffsets", offsets_option(topic, stop))
        .option("includeHeaders", str(headers).lower())
        .load()
    )


def archived_range(
    spark: SparkSession, settings: Settings, topic: str, start: Mapping[int, int], end: Mapping[int, int]
) -> DataFrame:
    """What :func:`kafka_range` gave with headers when the topic was archived: the same columns."""
    rows = spark.read.format("delta").load(archive_url(settings, topic))
    located = rows.where(in_ranges(start, end))
    named = located.withColumns({"topic": F.lit(topic), "timestampType": F.col("timestamp_type")})
    return named.select(*_RECORD, "timestampType", "headers")


def in_ranges(start: Mapping[int, int], end: Mapping[int, int]) -> Column:
    """Whether a record is in [start, end) of one of a topic's own partitions."""
    partition = F.col("partition")
    offset = F.col("offset")
    wanted = []
    for number, first in start.items():
        wanted.append((partition == number) & (offset >= first) & (offset < end[number]))
    return reduce(or_, wanted)


def records(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    topic: Topic,
    start: Mapping[int, int],
    end: Mapping[int, int],
    seams: Mapping[int, int] | None = None,
) -> DataFrame:
    """The topic's records of [start, end) of each of the pipeline's partitions: the columns of
    :func:`record_types`.

    :param seams: by partition, the offset up to which the topic's archive is read instead of the topic;
        ``start`` by default
    """
    held = _held_records(spark, settings, pipeline, topic, start, end, seams)
    return with_decoded(held, topic, settings)


def _held_records(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    topic: Topic,
    start: Mapping[int, int],
    end: Mapping[int, int],
    seams: Mapping[int, int] | None,
) -> DataFrame:
    """The same as Kafka or the archive has them."""
    columns = list(_kafka_types(topic))
    headers = has_headers(topic)
    begin = of_topic(pipeline, topic, start)
    stop = of_topic(pipeline, topic, end)
    seam = {**begin, **of_topic(pipeline, topic, seams or {})}
    if seam == begin:
        return kafka_range(spark, settings, topic.name, begin, stop, headers=headers).select(*columns)
    old = {partition: offset for partition, offset in begin.items() if offset < seam[partition]}
    rest = {partition: offset for partition, offset in seam.items() if offset < stop[partition]}
    archived = archived_range(spark, settings, topic.name, old, seam).select(*columns)
    if not rest:
        return archived
    newer = kafka_range(spark, settings, topic.name, rest, stop, headers=headers).select(*columns)
    return archived.unionByName(newer)


def with_decoded(held: DataFrame, topic: Topic, settings: Settings | None) -> DataFrame:
    """The records with what Python makes of their values, if the topic needs that.

    :param settings: None if no number of a schema stands in front of the values
    :raises SettingsRefusedError: if no setting names the registry from which the values come
    """
    if not topic.is_decoded:
        return held
    whole = held.withColumn("_decoded", decoded_values.decoded(F.col("value"), topic, settings))
    parts = {name: F.col("_decoded")[name] for name in DECODED}
    return whole.withColumns(parts).drop("_decoded")
