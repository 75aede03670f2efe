"""A worker that stood still past its lease: what it takes and asks for when it wakes."""

from __future__ import annotations

from collections.abc import Callable

from support.leased_shards import add_shards

from hindcast.leases.lease import Lease, StatusType
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.held_leases import SETTLE_SECONDS
from hindcast.testing import FakeClock, MemoryStore

LEASE = 10.0
Make = Callable[..., LeaseCoordinator]


def rows(store: MemoryStore) -> list[Lease]:
    return [row for row in store.read().leases.values() if row.status_type is StatusType.SHARD]


def owners(store: MemoryStore) -> list[str]:
    return sorted(row.lease_owner for row in rows(store))


def pair(store: MemoryStore, coordinator_factory: Make) -> tuple[LeaseCoordinator, LeaseCoordinator]:
    """Two workers, each with a shard."""
    add_shards(store, 2)
    a, b = coordinator_factory("a"), coordinator_factory("b")
    a.renew()
    b.renew()
    assert owners(store) == ["a", "b"]
    return a, b


def alone(clock: FakeClock, worker: LeaseCoordinator) -> None:
    """The other one stands still for longer than a lease."""
    for _ in range(5):
        clock.advance(LEASE / 4)
        worker.renew()


def test_a_worker_that_lost_its_shards_asks_for_none_at_once(
    store: MemoryStore, coordinator_factory: Make, clock: FakeClock
) -> None:
    """If a worker stands still again and again, shards would be handed to it each time. It asks after a
    minute.
    """
    a, b = pair(store, coordinator_factory)
    alone(clock, a)
    assert owners(store) == ["a", "a"]
    assert b.renew().lost
    for _ in range(int(SETTLE_SECONDS / (LEASE / 4))):
        assert not any(row.lease_stealer for row in rows(store))
        clock.advance(LEASE / 4)
        a.renew()
        b.renew()
    b.renew()
    assert [row.lease_stealer for row in rows(store) if row.lease_stealer] == ["b"]


def test_a_worker_that_lost_its_shards_takes_what_is_free(
    store: MemoryStore, coordinator_factory: Make, clock: FakeClock
) -> None:
    """The other worker dies: its shards wait for nothing."""
    a, b = pair(store, coordinator_factory)
    alone(clock, a)
    assert b.renew().lost
    alone(clock, b)
    assert owners(store) == ["b", "b"]
