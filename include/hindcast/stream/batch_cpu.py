"""What the batches of one process cost, in seconds of CPU: each second that the process uses is counted once.

The queries of a worker share its JVM and its Python workers, so nobody can say whose second it was. The rule
is simple, and its shares add up to the whole:

- a second is dealt in equal parts to the batches that ran in that time;
- while none runs (planning, leases, filing), it is dealt in equal parts to all shards that are consumed, for
  their next batches;
- CPU that is used while no shard is consumed (starting, practice) belongs to no batch.

The CPU is read from the system once in a while, and dealt by the time for which each batch ran since the last
reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import psutil

from hindcast.clock import Clock

#: Least seconds between two readings: one looks at every process of the machine, and takes milliseconds.
READING_SECONDS = 0.1


class CpuShare:
    """One shard's part. Made by :meth:`CpuMeter.opened`."""

    def __init__(self) -> None:
        self.running = False
        self.share_seconds = 0.0  # its part of the time since the last reading
        self.cpu_seconds = 0.0  # dealt to it and not taken yet


class CpuMeter:
    """Deals the process's CPU to the shards. Safe for threads."""

    def __init__(self, clock: Clock, read: Callable[[], float] | None = None) -> None:
        """:param read: CPU of the process since it began, in seconds; by default :func:`cpu_seconds`"""
        self._clock = clock
        self._read = read or cpu_seconds
        self._shares: list[CpuShare] = []
        now = clock.monotonic()
        self._passed_at = now  # up to here the time is dealt
        self._read_at = now
        self._read_cpu = 0.0
        self._lock = threading.Lock()

    def opened(self) -> CpuShare:
        """A shard's query starts."""
        with self._lock:
            if self._shares:
                self._pass_time()
                self._deal()
            else:
                now = self._clock.monotonic()
                self._passed_at = now
                self._read_at = now
                self._read_cpu = self._read()
            share = CpuShare()
            self._shares.append(share)
            return share

    def closed(self, share: CpuShare) -> None:
        """Its query has stopped; the others get with the next reading what it has not taken."""
        with self._lock:
            if share not in self._shares:
                return
            self._pass_time()
            self._deal()
            self._shares.remove(share)
            for other in self._shares:
                other.cpu_seconds += share.cpu_seconds / len(self._shares)
            share.cpu_seconds = 0.0

    def began(self, share: CpuShare) -> None:
        """A batch of it begins."""
        with self._lock:
            self._pass_time()
            share.running = True

    def ended(self, share: CpuShare) -> None:
        """Its batch has ended, well or not."""
        with self._lock:
            self._pass_time()
            share.running = False

    def taken(self, share: CpuShare) -> float:
        """What the shard's batches have cost since the last call, in seconds."""
        with self._lock:
            self._pass_time()
            if self._clock.monotonic() - self._read_at >= READING_SECONDS:
                self._deal()
            cost = share.cpu_seconds
            share.cpu_seconds = 0.0
            return cost

    def _pass_time(self) -> None:
        """Give the time since the last call to those that ran in it."""
        now = self._clock.monotonic()
        running = [share for share in self._shares if share.running]
        among = running or self._shares
        for share in among:
            share.share_seconds += (now - self._passed_at) / len(among)
        self._passed_at = now

    def _deal(self) -> None:
        """Read the CPU and deal what was used since the last reading."""
        total = self._read()
        seconds = sum(share.share_seconds for share in self._shares)
        used = total - self._read_cpu
        if used <= 0 or seconds <= 0:
            return  # a process ended during the reading, or no time has passed: the next reading has it
        for share in self._shares:
            share.cpu_seconds += used * share.share_seconds / seconds
            share.share_seconds = 0.0
        self._read_cpu = total
        self._read_at = self._clock.monotonic()


def cpu_seconds() -> float:
    """CPU time of this process and all below it (the JVM, the Python workers), in seconds since they began.

    Children that have ended and were waited for are included: if one of Spark's Python workers ends, nothing
    is taken away.
    """
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
