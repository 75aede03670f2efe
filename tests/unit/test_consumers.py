"""What a worker says of a shard that it gives back, and when."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast.control import shards
from hindcast.control.desired import REFUSED
from hindcast.control.events import EventLog
from hindcast.control.keeper import Keeper
from hindcast.control.leases import Lease, LeaseKey
from hindcast.control.tables import ControlTables
from hindcast.errors import CheckpointRefusedError
from hindcast.settings import Settings
from hindcast.stream import consumers
from hindcast.stream.consumers import Backoff, Consumers
from hindcast.testing import FakeClock, MemoryStore


class EagerKeeper(Keeper):
    """Renews at the very moment a lease is closed: the renewal thread at its most unlucky."""

    def closed(self, key: LeaseKey) -> None:
        super().closed(key)
        self.step()


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shard's take-over is refused."""

    class Refusing:
        app = "p/v1/v1.g0.s0"

        def __init__(self, *_: Any) -> None: ...

        def start(self, _: str) -> str:
            raise CheckpointRefusedError(pipeline="p", shard="v1.g0.s0", path="somewhere", problem="it is torn", cure="Mend it.")

        def stop(self) -> None: ...

    monkeypatch.setattr(consumers, "ShardConsumer", Refusing)
    monkeypatch.setattr(consumers, "_check_retained", lambda *_: None)


@pytest.mark.usefixtures("refusing")
def test_a_refused_shard_is_marked_before_anybody_may_take_it(settings_factory: Callable[..., Settings]) -> None:
    """The renewal that frees the lease also says why: else the next worker would take the shard and be refused, for ever."""
    settings, clock, store = settings_factory(), FakeClock(), MemoryStore()
    (lease,) = shards.create(store, "p", 1, 1, {0: 0})
    keeper = EagerKeeper(store, clock, owner="w", fleet="f", slots=1, lease_seconds=10, wanted=_not_refused)
    assert keeper.acquire_slot(clock.advance)
    (gained,) = keeper.step().gained
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None))
    pipelines: Any = {"p": SimpleNamespace(name="p")}
    Consumers(spark, settings, pipelines, keeper, EventLog(ControlTables(settings)), clock, Backoff()).start(gained)
    row = store.read().leases[lease.key]
    assert (row.lease_owner, "it is torn" in row.detail[REFUSED]) == ("", True)
    assert keeper.step().gained == []


def _not_refused(lease: Lease, _: object) -> bool:
    return not lease.detail.get(REFUSED)
