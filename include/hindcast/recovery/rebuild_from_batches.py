"""Make a shard's state anew where it depends on which rows came together: run every batch that the sink holds
once more.

1. The shard's batches are read from their topics into files, one a batch
   (:mod:`hindcast.replay.recorded_batches`);
2. the pipeline's query runs over them in the shard's new checkpoint folder, and its results are thrown away:
   the sink has them. Spark numbers the batches as it did the first time, so its batch N is the sink's N + 1;
3. in Spark's plan of the last batch the files give way to the offsets of the topics that the batch had read
   to (:meth:`hindcast.recovery.checkpoint.SparkCheckpoint.adopt`): the next start of the query goes on there,
   with the state that the batches left.

That may take as long as the stream was busy, so a thread of its own does it while the worker goes on. A crash
in between leaves a folder that no commit of the sink names; the next owner begins again, in a folder of its
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

_LOOK_SECONDS = 1
_SAY_SECONDS = 10.0


class RebuildFromBatches:
    """One shard's batches, first to last, run again from the moment this is made until :attr:`ended`."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        pipeline: Pipeline,
        wal: SparkCheckpoint,
        rows: Sequence[LedgerRow],
    ) -> None:
        # A session of its own: which state store a query gets is a setting of the session, and other queries
        # are started meanwhile.
        self._spark, self._settings, self._pipeline = spark.newSession(), settings, pipeline
        self._wal, self._rows = wal, rows
        self._jobs = f"rebuild of {wal.url}"
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self._jobs, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the state is there, or :attr:`failure` says why it is not."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Give up; what was made is never used."""
        self._stop.set()
        self._spark.sparkContext.cancelJobGroup(self._jobs)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._make()
        except Exception as error:  # noqa: BLE001 - whatever Spark or a user's transformation raises
            if not self._stop.is_set():
                self.failure = error

    def _make(self) -> None:
        shard, first, last = self._rows[0].shard, self._rows[0], self._rows[-1]
        self._spark.sparkContext.setJobGroup(self._jobs, f"the records of {shard}")
        context = recorded_batches(
            self._spark, self._settings, self._pipeline, first.start_offsets, last.end_offsets, self._rows
        )
        with context as recorded:
            if self._stop.is_set():
                return
            query = recorded.begin(shard, self._wal.url, _throw_away)
            self._watch(query)
            if self._stop.is_set():
                return
            sources = _topics_of(query, self._pipeline)
        reach("rerun.3")
        self._wal.adopt(len(self._rows) - 1, sources, last.end_offsets)

    def _watch(self, query: StreamingQuery) -> None:
        said = time.monotonic()
        while not query.awaitTermination(_LOOK_SECONDS):
            if self._stop.is_set():
                query.stop()
            if time.monotonic() - said >= _SAY_SECONDS and (progress := query.lastProgress) is not None:
                said = time.monotonic()
                _log.info(
                    "Running batches again.",
                    shard=self._rows[0].shard,
                    done=progress["batchId"] + 1,
                    of=len(self._rows),
                )


def _throw_away(frame: DataFrame, _: int) -> None:
    parquet_writer.run(frame)


def _topics_of(query: StreamingQuery, pipeline: Pipeline) -> list[Topic]:
    """The topic of each source of the query, in the order of its plan, by the folder that the source
    reads.
    """
    progress = query.lastProgress
    assert progress is not None
    names = [str(source["description"]).rstrip("]").rsplit("/", 1)[-1] for source in progress["sources"]]
    by_name = {topic.name: topic for topic in pipeline.topics}
    assert all(name in by_name for name in names), names
    return [by_name[name] for name in names]
