"""A worker: one long-running process of a fleet. It holds a slot and some shards, and runs one query for each shard.

Three threads. *Renewal* proves to the others that this worker lives; it never waits for Spark, so that a slow batch does not cost the
lease. *Main* starts, watches and stops the queries. *Audit* files late and poison rows. If one of them fails the process ends: without
renewal it would own nothing, without audit nothing would be filed, and it would keep its slot from a worker that is whole.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import traceback
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial

import structlog
from pyspark.sql import SparkSession

from hindcast.clock import Clock, SystemClock
from hindcast.errors import BadRangeError, BrokerUnavailableError, HindcastError, LeaseSecondsDifferError, StoreUnavailableError
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.leases.store import Snapshot
from hindcast.pipeline import Pipeline, parse_start
from hindcast.processes.end_with_parent import exit_now
from hindcast.recovery import rebuild_state
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.active_version import caught_up, is_shadow
from hindcast.shards.coordinator import STARTING, LeaseCoordinator, Step
from hindcast.shards.desired_state import DesiredState, desired_of, rebuild_request, rows_of, wanted_versions
from hindcast.shards.version_changes import Versions
from hindcast.shards.version_events import record_changes
from hindcast.shards.warm_time import WarmTime
from hindcast.spark import session
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.stream.shard_sync import Backoff, Pace, ShardSync
from hindcast.stream.warmup import warm_up
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.ledger import Ledger
from hindcast.tables.ledger_history import History

_log = structlog.get_logger(__name__)

#: How often the main thread looks at its queries.
TICK_SECONDS = 0.2
#: A main thread that has not come round for so long is stuck (a JVM that is stopped or dead): renewing for it would keep its shards
#: from those who can consume them. Starting Spark and taking a shard over stay well below it.
STUCK_SECONDS = 60.0


def worker_id() -> str:
    """A name that no other process ever has: host, process and a random part."""
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


class Worker:
    """Runs until it is told to stop, or has lost its slot."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self.id = worker_id()
        self._store = LeaseTable(settings)
        self._versions, self._tables = Versions(self._store), ControlTables(settings)
        self._warm_time = WarmTime(self._clock)
        self._ledger = Ledger(self._tables)
        self._events = EventLog(self._tables, self.id, self._clock)
        self._deployed = LoadedPipelines(settings.pipelines_dir)
        self._backoff, self._pace = Backoff(), Pace(settings.lease_seconds)
        self._steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self._stop, self._ended = threading.Event(), threading.Event()
        self._woken = threading.Event()  # the main thread need not wait for its next tick
        self._beat = self._clock.monotonic()
        self._said: set[str] = set()
        self._failure: Exception | None = None  # what ended another thread than the main one, and which:
        self._failed_thread = ""
        identity = {"pid": os.getpid(), "host": socket.gethostname(), "started_at": self._clock.now().isoformat(), STARTING: True}
        self._keeper = LeaseCoordinator(
            self._store,
            self._clock,
            owner=self.id,
            fleet=settings.fleet,
            slots=settings.workers,
            lease_seconds=settings.lease_seconds,
            wanted=self._wanted,
            identity=identity,
            at_once=self._pace.at_once,
            wanted_again=self._backoff.next_end,
        )

    def run(self) -> int:
        """Run until SIGTERM or SIGINT; return the exit code: 0 for a clean stop or no free slot, 1 if the slot was lost.

        What ends one of its threads is raised, once it is in the events and the leases are given up.

        :raises LeaseSecondsDifferError: if live workers have other lease times; nothing was taken
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_stop)
        _log.info("Looking for a free slot of the fleet.", worker=self.id, fleet=self._settings.fleet, slots=self._settings.workers)
        try:
            found = self._keeper.acquire_slot(self._stop.wait)
        except LeaseSecondsDifferError as refusal:
            cure = "Give all workers the same HINDCAST_LEASE_SECONDS. To change it, stop all of them, then start all."
            self._events.record(EventKind.WORKER_REFUSED, str(refusal), severity=Severity.ERROR, cure=cure)
            raise
        if not found:
            fleet = f"All {self._settings.workers} slots of the fleet {self._settings.fleet}"
            message = f"{fleet} are held by live workers: this one is not needed and stops."
            self._events.record(EventKind.NO_SLOT, message)
            return 0
        self._events.record(EventKind.WORKER_STARTED, f"Worker {self.id} holds slot {self._keeper.slot}.", pid=os.getpid())
        for file, error in self._deployed.catalog.errors.items():
            self._events.record(EventKind.PIPELINE_REFUSED, str(error), severity=Severity.WARNING, cure=f"Mend {file}.")
        self._in_thread("renewal", self._renew)
        try:
            spark = session.build(self._settings, f"hindcast-{self.id}", options=session.QUICK_COMPILER)
            self._rehearse(spark)
            self._keeper.ready()
            consumers = self._consumers(spark)
            self._in_thread("audit", partial(self._audit, consumers))
            clean = self._serve(consumers)
        except Exception as error:
            self._say_that_it_failed(self._failed_thread if error is self._failure else "main", error)
            self._keeper.leave()  # whatever still runs here is fenced off by the next owner's seal
            raise
        finally:
            self._ended.set()
        self._keeper.leave()
        consumers.audit()  # after the leases are free, so that no heir waits for it
        message = f"Worker {self.id} has given up its leases and stops."
        self._events.record(
            EventKind.WORKER_STOPPED,
            message,
            severity=Severity.INFO if clean else Severity.ERROR,
            cure="" if clean else "Start another worker.",
        )
        return 0 if clean else 1

    def _consumers(self, spark: SparkSession) -> ShardSync:
        return ShardSync(
            spark,
            self._settings,
            self._deployed,
            self._keeper,
            self._events,
            self._clock,
            self._backoff,
            pace=self._pace,
            beat=self._come_round,
        )

    def _come_round(self) -> None:
        """The main thread is not stuck."""
        self._beat = self._clock.monotonic()

    def _in_thread(self, name: str, work: Callable[[], None]) -> None:
        """Run it in a thread. If it fails the main thread ends the worker, and if that is stuck, this does."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody else would see it
                self._failed_thread, self._failure = name, error
                self._woken.set()
                if not self._ended.wait(STUCK_SECONDS):
                    try:
                        self._say_that_it_failed(name, error)
                    finally:
                        exit_now(1)

        threading.Thread(target=guarded, name=name, daemon=True).start()

    def _say_that_it_failed(self, thread: str, error: Exception) -> None:
        message = f"Worker {self.id} stops: its {thread} thread has failed: {type(error).__name__}: {error}"
        _log.error(message, error="".join(traceback.format_exception(error)))
        cure = "Its log has the whole error. `supervise` starts another worker; start one yourself if it does not run."
        self._events.record(EventKind.WORKER_STOPPED, message, severity=Severity.ERROR, cure=cure)

    def _told_to_stop(self, *_: object) -> None:
        self._stop.set()
        self._woken.set()

    def _rehearse(self, spark: SparkSession) -> None:
        """What is loaded and compiled on first use is so before shards wait for it."""
        try:
            rows = [row for row in rows_of(self._store.leases()) if row.state == DesiredState.RUNNING]
        except StoreUnavailableError as error:
            _log.warning("What is wanted could not be read: nothing is rehearsed.", worker=self.id, reason=str(error))
            return
        for name, version in [(row.stream_id, version) for row in rows for version in wanted_versions(row)]:
            self._come_round()
            if self._deployed.has(name, version) and not self._stop.is_set():
                warm_up(spark, self._settings, self._deployed.of(name, version))
        self._come_round()

    # -- main --------------------------------------------------------------------------------------------------------------

    def _serve(self, consumers: ShardSync) -> bool:
        """Until it is to stop: act on each renewal, look after the queries, start one that waits. False where the slot was lost.

        A worker may gain hundreds of shards: what a renewal has changed is acted on between any two starts.
        """
        flush_at = 0.0
        leaving = False
        while True:
            self._come_round()
            if self._failure is not None:
                raise self._failure
            self._act_on_steps(consumers)
            consumers.tick()
            if self._beat >= flush_at:
                consumers.flush()
                flush_at = self._beat + self._keeper.renewal_seconds
            if (self._stop.is_set() or self._keeper.slot is None) and not leaving:
                leaving = consumers.leaving = True
                _log.info("Stopping: the batches in hand end, then the leases are released.", worker=self.id)
                for key in self._keeper.drain():
                    consumers.close(key)
            if leaving and not consumers.any:
                return self._stop.is_set()
            if not consumers.start_next():
                self._woken.wait(TICK_SECONDS)
                self._woken.clear()

    def _act_on_steps(self, consumers: ShardSync) -> None:
        """Who holds what is acted on step by step; what is wanted, and what is to be made, by the newest of them alone."""
        newest: Step | None = None
        while not self._steps.empty():
            newest = self._steps.get()
            self._hand_over(newest, consumers)
        if newest is not None:
            self._look_after(newest, consumers)

    def _hand_over(self, step: Step, consumers: ShardSync) -> None:
        consumers.superseded = frozenset(resharding.superseded(step.leases.values()))
        for key in step.lost:
            consumers.lose(key)
        for key in step.close:
            consumers.close(key, step.leases[key].epoch)
        for lease in step.gained:
            if lease.status_type is StatusType.SHARD and not consumers.leaving:
                consumers.take(lease, request=rebuild_request(step.leases, lease.key), shadow=is_shadow(step.leases, lease))

    def _look_after(self, step: Step, consumers: ShardSync) -> None:
        for name, version in self._deployed.look(step.leases.values()):
            self._say_once(
                EventKind.PIPELINE_REFUSED,
                f"{name} is wanted in version {version}, which this worker's pipelines folder does not declare.",
                f"Deploy version {version}, or want the declared one.",
                name,
            )
        self._look_after_versions(step.leases)
        try:
            self._make_shards(step, consumers)
        except BrokerUnavailableError as error:  # each further question would wait as long for its answer
            _log.warning("The broker does not answer; the next renewal asks again.", worker=self.id, reason=str(error))

    def _make_shards(self, step: Step, consumers: ShardSync) -> None:
        """What is wanted of the shards and needs the topics' offsets.

        :raises BrokerUnavailableError: the rest was not asked for
        """
        mine = [row for row in step.leases.values() if row.status_type is StatusType.SHARD and row.lease_owner == self.id]
        for lease in mine:
            consumers.rebuild(lease, rebuild_request(step.leases, lease.key))
        drained = {desired.pipeline for desired in desired_of(step.leases.values()).values() if desired.state is DesiredState.DRAINED}
        for lease in mine:
            consumers.drain_to_end(lease.key, wanted=lease.stream_id in drained)
        for name, version, count in resharding.pipelines_without_shards(Snapshot(step.leases)):
            self._come_round()
            self._create_shards(name, version, count)
        for name, version, count in resharding.to_reshard(step.leases.values()):
            self._come_round()
            self._reshard(name, version, count)

    def _look_after_versions(self, leases: Mapping[LeaseKey, Lease]) -> None:
        """Note which shadows have caught up, and end warm versions whose time is over: whichever worker is first."""
        changes = [(seen, partial(self._versions.note_caught_up, seen)) for seen in caught_up(leases.values())]
        warm = self._warm_time.seen(leases.values())
        changes += [(seen, partial(self._versions.keep_warm, seen, seconds)) for seen, seconds in warm]
        for seen, change in changes:
            try:
                record_changes(self._tables, seen)  # whoever made the change before may have been killed first
                if (standing := change()) is not None:
                    record_changes(self._tables, standing)
            except HindcastError as error:
                _log.warning("What has become of a version could not be noted; the next renewal tries again.", reason=str(error))

    def _create_shards(self, name: str, version: int, count: int) -> None:
        if not self._deployed.has(name, version):
            return
        try:
            with TopicOffsets(self._settings) as offsets:
                start = _start_of(self._deployed.of(name, version), offsets)
            created = resharding.create(self._store, name, version, count, start)
        except HindcastError as error:
            self._say_once(
                EventKind.SHARD_REFUSED, f"The shards of {name} could not be created: {error}", "It is tried again at each renewal.", name
            )
            if isinstance(error, BrokerUnavailableError):
                raise
            return
        if created:
            self._events.record(
                EventKind.SHARDS_CREATED, f"{name} version {version} has {len(created)} shards from offsets {start}.", pipeline=name
            )

    def _reshard(self, name: str, version: int, count: int) -> None:
        """Write the next generation, where the topic still holds the rows from which it would make its state."""
        if not self._deployed.has(name, version):
            return
        pipeline = self._deployed.of(name, version)
        try:
            with TopicOffsets(self._settings) as offsets:
                earliest = across(pipeline, offsets.earliest)
            leases = resharding.of_version(self._store.leases(), name, version)
            rebuild_state.check_reshard(pipeline, History.of(self._ledger.batches(name, version)), leases, earliest)
            created = resharding.reshard(self._store, name, version, count, earliest)
        except HindcastError as error:
            cure = "It is tried again at each renewal: nothing has changed."
            self._say_once(EventKind.RESHARD_REFUSED, f"{name} could not be resharded: {error}", cure, name)
            if isinstance(error, BrokerUnavailableError):
                raise
            return
        if created:
            dealt = "; ".join(f"{lease.status_value} has {lease.detail[resharding.PARTITIONS]}" for lease in created)
            self._events.record(EventKind.SHARDS_CREATED, f"{name} is resharded for {len(earliest)} partitions: {dealt}.", pipeline=name)

    def _look_for_partitions(self, consumers: ShardSync) -> None:
        """Reshard a pipeline of which shards are held here, and whose topic has partitions that no shard has."""
        leases = self._store.leases()
        wanted = {(row.stream_id, version): count for row in rows_of(leases) for version, count in wanted_versions(row).items()}
        with TopicOffsets(self._settings) as offsets:
            for name, version in consumers.versions() & wanted.keys():
                current = resharding.newest_of_version(leases, name, version)
                had = {partition for lease in current for partition in lease.detail[resharding.PARTITIONS]}
                if current and across(self._deployed.of(name, version), offsets.earliest).keys() - had:
                    self._reshard(name, version, wanted[name, version])

    def _say_once(self, kind: EventKind, message: str, cure: str, pipeline: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._events.record(kind, message, severity=Severity.WARNING, cure=cure, pipeline=pipeline)

    def _wanted(self, lease: Lease, snapshot: Snapshot) -> bool:
        held_here = lease.lease_owner == self.id
        return resharding.wanted(lease, snapshot, self._deployed.has) and (
            held_here or self._backoff.over(lease.key, self._clock.monotonic())
        )

    # -- the other threads ---------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        due = self._clock.monotonic() + self._keeper.renewal_seconds
        while not self._ended.is_set():
            closed = self._keeper.wait(self._keeper.look_seconds)
            now = self._clock.monotonic()
            if now - self._beat > STUCK_SECONDS:
                _log.error("The main thread is stuck, so its leases are not renewed.", worker=self.id)
                continue
            try:
                if closed or now >= due or self._keeper.look():
                    due = now + self._keeper.renewal_seconds
                    self._steps.put(self._keeper.step())
                    self._woken.set()
            except HindcastError as error:
                _log.warning("The leases could not be renewed; trying again.", worker=self.id, reason=str(error))

    def _audit(self, consumers: ShardSync) -> None:
        while not self._ended.is_set():
            consumers.audit_due.wait(self._settings.audit_seconds)
            while self._keeper.suspects() and not self._ended.is_set():
                self._ended.wait(self._keeper.look_seconds)  # a pass takes seconds, and shards may be taken over before it ends
            if self._ended.is_set():
                return
            consumers.audit()
            try:
                self._look_for_partitions(consumers)
            except HindcastError as error:
                _log.warning("The topics' partitions could not be counted; the next look will.", worker=self.id, reason=str(error))


def _start_of(pipeline: Pipeline, topics: TopicOffsets) -> dict[int, int]:
    """Where a new version begins.

    :raises BadRangeError: where the declared offsets are not of the topic's partitions, or not within them
    """
    start, earliest, latest = parse_start(pipeline.start), across(pipeline, topics.earliest), across(pipeline, topics.latest)
    if isinstance(start, datetime):
        return across(pipeline, partial(topics.at_time, at=start))
    if isinstance(start, str):
        return earliest if start == "earliest" else latest
    if start.keys() != earliest.keys() or any(not earliest[p] <= offset <= latest[p] for p, offset in start.items()):
        problem = f"the topic's partitions hold {earliest} to {latest}"
        raise BadRangeError(range=pipeline.start, problem=problem, cure="Name each partition, with an offset that it holds, or its end.")
    return start
