"""Run batches from files into a shard's new checkpoint, before its query reads the topics.

Two things need that. A state that depends on which rows came together is rebuilt by running every batch again
that the sink holds. And what the topics no longer hold is read from their archives, both to rebuild a state
and to go on (:mod:`hindcast.recovery.archived_rounds`).

1. The batches that the sink holds are read from topics and archives into files, one a batch
   (:mod:`hindcast.replay.recorded_batches`). A state that depends on rows alone needs one batch, of all that
   open windows need.
2. The pipeline's query runs over them in the shard's new checkpoint folder, and its results are dropped: the
   sink has them. Spark numbers the batches from 0 on, so its batch N is the sink's N + ``base``.
3. Round by round, batches that the sink does not hold yet are read into files and run on in the same folder.
   Each is committed as any batch is (:mod:`hindcast.stream.batch_commits`).
4. In Spark's plan of the last batch the files give way to the offsets of the topics that the batch had read
   to (:meth:`hindcast.recovery.checkpoint.SparkCheckpoint.adopt`). The next start of the query resumes there,
   with the state that the batches left.

That may take as long as the stream was busy, so a thread of its own does it while the worker runs on. A crash
in between leaves a folder that no query can resume from; the next owner starts again, in a folder of its own
epoch, with what the sink holds by then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline, Topic
from hindcast.processes.crash_points import reach
from hindcast.recovery.archived_rounds import Round
from hindcast.recovery.checkpoint import SparkCheckpoint
from hindcast.replay.recorded_batches import BatchRange, recorded_batches
from hindcast.settings import Settings
from hindcast.spark import parquet_writer, scratch
from hindcast.tables.ledger import LedgerRow

_log = structlog.get_logger(__name__)

_POLL_SECONDS = 1
_LOG_SECONDS = 10.0
#: One task reads so many bytes of a batch's file, or one group of its rows. See
#: :data:`hindcast.spark.kafka_source.MAX_RECORDS_PER_TASK`.
_TASK_BYTES = 2**20


class FurtherBatches(Protocol):
    """The batches of step 3."""

    def rounds(self) -> Iterator[Round]:
        """What is still to be read. A round is asked for once the one before is done."""

    def commit(self, frame: DataFrame, spark_batch: int) -> None:
        """Commit one batch; Spark's thread calls it."""

    def follow(self, query: StreamingQuery) -> None:
        """A round's query was started."""

    def round_ended(self) -> None:
        """A round's query has ended."""

    def close(self) -> None:
        """No batch follows any more."""

    def planned_next(self) -> tuple[Offsets, Offsets] | None:
        """From where to where the batch after the last committed one reads; None if it is not planned."""

    @property
    def in_hand(self) -> bool:
        """Whether a batch is being committed."""

    @property
    def refusal(self) -> Exception | None:
        """Why a batch was not committed."""


@dataclass(frozen=True)
class _LastBatch:
    """Spark's number of a batch, the topic of each of its query's sources, and up to where it has read."""

    number: int
    sources: list[Topic]
    end: Offsets


class RebuildFromBatches:
    """The batches of one shard, first to last, from the moment this is made until :attr:`ended`."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        pipeline: Pipeline,
        checkpoint: SparkCheckpoint,
        shard: str,
        rows: Sequence[LedgerRow | BatchRange],
        *,
        seams: Offsets | None = None,
        floors: Offsets | None = None,
        further: FurtherBatches | None = None,
    ) -> None:
        """:param rows: the batches of steps 1 and 2
        :param seams: by partition, up to where they are read from the archive
        :param floors: of the query; see :mod:`hindcast.recovery.rebuild_state`
        :param further: the batches of step 3; none if the topics hold all that comes next
        """
        # A session of its own: which state store a query gets is a setting of the session, and other queries
        # are started meanwhile.
        self._spark = spark.newSession()
        if not pipeline.re_execute:
            self._spark.conf.set("spark.sql.files.maxPartitionBytes", _TASK_BYTES)
        self._settings = settings
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._shard = shard
        self._rows = rows
        self._seams = seams
        self._floors = floors
        self._further = further
        self._jobs = f"rebuild of {checkpoint.url}"
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self._jobs, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the state is there, or :attr:`failure` says why it is not."""
        return not self._thread.is_alive()

    @property
    def in_hand(self) -> bool:
        """Whether a batch of step 3 is being committed: :meth:`stop` would interrupt it."""
        return self._further is not None and self._further.in_hand and not self.ended

    def planned_next(self) -> tuple[Offsets, Offsets] | None:
        """From where to where the next batch of step 3 reads; None if none is planned."""
        if self._further is None:
            return None
        return self._further.planned_next()

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
                if self._further is not None and self._further.refusal is not None:
                    self.failure = self._further.refusal
        finally:
            if self._further is not None:
                self._further.close()

    def _rebuild(self) -> None:
        self._spark.sparkContext.setJobGroup(self._jobs, f"the records of {self._shard}")
        with scratch.folder(self._spark) as folder:
            last = self._run_all(folder)
        if self._stop.is_set() or last is None:
            return
        reach("rerun.3")
        self._checkpoint.adopt(last.number, last.sources, last.end)

    def _run_all(self, folder: scratch.Folder) -> _LastBatch | None:
        """Steps 1 to 3.

        :returns: the last batch; None if there was none, or if it was stopped
        """
        last = None
        if self._rows:
            first = self._rows[0].start_offsets
            end = self._rows[-1].end_offsets
            recorded = Round(tuple(self._rows), first, end, self._seams)
            last = self._run_round(folder, recorded, None)
        further = self._further
        if further is None or self._stop.is_set():
            return last
        for one in further.rounds():
            reach("base.1")
            last = self._run_round(folder, one, last, further)
            if self._stop.is_set():
                return None
            further.round_ended()
            reach("base.2")
        return last

    def _run_round(
        self,
        folder: scratch.Folder,
        one: Round,
        before: _LastBatch | None,
        further: FurtherBatches | None = None,
    ) -> _LastBatch | None:
        """Run batches on in the checkpoint.

        :param before: the last batch before them
        :param further: commits their results; without it they are dropped
        :returns: the last of them; None if it was stopped
        """
        ran = 0
        if before is not None:
            ran = before.number + 1
        save: Callable[[DataFrame, int], None] = _drop
        if further is not None:
            save = further.commit
        context = recorded_batches(
            self._spark,
            self._settings,
            self._pipeline,
            one.start,
            one.end,
            one.batches,
            one.seams,
            folder=folder,
            before=ran,
        )
        with context as recorded:
            if self._stop.is_set():
                return None
            query = recorded.begin(
                self._shard, self._checkpoint.url, save, floors=self._floors, measured=further is not None
            )
            if further is not None:
                further.follow(query)
            self._watch(query, len(one.batches))
            if self._stop.is_set():
                return None
        number = ran + len(one.batches) - 1
        return _LastBatch(number, _topics_of(query, self._pipeline), one.end)

    def _watch(self, query: StreamingQuery, count: int) -> None:
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
                "Running batches from files.", shard=self._shard, batch=progress["batchId"], of_round=count
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
