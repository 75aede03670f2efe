"""A worker: one long-running process of a fleet.

It holds a slot and some shards, and runs one query for each shard. It has three threads. *Renewal* proves to
the others that this worker lives; it never waits for Spark, so that a slow batch does not cost the lease.
*Main* starts, watches and stops the queries. *Audit* files late and poison rows. If one of them fails the
process ends: without renewal it would own nothing, without audit nothing would be filed, and it would keep
its slot from a whole worker.
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
from functools import partial

import structlog
from pyspark.sql import SparkSession

from hindcast.clock import Clock, SystemClock
from hindcast.errors import (
    BrokerUnavailableError,
    HindcastError,
    LeaseSecondsDifferError,
    StoreUnavailableError,
)
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.leases.store import Snapshot
from hindcast.processes.end_with_parent import exit_now
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.active_version import caught_up, is_shadow
from hindcast.shards.coordinator import LeaseCoordinator, Renewal
from hindcast.shards.desired_state import desired_of, rebuild_request
from hindcast.shards.held_leases import STARTING
from hindcast.shards.pipeline_row import DesiredState, rows_of
from hindcast.shards.version_changes import Versions
from hindcast.shards.version_events import record_changes
from hindcast.shards.warm_time import WarmTime
from hindcast.spark import session
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.stream.shard_creation import ShardCreation
from hindcast.stream.shard_sync import Backoff, Pace, ShardSync
from hindcast.stream.warmup import warm_up
from hindcast.stream.warn_once import WarnOnce
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.ledger import Ledger

_log = structlog.get_logger(__name__)

#: How often the main thread looks at its queries.
TICK_SECONDS = 0.2
#: A main thread that has not come round for so long is stuck (a JVM that is stopped or dead): renewing for it
#: would keep its shards from workers that can consume them. Starting Spark and taking a shard over stay well
#: below it.
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
        self._versions = Versions(self._store)
        self._tables = ControlTables(settings)
        self._warm_time = WarmTime(self._clock)
        self._events = EventLog(self._tables, self.id, self._clock)
        self._warnings = WarnOnce(self._events)
        self._deployed = LoadedPipelines(settings.pipelines_dir)
        self._creation = ShardCreation(
            settings,
            self._store,
            Ledger(self._tables),
            self._deployed,
            self._events,
            self._warnings,
            beat=self._come_round,
        )
        self._backoff = Backoff()
        self._pace = Pace(settings.lease_seconds)
        self._renewals: queue.SimpleQueue[Renewal] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._woken = threading.Event()  # the main thread need not wait for its next tick
        self._beat = self._clock.monotonic()
        self._failure: Exception | None = None  # what ended another thread than the main one, and which:
        self._failed_thread = ""
        identity = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_at": self._clock.now().isoformat(),
            STARTING: True,
        }
        self._coordinator = LeaseCoordinator(
            self._store,
            self._clock,
            owner=self.id,
            fleet=settings.fleet,
            slots=settings.workers,
            lease_seconds=settings.lease_seconds,
            wanted=self._wanted,
            identity=identity,
            start_limit=self._pace.start_limit,
            wanted_changes_at=self._backoff.next_end,
        )

    def run(self) -> int:
        """Run until SIGTERM or SIGINT.

        An error that ends one of its threads is raised, once it is in the events and the leases are given up.

        :returns: the exit code: 0 for a clean stop or no free slot, 1 if the slot was lost
        :raises LeaseSecondsDifferError: if live workers have other lease times; nothing was taken
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_stop)
        if not self._acquire_slot():
            return 0
        self._events.record(
            EventKind.WORKER_STARTED,
            f"Worker {self.id} holds slot {self._coordinator.held.slot}.",
            pid=os.getpid(),
        )
        for file, error in self._deployed.catalog.errors.items():
            cure = f"Mend {file}."
            self._events.record(EventKind.PIPELINE_REFUSED, str(error), severity=Severity.WARNING, cure=cure)
        self._in_thread("renewal", self._renew)
        try:
            spark = session.build(self._settings, f"hindcast-{self.id}", options=session.QUICK_COMPILER)
            self._rehearse(spark)
            self._coordinator.held.mark_ready()
            consumers = self._consumers(spark)
            self._in_thread("audit", partial(self._audit, consumers))
            clean = self._serve(consumers)
        except Exception as error:
            thread = "main"
            if error is self._failure:
                thread = self._failed_thread
            self._say_that_it_failed(thread, error)
            self._coordinator.leave()  # if anything still runs here, the next owner's seal fences it off
            raise
        finally:
            self._ended.set()
        self._coordinator.leave()
        consumers.audit()  # after the leases are free, so that no heir waits for it
        return self._say_that_it_stops(clean=clean)

    def _acquire_slot(self) -> bool:
        """Wait for a free slot of the fleet; False if live workers hold all of them.

        :raises LeaseSecondsDifferError: if live workers have other lease times; nothing was taken
        """
        fleet, slots = self._settings.fleet, self._settings.workers
        _log.info("Looking for a free slot of the fleet.", worker=self.id, fleet=fleet, slots=slots)
        try:
            found = self._coordinator.acquire_slot(self._stop.wait)
        except LeaseSecondsDifferError as refusal:
            cure = (
                "Give all workers the same HINDCAST_LEASE_SECONDS. "
                "To change it, stop all of them, then start all."
            )
            self._events.record(EventKind.WORKER_REFUSED, str(refusal), severity=Severity.ERROR, cure=cure)
            raise
        if not found:
            held = f"All {slots} slots of the fleet {fleet} are held by live workers"
            self._events.record(EventKind.NO_SLOT, f"{held}: this one is not needed and stops.")
        return found

    def _say_that_it_stops(self, *, clean: bool) -> int:
        """Record the end of the worker; return its exit code."""
        message = f"Worker {self.id} has given up its leases and stops."
        if clean:
            self._events.record(EventKind.WORKER_STOPPED, message)
            return 0
        cure = "Start another worker."
        self._events.record(EventKind.WORKER_STOPPED, message, severity=Severity.ERROR, cure=cure)
        return 1

    def _consumers(self, spark: SparkSession) -> ShardSync:
        return ShardSync(
            spark,
            self._settings,
            self._deployed,
            self._coordinator.held,
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
        """Run it in a thread.

        If it fails, the main thread ends the worker. If that is stuck, this thread does.
        """

        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - no other code would see it
                self._failed_thread = name
                self._failure = error
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
        cure = (
            "Its log has the whole error. `supervise` starts another worker; "
            "start one yourself if it does not run."
        )
        self._events.record(EventKind.WORKER_STOPPED, message, severity=Severity.ERROR, cure=cure)

    def _told_to_stop(self, *_: object) -> None:
        self._stop.set()
        self._woken.set()

    def _rehearse(self, spark: SparkSession) -> None:
        """Load and compile what the first use needs, before shards wait for it."""
        try:
            rows = rows_of(self._store.leases())
            running = [row for row in rows if row.state == DesiredState.RUNNING]
        except StoreUnavailableError as error:
            _log.warning(
                "What is wanted could not be read: nothing is rehearsed.", worker=self.id, reason=str(error)
            )
            return
        for row in running:
            for version in row.wanted_versions:
                self._come_round()
                if self._deployed.has(row.pipeline, version) and not self._stop.is_set():
                    warm_up(spark, self._settings, self._deployed.of(row.pipeline, version))
        self._come_round()

    # -- main ------------------------------------------------------------------------------------------------

    def _serve(self, consumers: ShardSync) -> bool:
        """Until it is to stop: act on each renewal, look after the queries, start one that waits.

        A worker may gain hundreds of shards, so it acts on the changes of a renewal between any two starts.

        :returns: False if the slot was lost
        """
        flush_at = 0.0
        leaving = False
        while True:
            self._come_round()
            if self._failure is not None:
                raise self._failure
            self._act_on_renewals(consumers)
            consumers.tick()
            if self._beat >= flush_at:
                consumers.flush()
                flush_at = self._beat + self._coordinator.held.renewal_seconds
            if not leaving and (self._stop.is_set() or self._coordinator.held.slot is None):
                leaving = True
                consumers.leaving = True
                _log.info("Stopping: the batches in hand end, then the leases are released.", worker=self.id)
                for key in self._coordinator.held.drain():
                    consumers.close(key)
            if leaving and not consumers.any:
                return self._stop.is_set()
            if not consumers.start_next():
                self._woken.wait(TICK_SECONDS)
                self._woken.clear()

    def _act_on_renewals(self, consumers: ShardSync) -> None:
        """Act on the renewals since the last tick.

        Leases change hands renewal by renewal. For the wanted versions and the missing shards only the newest
        renewal counts.
        """
        newest: Renewal | None = None
        while not self._renewals.empty():
            newest = self._renewals.get()
            self._hand_over(newest, consumers)
        if newest is not None:
            self._look_after(newest, consumers)

    def _hand_over(self, renewal: Renewal, consumers: ShardSync) -> None:
        consumers.superseded = frozenset(resharding.superseded(renewal.leases.values()))
        for key in renewal.lost:
            consumers.lose(key)
        for key in renewal.close:
            consumers.close(key, renewal.leases[key].epoch)
        for lease in renewal.gained:
            if lease.status_type is StatusType.SHARD and not consumers.leaving:
                request = rebuild_request(renewal.leases, lease.key)
                consumers.take(lease, request=request, shadow=is_shadow(renewal.leases, lease))

    def _look_after(self, renewal: Renewal, consumers: ShardSync) -> None:
        for name, version in self._deployed.look(renewal.leases.values()):
            wanted = f"{name} is wanted in version {version}"
            message = f"{wanted}, which this worker's pipelines folder does not declare."
            cure = f"Deploy version {version}, or want the declared one."
            self._warnings.record(EventKind.PIPELINE_REFUSED, message, cure, name)
        self._look_after_versions(renewal.leases)
        try:
            self._change_shards(renewal.leases, consumers)
        except BrokerUnavailableError as error:  # each further question would wait as long for its answer
            message = "The broker does not answer; the next renewal asks again."
            _log.warning(message, worker=self.id, reason=str(error))

    def _change_shards(self, leases: Mapping[LeaseKey, Lease], consumers: ShardSync) -> None:
        """Rebuild, drain and create shards as it is wanted, as far as that needs the topics' offsets.

        :raises BrokerUnavailableError: the broker was not asked about the rest
        """
        shards = [row for row in leases.values() if row.status_type is StatusType.SHARD]
        mine = [row for row in shards if row.lease_owner == self.id]
        for lease in mine:
            consumers.rebuild(lease, rebuild_request(leases, lease.key))
        drained = set()
        for desired in desired_of(leases.values()).values():
            if desired.state is DesiredState.DRAINED:
                drained.add(desired.pipeline)
        for lease in mine:
            consumers.drain_to_end(lease.key, wanted=lease.stream_id in drained)
        self._creation.create_missing(leases)

    def _look_after_versions(self, leases: Mapping[LeaseKey, Lease]) -> None:
        """Note which shadows have caught up, and end warm versions whose time is over.

        Every worker tries; the first one does it.
        """
        changes = [
            (seen, partial(self._versions.note_caught_up, seen)) for seen in caught_up(leases.values())
        ]
        warm = self._warm_time.seen(leases.values())
        changes += [(seen, partial(self._versions.keep_warm, seen, seconds)) for seen, seconds in warm]
        for seen, change in changes:
            try:
                # The worker that made the change before may have been killed before it recorded that.
                record_changes(self._tables, seen)
                rollout = change()
                if rollout is not None:
                    record_changes(self._tables, rollout)
            except HindcastError as error:
                message = "What has become of a version could not be noted; the next renewal tries again."
                _log.warning(message, reason=str(error))

    def _wanted(self, lease: Lease, snapshot: Snapshot) -> bool:
        if not resharding.wanted(lease, snapshot, self._deployed.has):
            return False
        held_here = lease.lease_owner == self.id
        return held_here or self._backoff.over(lease.key, self._clock.monotonic())

    # -- the other threads -----------------------------------------------------------------------------------

    def _renew(self) -> None:
        due = self._clock.monotonic() + self._coordinator.held.renewal_seconds
        while not self._ended.is_set():
            changed = self._coordinator.held.wait_for_change(self._coordinator.poll_seconds)
            now = self._clock.monotonic()
            if now - self._beat > STUCK_SECONDS:
                _log.error("The main thread is stuck, so its leases are not renewed.", worker=self.id)
                continue
            try:
                if changed or now >= due or self._coordinator.poll():
                    due = now + self._coordinator.held.renewal_seconds
                    self._renewals.put(self._coordinator.renew())
                    self._woken.set()
            except HindcastError as error:
                message = "The leases could not be renewed; trying again."
                _log.warning(message, worker=self.id, reason=str(error))

    def _audit(self, consumers: ShardSync) -> None:
        while not self._ended.is_set():
            consumers.audit_due.wait(self._settings.audit_seconds)
            # A pass takes seconds. If a worker may have died, its shards may be taken over before that.
            while self._coordinator.suspects() and not self._ended.is_set():
                self._ended.wait(self._coordinator.poll_seconds)
            if self._ended.is_set():
                return
            consumers.audit()
            try:
                self._creation.reshard_for_new_partitions(consumers.versions())
            except HindcastError as error:
                message = "The topics' partitions could not be counted; the next look will."
                _log.warning(message, worker=self.id, reason=str(error))
