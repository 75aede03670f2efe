"""A replay and its verdict from a cold start, beside one batch of the same records: ``make bench-cold``.

A stream has consumed its topic. ``hindcast validate`` replays all of it and judges the stream by it, in a process
of its own; :mod:`benchmarks.speed.plain_batch` makes the same windows of the same records, as one would with Spark
alone, and judges nothing. They run by turns. A verdict counts if it passed and compared what there is.

Prints medians and the median of the pairs' ratios, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.speed.jobs import WINDOWS
from benchmarks.speed.run import wait_read
from benchmarks.speed.sides import NAME, Ours
from benchmarks.speed.workload import Workload
from benchmarks.start_cost import send
from support.benchmark_figures import Figure, expect, print_figures
from support.benchmark_home import home_with_broker

from hindcast.settings import Settings

#: The goal of the ratio of the times.
_MOST = 1.3
_BATCH = Path(__file__).parent / "speed" / "plain_batch.py"


def measure(settings: Settings, folder: Path, load: Workload, pairs: int) -> Iterator[Figure]:
    topic = "stream"
    send(settings, topic, load)
    side = Ours(settings, topic, folder / topic)
    try:
        side.start()
        wait_read(side, load)
    finally:
        side.end()
    judged: list[float] = []
    batch: list[float] = []
    for number in range(pairs):
        turns = [
            lambda: judged.append(_verdict(side)),
            lambda number=number: batch.append(_batch(side, number)),
        ]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
        print(f"pair {number}: {judged[-1]:.1f} and {batch[-1]:.1f} s", file=sys.stderr)  # noqa: T201 - progress
    yield Figure("replay and verdict", statistics.median(judged), unit="s")
    yield Figure("batch by hand", statistics.median(batch), unit="s")
    ratios = [mine / other for mine, other in zip(judged, batch, strict=True)]
    yield Figure(f"ratio of {pairs} pairs", statistics.median(ratios), _MOST, "x")
    yield Figure("ratio, least", min(ratios), unit="x")
    yield Figure("ratio, greatest", max(ratios), unit="x")


def _verdict(side: Ours) -> float:
    command = [sys.executable, "-m", "hindcast.cli.main", "validate", NAME, "--all", "--output", "json"]
    said, seconds = _timed(command, {**os.environ, **side.settings.environment()})
    verdict = json.loads(said)
    expect(verdict["passed"] and verdict["unexplained"] == 0, "the verdict passes")
    expect(verdict["rows_compared"] == len(side.rows()), "it compares every row")
    return seconds


def _batch(side: Ours, number: int) -> float:
    table = side.folder / f"batch-{number}"
    command = [sys.executable, str(_BATCH), "--servers", side.settings.bootstrap_servers]
    command += ["--topic", side.topic, "--table", str(table), "--jars", str(side.settings.spark_jars_dir)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HINDCAST_")}
    _, seconds = _timed(command, environment)
    expect(len(WINDOWS.rows_of_delta(str(table))) >= len(side.rows()), "the batch has every window")
    return seconds


def _timed(command: list[str], environment: dict[str, str]) -> tuple[str, float]:
    """What a process says, and how long it takes, in seconds."""
    began = time.monotonic()
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout, seconds


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--rate", type=float, default=100.0, help="records a second of the hour that is judged"
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="of event time")
    asked = parser.parse_args()
    with home_with_broker("cold") as settings:
        load = Workload(asked.rate, asked.seconds)
        return print_figures(measure(settings, settings.home, load, asked.pairs))


if __name__ == "__main__":
    sys.exit(main())
