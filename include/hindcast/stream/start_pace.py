"""How quickly a worker starts its shards."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from hindcast.clock import Clock


class StartPace:
    """How many shards this worker can start in half a lease, by the slowest of its last starts.

    Safe for threads: the main thread measures its starts, and the renewal thread asks for the limit.
    """

    #: Starts that count: more than one, for a single quick one says little.
    KEPT = 8
    #: Assumed until the first start was measured: one start on an idle machine.
    FIRST_SECONDS = 1.0

    def __init__(self, clock: Clock, lease_seconds: float) -> None:
        self._clock = clock
        self._budget_seconds = lease_seconds / 2
        self._last: deque[float] = deque(maxlen=self.KEPT)
        self._slowest = self.FIRST_SECONDS

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Note how long the start of a shard takes. One that fails counts, too."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self.note(self._clock.monotonic() - began)

    def note(self, seconds: float) -> None:
        """A start took so long."""
        self._last.append(seconds)
        self._slowest = max(self._last)

    def start_limit(self) -> int:
        """One at least."""
        return max(int(self._budget_seconds / max(self._slowest, 0.001)), 1)
