"""One shard of a pipeline on a real topic, and the ways in which its owners come and go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from support.crashes import CrashError, crash_at  # noqa: F401 - tests with a shard import them from here
from support.live_stream import check_answer, check_filed, ends, produce
from support.shapes import APPEND, Shape
from support.simulated_stream import Clockwork, Record, Simulated, trades
from support.waiting import wait_until

from hindcast.installation import Installation
from hindcast.leases.lease import Lease
from hindcast.leases.store import LeaseStore, Snapshot
from hindcast.partitions import ShardId, app_id
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.recovery.halving import Place
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.stream.batch_cpu import CpuMeter
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.stream.shard_runner import Phase, ShardRunner
from hindcast.stream.shard_takeover import ShardTakeover
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.excluded_records import Excluded
from hindcast.tables.fenced_sink import FencedTable
from hindcast.tables.ledger import Ledger
from hindcast.testing import FakeClock, MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = (
    180.0  # how long is no promise: a session of its own may start Python workers on a busy machine
)


@dataclass
class Shard:
    """One shard of a pipeline on a real topic, consumed by one owner after the other."""

    spark: SparkSession
    settings: Settings
    pipeline: Pipeline
    servers: str
    partitions: int
    store: LeaseStore = field(default_factory=MemoryStore)
    clock: FakeClock = field(default_factory=FakeClock)
    owners: int = 0
    sent: list[Record] = field(default_factory=list)
    running: list[ShardRunner] = field(default_factory=list)
    coordinators: list[LeaseCoordinator] = field(default_factory=list)
    shape: Shape = APPEND
    tracebacks: Mapping[Place, str] = field(default_factory=dict)  # of what the function has raised

    def send(self, records: list[Record]) -> None:
        produce(self.servers, self.pipeline.source.name, records, self.shape)
        self.sent += records

    @property
    def checkpoint(self) -> Path:
        """The folder of its first query."""
        return Path(self.settings.checkpoint(self.pipeline.name, "v1.g0.s0"))

    def reached(self) -> dict[int, int]:
        """Partition -> the offset after the last record that was sent."""
        return ends(self.sent)

    def take(self, excluded: Excluded | None = None) -> ShardTakeover:
        """A new owner gains the lease; the one before is dead and its lease expired."""
        start = {
            topic * TOPIC_STRIDE + number: 0
            for topic in range(len(self.pipeline.topics))
            for number in range(self.partitions)
        }
        resharding.create(self.store, self.pipeline.name, self.pipeline.version, 1, start)
        coordinator = LeaseCoordinator(
            self.store,
            self.clock,
            owner=f"v{self.pipeline.version}-w{self.owners}",
            fleet="f",
            slots=50,
            lease_seconds=10.0,
            wanted=self._mine,
            sleep=lambda _: None,
        )
        self.owners += 1
        assert coordinator.acquire_slot(self.clock.advance)
        coordinator.renew()
        self.clock.advance(10.5)
        coordinator.renew()
        coordinator.renew()
        versions_own = resharding.of_version(
            self.store.read().leases.values(), self.pipeline.name, self.pipeline.version
        )
        (lease,) = [row for row in versions_own if row.lease_owner == coordinator.held.owner]
        meter = CpuMeter(self.clock, lambda: 0.0)
        self.coordinators.append(coordinator)
        return ShardTakeover(
            self.spark,
            Installation(self.settings),
            self.pipeline,
            lease,
            coordinator.held,
            self.clock,
            meter,
            excluded=excluded,
        )

    def start(self, rebuild: str = "", *, excluded: Excluded | None = None) -> ShardRunner:
        """A new owner takes the shard over and starts its query."""
        runner = self.take(excluded).start(rebuild)
        self.running.append(runner)
        return runner

    @property
    def app(self) -> str:
        """The application id of the shard that was started last."""
        return app_id(self.pipeline.name, self.running[-1].lease.status_value)

    @property
    def sink(self) -> FencedTable:
        """The sink, as the shard that was started last commits to it."""
        url = self.settings.table("sinks", self.pipeline.sink.name)
        return FencedTable(url, self.settings.storage_options, self.app)

    def _mine(self, lease: Lease, _: Snapshot) -> bool:
        return ShardId.parse(lease.status_value).version == self.pipeline.version

    def consume(self, owner: ShardRunner) -> None:
        """Wait until the owner has committed all that was sent."""

        def done() -> bool:
            owner.go_on()
            if owner.failure is not None:
                return True
            return owner.phase is Phase.CONSUMING and owner.end_offsets == self.reached()

        wait_until(done, WAIT_SECONDS, "the shard has read everything")
        assert owner.failure is None, str(owner.failure)

    def serve(self, records: list[Record], rebuild: str = "") -> str:
        """One owner's whole life: it reads these records and stops cleanly. Returns why its state was made
        anew, if it was.
        """
        self.send(records)
        owner = self.start(rebuild)
        self.consume(owner)
        self.renew()
        self.retire(owner)
        return owner.rebuilt

    def renew(self) -> None:
        """The newest owner renews its lease, which learns what was reported."""
        self.coordinators[-1].renew()

    def die(self, owner: ShardRunner) -> None:
        """Stop the query and forget what the owner had queued, as a killed process would."""
        owner.interrupt()

    def retire(self, owner: ShardRunner) -> None:
        """Stop cleanly once idle."""
        owner.drain()
        wait_until(lambda: owner.drained, WAIT_SECONDS, "the batch in hand has ended")
        owner.stop()

    def file(self) -> None:
        """File what is late or poison of every batch."""
        epoch = self.running[-1].lease.epoch
        audit = Audit(
            self.spark,
            Installation(self.settings),
            self.pipeline,
            self.app,
            epoch,
            tracebacks=self.tracebacks,
        )
        batches = Ledger(ControlTables(self.settings)).batches(self.pipeline.name, self.pipeline.version)
        while audit.run(batches) < batches[-1].batch:
            pass

    def check(self) -> None:
        oracle = Simulated(Clockwork(), self.sent)
        check_answer(self.settings, self.sent, oracle, self.pipeline.name, self.shape)
        self.file()
        check_filed(self.settings, self.sent, oracle, self.pipeline.name, self.shape)


def parts(count: int = 500) -> tuple[list[Record], list[Record]]:
    """Two halves of one feed with late and poison rows."""
    records = trades(7, count=count, partitions=2, rate_ms=100.0)
    return records[: count // 2], records[count // 2 :]


def newest_file(folder: Path, log: str) -> Path:
    """The file of the newest batch in one of Spark's logs."""
    return max(
        (path for path in (folder / log).iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )
