"""What replays cost beside batch jobs written by hand, and re-execution beside the live stream: ``make
bench-pipelines``.

For each example pipeline the same records are sent to a topic of its own and consumed as fast as they can be.
Then, in one session, one after the other and again and again: the replay of everything, and a batch job by
hand over the same offsets (read, transform, write one Delta table; no late rule, no accounts, no second
answer). A pipeline that is judged by re-execution also has its recorded batches run again, beside the seconds
that the live stream was busy with them. The first pair warms up and is left out. One JSON line a pipeline.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import structlog
from kafka import KafkaProducer
from kafka.partitioner.default import murmur2
from pyspark.sql import SparkSession
from support.benchmark_home import home_with_broker
from support.live_stream import ledger
from support.workload_harness import Workload, renamed

from hindcast import catalog
from hindcast.installation import Installation
from hindcast.pipeline import TOPIC_STRIDE
from hindcast.replay.batch import run_batch
from hindcast.replay.cost import Meter
from hindcast.replay.planner import ReplayPlan
from hindcast.replay.recorded_batches import recorded_batches
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import plan_replay
from hindcast.settings import Settings, project_root
from hindcast.spark import kafka_source, parsed_records, session, transformation
from hindcast_sandbox.generators import GENERATORS

PARTITIONS = 4
#: Event times of an hour ago: no record is in the future of the broker's stamps.
PACE = 2000.0


def send(workload: Workload, generator: str, rows: int) -> None:
    """Send a generator's first records, each to the partition of its key."""
    producer = KafkaProducer(
        bootstrap_servers=workload.servers, acks="all", linger_ms=50, batch_size=256 * 1024
    )
    topics = {name: index for index, name in enumerate(GENERATORS[generator].topics)}
    for record in islice(GENERATORS[generator].make(1, PACE, datetime.now(UTC)), rows):
        index = topics[record.topic or generator]
        partition = (murmur2(record.key) & 0x7FFFFFFF) % PARTITIONS
        producer.send(
            workload.pipeline.topics[index].name, key=record.key, value=record.value, partition=partition
        )
        workload.counts[index * TOPIC_STRIDE + partition] += 1
    producer.flush()
    producer.close()


def by_hand(spark: SparkSession, workload: Workload, plan: ReplayPlan) -> None:
    """The batch job that somebody would write for these offsets."""
    pipeline = workload.pipeline
    session.keep_state_for(spark, pipeline)
    frames = [
        parsed_records.usable(
            parsed_records.parse(
                kafka_source.records(spark, workload.settings, pipeline, topic, plan.read_from, plan.end),
                pipeline,
                topic,
            )
        )
        for topic in pipeline.topics
    ]
    if pipeline.window is not None:
        frames = [transformation.assign_windows(frames[0], pipeline)]
    result = transformation.transform(frames, pipeline, hindsight=pipeline.hindsight is not None)
    result.write.format("delta").mode("overwrite").save(
        workload.settings.table("hindcasts", pipeline.name, "by-hand")
    )


def cost(work: Callable[[], Any]) -> tuple[float, float]:
    """Its seconds, and the CPU-seconds of all processes: those do not depend on who else uses the machine."""
    meter = Meter()
    work()
    return meter.seconds(), meter.cpu_seconds()


def measure(spark: SparkSession, settings: Settings, name: str, rows: int, pairs: int) -> dict[str, Any]:
    """One pipeline: medians of seconds and CPU-seconds, and of their ratios."""
    declared = catalog.load(project_root() / "include" / "pipelines")[name]
    workload = Workload(
        spark,
        settings,
        renamed(declared, f"bench-{name}".replace("_", "-")),
        settings.bootstrap_servers,
        PARTITIONS,
    )
    workload.begin()
    send(workload, declared.source.name, rows)
    workload.read()
    workload.file()
    busy = sum(row.batch_seconds or 0.0 for row in ledger(settings, name))
    _, plan = plan_replay(
        Installation(settings),
        workload.pipeline,
        ReplayRequest(pipeline=name, run_id="benchmark", everything=True),
    )
    found = defaultdict[str, list[tuple[float, float]]](list)
    for number in range(pairs + 1):
        sides: dict[str, Callable[[], Any]] = {
            "replay": lambda: run_batch(spark, settings, workload.pipeline, plan, "benchmark"),
            "by_hand": lambda: by_hand(spark, workload, plan),
        }
        for side in sides if number % 2 else reversed(sides):
            found[side].append(cost(sides[side]))
        if declared.re_execute:
            with recorded_batches(
                spark, settings, workload.pipeline, plan.start, plan.end, plan.recorded
            ) as recorded:
                found["re_execution"].append(cost(recorded.run))
    kept = {side: values[1:] for side, values in found.items()}
    shown: dict[str, Any] = {}
    for position, unit in enumerate(("seconds", "cpu_seconds")):
        shown |= {
            f"{side}_{unit}": round(statistics.median(value[position] for value in values), 2)
            for side, values in kept.items()
        }
        ratios = [a[position] / b[position] for a, b in zip(kept["replay"], kept["by_hand"], strict=True)]
        shown[f"replay_by_hand_{unit}_ratio"] = round(statistics.median(ratios), 2)
    if declared.re_execute:
        shown["live_busy_seconds"] = round(busy, 2)
        shown["re_execution_live_ratio"] = round(shown["re_execution_seconds"] / busy, 2)
    return {"pipeline": name, "rows": rows, "batches": len(plan.batches), **shown}


@contextmanager
def session_and_broker(app: str, **changes: Any) -> Iterator[tuple[SparkSession, Settings]]:
    """A session and a broker of their own, in a folder that is gone afterwards; ``changes`` are settings of
    the session.
    """
    with home_with_broker(app, trigger_seconds=0.0) as settings:
        spark = session.build(settings.model_copy(update=changes), app)
        try:
            yield spark, settings
        finally:
            spark.stop()


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    every = sorted(catalog.load(project_root() / "include" / "pipelines"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pipeline", action="append", choices=every, help="all by default")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--pairs", type=int, default=3)
    asked = parser.parse_args()
    with session_and_broker("pipeline-cost", spark_driver_memory="2g") as (spark, settings):
        for name in asked.pipeline or every:
            print(json.dumps(measure(spark, settings, name, asked.rows, asked.pairs)), flush=True)  # noqa: T201 - the result


if __name__ == "__main__":
    main()
