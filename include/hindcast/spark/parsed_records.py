"""From Kafka's records to rows: a topic's own columns, when each row happened, and why one is no valid row.

Stream and batch share every line of it. The rows keep their origin in columns that begin with an underscore
(see :data:`SOURCE_COLUMNS`). ``_partition`` is the pipeline's own number of the partition
(:data:`hindcast.pipeline.TOPIC_STRIDE`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.pipeline import TOPIC_STRIDE, Pipeline, Topic
from hindcast.settings import Settings
from hindcast.spark.kafka_source import has_headers, of_topic, record_ddl, record_types, records
from hindcast.spark.malformed_records import PARSERS, refusal_reason
from hindcast.spark.user_code import carry_code
from hindcast.tables.excluded_records import Excluded

SOURCE_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_value")
#: A transformation gets these and the topic's own columns: the place and the broker's time of a record.
PLACE_COLUMNS = ("_partition", "_offset", "_timestamp")


def given_columns(topic: Topic) -> tuple[str, ...]:
    """What a transformation gets beside the topic's own columns."""
    return (*PLACE_COLUMNS, *topic.record_columns)


def empty(spark: SparkSession, pipeline: Pipeline) -> list[DataFrame]:
    """A parsed frame of each topic without rows: its columns alone tell what the query needs."""
    frames = []
    for topic in pipeline.topics:
        records = spark.createDataFrame([], record_ddl(topic))
        frames.append(usable(parse(records, pipeline, topic)))
    return frames


def unread(spark: SparkSession, pipeline: Pipeline) -> list[DataFrame]:
    """A parsed stream of each topic that is never started: the plan of a query alone tells what is asked."""
    frames = []
    for topic in pipeline.topics:
        columns = [F.lit(None).cast(kind).alias(name) for name, kind in record_types(topic).items()]
        records = spark.readStream.format("rate").load().select(*columns)
        frames.append(parse(records, pipeline, topic))
    return frames


def read_topics(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    start: Mapping[int, int],
    end: Mapping[int, int],
    seams: Mapping[int, int] | None = None,
    excluded: Excluded | None = None,
) -> list[DataFrame]:
    """The records of [start, end) of each partition, parsed, one frame for each topic.

    A topic without a partition in ``start`` is left out.

    :param end: of the same partitions as ``start``
    :param seams: see :func:`hindcast.spark.kafka_source.records`
    :param excluded: see :func:`parse`
    """
    frames = []
    for topic in pipeline.topics:
        if of_topic(pipeline, topic, start):
            raw = records(spark, settings, pipeline, topic, start, end, seams)
            frames.append(parse(raw, pipeline, topic, excluded))
    return frames


def in_common(
    parsed: Sequence[DataFrame], columns: Sequence[str] = (*SOURCE_COLUMNS, "_event_at", "_reason")
) -> DataFrame:
    """The rows of all topics in one frame: of several topics only these columns, of one topic all."""
    if len(parsed) == 1:
        return parsed[0]
    return reduce(DataFrame.unionByName, [frame.select(*columns) for frame in parsed])


def parse(
    raw: DataFrame, pipeline: Pipeline, topic: Topic | None = None, excluded: Excluded | None = None
) -> DataFrame:
    """The topic's columns, the :data:`SOURCE_COLUMNS`, what the function asks for of the record,
    ``_event_at`` and ``_reason``.

    The reason is null, or it says why the row is poison.

    :param topic: the pipeline's source by default
    :param excluded: records on which the pipeline's function raises: none of its code sees their values
    """
    topic = topic or pipeline.source
    carry_code()
    error = _error_of(pipeline, topic, excluded or {})
    held = raw.select(*_held(pipeline, topic, error))
    event_at = F.col("_record")[pipeline.event_time_of(topic)]
    reason = refusal_reason(pipeline, topic)
    if error is not None:
        reason = F.coalesce(F.col("_error"), reason)
    return held.select(*SOURCE_COLUMNS, *_given(topic), event_at.alias("_event_at"), reason.alias("_reason"))


def _held(pipeline: Pipeline, topic: Topic, error: Column | None) -> Iterator[Column]:
    """A record's place and contents, and in ``_record`` what its value says.

    :param error: what the function raised on a record; such a value is not looked at
    """
    value = F.col("payload" if topic.is_decoded else "value")
    if error is not None:
        value = F.when(error.isNull(), value)
    yield F.col("topic").alias("_topic")
    yield (F.col("partition") + F.lit(_first_partition(pipeline, topic))).alias("_partition")
    yield F.col("offset").alias("_offset")
    yield F.col("timestamp").alias("_timestamp")
    yield F.col("key").alias("_key")
    yield F.col("value").alias("_value")
    yield PARSERS[topic.format](value, topic).alias("_record")
    if error is not None:
        yield error.alias("_error")
    if topic.is_decoded:
        yield F.col("refusal").alias("_refusal")
    if has_headers(topic):
        yield F.col("headers").alias("_headers")


def _given(topic: Topic) -> Iterator[Column]:
    """The topic's own columns, and what else of a record the function asks for."""
    for name in topic.columns:
        yield F.col("_record")[name].alias(name)
    if has_headers(topic):
        yield F.col("_headers")
    if topic.tombstones:
        yield F.col("_value").isNull().alias("_tombstone")


def _first_partition(pipeline: Pipeline, topic: Topic) -> int:
    """The pipeline's own number of the topic's partition 0."""
    return pipeline.topics.index(topic) * TOPIC_STRIDE


def _error_of(pipeline: Pipeline, topic: Topic, excluded: Excluded) -> Column | None:
    """What the function raised on a record, in words; null for the other records. None if there is no such
    record.
    """
    places: dict[str, list[Column]] = {}
    for partition, offsets in sorted(of_topic(pipeline, topic, excluded).items()):
        for error, found in _by_error(offsets).items():
            is_there = (F.col("partition") == partition) & F.col("offset").isin(found)
            places.setdefault(error, []).append(is_there)
    if not places:
        return None
    raised = [F.when(reduce(or_, there), f"the function raised {error}") for error, there in places.items()]
    return F.coalesce(*raised)


def _by_error(offsets: Mapping[int, str]) -> dict[str, list[int]]:
    """The offsets of each error."""
    found: dict[str, list[int]] = {}
    for offset, error in offsets.items():
        found.setdefault(error, []).append(offset)
    return found


def usable(parsed: DataFrame) -> DataFrame:
    """The rows that are not poison."""
    return parsed.where(F.col("_reason").isNull()).drop("_reason")
