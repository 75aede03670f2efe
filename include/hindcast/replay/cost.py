"""What a replay cost, what the stream cost over the same batches, and whether this run was slower than the
ones before it.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.tables.ledger import LedgerRow

#: A run is slow if its rows/s fall below the median of earlier ones by more than this. Equal runs on 2 shared
#: cores differ by up to 20 %.
SLOW_BAND = 0.30
RUNS_COMPARED = 10
LEAST_RUNS = 3  # the median of fewer says nothing
#: Runs are compared with runs of a like size only: starting up dominates a small one.
LIKE_SIZE = 2.0


class Meter:
    """Measures from the moment that it is made.

    It measures seconds on a monotonic clock, and CPU-seconds of this process and all below it, the JVM
    included.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._cpu_began = _cpu_by_process()

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def cpu_seconds(self) -> float:
        """Of this process and all below it.

        A process that ended meanwhile counts through the parent that waited for it. Its end never makes the
        sum less.
        """
        total = 0.0
        for process, used in _cpu_by_process().items():
            used_before = self._cpu_began.get(process, 0.0)
            total += max(0.0, used - used_before)
        return total


def _tree() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _cpu_by_process() -> dict[tuple[int, float], float]:
    """CPU-seconds by process id and time of creation."""
    found = {}
    for process in _tree():
        try:
            times = process.cpu_times()
            # Children that ended count in children_*; those that run are in the tree themselves.
            children = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            found[process.pid, process.create_time()] = times.user + times.system + children
        except psutil.NoSuchProcess:
            continue
    return found


def peak_memory_bytes() -> int:
    """The sum of each process's greatest resident size: this one, the JVM, its Python workers.

    It is an upper bound, because the peaks differ in time.
    """
    return sum(_peak_bytes(process) for process in _tree())


def _peak_bytes(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status")
    try:
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                kib = int(line.split()[1])
                return kib * 1024
        return int(process.memory_info().rss)  # no /proc: not Linux
    except (OSError, psutil.NoSuchProcess):
        return 0


@dataclass(frozen=True)
class StreamCost:
    """The stream's own cost over some batches; None if the ledger does not know it.

    Rates are per second that a query was busy.
    """

    rows_per_second: float | None
    cpu_seconds: float | None

    @classmethod
    def of(cls, batches: Iterable[LedgerRow]) -> StreamCost:
        timed_rows = 0
        busy_seconds = 0.0
        cpu_seconds: float | None = None
        for batch in batches:
            if batch.input_rows is not None and batch.batch_seconds is not None:
                timed_rows += batch.input_rows
                busy_seconds += batch.batch_seconds
            if batch.cpu_seconds is not None:
                cpu_seconds = (cpu_seconds or 0.0) + batch.cpu_seconds
        rows_per_second = None
        if busy_seconds > 0:
            rows_per_second = timed_rows / busy_seconds
        return cls(rows_per_second, cpu_seconds)


def versions() -> str:
    """What ran, as JSON."""
    found = {"python": platform.python_version()}
    for package in ("hindcast", "pyspark", "delta-spark", "deltalake"):
        found[package] = version(package)
    return json.dumps(found, sort_keys=True)


def slow_note(rows_per_second: float, rows_read: int, earlier: Iterable[Mapping[str, Any]]) -> str:
    """A sentence if the run was slower than the median of like runs by more than :data:`SLOW_BAND`; else
    empty.

    A run's size is all that it read, also the records before its start, which only feed windows: they take as
    much time.

    :param earlier: rows of ``runs``, newest first
    """
    like_rates = []
    for row in earlier:
        read_before = _rows_read(row)
        if row["rows_per_second"] and read_before:
            size = read_before / max(1, rows_read)
            if 1 / LIKE_SIZE <= size <= LIKE_SIZE:
                like_rates.append(row["rows_per_second"])
    rates = like_rates[:RUNS_COMPARED]
    if len(rates) < LEAST_RUNS or rows_per_second <= 0:
        return ""
    median = statistics.median(rates)
    if rows_per_second >= median * (1 - SLOW_BAND):
        return ""
    slower = 100 * (1 - rows_per_second / median)
    compared = f"the median {median:,.0f} of the last {len(rates)} runs of a like size (band {SLOW_BAND:.0%})"
    return f"{rows_per_second:,.0f} rows/s is {slower:.0f} % below {compared}"


def _rows_read(run: Mapping[str, Any]) -> int:
    """How many records a run read; 0 if its row does not say it."""
    if not run["plan"]:
        return 0
    counted = RecordedPlan.from_text(run["plan"]).counted
    if counted is None:
        return 0
    return counted.rows_read
