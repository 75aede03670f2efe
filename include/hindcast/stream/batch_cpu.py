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
    """Deals the process's CPU to the shards' accounts. Safe for threads."""

    def __init__(self, clock: Clock, read: Callable[[], float] | None = None) -> None:
        """:param read: CPU of the process since it began, in seconds; by default :func:`cpu_seconds`"""
        self._clock = clock
        self._read = read or cpu_seconds
        self._accounts: list[CpuShare] = []
        now = clock.monotonic()
        self._passed_at = now  # up to here the accounts have their share of the time
        self._read_at = now
        self._read_cpu = 0.0
        self._lock = threading.Lock()

    def opened(self) -> CpuShare:
        """A shard's query starts."""
        with self._lock:
            if self._accounts:
                self._pass_time()
                self._deal()
            else:
                now = self._clock.monotonic()
                self._passed_at = now
                self._read_at = now
                self._read_cpu = self._read()
            account = CpuShare()
            self._accounts.append(account)
            return account

    def closed(self, account: CpuShare) -> None:
        """Its query has stopped; the others get with the next reading what it has not taken."""
        with self._lock:
            if account not in self._accounts:
                return
            self._pass_time()
            self._deal()
            self._accounts.remove(account)
            for other in self._accounts:
                other.cpu_seconds += account.cpu_seconds / len(self._accounts)
            account.cpu_seconds = 0.0

    def began(self, account: CpuShare) -> None:
        """A batch of it begins."""
        with self._lock:
            self._pass_time()
            account.running = True

    def ended(self, account: CpuShare) -> None:
        """Its batch has ended, well or not."""
        with self._lock:
            self._pass_time()
            account.running = False

    def taken(self, account: CpuShare) -> float:
        """What the shard's batches have cost since the last call, in seconds."""
        with self._lock:
            self._pass_time()
            if self._clock.monotonic() - self._read_at >= READING_SECONDS:
                self._deal()
            cost = account.cpu_seconds
            account.cpu_seconds = 0.0
            return cost

    def _pass_time(self) -> None:
        """Give the time since the last call to those that ran in it."""
        now = self._clock.monotonic()
        running = [account for account in self._accounts if account.running]
        among = running or self._accounts
        for account in among:
            account.share_seconds += (now - self._passed_at) / len(among)
        self._passed_at = now

    def _deal(self) -> None:
        """Read the CPU and deal what was used since the last reading."""
        total = self._read()
        shares = sum(account.share_seconds for account in self._accounts)
        used = total - self._read_cpu
        if used <= 0 or shares <= 0:
            return  # a process ended during the reading, or no time has passed: the next reading has it
        for account in self._accounts:
            account.cpu_seconds += used * account.share_seconds / shares
            account.share_seconds = 0.0
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
