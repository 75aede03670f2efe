"""How long a shard stands still for one record of many on which its function raises: ``make bench-raising``.

A feed with one bad record is one batch of a new stream. Measured are the seconds of the batch that fails
(``failed``), of the search (``search``), and of the batch without the record, up to its commit (``again``). A
minute is the bound for all three. Then the answer is compared with that of plain Python, to the row: the bad
record is a dead letter with the traceback, and nothing else is missing.

The last line is one JSON object; exits 1 if it took longer than a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import structlog
from benchmarks.pipeline_cost import session_and_broker
from pyspark.sql import SparkSession
from support.benchmark_figures import expect
from support.live_stream import declare
from support.raising_shape import raising, spoil
from support.shapes import APPEND
from support.shard_harness import Shard
from support.simulated_stream import trades
from support.waiting import wait_until

from hindcast import catalog
from hindcast.installation import Installation
from hindcast.recovery.raising_records import FailedBatch, RaisingRecords
from hindcast.settings import Settings
from hindcast.tables.table_names import ControlTable
from hindcast_sandbox.load import ensure_topic

NAME = "raising"
PARTITIONS = 2
MOST_SECONDS = 60.0
_WAIT_SECONDS = 600.0


def measure(spark: SparkSession, settings: Settings, rows: int) -> dict[str, Any]:
    own = settings.model_copy(update={"pipelines_dir": settings.home / "pipelines"})
    shape = raising(APPEND)
    ensure_topic(own.bootstrap_servers, NAME, PARTITIONS)
    declare(own, NAME, name=NAME, shape=shape)
    pipeline = catalog.load(own.pipelines_dir)[NAME]
    shard = Shard(spark, own, pipeline, own.bootstrap_servers, PARTITIONS, shape=shape)
    feed, places = spoil(trades(5, count=rows, partitions=PARTITIONS), rows * 2 // 3)
    shard.send(feed[:2_000])
    owner = shard.start()
    shard.consume(owner)  # a stream that runs has a JVM that is warm
    shard.send(feed[2_000:])
    began = time.monotonic()
    wait_until(lambda: owner.failure, _WAIT_SECONDS, "the batch has failed")
    failed = time.monotonic()
    planned = owner.planned_next()
    owner.stop()
    assert planned is not None
    assert owner.failure is not None
    start, end = planned
    batch = FailedBatch(owner.lease.status_value, start, end, owner.floors, owner.failure)
    search = RaisingRecords(spark, Installation(own), pipeline, batch, shard.clock)
    wait_until(lambda: search.ended, _WAIT_SECONDS, "the search has ended")
    searched = time.monotonic()
    found = {
        (partition, offset) for partition, offsets in search.found.excluded.items() for offset in offsets
    }
    expect(found == places, f"the search finds {places}, and not {found} ({search.reason})")
    heir = shard.start(excluded=search.found.excluded)
    wait_until(lambda: heir.progressed, _WAIT_SECONDS, "the batch is committed without it")
    again = time.monotonic()
    shard.consume(heir)
    shard.retire(heir)
    shard.tracebacks = search.found.tracebacks
    shard.check()
    letters = Installation(own).tables.rows(ControlTable.DEAD_LETTERS)
    told = [row["traceback"] for row in letters if row["traceback"]]
    expect(len(told) == 1 and "ValueError" in told[0], "one dead letter has a traceback")
    records = sum(stop - start[partition] for partition, stop in end.items())
    return {
        "records_of_the_batch": records,
        "tries": search.tries,
        "failed_seconds": round(failed - began, 1),
        "search_seconds": round(searched - failed, 1),
        "again_seconds": round(again - searched, 1),
        "stood_still_seconds": round(again - began, 1),
    }


def main() -> int:
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(30),
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    asked = parser.parse_args()
    with session_and_broker("raising") as (spark, settings):
        result = measure(spark, settings, asked.rows)
    passed = result["stood_still_seconds"] <= MOST_SECONDS
    print(json.dumps({**result, "passed": passed}))  # noqa: T201 - the result
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
