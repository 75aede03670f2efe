"""Rebuild a shard's state that depends on which rows came together: run every batch that the sink holds
again.

1. The shard's batches are read from their topics into files, one a batch
   (:mod:`hindcast.replay.recorded_batches`).
2. The pipeline's query runs over them in the shard's new checkpoint folder, and its results are dropped: the
   sink has them. Spark numbers the batches as it did the first time, so its batch N is the sink's N + 1.
3. In Spark's plan of the last batch the files give way to the offsets of the topics that the batch had read
   to (:meth:`hindcast.recovery.checkpoint.SparkCheckpoint.adopt`). The next start of the query resumes there,
   with the state that the batches left.

That may take as long as the stream was busy, so a thread of its own does it while the worker runs on. A crash
in between leaves a folder that no commit of the sink names; the next owner starts again, in a folder of its
own epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from hindcast.pipeline import Pipeline, Topic
from hindcast.processes.crash_points import reach
from hindcast.recovery.checkpoint import SparkCheckpoint
from hindcast.replay.recorded_batches import recorded_batches
from hindcast.settings import Settings
from hindcast.spark import parquet_writer
from hindcast.tables.ledger import LedgerRow

_log = structlog.get_logger(__name__)

_POLL_SECONDS = 1
_LOG_SECONDS = 10.0


class RebuildFromBatches:
    """One shard's batches, first to last, run again from the moment this is made until :attr:`ended`."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        pipeline: Pipeline,
        checkpoint: SparkCheckpoint,
        rows: Sequence[LedgerRow],
    ) -> None:
        # A session of its own: which state store a query gets is a setting of the session, and other queries
        # are started meanwhile.
        self._spark = spark.newSession()
        self._settings = settings
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._rows = rows
        self._jobs = f"rebuild of {checkpoint.url}"
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self._jobs, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the state is rebuilt, or :attr:`failure` says why it is not."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Give up; what was rebuilt so far is never used."""
        self._stop.set()
        self._spark.sparkContext.cancelJobGroup(self._jobs)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._rebuild()
        except Exception as error:  # noqa: BLE001 - whatever Spark or a user's transformation raises
            if not self._stop.is_set():
                self.failure = error

    def _rebuild(self) -> None:
        first = self._rows[0]
        last = self._rows[-1]
        shard = first.shard
        self._spark.sparkContext.setJobGroup(self._jobs, f"the records of {shard}")
        context = recorded_batches(
            self._spark, self._settings, self._pipeline, first.start_offsets, last.end_offsets, self._rows
        )
        with context as recorded:
            if self._stop.is_set():
                return
            query = recorded.begin(shard, self._checkpoint.url, _drop)
            self._watch(query)
            if self._stop.is_set():
                return
            sources = _topics_of(query, self._pipeline)
        reach("rerun.3")
        self._checkpoint.adopt(len(self._rows) - 1, sources, last.end_offsets)

    def _watch(self, query: StreamingQuery) -> None:
        logged = time.monotonic()
        while not query.awaitTermination(_POLL_SECONDS):
            if self._stop.is_set():
                query.stop()
            if time.monotonic() - logged < _LOG_SECONDS:
                continue
            progress = query.lastProgress
            if progress is None:
                continue
            logged = time.monotonic()
            _log.info(
                "Running batches again.",
                shard=self._rows[0].shard,
                done=progress["batchId"] + 1,
                of=len(self._rows),
            )


def _drop(frame: DataFrame, _: int) -> None:
    parquet_writer.run(frame)


def _topics_of(query: StreamingQuery, pipeline: Pipeline) -> list[Topic]:
    """The topic of each source of the query, in the order of its plan, by the folder that the source
    reads.
    """
    progress = query.lastProgress
    assert progress is not None
    by_name = {topic.name: topic for topic in pipeline.topics}
    topics = []
    for source in progress["sources"]:
        folder = str(source["description"]).rstrip("]")
        name = folder.rsplit("/", 1)[-1]
        assert name in by_name, folder
        topics.append(by_name[name])
    return topics
