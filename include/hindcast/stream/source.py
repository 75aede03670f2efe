"""From Kafka's records to the frame that a transformation is given. Stream and batch share every line of it.

The rows keep where they came from in columns that begin with an underscore (see :data:`SOURCE_COLUMNS`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.pipeline import Pipeline
from hindcast.settings import Settings

SOURCE_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_value")
_CORRUPT = "_corrupt"
#: One batch of a stream reads at most so many records: a long backlog is worked off in steps that renew, commit and can be drained.
MAX_RECORDS_PER_BATCH = 500_000


def kafka_options(settings: Settings, topic: str, partitions: list[int]) -> dict[str, str]:
    """Options for reading exactly these partitions, committed records only, failing where data is gone."""
    return {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({topic: sorted(partitions)}),
        "failOnDataLoss": "true",
    }


def offsets_option(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets in the JSON that Spark's Kafka source takes: ``{"topic": {"0": 23}}``."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})


def read_range(spark: SparkSession, settings: Settings, pipeline: Pipeline, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
    """The records of [start, end) of each partition, parsed. ``start`` and ``end`` have the same partitions."""
    topic = pipeline.source.name
    reader = spark.read.format("kafka").options(**kafka_options(settings, topic, list(start)))
    raw = reader.option("startingOffsets", offsets_option(topic, start)).option("endingOffsets", offsets_option(topic, end)).load()
    return parse(raw, pipeline)


def stream(spark: SparkSession, settings: Settings, pipeline: Pipeline, start: Mapping[int, int]) -> DataFrame:
    """The records of these partitions from ``start`` on, as they come, unparsed."""
    topic = pipeline.source.name
    reader = spark.readStream.format("kafka").options(**kafka_options(settings, topic, list(start)))
    return reader.option("startingOffsets", offsets_option(topic, start)).option("maxOffsetsPerTrigger", MAX_RECORDS_PER_BATCH).load()


def parse(raw: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The source's columns, the :data:`SOURCE_COLUMNS` and ``_reason``: null, or why the row is poison."""
    schema = f"{pipeline.source.schema}, {_CORRUPT} string"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    record = F.from_json(F.col("value").cast("string"), schema, options).alias("_record")
    located = raw.select(
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        F.col("key").alias("_key"),
        F.col("value").alias("_value"),
        record,
    )
    columns = [F.col("_record")[name].alias(name) for name in pipeline.source.columns]
    return located.select(*SOURCE_COLUMNS, *columns, _reason(pipeline).alias("_reason"))


def _reason(pipeline: Pipeline) -> Column:
    event_time = F.col("_record")[pipeline.event_time]
    limit_seconds = pipeline.future_limit.total_seconds()
    latest = F.timestamp_micros(F.unix_micros("_timestamp") + F.lit(int(limit_seconds * 1_000_000)))
    reason = (
        F.when(F.col("_value").isNull(), "no value")
        .when(F.col("_record").isNull() | F.col("_record")[_CORRUPT].isNotNull(), "does not parse as the topic's schema")
        .when(event_time.isNull(), f"no {pipeline.event_time}")
        .when(event_time > latest, f"{pipeline.event_time} is more than {pipeline.max_future} in the future")
    )
    for name in pipeline.source.required:
        reason = reason.when(F.col("_record")[name].isNull(), f"no {name}")
    return reason


def usable(parsed: DataFrame) -> DataFrame:
    """The rows that are not poison."""
    return parsed.where(F.col("_reason").isNull()).drop("_reason")


def assign_windows(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """One row for each window a row falls into, in the column ``window`` (struct of start and end); unchanged without a window."""
    if pipeline.window is None:
        return rows
    window = F.window(pipeline.event_time, pipeline.window.duration, pipeline.window.slide or pipeline.window.duration)
    return rows.withColumn("window", window)


def above_floors(windows: DataFrame, pipeline: Pipeline, floors: Mapping[int, int]) -> DataFrame:
    """Without the (row, window) pairs whose window was final for the row's partition before the query began; floors are in ms."""
    if pipeline.window is None or not any(floors.values()):
        return windows
    pairs = [F.lit(value).cast("long") for item in sorted(floors.items()) for value in item]
    floor_ms = F.element_at(F.create_map(*pairs), F.col("_partition").cast("long"))
    return windows.where(F.unix_micros("window.end") > floor_ms * F.lit(1000))


def result(parsed: DataFrame, pipeline: Pipeline, floors: Mapping[int, int]) -> DataFrame:
    """What the pipeline's stream makes of its parsed records: the late filter sits between the windows and the transformation."""
    rows = usable(parsed).withWatermark(pipeline.event_time, pipeline.watermark)
    return transform(above_floors(assign_windows(rows, pipeline), pipeline, floors), pipeline)


def transform(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The pipeline's own transformation over windowed rows, without the source columns."""
    return pipeline.transform(rows.drop(*SOURCE_COLUMNS))
