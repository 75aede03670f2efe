"""How long it takes from the start of a process to the first commit: ``make bench-start``.

A backlog waits in the topic. A worker of Hindcast starts, takes its slot and its shard, and commits its first
batch; the job that was tuned by hand (:mod:`benchmarks.speed.plain_stream`) does the same without leases. They
start by turns, each with a topic, tables and a checkpoint that nobody has used. ``dags`` is the time in which a
process that has loaded Airflow and its providers reads the DAGs of the examples, as the DAG processor does.

Prints medians and the median of the pairs' ratios, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.speed.run import create_topic
from benchmarks.speed.sides import Ours, Side, Tuned
from benchmarks.speed.workload import Workload
from kafka import KafkaProducer
from support.benchmark_figures import Figure, print_figures
from support.benchmark_home import home_with_broker
from support.waiting import wait_until

from hindcast.settings import Settings, project_root

_BACKLOG = Workload(rate=1_000.0, seconds=20.0)
_COMMIT_SECONDS = 240.0
#: Goals, in seconds.
_WORKER_SECONDS = 12.0
_DAGS_SECONDS = 0.5
_READ_DAGS = """
import sys, time
from airflow.dag_processing.dagbag import DagBag
DagBag(dag_folder=sys.argv[1])  # loads the providers, the plugins and the library
started = time.perf_counter()
bag = DagBag(dag_folder=sys.argv[1])
print(time.perf_counter() - started, len(bag.dags), len(bag.import_errors))
"""


def first_commit(settings: Settings, kind: type[Side], folder: Path) -> float:
    """Seconds from the start of a side's process to its first commit."""
    send(settings, folder.name, _BACKLOG)
    side = kind(settings, folder.name, folder)
    try:
        began = time.time()
        side.start()
        wait_until(side.commits, _COMMIT_SECONDS, f"{side.name} has committed", every=0.5)
        return side.commits()[0].at_ms / 1000 - began
    finally:
        side.end()


def send(settings: Settings, topic: str, load: Workload) -> None:
    """Make the topic and fill it, as fast as that goes. The last event is of now."""
    create_topic(settings.bootstrap_servers, topic, load.partitions)
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, acks="all", linger_ms=20)
    for trade in load.trades(int((time.time() - load.seconds) * 1000)):
        producer.send(topic, trade.value(), key=trade.ticker.encode(), partition=trade.partition)
    producer.flush()
    producer.close()


def reading_dags(home: Path) -> float:
    """Seconds in which a process reads the DAGs of the examples, once it has loaded all that they import."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(project_root() / "plugins"),
        "HINDCAST_HOME": str(home),
    }
    command = [sys.executable, "-c", _READ_DAGS, str(project_root() / "dags")]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    seconds, dags, errors = done.stdout.split()[-3:]
    if int(errors) or not int(dags):
        raise SystemExit(f"{dags} DAGs were read, and {errors} files refused.")
    return float(seconds)


def measure(settings: Settings, folder: Path, pairs: int) -> Iterator[Figure]:
    ours: list[float] = []
    tuned: list[float] = []
    for number in range(pairs):
        kinds = [(Ours, ours), (Tuned, tuned)]
        for kind, found in kinds if number % 2 == 0 else reversed(kinds):
            seconds = first_commit(settings, kind, folder / f"{kind.name}-{number}")
            found.append(seconds)
            print(f"{kind.name}: {seconds:.1f} s", file=sys.stderr, flush=True)  # noqa: T201 - progress
    yield Figure("worker, from its start to its first commit", statistics.median(ours), _WORKER_SECONDS, "s")
    yield Figure("tuned job, the same", statistics.median(tuned), unit="s")
    ratios = [mine / other for mine, other in zip(ours, tuned, strict=True)]
    yield Figure(f"ratio of {pairs} pairs", statistics.median(ratios), unit="x")
    yield Figure("ratio, least", min(ratios), unit="x")
    yield Figure("ratio, greatest", max(ratios), unit="x")
    dags = [reading_dags(folder / f"airflow-{number}") for number in range(pairs)]
    yield Figure("dags", statistics.median(dags), _DAGS_SECONDS, "s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    with home_with_broker("start") as settings:
        return print_figures(measure(settings, settings.home, asked.pairs))


if __name__ == "__main__":
    sys.exit(main())
