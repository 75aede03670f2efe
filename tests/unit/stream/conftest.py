"""A worker's side of one shard: it holds the lease, and has no Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from support.shard_stand_ins import FailingAudit, ShardQuery, Takeover

from hindcast.installation import Installation
from hindcast.leases.lease import Lease
from hindcast.recovery.halving import Place
from hindcast.shards import resharding
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.shard_row import REFUSED
from hindcast.stream import shard_starter
from hindcast.stream.query_backoff import QueryBackoff
from hindcast.stream.shard_sync import ShardSync
from hindcast.stream.shard_topics import ShardTopics
from hindcast.stream.start_pace import StartPace
from hindcast.tables.event_log import EventLog
from hindcast.tables.excluded_records import Excluded
from hindcast.testing import FakeClock, MemoryStore


@dataclass
class HeldShard:
    """One shard whose lease worker ``w`` has gained, and that worker's side of it."""

    lease: Lease
    coordinator: LeaseCoordinator
    sync: ShardSync
    query: ShardQuery
    takeover: Takeover
    backoff: QueryBackoff
    #: What each audit was told of what the function raised.
    audit_tracebacks: list[Mapping[Place, str]]
    #: Called whenever the main thread says that it is not stuck.
    on_beat: Callable[[], object] = lambda: None

    def start(self, request: str = "") -> None:
        """Start the shard's query, as the main thread does after the renewal that has gained it."""
        self.sync.take(self.lease, request=request)
        assert self.sync.start_next()


@pytest.fixture
def shard_factory(
    installation: Installation, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., HeldShard]:
    """Make a shard that this worker holds; its query is started by :meth:`HeldShard.start`."""

    def make(audit: FailingAudit, refusal: Exception | None = None) -> HeldShard:
        resharding.create(store, "p", 1, 1, {0: 0})
        coordinator = LeaseCoordinator(
            store, clock, owner="w", fleet="f", slots=1, lease_seconds=10, wanted=_not_refused
        )
        assert coordinator.acquire_slot(clock.advance)
        (lease,) = coordinator.renew().gained
        query = ShardQuery(lease)
        takeover = Takeover(query, refusal)

        def prepared(*_: object, excluded: Excluded, **__: object) -> Takeover:
            takeover.excluded.append(excluded)
            return takeover

        monkeypatch.setattr(shard_starter, "ShardTakeover", prepared)
        tracebacks: list[Mapping[Place, str]] = []

        def audited(*given: Any) -> FailingAudit:
            tracebacks.append(given[-1])
            return audit

        monkeypatch.setattr(shard_starter, "Audit", audited)
        monkeypatch.setattr(ShardTopics, "check_retained", lambda *_: None)
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None))
        deployed: Any = SimpleNamespace(of_shard=lambda key: SimpleNamespace(name=key.stream_id))
        backoff = QueryBackoff()

        def beat() -> None:
            shard.on_beat()

        sync = ShardSync(
            spark,
            installation,
            deployed,
            coordinator.held,
            EventLog(installation.tables),
            clock,
            backoff,
            StartPace(clock, lease_seconds=10),
            beat=beat,
        )
        shard = HeldShard(lease, coordinator, sync, query, takeover, backoff, tracebacks)
        return shard

    return make


def _not_refused(lease: Lease, _: object) -> bool:
    return not lease.detail.get(REFUSED)
