"""From Kafka's records to the frames that a transformation is given. Stream and batch share every line of it.

The rows keep where they came from in columns that begin with an underscore (see :data:`SOURCE_COLUMNS`); ``_partition`` is the pipeline's
own number of the partition (:data:`hindcast.pipeline.TOPIC_STRIDE`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.ddl import quoted
from hindcast.pipeline import TOPIC_STRIDE, Lookup, Mode, Pipeline, Topic
from hindcast.pipeline_modules import PACKAGE
from hindcast.settings import Settings
from hindcast.spark.lookups import read_lookup
from hindcast.spark.malformed_records import PARSERS, refusal_reason
from hindcast.tables.archive_schema import archive_url

SOURCE_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_value")
#: Those that a transformation is given beside the topic's own: the place and the broker's time of a record.
PLACE_COLUMNS = ("_partition", "_offset", "_timestamp")
#: A record as Kafka has it, without its headers.
RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_RECORD = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
#: One batch of a stream reads at most so many records of a topic: a long backlog is worked off in steps that renew, commit and can be
#: drained.
MAX_RECORDS_PER_BATCH = 500_000
#: A version that catches up beside the active one shares its worker's cores with it: steps of a second or less.
MAX_RECORDS_PER_SHADOW_BATCH = 25_000


def kafka_options(settings: Settings, topic: str, partitions: Sequence[int]) -> dict[str, str]:
    """Options for reading exactly these partitions of a topic, committed records only, failing where data is gone."""
    return {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({topic: sorted(partitions)}),
        "failOnDataLoss": "true",
    }


def offsets_option(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets in the JSON that Spark's Kafka source takes: ``{"topic": {"0": 23}}``."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})


def empty(spark: SparkSession, pipeline: Pipeline) -> list[DataFrame]:
    """No rows of each topic, parsed: for what can be known from their columns alone."""
    records = spark.createDataFrame([], _RECORD)
    return [usable(parse(records, pipeline, topic)) for topic in pipeline.topics]


def unread(spark: SparkSession, pipeline: Pipeline) -> list[DataFrame]:
    """A stream of each topic, parsed, that is never started: for what can be known from the plan of a query alone."""
    columns = [F.lit(None).cast(kind).alias(name) for name, kind in (column.split() for column in _RECORD.split(", "))]
    records = spark.readStream.format("rate").load().select(*columns)
    return [parse(records, pipeline, topic) for topic in pipeline.topics]


def of_topic(pipeline: Pipeline, topic: Topic, offsets: Mapping[int, int]) -> dict[int, int]:
    """Of the pipeline's partitions those of one topic, by the topic's own numbers."""
    index = pipeline.topics.index(topic)
    return {partition % TOPIC_STRIDE: offset for partition, offset in offsets.items() if partition // TOPIC_STRIDE == index}


def stream(spark: SparkSession, settings: Settings, pipeline: Pipeline, topic: Topic, start: Mapping[int, int], most: int = 0) -> DataFrame:
    """The topic's records from ``start`` (the pipeline's partitions) on, as they come, unparsed; ``most`` bounds those of one batch."""
    begin = of_topic(pipeline, topic, start)
    reader = spark.readStream.format("kafka").options(**kafka_options(settings, topic.name, list(begin)))
    return (
        reader.option("startingOffsets", offsets_option(topic.name, begin))
        .option("maxOffsetsPerTrigger", most or MAX_RECORDS_PER_BATCH)
        .load()
    )


def kafka_range(
    spark: SparkSession, settings: Settings, topic: str, start: Mapping[int, int], end: Mapping[int, int], *, headers: bool = False
) -> DataFrame:
    """A topic's records of [start, end) of each of its own partitions, as Kafka has them, with the column ``headers`` where asked for."""
    reader = spark.read.format("kafka").options(**kafka_options(settings, topic, list(start)))
    stop = {partition: end[partition] for partition in start}
    ends = {"startingOffsets": offsets_option(topic, start), "endingOffsets": offsets_option(topic, stop)}
    return reader.options(**ends, includeHeaders=str(headers).lower()).load()


def archived_range(spark: SparkSession, settings: Settings, topic: str, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
    """What :func:`kafka_range` gave with headers when the topic was archived: the same columns."""
    rows = spark.read.format("delta").load(archive_url(settings, topic))
    offset = F.col("offset")
    wanted = [(F.col("partition") == number) & (offset >= first) & (offset < end[number]) for number, first in start.items()]
    located = rows.where(reduce(or_, wanted)).withColumns({"topic": F.lit(topic), "timestampType": F.col("timestamp_type")})
    return located.select(*RECORD_COLUMNS, "headers")


def records(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    topic: Topic,
    start: Mapping[int, int],
    end: Mapping[int, int],
    seams: Mapping[int, int] | None = None,
) -> DataFrame:
    """The topic's records of [start, end) of each of the pipeline's partitions, unparsed.

    :param seams: by partition, the offset up to which the topic's archive is read instead of the topic; ``start`` by default
    """
    begin, stop = of_topic(pipeline, topic, start), of_topic(pipeline, topic, end)
    seam = {**begin, **of_topic(pipeline, topic, seams or {})}
    if seam == begin:
        return kafka_range(spark, settings, topic.name, begin, stop)
    old = {partition: offset for partition, offset in begin.items() if offset < seam[partition]}
    rest = {partition: offset for partition, offset in seam.items() if offset < stop[partition]}
    archived = archived_range(spark, settings, topic.name, old, seam).select(*RECORD_COLUMNS)
    return archived.unionByName(kafka_range(spark, settings, topic.name, rest, stop).select(*RECORD_COLUMNS)) if rest else archived


def read_topics(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    start: Mapping[int, int],
    end: Mapping[int, int],
    seams: Mapping[int, int] | None = None,
) -> list[DataFrame]:
    """The records of [start, end) of each partition, parsed, one frame for each topic that has a partition in ``start``.

    :param end: of the same partitions as ``start``
    :param seams: see :func:`records`
    """
    topics = [topic for topic in pipeline.topics if of_topic(pipeline, topic, start)]
    return [parse(records(spark, settings, pipeline, topic, start, end, seams), pipeline, topic) for topic in topics]


def in_common(parsed: Sequence[DataFrame], columns: Sequence[str] = (*SOURCE_COLUMNS, "_event_at", "_reason")) -> DataFrame:
    """The rows of all topics in one frame: of several topics only these columns, of one topic all."""
    return parsed[0] if len(parsed) == 1 else reduce(DataFrame.unionByName, [frame.select(*columns) for frame in parsed])


def parse(raw: DataFrame, pipeline: Pipeline, topic: Topic | None = None) -> DataFrame:
    """The topic's columns (the source's by default), the :data:`SOURCE_COLUMNS`, ``_event_at`` and ``_reason``: null, or why the row is
    poison.
    """
    topic = topic or pipeline.source
    carry_code()
    located = raw.select(
        F.col("topic").alias("_topic"),
        (F.col("partition") + F.lit(pipeline.topics.index(topic) * TOPIC_STRIDE)).alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        F.col("key").alias("_key"),
        F.col("value").alias("_value"),
        PARSERS[topic.format](F.col("value"), topic).alias("_record"),
    )
    columns = [F.col("_record")[name].alias(name) for name in topic.columns]
    event_at = F.col("_record")[pipeline.event_time_of(topic)]
    return located.select(*SOURCE_COLUMNS, *columns, event_at.alias("_event_at"), refusal_reason(pipeline, topic).alias("_reason"))


def usable(parsed: DataFrame) -> DataFrame:
    """The rows that are not poison."""
    return parsed.where(F.col("_reason").isNull()).drop("_reason")


def assign_windows(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """One row for each window a row falls into, in the column ``window`` (struct of start and end); unchanged without a window."""
    if pipeline.window is None:
        return rows
    window = F.window(quoted(pipeline.event_time), pipeline.window.duration, pipeline.window.slide or pipeline.window.duration)
    return rows.withColumn("window", window)


def above_floors(windows: DataFrame, pipeline: Pipeline, floors: Mapping[int, int]) -> DataFrame:
    """Without the (row, window) pairs whose window was final for the row's partition before the query began; floors are in ms."""
    if pipeline.window is None or not any(floors.values()):
        return windows
    pairs = [F.lit(value).cast("long") for item in sorted(floors.items()) for value in item]
    floor_ms = F.element_at(F.create_map(*pairs), F.col("_partition").cast("long"))
    return windows.where(F.unix_micros("window.end") > floor_ms * F.lit(1000))


def result(parsed: Sequence[DataFrame], pipeline: Pipeline, floors: Mapping[int, int]) -> DataFrame:
    """What the pipeline's stream makes of the parsed records of its topics, in their order: the late filter sits between the windows and
    the transformation.
    """
    rows = [
        usable(frame).withWatermark(quoted(pipeline.event_time_of(topic)), pipeline.watermark) if topic.watermark else usable(frame)
        for topic, frame in zip(pipeline.topics, parsed, strict=True)
    ]
    if pipeline.window is not None:
        rows = [above_floors(assign_windows(rows[0], pipeline), pipeline, floors)]
    return transform(rows, pipeline)


def output_mode(pipeline: Pipeline) -> str:
    """Spark's output mode of the pipeline's query."""
    return "update" if pipeline.sink.mode is Mode.UPSERT else "append"


def transform(rows: Sequence[DataFrame], pipeline: Pipeline, *, hindsight: bool = False) -> DataFrame:
    """The pipeline's own transformation over its topics' rows and the tables that it joins; with ``hindsight`` the one that knows all."""
    function = (pipeline.hindsight if hindsight else None) or pipeline.transform
    carry_code()
    frames = iter([frame.drop(*(column for column in (*SOURCE_COLUMNS, "_event_at") if column not in PLACE_COLUMNS)) for frame in rows])
    first = next(frames)
    others = [read_lookup(first.sparkSession, joined) if isinstance(joined, Lookup) else next(frames) for joined in pipeline.joined]
    return function(first, *others)


def carry_code() -> None:
    """Spark's Python workers cannot import pipelines and what lies beside them, so what they run of it is sent to them."""
    if module := sys.modules.get(PACKAGE):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
