"""A pipeline of several kinds under test: hand-made rows on topics of its own, owners that come and go, and
the verdict.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from deltalake import DeltaTable
from kafka import KafkaProducer
from support.shard_harness import Shard

from hindcast.installation import Installation
from hindcast.pipeline import TOPIC_STRIDE, Lookup, Pipeline
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import run_replay
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable
from hindcast.testing import Record
from hindcast.verdict.judge import judge
from hindcast_sandbox.load import ensure_topic

#: The moment from which hand-made rows count their seconds.
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)

Value = Mapping[str, Any] | bytes | Record | None


def at(seconds: float) -> str:
    """So many seconds after noon, as rows say it."""
    return (NOON + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def renamed(pipeline: Pipeline, prefix: str) -> Pipeline:
    """The pipeline on topics of its own."""
    joined = tuple(
        one if isinstance(one, Lookup) else replace(one, name=f"{prefix}-{one.name}")
        for one in pipeline.joined
    )
    return replace(
        pipeline, source=replace(pipeline.source, name=f"{prefix}-{pipeline.source.name}"), joined=joined
    )


@dataclass
class Workload(Shard):
    """Sends what a test made by hand, topic by topic."""

    counts: Counter[int] = field(default_factory=Counter)

    def begin(self) -> None:
        for topic in self.pipeline.topics:
            ensure_topic(self.servers, topic.name, self.partitions)

    def put(self, rows: Iterable[Value], *, topic: int = 0, partition: int = 0) -> None:
        """Send rows to one partition, in order."""
        producer = KafkaProducer(bootstrap_servers=self.servers.split(","), acks="all")
        for row in rows:
            record = row if isinstance(row, Record) else Record(row)
            value = record.value
            if isinstance(value, Mapping):
                value = json.dumps(value).encode()
            producer.send(
                self.pipeline.topics[topic].name,
                value=value,
                key=record.key,
                headers=list(record.headers),
                partition=partition,
            )
            self.counts[topic * TOPIC_STRIDE + partition] += 1
        producer.flush()
        producer.close()

    def reached(self) -> dict[int, int]:
        topics, partitions = range(len(self.pipeline.topics)), range(self.partitions)
        return {
            place: self.counts[place]
            for place in (topic * TOPIC_STRIDE + number for topic in topics for number in partitions)
        }

    def read(self, rebuild: str = "") -> None:
        """A new owner consumes what was sent so far, and stops."""
        owner = self.start(rebuild)
        self.consume(owner)
        self.renew()
        self.retire(owner)

    def rows(self) -> list[dict[str, Any]]:
        """The sink's rows, the stamps of time as they are."""
        found: list[dict[str, Any]] = (
            DeltaTable(self.settings.table("sinks", self.pipeline.sink.name)).to_pyarrow_table().to_pylist()
        )
        return found

    def filed(self, table: ControlTable) -> list[dict[str, Any]]:
        return ControlTables(self.settings).rows(table, [("pipeline", "=", self.pipeline.name)])

    def verdict(self, run_id: str = "once", **asked: Any) -> dict[str, Any]:
        """File what is late or poison, replay everything or what was asked, judge."""
        self.file()
        installation = Installation(self.settings)
        request = ReplayRequest(pipeline=self.pipeline.name, run_id=run_id, **(asked or {"everything": True}))
        run_replay(lambda: self.spark, installation, self.pipeline, request)
        return judge(lambda: self.spark, installation, self.pipeline, run_id)

    def differences(self, run_id: str = "once") -> list[dict[str, Any]]:
        return ControlTables(self.settings).rows(ControlTable.DIFFERENCES, [("run_id", "=", run_id)])
