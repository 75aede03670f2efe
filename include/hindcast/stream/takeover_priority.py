"""A shard that stands still goes before those that are served: a worker's other batches, and its filing of
late rows, give way to it.

From the moment a shard is taken until its new owner has committed a batch of it, everything that runs beside
makes that moment later: on two cores by 0.5 to 2 of 3 seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from hindcast.clock import Clock
from hindcast.leases.lease import LeaseKey

#: The longest that anything gives way, counted from the last shard taken: one without new records commits
#: nothing.
SECONDS = 3.0


class TakeoverPriority:
    """Which shards stand still. Safe for threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._standing: set[LeaseKey] = set()
        self._until = 0.0
        self._none = threading.Event()
        self._none.set()
        self._lock = threading.Lock()

    def begin(self, key: LeaseKey) -> None:
        """The shard is being taken over."""
        with self._lock:
            self._standing.add(key)
            self._until = self._clock.monotonic() + SECONDS
            self._none.clear()

    def keep(self, keys: Iterable[LeaseKey]) -> None:
        """Only these still stand still of those that are being taken over."""
        with self._lock:
            self._standing.intersection_update(keys)
            if not self._standing:
                self._none.set()

    def give_way(self) -> None:
        """Return once no shard stands still, at most :data:`SECONDS` after the last was taken."""
        self._none.wait(max(self._until - self._clock.monotonic(), 0.0))
