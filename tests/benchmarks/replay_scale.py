"""What a replay costs as a topic grows, and what more executors are worth: ``make bench-scale``.

Two topics, the one with ten times the records of the other, are consumed by a stream and then replayed, each
time by a process of its own. First with the cores of this machine: the growth is the ratio of both times. Then
the large one on a Spark cluster of this machine, by one executor of one core, by two, and by four. Every replay
must read all records, and have as many results as the others of its topic.

A replay's seconds are its own, from the first job to the commit of its answer: the JVM's start is not in them.
Prints them as it goes, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.speed.install import install
from benchmarks.speed.run import create_topic, report_of, sender, wait_read
from benchmarks.speed.sides import NAME, Ours
from benchmarks.speed.workload import Workload
from support.benchmark_figures import Figure, expect, print_figures
from support.benchmark_home import home_with_broker
from support.spark_cluster import EXECUTOR_MEMORY, running_cluster

from hindcast.processes import programs
from hindcast.settings import Settings

#: Of the time for ten times the records.
_GROWTH = 10.5
_TIMES = 10
_EXECUTORS = (1, 2, 4)
_COLLECTOR = "-XX:+UseSerialGC"
#: Ten million records on two cores take a stream three minutes.
_READ_SECONDS = 900.0
#: Records a second of event time. The last one happens now.
_RATE = 5_000.0


def consumed(settings: Settings, topic: str, rows: int, folder: Path) -> Ours:
    """A stream that has consumed a topic of so many records, and has ended."""
    load = Workload(_RATE, 0.0, burst=rows)
    file = folder / f"{topic}.load"
    load.encode(file, int((time.time() - rows / _RATE) * 1000))
    create_topic(settings.bootstrap_servers, topic, load.partitions)
    side = Ours(settings, topic, folder / topic)
    try:
        side.start()
        with sender(settings, [topic], file, load, time.time()) as sending:
            report_of(sending)
        wait_read(side, load, _READ_SECONDS)
    finally:
        side.end()
        file.unlink()
    return side


def replay(side: Ours, rows: int, **environment: str) -> dict[str, Any]:
    """The row of a replay of the whole topic."""
    command = programs.command("replay", "hindcast", "--pipeline", NAME, "--all")
    given = {**os.environ, **side.settings.environment(), **environment}
    done = subprocess.run(
        command, env=given, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"The replay ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    expect(found["input_rows"] == rows, f"the replay has read {rows} records")
    return found


def measure(settings: Settings, folder: Path, rows: int) -> Iterator[Figure]:
    less = rows // _TIMES
    small = replay(consumed(settings, "small", less, folder), less)
    yield Figure(f"replay of {less} records", small["seconds"], unit="s")
    side = consumed(settings, "large", rows, folder)
    large = replay(side, rows)
    yield Figure(f"replay of {rows} records", large["seconds"], unit="s")
    yield Figure(f"growth with {_TIMES} x the records", large["seconds"] / small["seconds"], _GROWTH, "x")
    for executors in _EXECUTORS:
        place = folder / f"cluster-{executors}"
        place.mkdir()
        # With the optimising compiler, which the cluster of the tests does without.
        with running_cluster(place, executors=executors, executor_options=_COLLECTOR) as cluster:
            conf = {
                "spark.executor.cores": "1",
                "spark.executor.memory": EXECUTOR_MEMORY,
                "spark.cores.max": str(executors),
            }
            done = replay(
                side,
                rows,
                HINDCAST_SPARK_MASTER=cluster.url,
                HINDCAST_SPARK_CONF=json.dumps(conf),
                **cluster.driver_environment(),
            )
        expect(done["output_rows"] == large["output_rows"], "executors find as many results")
        yield Figure(f"by executors of one core: {executors}", done["seconds"], unit="s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the large topic")
    asked = parser.parse_args()
    with home_with_broker("scale") as settings:
        install(settings)
        return print_figures(measure(settings, settings.home, asked.rows))


if __name__ == "__main__":
    sys.exit(main())
