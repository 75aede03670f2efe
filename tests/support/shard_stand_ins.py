"""What stands in for the query and the audit of a shard, so that a worker's side of both runs without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hindcast.errors import HindcastError
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets
from hindcast.recovery.raising_records import LeftOut
from hindcast.tables.excluded_records import Excluded


class FailingAudit:
    """Stands in for :class:`hindcast.stream.late_and_dead_rows.Audit`. Its first passes fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.passes = 0
        self.give_way: Callable[[], object] = lambda: None

    def filed(self) -> int:
        return 0

    def run(self, _: object) -> int:
        self.passes += 1
        if self.failures:
            raise self.failures.pop(0)
        return 0


class SlowAudit(FailingAudit):
    """Files one batch a pass."""

    at = 0

    def filed(self) -> int:
        return self.at

    def run(self, batches: object) -> int:
        super().run(batches)
        self.at += 1
        return self.at


@dataclass
class ShardQuery:
    """Stands in for :class:`hindcast.stream.shard_runner.ShardRunner`. A test sets what the query does."""

    lease: Lease
    failure: BaseException | None = None
    progressed: bool = False
    drained: bool = False
    draining: bool = False
    rebuilt: str = ""
    batch: int = 0
    end_offsets: Offsets = field(default_factory=dict)
    floors: Offsets = field(default_factory=dict)
    #: From where to where the batch after the last one was planned to read.
    planned: tuple[Offsets, Offsets] | None = None
    stops: int = 0
    flushes: int = 0
    #: Called by each flush.
    on_flush: Callable[[], object] = lambda: None
    #: Called by each stop.
    on_stop: Callable[[], object] = lambda: None

    def go_on(self) -> None: ...

    def flush(self) -> None:
        self.flushes += 1
        self.on_flush()

    def drain(self) -> None:
        self.draining = True

    def stop(self) -> None:
        self.stops += 1
        self.on_stop()

    def planned_next(self) -> tuple[Offsets, Offsets] | None:
        return self.planned

    def unfiled(self, after: int) -> list[Any]:
        return [SimpleNamespace(batch=number) for number in range(after + 1, self.batch + 1)]


@dataclass
class Search:
    """Stands in for :class:`hindcast.recovery.raising_records.RaisingRecords`. A test ends it."""

    error: BaseException
    ended: bool = False
    found: LeftOut = field(default_factory=LeftOut)
    refusal: HindcastError | None = None
    reason: str = "no record raises"
    failure: BaseException | None = None
    stops: int = 0

    def stop(self) -> None:
        self.stops += 1


@dataclass
class Takeover:
    """Stands in for :class:`hindcast.stream.shard_takeover.ShardTakeover`.

    Its starts fail with ``refusal``, if there is one, and give ``query`` else.
    """

    query: ShardQuery
    refusal: Exception | None = None
    app: str = "p/v1/v1.g0.s0"
    #: Why the state was to be rebuilt, start by start.
    started: list[str] = field(default_factory=list)
    #: The records that each take-over was to leave out.
    excluded: list[Excluded] = field(default_factory=list)

    def prepare(self) -> None: ...

    def seal(self) -> ShardQuery:
        return self.query

    def start(self, rebuild: str, *, held: Callable[[], object]) -> ShardQuery:
        self.started.append(rebuild)
        held()
        if self.refusal is not None:
            raise self.refusal
        return self.query
