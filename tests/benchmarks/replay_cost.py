"""What a replay costs beside a batch job written by hand, over the same offsets in the same session, one after the other.

``HINDCAST_HOME=... python tests/benchmarks/replay_cost.py --pipeline stock_stats --pairs 5``, where the topic has been consumed.
The batch by hand reads the range, runs the pipeline's transformation once and writes one Delta table: no late rule, no accounts, no
second answer. The first pair warms the JVM up and is left out. Prints one JSON object: each pair's seconds and CPU-seconds, and the
median of their ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import structlog

from hindcast import catalog
from hindcast.replay.batch import run_batch
from hindcast.replay.benchmark import Meter
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run import plan_replay
from hindcast.settings import Settings
from hindcast.stream.session import build
from hindcast.stream.source import assign_windows, read_range, transform, usable


def _measured(work: Callable[[], Any]) -> dict[str, float]:
    meter = Meter()
    work()
    return {"seconds": meter.seconds(), "cpu_seconds": meter.cpu_seconds()}


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    settings = Settings()
    pipeline = catalog.load(settings.pipelines_dir)[asked.pipeline]
    _, plan = plan_replay(settings, pipeline, ReplayRequest(pipeline=pipeline.name, run_id="benchmark", everything=True))
    spark = build(settings, "replay-cost")

    def by_hand() -> None:
        rows = usable(read_range(spark, settings, pipeline, plan.read_from, plan.end))
        result = transform([assign_windows(rows, pipeline)], pipeline)
        result.write.format("delta").mode("overwrite").save(settings.table("hindcasts", pipeline.name, "by-hand"))

    pairs = []
    for number in range(asked.pairs + 1):
        sides = {"replay": lambda: run_batch(spark, settings, pipeline, plan, "benchmark"), "by_hand": by_hand}
        order = list(sides) if number % 2 else list(reversed(sides))
        pairs.append({name: _measured(sides[name]) for name in order})
    kept = pairs[1:]
    ratios = {what: statistics.median(pair["replay"][what] / pair["by_hand"][what] for pair in kept) for what in ("seconds", "cpu_seconds")}
    rows = sum(plan.end[p] - plan.read_from[p] for p in plan.end)
    print(json.dumps({"rows": rows, "pairs": kept, "median_ratio": ratios}))  # noqa: T201 -- the result
    spark.stop()


if __name__ == "__main__":
    main()
