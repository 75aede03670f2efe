"""What age costs a stream that nobody restarts: ``make bench-long``.

One worker runs one shard with the windows and the load of ``make bench``. A batch begins as soon as the one
before it has ended, so ten thousand of them take less than an hour, and the time from one commit to the next
is that of a batch. Compared are the batches about the hundredth, the thousandth and the last one, and the memory
of the worker with all its children (each shared page counted once, as Linux's PSS has it). The answer is checked
to the row.

A JVM is slow and small when it is young: its compilers have done little and its heap is not full. So the
thousandth batch says more than the hundredth.

Prints the medians and their ratios, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from benchmarks.speed.install import install
from benchmarks.speed.run import create_topic, sender
from benchmarks.speed.sides import Ours
from benchmarks.speed.workload import Workload
from support.benchmark_figures import Figure, print_figures
from support.benchmark_home import home_with_broker, memory_bytes, with_children

from hindcast.settings import Settings

_RATE = 500.0
#: The load is made for the first minutes of a JVM, and so many seconds a batch. If they
#: take longer, it ends before them.
_WARM_UP_SECONDS = 180.0
_MOST_SECONDS_OF_A_BATCH = 0.6
_LEAD_SECONDS = 5.0
_LOOK_SECONDS = 15.0
#: Batches about a number whose median is taken.
_ABOUT = 100
_MIB = 2**20
#: Goals, against a younger worker.
_BATCH_RATIO = 1.1
_MEMORY_RATIO = 1.1


def measure(settings: Settings, folder: Path, batches: int) -> Iterator[Figure]:
    load = Workload(_RATE, _WARM_UP_SECONDS + batches * _MOST_SECONDS_OF_A_BATCH)
    topic = folder.name
    create_topic(settings.bootstrap_servers, topic, load.partitions)
    side = Ours(settings, topic, folder)
    file = folder.with_suffix(".load")
    try:
        side.start()
        start = time.time() + load.rows * 12e-6 + _LEAD_SECONDS
        start_ms = int(start * 1000)
        load.encode(file, start_ms)
        with sender(settings, [topic], file, load, start) as sending:
            commits, memory, of_python = _watch(side, sending, batches)
    finally:
        side.end()
        file.unlink(missing_ok=True)
    side.job.check(load, start_ms, side.rows())
    young, grown = _ABOUT, min(1000, batches // 2)
    times = {number: _batch_seconds(commits, number) for number in (young, grown, batches)}
    sizes = {number: _memory_at(memory, commits, number) for number in times}
    for number, seconds in times.items():
        yield Figure(f"batch, about the {number:,}th", seconds * 1000, unit="ms")
    yield Figure(f"batch, last against {young:,}th", times[batches] / times[young], _BATCH_RATIO, "x")
    yield Figure(f"batch, last against {grown:,}th", times[batches] / times[grown], _BATCH_RATIO, "x")
    for number, size in sizes.items():
        yield Figure(f"memory at the {number:,}th", size / _MIB, unit="MiB")
    yield Figure(f"memory, last against {grown:,}th", sizes[batches] / sizes[grown], _MEMORY_RATIO, "x")
    for number in times:
        size = _memory_at(of_python, commits, number)
        yield Figure(f"of that Python's at the {number:,}th", size / _MIB, unit="MiB")
    yield Figure("time of all batches", (commits[batches - 1] - commits[0]) / 60, unit="min")


def _watch(
    side: Ours, sending: subprocess.Popen[bytes], batches: int
) -> tuple[list[float], list[tuple[float, int]], list[tuple[float, int]]]:
    """When each batch was committed, when the worker had how many bytes of memory, and how many of these were of
    its Python process. All times are in epoch seconds.

    :raises SystemExit: if the load ended before the batches did
    """
    memory = []
    of_python = []
    while True:
        memory.append((time.time(), memory_bytes(with_children(side.processes))))
        of_python.append((time.time(), memory_bytes(side.processes)))
        commits = [commit.at_ms / 1000 for commit in side.commits()]
        took = timedelta(seconds=round(commits[-1] - commits[0])) if commits else "no time"
        print(  # noqa: T201 - progress
            f"{len(commits)} batches after {took}, {memory[-1][1] / _MIB:.0f} MiB",
            file=sys.stderr,
            flush=True,
        )
        if len(commits) >= batches:
            return commits, memory, of_python
        if sending.poll() is not None:
            raise SystemExit(f"The load ended after {len(commits)} batches of {batches}.")
        time.sleep(_LOOK_SECONDS)  # between two looks


def _batch_seconds(commits: Sequence[float], number: int) -> float:
    """Median time of the batches about the one of this number, or of the last ones before it."""
    first = min(number + _ABOUT // 2, len(commits)) - _ABOUT
    about = commits[first : first + _ABOUT]
    return statistics.median(later - earlier for earlier, later in pairwise(about))


def _memory_at(memory: Sequence[tuple[float, int]], commits: Sequence[float], number: int) -> float:
    """Median of the five looks about the time of a batch's commit."""
    at = bisect_left(memory, (commits[number - 1], 0))
    first = min(max(at - 2, 0), max(len(memory) - 5, 0))
    return statistics.median(size for _, size in memory[first : first + 5])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=10_000)
    asked = parser.parse_args()
    if asked.batches < 2 * _ABOUT:
        parser.error(f"--batches must be at least {2 * _ABOUT}")
    with home_with_broker("long", trigger_seconds=0.0) as settings:
        install(settings)
        return print_figures(measure(settings, settings.home / "long", asked.batches))


if __name__ == "__main__":
    sys.exit(main())
