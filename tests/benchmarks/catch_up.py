"""How fast a new version of a pipeline catches up, beside an available-now job written by hand: ``make
bench-catch-up``.

The same records of one topic are read from the earliest offset to its end, again and again in one session, by
turns:

``version``   a new version, as a worker runs it: sealed, fenced, a ledger row for each batch, and a thread
              that files what is late or poison of the batches so far. Until the topic's end is committed;
              ``filed`` is until every row is accounted for.
``by_hand``   a structured stream with ``availableNow``, the same transformation and the same bound on a
              batch, Spark's Delta sink, and no account of any row.

Both must have made the same rows. The first pair warms up and is left out. The last line is one JSON object
of medians; exits 1 where a version has less than 0.9 of the speed of ``by_hand``.

With ``--archived`` the records are in the topic's archive alone, and the version begins there. Beside it:

``batch``     a Spark batch job over the archive's rows: the same transformation, one write into a Delta
              table. No row is late in it, and windows that are still open are in its result. Of the others the
              version must have made nearly all. Exits 1 where it takes more than 1.3 x the job's time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from benchmarks.pipeline_cost import PARTITIONS, send, session_and_broker
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.live_stream import delete_records
from support.workload_harness import Workload, renamed

from hindcast import catalog
from hindcast.archive.copy_topic import archive_topic
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline, Table
from hindcast.settings import Settings, project_root
from hindcast.spark import kafka_source, parsed_records, session, transformation
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.stream.shard_runner import ShardRunner

_log = structlog.get_logger(__name__)

NAME = "stock_stats"
LEAST_SPEED = 0.9
#: Of the version in an archive: its time by that of a batch job, and its rows by those of the job.
MOST_TIME = 1.3
LEAST_ROWS = 0.99


def version(workload: Workload) -> dict[str, float]:
    """Seconds of a version's life: until the topic's end is committed, and until every row is accounted
    for.
    """
    started = time.monotonic()
    owner = workload.start()
    ended = threading.Event()
    filing = threading.Thread(target=file_beside, args=(workload, owner, ended))
    filing.start()
    workload.consume(owner)
    caught_up = time.monotonic() - started
    workload.retire(owner)
    ended.set()
    filing.join()
    return {"version": caught_up, "filed": time.monotonic() - started}


def file_beside(workload: Workload, owner: ShardRunner, ended: threading.Event) -> None:
    """What a worker's thread does beside its query, until all that the owner committed is filed."""
    installation = Installation(workload.settings)
    audit = Audit(workload.spark, installation, workload.pipeline, workload.app, owner.lease.epoch)
    filed = 0
    while not ended.is_set() or filed < owner.batch:
        owner.flush()
        if batches := owner.unfiled(filed):
            filed = audit.run(batches)
        else:
            ended.wait(0.1)


def by_hand(spark: SparkSession, workload: Workload, pipeline: Pipeline, number: int) -> dict[str, float]:
    """Seconds of the job that somebody would write for a backlog."""
    name = f"by_hand_{number}"
    session.keep_state_for(spark, pipeline)
    started = time.monotonic()
    start = dict.fromkeys(range(PARTITIONS), 0)
    raw = kafka_source.stream(spark, workload.settings, pipeline, pipeline.source, start)
    result = transformation.result([parsed_records.parse(raw, pipeline)], pipeline, {})
    folder = workload.settings.checkpoint("by-hand", name)
    table = workload.settings.table("sinks", name)
    query = (
        result.writeStream.format("delta")
        .outputMode("append")
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start(table)
    )
    query.awaitTermination()
    return {"by_hand": time.monotonic() - started}


def window_ends(settings: Settings, name: str) -> list[Any]:
    """The end of the window of each row."""
    windows = DeltaTable(settings.table("sinks", name)).to_pyarrow_table(columns=["window"])["window"]
    return [window["end"] for window in windows.to_pylist()]


def batch(spark: SparkSession, workload: Workload, pipeline: Pipeline, number: int) -> dict[str, float]:
    """Seconds of the batch job that somebody would write over the archived records."""
    started = time.monotonic()
    start = dict.fromkeys(range(PARTITIONS), 0)
    raw = kafka_source.archived_range(
        spark, workload.settings, pipeline.source.name, start, workload.reached()
    )
    rows = parsed_records.usable(parsed_records.parse(raw, pipeline))
    result = transformation.transform([transformation.assign_windows(rows, pipeline)], pipeline)
    result.write.format("delta").save(workload.settings.table("sinks", f"batch_{number}"))
    return {"batch": time.monotonic() - started}


def rows_of(settings: Settings, name: str) -> int:
    found: int = DeltaTable(settings.table("sinks", name)).to_pyarrow_table().num_rows
    return found


def backlog(spark: SparkSession, settings: Settings, rows: int) -> Workload:
    """The example, on a topic of its own that holds so many records."""
    example = catalog.load(project_root() / "include" / "pipelines")[NAME]
    first = Workload(spark, settings, renamed(example, "catch-up"), settings.bootstrap_servers, PARTITIONS)
    first.begin()
    send(first, example.source.name, rows)
    return first


def next_version(first: Workload, number: int) -> Workload:
    """A version that has read nothing, of the pipeline and on the records of the first."""
    declared = first.pipeline
    sink = Table(f"{NAME}_v{number + 2}", keys=declared.sink.keys)
    shadow = replace(declared, version=number + 2, sink=sink)
    return Workload(first.spark, first.settings, shadow, first.servers, PARTITIONS, counts=first.counts)


def take_turns(
    sides: dict[str, Callable[[], dict[str, float]]], number: int, found: dict[str, list[float]]
) -> None:
    """Measure each side once; every other pair begins with the last one."""
    for side in sides if number % 2 else reversed(sides):
        for name, seconds in sides[side]().items():
            found[name].append(seconds)
            _log.warning("Measured.", pair=number, what=name, seconds=round(seconds, 2))


def measure(spark: SparkSession, settings: Settings, rows: int, pairs: int) -> dict[str, Any]:
    first = backlog(spark, settings, rows)
    declared = first.pipeline
    found = defaultdict[str, list[float]](list)
    for number in range(pairs + 1):
        workload = next_version(first, number)
        sides: dict[str, Callable[[], dict[str, float]]] = {
            "version": partial(version, workload),
            "by_hand": partial(by_hand, spark, workload, declared, number),
        }
        take_turns(sides, number, found)
        own = rows_of(settings, workload.pipeline.sink.name)
        hand = rows_of(settings, f"by_hand_{number}")
        if own != hand or not own:
            problem = f"the version made {own} rows, the job by hand {hand}"
            raise SystemExit(f"The result is wrong: {problem}.")
    kept = {name: values[1:] for name, values in found.items()}
    ratios = [hand / own for own, hand in zip(kept["version"], kept["by_hand"], strict=True)]
    return {
        "pipeline": NAME,
        "rows": rows,
        "pairs": pairs,
        **{f"{name}_seconds": round(statistics.median(values), 2) for name, values in kept.items()},
        "speed_by_hand_ratio": round(statistics.median(ratios), 2),
    }


def measure_archived(spark: SparkSession, settings: Settings, rows: int, pairs: int) -> dict[str, Any]:
    """The same, of records that the topic has dropped."""
    first = backlog(spark, settings, rows)
    declared = first.pipeline
    archive_topic(lambda: spark, Installation(settings), declared.source.name)
    delete_records(settings.bootstrap_servers, declared.source.name, first.reached())
    found = defaultdict[str, list[float]](list)
    for number in range(pairs + 1):
        workload = next_version(first, number)
        sides: dict[str, Callable[[], dict[str, float]]] = {
            "version": partial(version, workload),
            "batch": partial(batch, spark, workload, declared, number),
        }
        take_turns(sides, number, found)
        made = window_ends(settings, workload.pipeline.sink.name)
        last = max(made)
        closed = [end for end in window_ends(settings, f"batch_{number}") if end <= last]
        if not LEAST_ROWS * len(closed) <= len(made) <= len(closed):
            raise SystemExit(f"The result is wrong: the version made {len(made)} rows of {len(closed)}.")
    kept = {name: values[1:] for name, values in found.items()}
    ratios = [own / plain for own, plain in zip(kept["version"], kept["batch"], strict=True)]
    return {
        "pipeline": NAME,
        "rows": rows,
        "pairs": pairs,
        **{f"{name}_seconds": round(statistics.median(values), 2) for name, values in kept.items()},
        "time_batch_ratio": round(statistics.median(ratios), 2),
    }


def main() -> int:
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(30),
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--archived", action="store_true", help="begin in the topic's archive")
    asked = parser.parse_args()
    if asked.archived:
        with session_and_broker("catch-up") as (spark, settings):
            result = measure_archived(spark, settings, asked.rows, asked.pairs)
        passed = result["time_batch_ratio"] <= MOST_TIME
        print(json.dumps({**result, "passed": passed}))  # noqa: T201 - the result
        return 0 if passed else 1
    with session_and_broker("catch-up") as (spark, settings):
        result = measure(spark, settings, asked.rows, asked.pairs)
    print(json.dumps({**result, "passed": result["speed_by_hand_ratio"] >= LEAST_SPEED}))  # noqa: T201 - the result
    return 0 if result["speed_by_hand_ratio"] >= LEAST_SPEED else 1


if __name__ == "__main__":
    sys.exit(main())
