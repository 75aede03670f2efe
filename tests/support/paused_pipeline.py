"""A pipeline of two shards that has streamed and is paused, on real Delta tables, without a JVM and a
broker.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction, RemoveAction
from support.simulated_platform import SINK_SCHEMA, store
from support.simulated_stream import Simulated, simulate, trades

from hindcast.errors import RewindRefusedError
from hindcast.installation import Installation
from hindcast.leases.lease import ShardState
from hindcast.leases.store import LeaseStore
from hindcast.partitions import Offsets, app_id
from hindcast.pipeline import Pipeline, Table, Topic, Window
from hindcast.recovery import rewind
from hindcast.recovery.abandon_rewind import abandon
from hindcast.recovery.plan_rewind import RewindPlan, make_plan
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import DesiredState
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import FencedTable
from hindcast.tables.ledger_history import History
from hindcast.tables.table_names import ControlTable

#: The epoch in which the shards were given up.
EPOCH = 1
#: As `include/pipelines/stock_stats.py` declares it; the transformation is never called.
STOCK_STATS = Pipeline(
    name="stock_stats",
    transform=lambda rows: rows,
    source=Topic("trades", schema="ticker string, ts timestamp, ask double", key="ticker"),
    event_time="ts",
    watermark="10 seconds",
    window=Window("5 seconds", slide="1 second"),
    sink=Table("stock_stats", keys=["window", "ticker"]),
    version=1,
    shards=2,
)


@dataclass
class BrokerAnswers:
    """What a broker answers of the partitions of trades: where each begins and ends, and which offset the
    requested time has. Another topic has none.
    """

    earliest: Offsets
    latest: Offsets
    at: Offsets

    def connection(self) -> type[Any]:
        """A class that takes the place of TopicOffsets."""
        answers = self

        class Asked:
            """Asks that broker."""

            def __init__(self, settings: Settings) -> None:
                assert isinstance(settings, Settings)

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None: ...

            def earliest(self, topic: str) -> dict[int, int]:
                return answers.earliest if topic == "trades" else {}

            def latest(self, topic: str) -> dict[int, int]:
                return answers.latest if topic == "trades" else {}

            def at_time(self, topic: str, at: datetime) -> dict[int, int]:
                assert at.tzinfo == UTC
                return answers.at if topic == "trades" else {}

        return Asked


@dataclass
class Paused:
    """The pipeline, what it has streamed, and what its broker answers."""

    installation: Installation
    pipeline: Pipeline
    stream: Simulated
    broker: BrokerAnswers

    @property
    def settings(self) -> Settings:
        return self.installation.settings

    @property
    def store(self) -> LeaseStore:
        return self.installation.lease_table

    @property
    def sink(self) -> DeltaTable:
        return DeltaTable(self.sink_url)

    @property
    def sink_url(self) -> str:
        return self.settings.table("sinks", self.pipeline.sink.name)

    def rows(self, version: int | None = None) -> Counter[str]:
        rows = DeltaTable(self.sink_url, version=version).to_pyarrow_table().to_pylist()
        return Counter(map(str, rows))

    def filed(self, name: ControlTable) -> set[tuple[int, int]]:
        return {(row["partition"], row["offset"]) for row in ControlTables(self.settings).rows(name)}

    def states(self) -> dict[str, str]:
        """Shard -> its state."""
        leases = self.store.read().leases
        return {key.status_value: lease.state for key, lease in leases.items() if key.status_type == "shard"}

    def plan(self, target: Offsets | datetime | None) -> RewindPlan:
        return make_plan(self.installation, self.pipeline, target)

    def refusal(self, target: Offsets | datetime | None) -> dict[str, Any]:
        """What a plan is refused with: problem, cure, pipeline and place."""
        with pytest.raises(RewindRefusedError) as caught:
            self.plan(target)
        assert caught.value.fields["pipeline"] == "stock_stats"
        return caught.value.fields

    def run(self, plan: RewindPlan) -> dict[str, Any]:
        return rewind.run(self.installation, self.pipeline, plan, by="me", reason="a test")

    def rewind(self, target: Offsets | None) -> dict[str, Any]:
        return self.run(self.plan(target))

    def complete(self) -> dict[str, Any] | None:
        return rewind.complete(self.installation, self.pipeline)

    def abandon(self) -> dict[str, Any] | None:
        return abandon(self.installation, self.pipeline, by="me", reason="a test")

    def app(self, name: str = "v1.g0.s0", table: str = "") -> FencedTable:
        """A table, the sink by default, as a shard sees it."""
        return FencedTable(table or self.sink_url, {}, app_id(self.pipeline.name, name))

    @property
    def middle(self) -> Offsets:
        return {p: end // 2 for p, end in History.of(self.stream.ledger).committed.items()}

    def add_idle_shard(self, name: str) -> None:
        """A shard of the same generation that has neither a partition nor a batch."""
        leases = self.store.read().leases.values()
        model = next(lease for lease in leases if lease.status_value == "v1.g0.s1")
        idle = model.evolve(
            status_value=name, detail={**model.detail, "partitions": []}, checkpoint={"start_offsets": {}}
        )
        self.store.commit(self.store.read(), [idle.evolve(state=ShardState.OPEN)])
        self.store.commit(self.store.read(), [idle])

    def replace_files(self, hours: float) -> None:
        """All files of the sink give way to one with the same rows, as if so many hours ago."""
        sink = self.sink
        now = time.time()
        rows = sink.to_pyarrow_table()
        path = Path(self.sink_url) / f"joined-{uuid.uuid4().hex}.parquet"
        pq.write_table(rows, path)
        statistics = f'{{"numRecords": {rows.num_rows}}}'
        added = AddAction(path.name, path.stat().st_size, {}, int(now * 1000), False, statistics)
        at_ms = int((now - hours * 3600) * 1000)
        paths = pa.table(sink.get_add_actions())["path"].to_pylist()
        removed = [RemoveAction(path, False, at_ms) for path in paths]
        sink.create_write_transaction([added, *removed], "append", sink.schema())

    def vacuum(self) -> None:
        """Delete all that no commit names now, as a vacuum does after the retention."""
        self.sink.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def paused_pipeline(settings: Settings) -> Paused:
    """Write the tables and the leases of a stream that was paused after 15 batches."""
    stream = simulate(trades(4, count=400, partitions=4, rate_ms=100.0), seed=4, shards=2, even=True)
    stream.ledger = [replace(row, batch=row.batch + 1) for row in stream.ledger]
    installation = Installation(settings)
    leases = installation.lease_table
    store(settings, stream, "stock_stats")
    made = resharding.create(leases, "stock_stats", 1, 2, dict.fromkeys(range(4), 0))
    leases.commit(leases.read(), [lease.evolve(epoch=EPOCH, state=ShardState.CLOSED) for lease in made])
    states = DesiredStates(leases)
    states.declare(STOCK_STATS, 1)
    states.set_state("stock_stats", DesiredState.PAUSED)
    ends = History.of(stream.ledger).committed
    broker = BrokerAnswers(dict.fromkeys(ends, 0), dict(ends), {})  # it has dropped nothing
    return Paused(installation, STOCK_STATS, stream, broker)


def write_as(url: str, app: str, schema: pa.Schema = SINK_SCHEMA) -> None:
    """Append a row as another application would."""
    row = dict.fromkeys(schema.names)
    properties = CommitProperties(app_transactions=[Transaction(app, 1)])
    rows = pa.Table.from_pylist([row], schema=schema)
    write_deltalake(url, rows, mode="append", commit_properties=properties)
