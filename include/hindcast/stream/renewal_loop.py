"""What a worker's renewal thread does: prove to the others that this worker lives.

It never waits for Spark, so that a slow batch does not cost the lease.
"""

from __future__ import annotations

import queue

import structlog

from hindcast.clock import Clock
from hindcast.errors import HindcastError
from hindcast.shards.coordinator import LeaseCoordinator, Renewal
from hindcast.stream.worker_threads import WorkerThreads

_log = structlog.get_logger(__name__)


class RenewalLoop:
    """Renews the leases whenever that is due, as long as the main thread is not stuck.

    The renewal thread calls :meth:`run`. It puts each renewal into :attr:`renewals`, and the main thread
    takes it from there.
    """

    def __init__(self, coordinator: LeaseCoordinator, clock: Clock, threads: WorkerThreads) -> None:
        self.renewals: queue.SimpleQueue[Renewal] = queue.SimpleQueue()
        self._coordinator = coordinator
        self._clock = clock
        self._threads = threads

    def run(self) -> None:
        """Poll and renew until the worker has ended."""
        held = self._coordinator.held
        due = self._clock.monotonic() + held.renewal_seconds
        while not self._threads.ended.is_set():
            changed = held.wait_for_change(self._coordinator.poll_seconds)
            now = self._clock.monotonic()
            if self._threads.main_is_stuck(now):
                _log.error("The main thread is stuck, so its leases are not renewed.", worker=held.owner)
                continue
            try:
                if changed or now >= due or self._coordinator.poll():
                    due = now + held.renewal_seconds
                    self.renewals.put(self._coordinator.renew())
                    self._threads.woken.set()
            except HindcastError as error:
                message = "The leases could not be renewed; trying again."
                _log.warning(message, worker=held.owner, reason=str(error))
