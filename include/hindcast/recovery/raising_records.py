"""Find the records on which a pipeline's function raises, so that the shard can go on without them.

A batch failed, and the shard would fail with it again for ever. The steps:

1. The batch's records are read into files, and some records before it, which the function has taken before
   (the *control*).
2. The function raises on the batch once more, and takes the control. If it raises there, too, no record is
   to blame: a service that it calls is away, say.
3. The batch is divided down to the records that raise (:mod:`hindcast.recovery.halving`).
4. Each of them must raise again by itself, and the rest of the batch, together with the control, must not.
   Otherwise no record is to blame: the function raises now and then, or only if records come together.

Each try runs the pipeline's query over files, in a new checkpoint and without the stream's state
(:mod:`hindcast.replay.recorded_batches`). So a function that raises only in a certain state is not found out
here: its shard is tried again and again, as after any other error.

Nothing is written anywhere. After a crash the next owner fails with the same batch and searches it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from hindcast.archive.held_records import held_records
from hindcast.clock import Clock
from hindcast.errors import RaisingRecordsError, name_of_error, traceback_of
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets
from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.recovery.halving import Block, Place, TooManyError, find_raising
from hindcast.replay.recorded_batches import BatchRange, RecordedBatches
from hindcast.spark import kafka_source, parsed_records, scratch
from hindcast.tables.excluded_records import Excluded, count, together, within
from hindcast.tables.ledger import LedgerRow

_log = structlog.get_logger(__name__)

#: So many records before the batch are the control, of each partition.
CONTROL_RECORDS = 100
_HOUR = timedelta(hours=1)
_POLL_SECONDS = 1
_LOG_SECONDS = 10.0


@dataclass(frozen=True)
class FailedBatch:
    """The batch of a shard that failed, and why.

    ``floors`` are those of its query, and ``excluded`` what that left out already.
    """

    shard: str
    start: Offsets
    end: Offsets
    floors: Offsets
    error: BaseException
    excluded: Excluded = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """Records that a shard is to leave out. ``tracebacks``: by place, what the function raised, in full."""

    excluded: Excluded = field(default_factory=dict)
    tracebacks: Mapping[Place, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.excluded)

    def and_those(self, other: LeftOut) -> LeftOut:
        """These records and the other ones."""
        excluded = together([self.excluded, other.excluded])
        return LeftOut(excluded, {**self.tracebacks, **other.tracebacks})


@dataclass
class _Records:
    """The records of the batch and of the control in files, and what was tried on them."""

    spark: SparkSession
    pipeline: Pipeline
    folder: scratch.Folder
    batch: FailedBatch
    stopped: threading.Event
    count: Callable[[], int]  # counts a try; how many there were
    logged: float = field(default_factory=time.monotonic)

    def first_raising(self, parts: Sequence[Block], excluded: Excluded) -> tuple[int, BaseException] | None:
        """Try some parts one after the other: the number of the first on which the query raises, and the
        error. None if it takes them all.

        Each part is a batch of one query, which ends with the first that raises.
        """
        if self.stopped.is_set():
            raise _StoppedError
        tries = self.count()
        self._log_progress(tries)
        shard = self.batch.shard
        place = scratch.Folder(self.spark, self.folder.at(f"try/{tries}"))
        batches: list[LedgerRow | BatchRange] = []
        for number, part in enumerate(parts):
            batches.append(BatchRange(shard, number, part.start, part.end))
        recorded = RecordedBatches(self.spark, self.pipeline, place, {shard: len(parts)}, excluded=excluded)
        for topic in self.pipeline.topics:
            records = self.spark.read.parquet(self.folder.at(topic.name))
            recorded.keep(topic, records, {shard: batches})
        query = recorded.begin(shard, place.at("checkpoint"), None, floors=self.batch.floors)
        self._await(query)
        error = query.exception()
        passed = len(place.names("checkpoint/commits/*"))
        place.remove()
        if error is None:
            return None
        return passed, error

    def error_on(self, block: Block, excluded: Excluded) -> BaseException | None:
        """What the query raises on these records; None if it takes them all."""
        raised = self.first_raising([block], excluded)
        if raised is None:
            return None
        _, error = raised
        return error

    def any_usable(self, block: Block, excluded: Excluded) -> bool:
        """Whether the function gets one of these records."""
        for topic in self.pipeline.topics:
            start = kafka_source.of_topic(self.pipeline, topic, block.start)
            if not start:
                continue
            end = kafka_source.of_topic(self.pipeline, topic, block.end)
            inside = kafka_source.in_ranges(start, end)
            records = self.spark.read.parquet(self.folder.at(topic.name)).where(inside)
            parsed = parsed_records.parse(records, self.pipeline, topic, excluded)
            if not parsed_records.usable(parsed).isEmpty():
                return True
        return False

    def _await(self, query: StreamingQuery) -> None:
        """Wait until the query ends, well or not."""
        while query.isActive:
            # It raises what the function has raised, and the query keeps that.
            with suppress(StreamingQueryException):
                query.awaitTermination(_POLL_SECONDS)
            if self.stopped.is_set():
                query.stop()
                raise _StoppedError

    def _log_progress(self, tries: int) -> None:
        if time.monotonic() - self.logged < _LOG_SECONDS:
            return
        self.logged = time.monotonic()
        _log.info("Searching for records that raise.", shard=self.batch.shard, tries=tries)


def _unnamed(places: Collection[Place]) -> Excluded:
    """Records that a try is to leave out, whatever they raise."""
    found: Excluded = {}
    for partition, offset in places:
        found.setdefault(partition, {})[offset] = ""
    return found


class _StoppedError(Exception):
    """The search was given up."""


class RaisingRecords:
    """The search, from the moment this is made until :attr:`ended`. A thread of its own runs it."""

    def __init__(
        self,
        spark: SparkSession,
        installation: Installation,
        pipeline: Pipeline,
        batch: FailedBatch,
        clock: Clock,
    ) -> None:
        # A session of its own: which state store a query gets is a setting of the session.
        self._spark = spark.newSession()
        self._installation = installation
        self._pipeline = pipeline
        self._batch = batch
        self._clock = clock
        self._stop = threading.Event()
        #: The records to leave out; empty if no record is to blame, or if that could not be found out.
        self.found = LeftOut()
        #: Why the shard must wait for an operator; None if it need not.
        self.refusal: RaisingRecordsError | None = None
        #: Why no record was found.
        self.reason = ""
        #: What the search itself has met; None if it came to its end.
        self.failure: BaseException | None = None
        #: How often the query was run so far.
        self.tries = 0
        self._thread = threading.Thread(target=self._run, name=f"search {batch.shard}", daemon=True)
        self._thread.start()

    @property
    def error(self) -> BaseException:
        """Why the batch failed."""
        return self._batch.error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Give up."""
        self._stop.set()
        self._thread.join()

    def _count(self) -> int:
        self.tries += 1
        return self.tries

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self.found = self._search()
        except _StoppedError:
            self.reason = "the search was stopped"
        except RaisingRecordsError as error:
            self.refusal = error
        except Exception as error:  # noqa: BLE001 - whatever Spark, the broker or the store raises
            self.reason = f"the search failed: {name_of_error(error)}"
            self.failure = error
            _log.warning("The search for records that raise failed.", error=str(error))
        seconds = time.monotonic() - began
        found = count(self.found.excluded)
        message = "The search for records that raise has ended."
        _log.info(message, shard=self._batch.shard, tries=self.tries, seconds=seconds, found=found)

    def _search(self) -> LeftOut:
        """Steps 1 to 4.

        :raises RaisingRecordsError: if more records raise than may be left out
        """
        reach("exclude.1")
        pipeline = self._pipeline
        batch = self._batch
        ledger = self._installation.ledger
        rows = ledger.excluding(pipeline.name, pipeline.version)
        known = together([*[row.excluded for row in rows], batch.excluded])
        since = self._clock.now() - _HOUR
        recent = sum(
            count(row.excluded) for row in rows if row.shard == batch.shard and row.committed_at > since
        )
        recent += count(within(batch.excluded, batch.start, batch.end))
        limit = self._installation.settings.raising_records_per_hour
        with scratch.folder(self._spark) as folder:
            before = self._read(folder)
            records = _Records(self._spark, pipeline, folder, batch, self._stop, self._count)
            control = Block(before, batch.start)
            whole = Block(batch.start, batch.end)
            if records.error_on(whole, known) is None:
                self.reason = "the function takes the batch if it is run again"
                return LeftOut()
            controlled = records.any_usable(control, known)
            if controlled and records.error_on(control, known) is not None:
                self.reason = "the function raises on records that it took before, too"
                return LeftOut()

            def first_raising(parts: Sequence[Block], found: Collection[Place]) -> int | None:
                raised = records.first_raising(parts, together([known, _unnamed(found)]))
                return None if raised is None else raised[0]

            try:
                places = find_raising(whole, first_raising, limit - recent)
            except TooManyError:
                if not controlled:
                    self.reason = "the function raises on many records, and it has not taken any before"
                    return LeftOut()
                raise self._too_many(recent) from None
            reach("exclude.2")
            return self._confirmed(records, before, places, known)

    def _read(self, folder: scratch.Folder) -> Offsets:
        """Step 1; where the control begins."""
        settings = self._installation.settings
        pipeline = self._pipeline
        batch = self._batch
        with TopicOffsets(settings) as topics:
            held = held_records(settings, pipeline, topics, batch.start)
        before: Offsets = {}
        for partition, offset in batch.start.items():
            first = max(offset - CONTROL_RECORDS, held.first().get(partition, offset))
            before[partition] = min(first, offset)
        seams = held.seams(before, batch.end)
        for topic in pipeline.topics:
            raw = kafka_source.records(self._spark, settings, pipeline, topic, before, batch.end, seams)
            raw.write.parquet(folder.at(topic.name))
        return before

    def _confirmed(self, records: _Records, before: Offsets, places: list[Place], known: Excluded) -> LeftOut:
        """Step 4.

        :param before: where the control begins
        """
        found: Excluded = {}
        tracebacks: dict[Place, str] = {}
        for partition, offset in places:
            alone = Block({partition: offset}, {partition: offset + 1})
            error = records.error_on(alone, {})
            if error is None:
                self.reason = f"no record raises by itself: offset {offset} does not"
                return LeftOut()
            name = name_of_error(error, self._pipeline.file)
            found.setdefault(partition, {})[offset] = name
            tracebacks[partition, offset] = traceback_of(error)
        rest = Block(before, self._batch.end)
        left_out = together([known, found])
        if not records.any_usable(rest, left_out):
            self.reason = "the function has taken no other record, so it may raise on all"
            return LeftOut()
        if records.error_on(rest, left_out) is not None:
            self.reason = "the function raises on the rest of the batch, too"
            return LeftOut()
        return LeftOut(found, tracebacks)

    def _too_many(self, recent: int) -> RaisingRecordsError:
        batch = self._batch
        settings = self._installation.settings
        return RaisingRecordsError(
            pipeline=self._pipeline.name,
            shard=batch.shard,
            start=batch.start,
            end=batch.end,
            limit=settings.raising_records_per_hour,
            recent=recent,
            error=name_of_error(batch.error, self._pipeline.file),
        )
