"""A worker: one long-running process of a fleet.

It holds a slot and some shards, and runs one query for each shard. It has four threads:

- *renewal* proves to the others that this worker lives (:mod:`hindcast.stream.renewal_loop`);
- *main* starts, watches and stops the queries (:mod:`hindcast.stream.main_loop`);
- *audit* files late and poison rows (:mod:`hindcast.stream.audit_loop`);
- *serving* brings served tables up to date (:mod:`hindcast.stream.served_loop`).

If one of them fails the process ends (:mod:`hindcast.stream.worker_threads`).
"""

from __future__ import annotations

import os
import signal
import socket
import traceback
import uuid

import structlog
from pyspark.sql import SparkSession

from hindcast.clock import Clock, SystemClock
from hindcast.errors import LeaseSecondsDifferError, StoreUnavailableError
from hindcast.installation import Installation
from hindcast.leases.lease import Lease
from hindcast.leases.store import Snapshot
from hindcast.shards import resharding
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.pipeline_row import DesiredState, rows_of
from hindcast.shards.slot_row import SlotHolder
from hindcast.spark import background_compiler, session
from hindcast.stream.audit_loop import AuditLoop
from hindcast.stream.group_commits import GroupCommits
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.stream.main_loop import MainLoop
from hindcast.stream.query_backoff import QueryBackoff
from hindcast.stream.renewal_loop import RenewalLoop
from hindcast.stream.served_loop import ServedLoop
from hindcast.stream.shard_creation import ShardCreation
from hindcast.stream.shard_sync import ShardSync
from hindcast.stream.start_pace import StartPace
from hindcast.stream.version_sync import VersionSync
from hindcast.stream.warmup import load_libraries, warm_up
from hindcast.stream.warn_once import WarnOnce
from hindcast.stream.worker_threads import WorkerThreads
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity

_log = structlog.get_logger(__name__)


def worker_id() -> str:
    """A name that no other process ever has: host, process and a random part."""
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


class Worker:
    """Runs until it is told to stop, or has lost its slot. The process's main thread calls all methods."""

    def __init__(self, installation: Installation, clock: Clock | None = None) -> None:
        settings = installation.settings
        self.id = worker_id()
        self._installation = installation
        self._clock = clock or SystemClock()
        # Tables of their own. A main thread that is stuck in the append of a ledger row keeps the lock of its
        # tables, and the event of another thread that fails must not wait for that.
        self._events = EventLog(ControlTables(settings), self.id, self._clock)
        self._warnings = WarnOnce(self._events)
        self._deployed = LoadedPipelines(settings.pipelines_dir)
        self._backoff = QueryBackoff()
        self._pace = StartPace(self._clock, settings.lease_seconds)
        self.threads = WorkerThreads(self._clock, self._say_that_it_failed)
        self._creation = ShardCreation(
            installation, self._deployed, self._events, self._warnings, beat=self.threads.come_round
        )
        this_worker = SlotHolder(
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=self._clock.now().isoformat(),
            starting=True,
        )
        self.coordinator = LeaseCoordinator(
            installation.lease_table,
            self._clock,
            owner=self.id,
            fleet=settings.fleet,
            slots=settings.workers,
            lease_seconds=settings.lease_seconds,
            wanted=self._wanted,
            worker=this_worker,
            start_limit=self._pace.start_limit,
            wanted_changes_at=self._backoff.next_end,
        )
        self.renewal_loop = RenewalLoop(self.coordinator, self._clock, self.threads)

    def run(self) -> int:
        """Run until SIGTERM or SIGINT.

        An error that ends one of its threads is raised, once it is in the events and the leases are given up.

        :returns: the exit code: 0 for a clean stop or no free slot, 1 if the slot was lost
        :raises LeaseSecondsDifferError: if live workers have other lease times; nothing was taken
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.threads.ask_to_stop)
        if not self._acquire_slot():
            return 0
        self._say_that_it_has_started()
        self.threads.start("renewal", self.renewal_loop.run)
        try:
            settings = self._installation.settings
            spark = session.build(settings, f"hindcast-{self.id}", options=background_compiler.OPTIONS)
            background_compiler.give_way(spark)
            load_libraries(spark)
            self._rehearse(spark)
            self.coordinator.held.mark_ready()
            main = self.main_loop(spark)
            audit = AuditLoop(
                main.shards,
                self._creation,
                self.coordinator,
                self.threads,
                GroupCommits(settings, self._deployed),
                settings.audit_seconds,
            )
            self.threads.start("audit", audit.run)
            served = ServedLoop(settings, main.shards.running, self.threads, self._warnings)
            self.threads.start("serving", served.run)
            clean = main.serve()
        except BaseException as error:
            self._say_that_it_failed(self.threads.failed_thread(error), error)
            self.coordinator.leave()  # if anything still runs here, the next owner's seal fences it off
            raise
        finally:
            self.threads.ended.set()
        self.coordinator.leave()
        main.shards.audit.run()  # after the leases are free, so that no heir waits for it
        return self._say_that_it_stops(clean=clean)

    def _acquire_slot(self) -> bool:
        """Wait for a free slot of the fleet; False if live workers hold all of them.

        :raises LeaseSecondsDifferError: if live workers have other lease times; nothing was taken
        """
        settings = self._installation.settings
        fleet, slots = settings.fleet, settings.workers
        _log.info("Looking for a free slot of the fleet.", worker=self.id, fleet=fleet, slots=slots)
        try:
            found = self.coordinator.acquire_slot(self.threads.stop.wait)
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

    def main_loop(self, spark: SparkSession) -> MainLoop:
        """What the main thread runs once it can consume. It is made once."""
        held = self.coordinator.held
        shards = ShardSync(
            spark,
            self._installation,
            self._deployed,
            held,
            self._events,
            self._clock,
            self._backoff,
            self._pace,
            beat=self.threads.come_round,
        )
        return MainLoop(
            shards,
            self.renewal_loop.renewals,
            held,
            self.threads,
            deployed=self._deployed,
            creation=self._creation,
            versions=VersionSync(self._installation, self._clock),
            warnings=self._warnings,
        )

    def _wanted(self, lease: Lease, snapshot: Snapshot) -> bool:
        """Whether this worker may consume the shard. The renewal thread asks, too."""
        if not resharding.wanted(lease, snapshot, self._deployed.has):
            return False
        held_here = lease.lease_owner == self.id
        return held_here or self._backoff.over(lease.key, self._clock.monotonic())

    def _rehearse(self, spark: SparkSession) -> None:
        """Load and compile what the first use needs, while others serve the shards.

        A pipeline that nobody serves stands still: its first batch teaches the JVM as much.
        """
        try:
            leases = self._installation.lease_table.leases()
            rows = rows_of(leases)
            running = [row for row in rows if row.state == DesiredState.RUNNING]
        except StoreUnavailableError as error:
            _log.warning(
                "What is wanted could not be read: nothing is rehearsed.", worker=self.id, reason=str(error)
            )
            return
        for row in running:
            for version in row.wanted_versions:
                self.threads.come_round()
                if self.threads.stop.is_set() or not self._deployed.has(row.pipeline, version):
                    continue
                if resharding.served(leases, row.pipeline, version):
                    warm_up(spark, self._installation, self._deployed.of(row.pipeline, version))
        self.threads.come_round()

    # -- what the events say of it ---------------------------------------------------------------------------

    def _say_that_it_has_started(self) -> None:
        self._events.record(
            EventKind.WORKER_STARTED,
            f"Worker {self.id} holds slot {self.coordinator.held.slot}.",
            pid=os.getpid(),
        )
        for file, error in self._deployed.catalog.errors.items():
            cure = f"Mend {file}."
            self._events.record(EventKind.PIPELINE_REFUSED, str(error), severity=Severity.WARNING, cure=cure)

    def _say_that_it_failed(self, thread: str, error: BaseException) -> None:
        """The thread that failed calls it, too, if the main thread is stuck."""
        message = f"Worker {self.id} stops: its {thread} thread has failed: {type(error).__name__}: {error}"
        _log.error(message, error="".join(traceback.format_exception(error)))
        cure = (
            "Its log has the whole error. `supervise` starts another worker; "
            "start one yourself if it does not run."
        )
        self._events.record(EventKind.WORKER_STOPPED, message, severity=Severity.ERROR, cure=cure)

    def _say_that_it_stops(self, *, clean: bool) -> int:
        """Record the end of the worker; return its exit code."""
        message = f"Worker {self.id} has given up its leases and stops."
        if clean:
            self._events.record(EventKind.WORKER_STOPPED, message)
            return 0
        cure = "Start another worker."
        self._events.record(EventKind.WORKER_STOPPED, message, severity=Severity.ERROR, cure=cure)
        return 1
