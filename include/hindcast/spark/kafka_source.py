"""From Kafka's records to the frames that a transformation gets. Stream and batch share every line of it.

The rows keep their origin in columns that begin with an underscore (see :data:`SOURCE_COLUMNS`).
``_partition`` is the pipeline's own number of the partition (:data:`hindcast.pipeline.TOPIC_STRIDE`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.ddl import quoted
from hindcast.errors import PipelineExitedError
from hindcast.kafka.security import spark_options
from hindcast.pipeline import TOPIC_STRIDE, Lookup, Mode, Pipeline, Topic
from hindcast.pipeline_modules import PACKAGE
from hindcast.settings import Settings
from hindcast.spark import decoded_values
from hindcast.spark.decoded_values import DECODED
from hindcast.spark.lookups import read_lookup
from hindcast.spark.malformed_records import PARSERS, refusal_reason
from hindcast.tables.archive_schema import archive_url
from hindcast.tables.excluded_records import Excluded

SOURCE_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_value")
#: A transformation gets these and the topic's own columns: the place and the broker's time of a record.
PLACE_COLUMNS = ("_partition", "_offset", "_timestamp")
#: The columns of a record that :func:`parse` reads, with Spark's types.
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
    """The columns of the topic's records that :func:`parse` reads, and their types."""
    types = _kafka_types(topic)
    if topic.is_decoded:
        types |= DECODED
    return types


def _kafka_types(topic: Topic) -> dict[str, str]:
    """Those that Kafka has."""
    types = dict(_RECORD)
    if _has_headers(topic):
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


def _has_headers(topic: Topic) -> bool:
    return "_headers" in topic.record_columns


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


def of_topic(pipeline: Pipeline, topic: Topic, offsets: Mapping[int, int]) -> dict[int, int]:
    """The partitions of one topic among the pipeline's partitions, by the topic's own numbers."""
    index = pipeline.topics.index(topic)
    found = {}
    for partition, offset in offsets.items():
        if partition // TOPIC_STRIDE == index:
            found[partition % TOPIC_STRIDE] = offset
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
    if _has_headers(topic):
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
    headers = _has_headers(topic)
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
    :param seams: see :func:`records`
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
    first_partition = pipeline.topics.index(topic) * TOPIC_STRIDE
    error = _error_of(pipeline, topic, excluded or {})
    value = F.col("payload" if topic.is_decoded else "value")
    if error is not None:
        value = F.when(error.isNull(), value)
    record = PARSERS[topic.format](value, topic)
    located = [
        F.col("topic").alias("_topic"),
        (F.col("partition") + F.lit(first_partition)).alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        F.col("key").alias("_key"),
        F.col("value").alias("_value"),
        record.alias("_record"),
    ]
    if error is not None:
        located.append(error.alias("_error"))
    if topic.is_decoded:
        located.append(F.col("refusal").alias("_refusal"))
    columns = [F.col("_record")[name].alias(name) for name in topic.columns]
    event_at = F.col("_record")[pipeline.event_time_of(topic)].alias("_event_at")
    reason = refusal_reason(pipeline, topic)
    if error is not None:
        reason = F.coalesce(F.col("_error"), reason)
    if _has_headers(topic):
        located.append(F.col("headers").alias("_headers"))
        columns.append(F.col("_headers"))
    if topic.tombstones:
        columns.append(F.col("_value").isNull().alias("_tombstone"))
    return raw.select(*located).select(*SOURCE_COLUMNS, *columns, event_at, reason.alias("_reason"))


def _error_of(pipeline: Pipeline, topic: Topic, excluded: Excluded) -> Column | None:
    """What the function raised on a record, in words; null for the other records. None if there is no such
    record.
    """
    first_partition = pipeline.topics.index(topic) * TOPIC_STRIDE
    by_error: dict[str, list[Column]] = {}
    for partition, offsets in sorted(excluded.items()):
        if partition // TOPIC_STRIDE * TOPIC_STRIDE != first_partition:
            continue
        numbers: dict[str, list[int]] = {}
        for offset, error in offsets.items():
            numbers.setdefault(error, []).append(offset)
        for error, found in numbers.items():
            here = (F.col("partition") == partition - first_partition) & F.col("offset").isin(found)
            by_error.setdefault(error, []).append(here)
    reasons = []
    for error, places in by_error.items():
        reasons.append(F.when(reduce(or_, places), f"the function raised {error}"))
    if not reasons:
        return None
    return F.coalesce(*reasons)


def usable(parsed: DataFrame) -> DataFrame:
    """The rows that are not poison."""
    return parsed.where(F.col("_reason").isNull()).drop("_reason")


def assign_windows(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """One row for each window that a row falls into, in the column ``window`` (struct of start and end).

    Without a window the rows stay as they are.
    """
    if pipeline.window is None:
        return rows
    duration = pipeline.window.duration
    slide = pipeline.window.slide or duration
    window = F.window(quoted(pipeline.event_time), duration, slide)
    return rows.withColumn("window", window)


def above_floors(windows: DataFrame, pipeline: Pipeline, floors: Mapping[int, int]) -> DataFrame:
    """Without the (row, window) pairs whose window was final for the row's partition before the query began.

    :param floors: by partition, in epoch milliseconds
    """
    if pipeline.window is None or not any(floors.values()):
        return windows
    pairs = []
    for partition, floor in sorted(floors.items()):
        pairs.append(F.lit(partition).cast("long"))
        pairs.append(F.lit(floor).cast("long"))
    floor_ms = F.element_at(F.create_map(*pairs), F.col("_partition").cast("long"))
    return windows.where(F.unix_micros("window.end") > floor_ms * F.lit(1000))


def result(
    parsed: Sequence[DataFrame],
    pipeline: Pipeline,
    floors: Mapping[int, int],
    again: Mapping[str, tuple[int, int]] | None = None,
) -> DataFrame:
    """What the pipeline's stream makes of the parsed records of its topics, in their order.

    The late filter sits between the windows and the transformation.

    :param again: by topic, the partition and offset of a record that only moves the topic's watermark
    """
    rows = []
    for topic, frame in zip(pipeline.topics, parsed, strict=True):
        good = usable(frame)
        if topic.watermark:
            good = good.withWatermark(quoted(pipeline.event_time_of(topic)), pipeline.watermark)
        if again and topic.name in again:
            good = good.where(_is_new(*again[topic.name]))
        rows.append(good)
    if pipeline.window is not None:
        rows = [above_floors(assign_windows(rows[0], pipeline), pipeline, floors)]
    return transform(rows, pipeline)


def _is_new(partition: int, offset: int) -> Column:
    """Whether a row is of another record than this one.

    Spark moves no condition with a random number to before the watermark, where the record would be gone. No
    offset is below 0, but Spark does not know that: it would see through a number of its own.
    """
    same = (F.col("_partition") == partition) & (F.col("_offset") == offset)
    return F.when(same, F.rand(0) + F.col("_offset") < 0).otherwise(F.lit(True))


def without_deleted(result: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The rows of a result that are in the table, with its columns: none that says its key is deleted."""
    name = pipeline.sink.deleted
    if not name:
        return result
    is_deleted = F.coalesce(F.col(quoted(name)), F.lit(False))
    return result.where(~is_deleted).drop(name)


def output_mode(pipeline: Pipeline) -> str:
    """Spark's output mode of the pipeline's query."""
    return "update" if pipeline.sink.mode is Mode.UPSERT else "append"


def transform(rows: Sequence[DataFrame], pipeline: Pipeline, *, hindsight: bool = False) -> DataFrame:
    """The pipeline's own transformation over the rows of its topics and the tables that it joins.

    :param hindsight: take the transformation that knows all, if the pipeline has one
    """
    function = pipeline.transform
    if hindsight and pipeline.hindsight:
        function = pipeline.hindsight
    frames = iter([_without_origin(*of_topic) for of_topic in zip(rows, pipeline.topics, strict=False)])
    first = next(frames)
    others = []
    for joined in pipeline.joined:
        if isinstance(joined, Lookup):
            others.append(read_lookup(first.sparkSession, joined))
        else:
            others.append(next(frames))
    return call_user_code(pipeline, function, first, *others)


def call_user_code(pipeline: Pipeline, function: Callable[..., DataFrame], *frames: DataFrame) -> DataFrame:
    """What a function of the pipeline's makes of the frames.

    :raises PipelineExitedError: if it calls ``sys.exit``
    :raises Exception: whatever it raises
    """
    carry_code()
    try:
        return function(*frames)
    except SystemExit as error:
        raise PipelineExitedError(
            pipeline=pipeline.name, function=function.__name__, code=repr(error.code)
        ) from error


def _without_origin(frame: DataFrame, topic: Topic) -> DataFrame:
    """The frame with the columns that a transformation gets."""
    given = given_columns(topic)
    hidden = [column for column in (*SOURCE_COLUMNS, "_event_at") if column not in given]
    return frame.drop(*hidden)


def carry_code() -> None:
    """Let Spark send the code of pipelines, and what they import from their folder, to its Python workers.

    Those cannot import it themselves.
    """
    module = sys.modules.get(PACKAGE)
    if module:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
