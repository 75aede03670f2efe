"""All workers that share leases agree on how long a lease lasts.

With two durations, two workers would own one shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.leased_shards import add_shards, owners

from hindcast.errors import LeaseSecondsDifferError
from hindcast.installation import Installation
from hindcast.leases.lease import StatusType
from hindcast.leases.store import LeaseStore
from hindcast.settings import Settings
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.slot_row import SlotHolder
from hindcast.stream.worker import Worker
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock, MemoryStore

MakeFor = Callable[..., LeaseCoordinator]


@pytest.fixture
def of(store: MemoryStore, clock: FakeClock) -> MakeFor:
    """Make a coordinator with a lease of so many seconds; it has no slot yet."""

    def make(
        owner: str, lease_seconds: float, *, fleet: str = "f", store: LeaseStore = store
    ) -> LeaseCoordinator:
        return LeaseCoordinator(
            store,
            clock,
            owner=owner,
            fleet=fleet,
            slots=4,
            lease_seconds=lease_seconds,
            wanted=lambda *_: True,
            sleep=lambda _: None,
        )

    return make


def test_a_slot_says_how_long_its_workers_leases_last(
    store: MemoryStore, clock: FakeClock, of: MakeFor
) -> None:
    """The next worker compares it with its own duration."""
    assert of("a", 10).acquire_slot(clock.advance)
    (slot,) = [row for row in store.read().leases.values() if row.lease_owner == "a"]
    assert SlotHolder.of(slot).lease_seconds == 10


@pytest.mark.parametrize("fleet", ["f", "another"])
@pytest.mark.parametrize("seconds", [3, 60])
def test_a_worker_whose_leases_last_for_another_time_is_refused(
    store: MemoryStore, clock: FakeClock, of: MakeFor, seconds: float, fleet: str
) -> None:
    """Longer or shorter, in this fleet or in another on the same leases: it takes nothing as soon as it sees
    that the other lives.
    """
    add_shards(store, 2)
    old, new = of("old", 10), of("new", seconds, fleet=fleet)
    assert old.acquire_slot(clock.advance)
    old.renew()
    began = clock.monotonic()

    def wait(seconds: float) -> None:
        clock.advance(min(seconds, old.held.renewal_seconds))
        old.renew()

    with pytest.raises(
        LeaseSecondsDifferError, match=rf"would last {seconds} seconds, but old .* leases of 10"
    ) as refused:
        new.acquire_slot(wait)
    assert refused.value.exit_code == 2
    assert refused.value.fields["fleet"] == "f"
    assert clock.monotonic() - began <= old.held.renewal_seconds
    assert "new" not in {row.lease_owner for row in store.read().leases.values()}
    assert set(owners(store).values()) == {"old"}


def test_a_worker_that_has_left_with_another_lease_hinders_nobody(
    store: MemoryStore, clock: FakeClock, of: MakeFor
) -> None:
    """Its slot still says how long its leases lasted, and nobody holds the slot."""
    old = of("old", 60)
    assert old.acquire_slot(clock.advance)
    old.leave()
    began = clock.monotonic()
    assert of("new", 10).acquire_slot(clock.advance)
    assert clock.monotonic() == began


def test_a_worker_with_another_lease_waits_until_that_of_the_dead_ones_has_passed(
    store: MemoryStore, clock: FakeClock, of: MakeFor
) -> None:
    """It waits for the longer of the two durations, and no less: until then the dead ones may wake and own
    what they have.
    """
    old, new = of("old", 60), of("new", 10)
    assert old.acquire_slot(clock.advance)
    began = clock.monotonic()
    assert new.acquire_slot(clock.advance)
    assert 60 <= clock.monotonic() - began <= 60 + 10


def test_a_worker_that_wakes_after_the_others_have_another_lease_owns_nothing(
    store: MemoryStore, clock: FakeClock, of: MakeFor
) -> None:
    """The newcomer does not need its slot, but takes it all the same, and its shards too: the old worker must
    not renew them.
    """
    add_shards(store, 2)
    old, new = of("old", 60), of("new", 10)
    assert old.acquire_slot(clock.advance)
    gained = old.renew().gained
    assert new.acquire_slot(clock.advance)
    assert {
        row.updated_at for row in store.read().leases.values() if row.status_type is StatusType.SHARD
    } == {clock.now()}
    new.renew()
    renewal = old.renew()
    assert set(renewal.lost) >= {lease.key for lease in gained}
    assert old.held.slot is None
    assert "old" not in {row.lease_owner for row in store.read().leases.values()}


def test_a_slot_of_an_older_hindcast_hinders_nobody(
    store: MemoryStore, clock: FakeClock, of: MakeFor
) -> None:
    """It does not say how long its leases last, so workers can be upgraded one after the other."""
    assert of("old", 10).acquire_slot(clock.advance)
    for row in [row for row in store.read().leases.values() if row.lease_owner]:
        store.commit(store.read(), [row.evolve(detail={})])
    assert of("new", 3).acquire_slot(clock.advance)


def test_a_refused_worker_leaves_an_event_with_a_cure(
    settings_factory: Callable[..., Settings], of: MakeFor
) -> None:
    """It starts no Spark, and its error is that of bad input."""
    clock = FakeClock()
    shared = MemoryStore()
    old = of("old", 10, store=shared)
    assert old.acquire_slot(clock.advance)
    settings = settings_factory(lease_seconds=3)
    installation: Any = Installation(settings)
    installation.lease_table = shared
    made = Worker(installation, clock)

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        old.renew()

    made.threads.stop.wait = wait  # type: ignore[assignment,method-assign]
    with pytest.raises(LeaseSecondsDifferError):
        made.run()
    (event,) = ControlTables(settings).rows(ControlTable.EVENTS)
    known: dict[str, Any] = {"kind": "worker_refused", "severity": "error"}
    assert {name: event[name] for name in known} == known
    assert "stop all of them, then start all" in event["cure"]
    assert {
        row.lease_owner for row in shared.read().leases.values() if row.status_type is StatusType.SLOT
    } == {"old", ""}
