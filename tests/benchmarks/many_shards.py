"""500 shards of 50 pipelines, with 1,000 partitions, on two workers without Spark, on real Delta tables.

``make bench-shards``. Each worker is a process with the platform's own coordinator, at a lease of 10 s. What it
gets it takes over by the protocol (ledger, seal, ledger again), and commits one batch to show that it can. Then
one of the two is killed, and the other takes over what it had.

A shard counts as *taken* once its sink is fenced in the epoch of its lease. Prints the seconds from the first
renewal, and from the kill, until all are taken, in leases; and what the memory of a worker grows by, beside a
fleet of 10 shards in the same run.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from support.aged_tables import SINK_SCHEMA
from support.benchmark_figures import Figure, expect, print_figures

from hindcast.clock import SystemClock
from hindcast.errors import LeaseLostError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, StatusType
from hindcast.leases.store import swap
from hindcast.partitions import ShardId, app_id
from hindcast.recovery import takeover
from hindcast.settings import Settings
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable, sink_end
from hindcast.tables.table_names import ControlTable

LEASE_SECONDS = 10.0
WORKERS = 2
#: Shards of one pipeline, and partitions of one shard.
SHARDS = 10
PARTITIONS = 2
#: The goals: all are taken within so many leases, with so much more memory than a small fleet needs.
LEASES = 3.0
MORE_MIB = 100.0
#: After so long a fleet that has not taken all is given up.
SECONDS = 180.0


def pipeline_name(number: int) -> str:
    return f"p{number:02}"


def make(settings: Settings, pipelines: int) -> None:
    """The leases of all shards, and their sinks."""
    leases = []
    for number in range(pipelines):
        name = pipeline_name(number)
        for shard in range(SHARDS):
            partitions = [shard * PARTITIONS + index for index in range(PARTITIONS)]
            leases.append(
                Lease(
                    stream_id=name,
                    status_type=StatusType.SHARD,
                    status_value=str(ShardId(1, 0, shard)),
                    checkpoint={"start_offsets": {str(partition): 0 for partition in partitions}},
                    detail={"partitions": partitions},
                    updated_at=datetime.now(UTC),
                )
            )
        FencedTable(settings.table("sinks", name), {}, "none").create(SINK_SCHEMA)
    ControlTables(settings).open(ControlTable.CHECKPOINTS)
    swap(LeaseTable(settings), lambda _: leases)


def work(home: Path, owner: str) -> None:
    """A worker: renews what it holds, and takes over what it gets, until it is killed."""
    installation = Installation(Settings(home=home))
    coordinator = LeaseCoordinator(
        LeaseTable(installation.settings),
        SystemClock(),
        owner=owner,
        fleet="bench",
        slots=WORKERS,
        lease_seconds=LEASE_SECONDS,
        wanted=lambda _lease, _snapshot: True,
    )
    gained: queue.Queue[Lease] = queue.Queue()

    def take_over_all() -> None:
        while True:
            lease = gained.get()
            with suppress(LeaseLostError):  # it was given to the other worker meanwhile
                _take_over(installation, owner, lease)
            coordinator.held.mark_started(lease.key, lease.epoch)

    threading.Thread(target=take_over_all, daemon=True).start()
    coordinator.acquire_slot(time.sleep)
    coordinator.held.mark_ready()
    due = 0.0
    while True:
        now = time.monotonic()
        if now >= due or coordinator.poll():
            due = now + coordinator.held.renewal_seconds
            renewal = coordinator.renew()
            for lease in renewal.gained:
                if lease.status_type is StatusType.SHARD:
                    gained.put(lease)
            for key in renewal.close:
                coordinator.held.mark_closed(key)
        time.sleep(coordinator.poll_seconds)  # a worker's own pace


def _take_over(installation: Installation, owner: str, lease: Lease) -> None:
    """Steps 2 and 3 of the take-over, and a batch."""
    name = lease.stream_id
    pipeline: Any = SimpleNamespace(name=name, version=1, source=SimpleNamespace(name="t"))
    settings = installation.settings
    sink = FencedTable(settings.table("sinks", name), {}, app_id(name, lease.status_value), 12.0)
    batches = takeover.known_batches(installation.ledger, sink, pipeline, lease)
    position, missing = takeover.seal(sink, pipeline, lease, owner, batches)
    takeover.repair_ledger(installation.ledger, pipeline, missing)
    fence = Fence(lease.epoch, position.fence.batch + 1)
    batch = BatchCommit(
        kind="batch",
        pipeline=name,
        version=1,
        shard=lease.status_value,
        epoch=lease.epoch,
        batch=fence.batch,
        worker=owner,
        start_offsets=position.end_offsets,
        end_offsets={partition: offset + 100 for partition, offset in position.end_offsets.items()},
        late_watermark_ms=0,
        watermark_ms=0,
        checkpoint=lease.status_value,
        base=1,
    )
    sink.commit(fence, [], batch.as_metadata(), after=position.fence)


class Fleet:
    """Two workers, and what the tables say of them."""

    def __init__(self, home: Path, pipelines: int) -> None:
        self.settings = Settings(home=home)
        self._pipelines = pipelines
        make(self.settings, pipelines)
        self.workers = [self._start(f"w{number}") for number in range(WORKERS)]

    def _start(self, owner: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, "--worker", owner, "--home", str(self.settings.home)]
        return subprocess.Popen(command, env={**os.environ, "TOKIO_WORKER_THREADS": "1"})

    def seconds_until_taken(self, owners: frozenset[str]) -> float:
        """From now on until these alone, and each of them, own and have fenced all shards."""
        began = time.monotonic()
        while not self._taken(owners):
            expect(time.monotonic() - began < SECONDS, f"{owners} take all shards")
            expect(all(worker.poll() is None for worker in self.workers), "no worker has ended")
            time.sleep(0.2)  # how finely it is measured
        return time.monotonic() - began

    def _taken(self, owners: frozenset[str]) -> bool:
        leases = [
            lease for lease in LeaseTable(self.settings).leases() if lease.status_type is StatusType.SHARD
        ]
        if {lease.lease_owner for lease in leases} != owners:
            return False
        ends = {}
        for number in range(self._pipelines):
            name = pipeline_name(number)
            ends[name] = sink_end(self.settings.table("sinks", name), {})
        for lease in leases:
            end = ends[lease.stream_id]
            fence = end.fences.get(app_id(lease.stream_id, lease.status_value)) if end else None
            if fence is None or fence.epoch != lease.epoch or fence.batch == 0:
                return False
        return True

    def memory_mib(self) -> float:
        """The most that a worker has."""
        return max(psutil.Process(worker.pid).memory_info().rss for worker in self.workers) / 2**20

    def kill_one(self) -> frozenset[str]:
        """Returns who is left."""
        worker = self.workers.pop()
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        return frozenset(f"w{number}" for number in range(len(self.workers)))

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


def measure(base: Path, pipelines: int) -> Iterator[Figure]:
    small = Fleet(base / "small", 1)
    try:
        small.seconds_until_taken(frozenset({"w0", "w1"}))
        little = small.memory_mib()
    finally:
        small.end()
    fleet = Fleet(base / "large", pipelines)
    try:
        shards = pipelines * SHARDS
        taken = fleet.seconds_until_taken(frozenset({"w0", "w1"}))
        yield Figure(
            f"{shards} shards are taken by two workers within", taken / LEASE_SECONDS, LEASES, "leases"
        )
        left = fleet.kill_one()
        taken = fleet.seconds_until_taken(left)
        yield Figure(
            "those of one that was killed by the other within", taken / LEASE_SECONDS, LEASES, "leases"
        )
        time.sleep(2 * LEASE_SECONDS)  # they are held meanwhile
        expect(fleet._taken(left), "all are held two leases later")
        yield Figure("memory of a worker of 10 shards", little, unit="MiB")
        yield Figure("and of one with all of them, more by", fleet.memory_mib() - little, MORE_MIB, "MiB")
    finally:
        fleet.end()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pipelines", type=int, default=50)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work(asked.home, asked.worker)
    with tempfile.TemporaryDirectory(prefix="hindcast-shards-", ignore_cleanup_errors=True) as folder:
        return print_figures(measure(Path(folder), asked.pipelines))


if __name__ == "__main__":
    sys.exit(main())
