"""Run a pipeline's query once for practice, so that a new worker is quick when a shard depends on it.

A fresh JVM needs ten times as long for its first batch: it loads classes, compiles the query, starts Python workers. A worker that took a
shard in that state would leave it standing still. So it first runs the same query over the topic's last records, in a few small batches,
and a pass of the audit, into a folder of its own that nobody reads, and takes its share of the shards after that.
"""

from __future__ import annotations

from datetime import UTC, datetime

import structlog
from pyspark.sql import DataFrame, SparkSession

from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.spark import kafka_source, parquet_writer, query_signature, scratch, session
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.tables.ledger import LedgerRow, Offsets

_log = structlog.get_logger(__name__)

#: The newest records of each partition that it reads, and in how many batches.
RECORDS = 200
BATCHES = 8
#: More than it ever took; a worker that is stuck here would hold its slot for nothing.
TIMEOUT_SECONDS = 40.0


def warm_up(spark: SparkSession, settings: Settings, pipeline: Pipeline) -> None:
    """Run the pipeline's query and its audit for nothing but their effect on this process. Never raises: it is only practice."""
    try:
        query_signature.signature_of(spark, pipeline)
        with TopicOffsets(settings) as offsets:
            earliest, latest = across(pipeline, offsets.earliest), across(pipeline, offsets.latest)
        start = {partition: max(earliest[partition], end - RECORDS) for partition, end in latest.items()}
        with scratch.folder(spark) as folder:
            _run(spark, settings, pipeline, start, folder)
            Audit(spark, settings, pipeline, f"rehearsal/{pipeline.name}", 0).rehearse(_batch(pipeline, start, latest), folder.url)
    except Exception as error:  # noqa: BLE001 - whatever is wrong, the take-over itself says so where it can be mended
        _log.warning("The rehearsal failed; the first batch will take longer.", pipeline=pipeline.name, reason=str(error).split("\n", 1)[0])


def _run(spark: SparkSession, settings: Settings, pipeline: Pipeline, start: dict[int, int], folder: scratch.Folder) -> None:
    def write(frame: DataFrame, number: int) -> None:
        parquet_writer.write_files(frame, folder.url, settings.storage_options, f"b{number}")

    most = max(1, RECORDS * len(start) // BATCHES)
    parsed = [
        kafka_source.parse(kafka_source.stream(spark, settings, pipeline, topic, start, most), pipeline, topic) for topic in pipeline.topics
    ]
    frame = kafka_source.result(parsed, pipeline, {})
    session.keep_state_for(spark, pipeline)
    query = (
        frame.writeStream.queryName(f"rehearsal of {pipeline.name}")
        .foreachBatch(write)
        .outputMode(kafka_source.output_mode(pipeline))
        .option("checkpointLocation", folder.at("checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(int(TIMEOUT_SECONDS))
        seconds = [progress["durationMs"].get("triggerExecution", 0) / 1000 for progress in query.recentProgress]
        _log.info("Rehearsed.", pipeline=pipeline.name, batch_seconds=seconds)
    finally:
        query.stop()


def _batch(pipeline: Pipeline, start: Offsets, end: Offsets) -> LedgerRow:
    """One batch of these offsets, as the audit reads it; of the rest only what it needs."""
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
