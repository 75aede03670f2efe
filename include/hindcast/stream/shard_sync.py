"""The shards that one worker consumes: start, watch and stop their queries, and say when a lease may go.

The worker's main thread calls all methods but :meth:`ShardSync.audit`. The start of a query takes about a
second, and a worker may gain hundreds of shards. So they wait in a queue: the main thread starts one, acts on
the renewals since, and starts the next.
"""

from __future__ import annotations

import math
import re
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import structlog
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from hindcast.clock import Clock
from hindcast.errors import (
    BrokerUnavailableError,
    CommitConflictError,
    CommitUnknownError,
    FenceMovedError,
    HindcastError,
    LeaseLostError,
    OffsetsLostError,
    StoreUnavailableError,
    innermost,
)
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.partitions import Offsets, ShardId
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.settings import Settings
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.shard_row import ReportedDetail, ShardCheckpoint, ShardDetail
from hindcast.spark import kafka_source
from hindcast.stream.batch_cpu import CpuMeter
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.stream.shard_events import ShardEvents
from hindcast.stream.shard_runner import ShardRunner
from hindcast.stream.shard_takeover import ShardTakeover
from hindcast.stream.takeover_priority import TakeoverPriority
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventLog
from hindcast.tables.ledger import Ledger

_log = structlog.get_logger(__name__)

#: Passing faults: the shard is given back and taken again after a while. Every other HindcastError waits for
#: an operator.
_PASSING = (
    LeaseLostError,
    StoreUnavailableError,
    BrokerUnavailableError,
    CommitConflictError,
    CommitUnknownError,
    FenceMovedError,
)
#: Spark's conditions for state files that are missing or torn: the next start rebuilds the state instead of
#: failing for ever.
_STATE_LOST = re.compile(
    r"CANNOT_LOAD_STATE_STORE|OPERATOR_MISSING_STATE_DIRECTORY|STATE_STORE_[A-Z_]*(CORRUPT|CHECKSUM|MISSING|NOT_FOUND|UNEXPECTED)"
)
#: A query that failed is started again by this worker after 1, 2, 4 ... seconds, at most this.
MAX_BACKOFF_SECONDS = 60.0


@dataclass
class _Running:
    """A shard that is held and whose query was started."""

    runner: ShardRunner
    audit: Audit
    shadow: bool = False  # of a version that readers do not have: its batches are bounded
    filed: int | None = None  # the last batch whose late and poison rows are filed, if it is known
    rebuilt: str = ""  # the newest request to rebuild when it was started
    met: str | None = None  # a request to rebuild, or "" for damage, that its first batch will have met
    draining: bool = False
    ending: bool = False  # superseded, with nothing in hand
    restart: tuple[Lease, str] | None = None  # once drained, start it again for this request to rebuild
    drain_to: Offsets | None = None

    @property
    def stands_still(self) -> bool:
        """Whether it waits for the first batch of its new owner."""
        return not (self.runner.progressed or self.draining)

    @property
    def reached_drain_end(self) -> bool:
        """Whether it has consumed up to where it is to drain."""
        if self.drain_to is None:
            return False
        ends = self.runner.end_offsets
        return all(ends[partition] >= end for partition, end in self.drain_to.items())


@dataclass
class _Waiting:
    """A shard that is held and whose query is to be started."""

    lease: Lease
    request: str = ""  # the newest request to rebuild it
    shadow: bool = False


class Pace:
    """How many shards this worker can start in half a lease, by the slowest of its last starts.

    Safe for threads.
    """

    #: Starts that count: more than one, for a single quick one says little.
    KEPT = 8
    #: Assumed until the first start was measured: one start on an idle machine.
    FIRST_SECONDS = 1.0

    def __init__(self, lease_seconds: float) -> None:
        self._budget_seconds = lease_seconds / 2
        self._last: deque[float] = deque(maxlen=self.KEPT)
        self._slowest = self.FIRST_SECONDS

    def note(self, seconds: float) -> None:
        """A start took so long."""
        self._last.append(seconds)
        self._slowest = max(self._last)

    def start_limit(self) -> int:
        """One at least."""
        return max(int(self._budget_seconds / max(self._slowest, 0.001)), 1)


@dataclass
class Backoff:
    """When a shard that failed here may be tried here again. The renewal thread may ask at any time."""

    failures: dict[LeaseKey, int] = field(default_factory=dict)
    until: dict[LeaseKey, float] = field(default_factory=dict)

    def failed(self, key: LeaseKey, now: float) -> float:
        """Note a failure; return the seconds to wait."""
        self.failures[key] = self.failures.get(key, 0) + 1
        seconds = min(2.0 ** (self.failures[key] - 1), MAX_BACKOFF_SECONDS)
        self.until[key] = now + seconds
        return seconds

    def succeeded(self, key: LeaseKey) -> None:
        self.failures.pop(key, None)
        self.until.pop(key, None)

    def next_end(self, after: float) -> float:
        """The first moment after this one at which a shard may be tried again; infinity if none waits."""
        later = [until for until in list(self.until.values()) if until > after]
        return min(later, default=math.inf)

    def over(self, key: LeaseKey, now: float) -> bool:
        return now >= self.until.get(key, 0.0)


class ShardSync:
    """One query for each shard held."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        deployed: LoadedPipelines,
        held: HeldLeases,
        events: EventLog,
        clock: Clock,
        backoff: Backoff,
        pace: Pace | None = None,
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        """:param beat: called between any two starts or stops: the main thread is not stuck"""
        self._spark = spark
        self._settings = settings
        self._deployed = deployed
        self._held = held
        self._events = ShardEvents(events, held.owner)
        self._clock = clock
        self._backoff = backoff
        self._pace = pace or Pace(settings.lease_seconds)
        self._beat = beat
        self._ledger = Ledger(ControlTables(settings))
        self._topics = TopicOffsets(settings)  # stays connected: a take-over waits for its answers
        self._meanwhile = ThreadPoolExecutor(2, "take-over")
        self._waiting: dict[LeaseKey, _Waiting] = {}  # in the order in which they are started
        self._running: dict[LeaseKey, _Running] = {}
        self._settling: list[_Running] = []  # given up or lost, with late and poison rows still to be filed
        self._unfiled: dict[LeaseKey, str] = {}  # why the last pass over a shard failed
        self._auditing = threading.Lock()
        self._precedence = TakeoverPriority(clock)
        self._meter = CpuMeter(clock)
        self.superseded: frozenset[LeaseKey] = frozenset()  # shards of an older generation: to be ended
        self.leaving = False  # the worker stops: the next owner ends superseded shards
        self.audit_due = threading.Event()  # a shard waits for its late and poison rows to be filed

    def versions(self) -> set[tuple[str, int]]:
        """The pipelines and versions that have shards here."""
        held = [*list(self._running), *list(self._waiting)]
        return {(key.stream_id, ShardId.parse(key.status_value).version) for key in held}

    def _pipeline(self, key: LeaseKey) -> Pipeline:
        return self._deployed.of(key.stream_id, ShardId.parse(key.status_value).version)

    @property
    def any(self) -> bool:
        return bool(self._running or self._waiting)

    def take(self, lease: Lease, *, request: str = "", shadow: bool = False) -> None:
        """Let a shard that was gained wait for its start.

        :param request: the newest request to rebuild the shard, empty if there is none
        :param shadow: its batches are bounded, so that those of the active version need not wait for long
        """
        running = self._running.get(lease.key)
        if running is not None:
            self._lose(running)  # of an earlier epoch: the shard was lost and taken again within one step
        self._waiting[lease.key] = _Waiting(lease, request, shadow)

    def start_next(self) -> bool:
        """Start the shard that has waited longest; False if none waits."""
        if not self._waiting:
            return False
        self._beat()
        key = next(iter(self._waiting))
        waiting = self._waiting.pop(key)
        lease = waiting.lease
        if not self._held.holds(key, lease.epoch):
            self._held.mark_closed(key, lease.epoch)
            self._events.lost(lease)
            return True
        began = self._clock.monotonic()
        superseded = key in self.superseded
        try:
            self.start(lease, request=waiting.request, superseded=superseded, shadow=waiting.shadow)
        finally:
            self._pace.note(self._clock.monotonic() - began)
            self._held.mark_started(key, lease.epoch)
        return True

    def start(
        self, lease: Lease, *, request: str = "", superseded: bool = False, shadow: bool = False
    ) -> None:
        """Take the shard over and start its query; if that fails, say why and give the lease back.

        :param superseded: only end it: seal it, file its late and poison rows, and start no query
        """
        self._precedence.begin(lease.key)
        pipeline = self._pipeline(lease.key)
        takeover = self._takeover(pipeline, lease, shadow=shadow)
        # A pool for each query: Spark's fair scheduler then shares the cores between this worker's shards.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", takeover.app)
        try:
            if superseded:
                runner = takeover.seal()
            else:
                runner = self._start_query(takeover, pipeline, lease, _why_rebuild(lease, request))
        except Exception as error:  # noqa: BLE001 - whatever Spark or a user's transformation raises
            self._failed(lease, error)
            return
        audit = Audit(self._spark, self._settings, pipeline, takeover.app, lease.epoch)
        audit.give_way = self._precedence.give_way
        running = _Running(runner, audit, shadow=shadow, rebuilt=request, draining=superseded)
        self._running[lease.key] = running
        self._events.taken(lease, superseded=superseded)
        if runner.rebuilt:
            running.met = request
            self._events.rebuilt(lease, runner.rebuilt)

    def _takeover(self, pipeline: Pipeline, lease: Lease, *, shadow: bool) -> ShardTakeover:
        most_records = 0
        if shadow:
            most_records = kafka_source.MAX_RECORDS_PER_SHADOW_BATCH
        return ShardTakeover(
            self._spark,
            self._settings,
            pipeline,
            lease,
            self._held,
            self._ledger,
            self._clock,
            self._meter,
            most_records=most_records,
            give_way=self._precedence.give_way,
        )

    def _start_query(
        self, takeover: ShardTakeover, pipeline: Pipeline, lease: Lease, rebuild: str
    ) -> ShardRunner:
        """Take the shard over and start its query.

        The worker asks the broker and makes the query while the sink is sealed: the shard stands still until
        all is done.
        """
        retained = self._meanwhile.submit(_check_retained, self._topics, pipeline, lease)
        prepared = self._meanwhile.submit(takeover.prepare)

        def allowed() -> None:
            retained.result()
            prepared.result()

        try:
            return takeover.start(rebuild, allowed=allowed)
        finally:
            wait([retained, prepared])

    def rebuild(self, lease: Lease, request: str) -> None:
        """If the shard's query did not meet this request yet, start it again with a new state.

        The batch in hand ends first.
        """
        waiting = self._waiting.get(lease.key)
        if waiting is not None:
            waiting.request = request
        running = self._running.get(lease.key)
        if running is None or running.draining or request in {running.rebuilt, ""}:
            return
        running.restart = (lease, request)
        running.draining = True
        running.runner.drain()

    def close(self, key: LeaseKey, epoch: int | None = None) -> None:
        """Let the batch in hand end; :meth:`tick` then gives the lease away.

        A shard that waits for its start has no batch in hand.

        :param epoch: of the lease that is to be closed; if it is not known, that of the lease that is held
        """
        if key in self._waiting and key in self.superseded and not self.leaving:
            return  # it is started to be ended
        self._waiting.pop(key, None)
        running = self._running.get(key)
        if running is None:
            self._held.mark_closed(key, epoch)
            return
        running.draining = True
        running.restart = None
        running.runner.drain()

    def drain_to_end(self, key: LeaseKey, *, wanted: bool) -> None:
        """If it is wanted, consume to the topic's end as of the first call, then mark the shard as drained.

        :raises BrokerUnavailableError: the topic's end is not known yet; ask again
        """
        running = self._running.get(key)
        if running is None:
            return
        if not wanted:
            running.drain_to = None
        elif running.drain_to is None:
            self._beat()
            try:
                latest = across(self._pipeline(key), self._topics.latest)
            except BrokerUnavailableError:
                raise
            except HindcastError as error:
                message = "The topic's end is not known yet; asking again."
                _log.warning(message, shard=str(key), reason=str(error))
                return
            running.drain_to = {partition: latest[partition] for partition in running.runner.end_offsets}

    def lose(self, key: LeaseKey) -> None:
        """Stop at once: another worker owns the shard."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            self._events.lost(waiting.lease)
        running = self._running.get(key)
        if running is not None:
            self._lose(running)

    def _lose(self, running: _Running) -> None:
        self._beat()
        lease = running.runner.lease
        del self._running[lease.key]
        running.runner.stop()
        self._settling.append(running)
        self._events.lost(lease)

    def tick(self) -> None:
        """Look after every query: stop it if its lease is lost, report its failure, or give it away."""
        self._precedence.keep(key for key, running in self._running.items() if running.stands_still)
        for key, running in list(self._running.items()):
            self._beat()
            self._look_after(key, running)

    def _look_after(self, key: LeaseKey, running: _Running) -> None:
        runner = running.runner
        lease = runner.lease
        failure = runner.failure
        if not self._held.holds(key, lease.epoch):
            self._lose(running)
            self._held.mark_closed(key, lease.epoch)
        elif failure is not None:
            del self._running[key]
            runner.stop()
            cause = self._diagnosed(lease, failure)
            if not _is_refusal(cause):
                self._settling.append(running)
            self._failed(lease, cause)
        elif running.draining and runner.drained:
            self._drained(running)
        elif running.reached_drain_end:
            self._held.report(key, lease.epoch, detail=ReportedDetail(drained=True))
        else:
            runner.go_on()

    def _drained(self, running: _Running) -> None:
        """After the last batch: rebuild the state, end the shard, or give it away."""
        lease = running.runner.lease
        if lease.key in self.superseded and not self.leaving:
            if not running.ending:
                running.ending = True
                self.audit_due.set()  # the shard ends once all is filed
            return
        del self._running[lease.key]
        running.runner.stop()
        if running.restart:
            again, request = running.restart
            self.take(again, request=request, shadow=running.shadow)
            return
        self._held.mark_closed(lease.key, lease.epoch)
        self._settling.append(running)
        self._events.released(lease)

    def flush(self) -> None:
        """Write the queued ledger rows of all shards; they stay queued while the store is away."""
        for running in self._running.values():
            self._beat()
            try:
                running.runner.flush()
            except StoreUnavailableError as error:
                _log.warning("The ledger could not be written; its rows are kept.", reason=str(error))
            if running.runner.progressed:
                self._note_progress(running)

    def _note_progress(self, running: _Running) -> None:
        lease = running.runner.lease
        self._backoff.succeeded(lease.key)
        if running.met is not None:  # the sink names the new checkpoint from now on
            self._held.report(lease.key, lease.epoch, detail=ReportedDetail(rebuild=running.met, damaged=""))
            running.met = None

    def audit(self) -> None:
        """File late and poison rows of every shard held, and of those just given up (from the audit's own
        thread).

        A shard that was given up, or lost, is finished here, since nobody may take it for long: its pipeline
        may be paused. If a worker does take it, that worker seals these tables with its first pass, and then
        refuses ours.
        """
        with self._auditing:
            self.audit_due.clear()
            for running in list(self._running.values()):
                if running.ending:
                    running.runner.stop()  # this also writes its last ledger rows
                self._audit(running, to_the_end=running.ending)
                if running.ending:
                    self._end(running)
            for running in list(self._settling):
                if self._audit(running, to_the_end=True):
                    self._settling.remove(running)

    def _audit(self, running: _Running, *, to_the_end: bool = False) -> bool:
        """Run one pass; return whether it went well. The next pass repeats one that fails, which must never
        end the stream.
        """
        lease = running.runner.lease
        self._precedence.give_way()
        try:
            if not _file(running, to_the_end=to_the_end):
                return True  # another worker files them now
        except LeaseLostError:
            return True  # another worker files them already
        except TableNotFoundError:
            return True  # its version was discarded, and the table for its late rows with it
        except _PASSING as error:
            message = "Late and poison rows could not be filed; the next pass will."
            _log.warning(message, shard=str(lease.key), reason=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            message = f"Late and poison rows of {lease.key} could not be filed: {_cause(error)}"
            if self._unfiled.get(lease.key) != message:  # said once, not at each pass
                self._events.audit_failed(lease, message)
            self._unfiled[lease.key] = message
            return False
        self._unfiled.pop(lease.key, None)
        return True

    def _end(self, running: _Running) -> None:
        """Give a superseded shard up for good, once every late and poison row of it is filed."""
        runner = running.runner
        lease = runner.lease
        try:
            filed = running.audit.filed()
        except StoreUnavailableError as error:
            message = "Whether all rows are filed is not known; the next pass asks again."
            _log.warning(message, shard=str(lease.key), reason=str(error))
            return
        if filed < runner.batch or self._running.pop(lease.key, None) is None:
            return
        self._held.mark_closed(lease.key, lease.epoch, ended=True)
        self._events.ended(lease, runner.end_offsets)

    def _diagnosed(self, lease: Lease, failure: BaseException) -> BaseException:
        """The cause behind a failed query, if it can be known: data that Kafka no longer has."""
        if isinstance(failure, HindcastError):
            return failure
        try:
            _check_retained(self._topics, self._pipeline(lease.key), lease)
        except HindcastError as error:
            return error
        return failure

    def _failed(self, lease: Lease, error: BaseException) -> None:
        """Say why the shard is given back, and give it back."""
        if isinstance(error, LeaseLostError):
            self._events.lost(lease)
        elif _is_refusal(error):
            self._held.report(lease.key, lease.epoch, detail=ReportedDetail(refused=str(error)))
            self._events.refused(lease, error)
        else:
            seconds = self._backoff.failed(lease.key, self._clock.monotonic())
            self._events.query_failed(lease, error, _cause(error), seconds)
            if _STATE_LOST.search(str(error)):
                self._held.report(lease.key, lease.epoch, detail=ReportedDetail(damaged=_cause(error)))
        # Last: once it is closed the next renewal frees the lease, and a refusal reported after that would be
        # lost.
        self._held.mark_closed(lease.key, lease.epoch)


def _why_rebuild(lease: Lease, request: str) -> str:
    """Why the shard's state is to be rebuilt when its query starts; empty if the query is to resume.

    :param request: the newest request to rebuild the shard
    """
    detail = ShardDetail.of(lease)
    if request and request != detail.rebuilt:
        return "it was asked for"
    return detail.damaged


def _file(running: _Running, *, to_the_end: bool) -> bool:
    """File rows of the shard's batches, as many as one pass takes, or all of them.

    :returns: False if a pass moved nothing
    """
    if running.filed is None:
        running.filed = running.audit.filed()
    batches = running.runner.unfiled(running.filed)
    running.filed = running.audit.run(batches)
    while to_the_end and batches and running.filed < batches[-1].batch:
        before = running.filed
        running.filed = running.audit.run(batches)
        if running.filed <= before:
            return False
    return True


def _is_refusal(error: BaseException) -> bool:
    """Whether the shard waits for an operator."""
    return isinstance(error, HindcastError) and not isinstance(error, _PASSING)


def _check_retained(topics: TopicOffsets, pipeline: Pipeline, lease: Lease) -> None:
    """:raises OffsetsLostError: if the topic does not hold, or not reach, the offset at which the shard must
    resume
    """
    earliest = across(pipeline, topics.earliest)
    latest = across(pipeline, topics.latest)
    for partition, offset in ShardCheckpoint.of(lease).read_to.items():
        lost = {
            "topic": pipeline.topics[partition // TOPIC_STRIDE].name,
            "partition": partition % TOPIC_STRIDE,
            "pipeline": pipeline.name,
            "shard": lease.status_value,
            "start": offset,
        }
        if partition not in latest:
            problem = "the topic no longer has that partition: it was deleted and created again"
            raise OffsetsLostError(**lost, end="its end", problem=problem)
        if offset < earliest[partition]:
            problem = "the topic no longer holds them (retention or a deletion)"
            raise OffsetsLostError(**lost, end=earliest[partition] - 1, problem=problem)
        if offset > latest[partition]:
            problem = f"the topic ends at {latest[partition]}: it was deleted and created again"
            raise OffsetsLostError(**lost, end="later", problem=problem)


def _cause(error: BaseException) -> str:
    return innermost(error)[:300]  # as much as fits into an event
