"""What tables in an object store cost in requests: ``make bench-store``. No JVM.

The store is a small one on this machine (:mod:`support.s3_server`), which counts. Printed are the requests an
hour of a worker that holds ten shards and whose stream stands still, and the requests of one batch's commit to
a sink. A lease is ten seconds long. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from benchmarks.lease_cost import LEASE_SECONDS, shards
from support.s3_server import S3Server, s3_server

from hindcast.clock import SystemClock
from hindcast.delta.files import DataFile
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.store import swap
from hindcast.settings import Settings
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.tables.fenced_sink import Fence, FencedTable

_SHARDS = 10


def in_store(store: S3Server, home: Path) -> Settings:
    return Settings(home=home, tables_url=store.folder("tables"), storage_options=store.options)


def since(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """The requests by method between two counts."""
    found = {method: count - before.get(method, 0) for method, count in after.items()}
    return {method: count for method, count in sorted(found.items()) if count}


def of_leases(store: S3Server, settings: Settings, seconds: float) -> dict[str, float]:
    """The requests an hour of one worker's leases, by method."""
    table = LeaseTable(settings)
    swap(table, lambda _: shards(_SHARDS))
    worker = LeaseCoordinator(
        table,
        SystemClock(),
        owner="w0",
        fleet="bench",
        slots=1,
        lease_seconds=LEASE_SECONDS,
        wanted=lambda _lease, _snapshot: True,
    )
    worker.acquire_slot(time.sleep)
    worker.renew()
    ended = threading.Event()

    def serve() -> None:
        due = 0.0
        while not ended.wait(worker.poll_seconds):
            now = time.monotonic()
            if now >= due or worker.poll():
                due = now + worker.held.renewal_seconds
                worker.renew()

    thread = threading.Thread(target=serve)
    thread.start()
    before = store.requests()
    time.sleep(seconds)  # what it asks meanwhile is counted
    after = store.requests()
    ended.set()
    thread.join()
    table.upkeep.wait()
    return {method: count * 3600 / seconds for method, count in since(before, after).items()}


def file_of(number: int) -> DataFile:
    """A file as a batch names it; a commit does not look at it."""
    return DataFile(f"b{number}.parquet", 1_000, 100, '{"numRecords": 100}')


def of_batches(store: S3Server, settings: Settings, batches: int) -> dict[str, float]:
    """The requests of one batch's commit, by method. The files with its rows come on top."""
    sink = FencedTable(settings.table("sinks", "bench"), settings.storage_options, "bench/v1/v1.g0.s0")
    sink.create(pa.schema([("word", pa.string())]))
    sink.commit(Fence(1, 1), [file_of(1)])
    before = store.requests()
    for number in range(2, batches + 2):
        sink.commit(Fence(1, number), [file_of(number)], after=Fence(1, number - 1))
    return {method: count / batches for method, count in since(before, store.requests()).items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the leases are watched")
    parser.add_argument("--batches", type=int, default=50)
    asked = parser.parse_args()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hindcast-store-") as folder, s3_server() as store:
        settings = in_store(store, Path(folder))
        report["batch"] = of_batches(store, settings, asked.batches)
        report["leases_an_hour"] = of_leases(store, settings, asked.seconds)
    for name, counts in report.items():
        print(f"{name:16} {sum(counts.values()):10,.1f}  {json.dumps(counts)}")  # noqa: T201 -- the result
    print(json.dumps(report))  # noqa: T201 -- the result


if __name__ == "__main__":
    main()
