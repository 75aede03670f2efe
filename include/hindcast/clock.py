"""Time as a port, so that leases can be tested without waiting.

Durations and deadlines use :meth:`Clock.monotonic` only; :meth:`Clock.now` is for times that people read.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back and that counts while the process is stopped."""
        ...

    def now(self) -> datetime:
        """The instant, aware, in UTC."""
        ...


class SystemClock:
    """The machine's clocks.

    ``CLOCK_BOOTTIME`` also counts the time in which the machine was suspended; ``time.monotonic`` does not. A
    laptop that slept through its lease must find it expired.
    """

    def monotonic(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)


def utc_from_ms(milliseconds: int) -> datetime:
    """Epoch milliseconds as an aware instant."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
