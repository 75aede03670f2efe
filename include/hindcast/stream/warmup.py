"""Run a pipeline's query once for practice, so that a new worker is quick when a shard depends on it.

A fresh JVM needs ten times as long for its first batch: it loads classes, compiles the query and starts
Python workers. If a worker took a shard in that state, the shard would stand still. So the worker first runs
the same query over the topic's last records, in a few small batches, and a pass of the audit. Both write into
a folder of their own that nobody reads. Only then does the worker take its share of the shards. A pipeline
that nobody serves meanwhile is not rehearsed: its shards stand still anyway.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import structlog
from pyspark.sql import DataFrame, SparkSession

from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.spark import (
    kafka_source,
    parquet_writer,
    parsed_records,
    query_signature,
    scratch,
    session,
    transformation,
)
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.tables.ledger import LedgerRow

_log = structlog.get_logger(__name__)

#: The practice reads the newest records of each partition, so many, in so many batches.
RECORDS = 200
BATCHES = 8
#: More than it ever took; a worker that is stuck here would hold its slot for nothing.
TIMEOUT_SECONDS = 40.0


def load_libraries(spark: SparkSession) -> None:
    """Have the JVM unpack the native libraries that Spark's files are compressed with, while there is room.

    It tries that at their first use, and only once. If the disk was full then it could never read or write
    such a file again.
    """
    jvm: Any = spark._jvm
    jvm.org.xerial.snappy.Snappy.getNativeLibraryVersion()
    jvm.com.github.luben.zstd.Zstd.maxCompressionLevel()


def warm_up(spark: SparkSession, installation: Installation, pipeline: Pipeline) -> None:
    """Run the pipeline's query and its audit only for their effect on this process.

    Never raises: it is only practice.
    """
    settings = installation.settings
    try:
        query_signature.signature_of(spark, pipeline)
        with TopicOffsets(settings) as offsets:
            earliest = across(pipeline, offsets.earliest)
            latest = across(pipeline, offsets.latest)
        start = {partition: max(earliest[partition], end - RECORDS) for partition, end in latest.items()}
        with scratch.folder(spark) as folder:
            _run(spark, settings, pipeline, start, folder)
            audit = Audit(spark, installation, pipeline, f"rehearsal/{pipeline.name}", 0)
            audit.rehearse(_batch(pipeline, start, latest), folder.url)
    except Exception as error:  # noqa: BLE001 - whatever is wrong, the take-over itself says so and names the cure
        reason = str(error).split("\n", 1)[0]
        _log.warning(
            "The rehearsal failed; the first batch will take longer.", pipeline=pipeline.name, reason=reason
        )


def _run(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, start: dict[int, int], folder: scratch.Folder
) -> None:
    def write(frame: DataFrame, number: int) -> None:
        parquet_writer.write_files(frame, folder.url, settings.storage_options, f"b{number}")

    most = max(1, RECORDS * len(start) // BATCHES)
    parsed = []
    for topic in pipeline.topics:
        raw = kafka_source.stream(spark, settings, pipeline, topic, start, most)
        parsed.append(parsed_records.parse(raw, pipeline, topic))
    frame = transformation.result(parsed, pipeline, {})
    session.keep_state_for(spark, pipeline)
    query = (
        frame.writeStream.queryName(f"rehearsal of {pipeline.name}")
        .foreachBatch(write)
        .outputMode(transformation.output_mode(pipeline))
        .option("checkpointLocation", folder.at("checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(int(TIMEOUT_SECONDS))
        durations = [progress["durationMs"] for progress in query.recentProgress]
        seconds = [duration.get("triggerExecution", 0) / 1000 for duration in durations]
        _log.info("Rehearsed.", pipeline=pipeline.name, batch_seconds=seconds)
    finally:
        query.stop()


def _batch(pipeline: Pipeline, start: Offsets, end: Offsets) -> LedgerRow:
    """One batch of these offsets, as the audit reads it; the other columns hold only what the audit needs."""
    return LedgerRow.unmeasured(
        pipeline=pipeline.name,
        version=pipeline.version,
        shard="rehearsal",
        epoch=0,
        batch=1,
        worker="",
        topic=pipeline.source.name,
        start_offsets=start,
        end_offsets=end,
        late_watermark_ms=0,
        watermark_ms=0,
        output_rows=0,
        sink_version=0,
        committed_at=datetime.now(UTC),
    )
