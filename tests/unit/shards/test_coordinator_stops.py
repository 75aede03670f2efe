"""A worker that stops: what it holds, and what is given to it too late, is free at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from support.leased_shards import add_shards, owners, row
from support.waiting import wait_until

from hindcast.leases.lease import ShardState
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.testing import FakeClock, MemoryStore, Outcome

Make = Callable[..., LeaseCoordinator]


def test_a_clean_stop_frees_everything_at_once(store: MemoryStore, coordinator_factory: Make) -> None:
    """After ``leave`` the next worker takes the shards without waiting for anything to expire."""
    keys = add_shards(store, 2)
    a = coordinator_factory("a")
    a.renew()
    assert set(a.held.drain()) == set(keys)
    assert a.held.drain() == [], "nobody is asked twice"
    a.renew()
    assert {row(store, key).state for key in keys} == {ShardState.CLOSING}
    for key in keys:
        a.held.mark_closed(key)
    slot = a.held.slot
    assert slot is not None
    a.leave()
    assert row(store, slot).state == ShardState.OPEN, "a slot has no life like a shard's"
    assert {lease.lease_owner for lease in store.read().leases.values()} == {""}
    assert {row(store, key).state for key in keys} == {ShardState.CLOSED}
    assert {lease.key for lease in coordinator_factory("b").renew().gained} == set(keys)
    assert {row(store, key).state for key in keys} == {ShardState.OPEN}


def test_a_shard_that_has_ended_is_nobodys_and_promised_to_nobody(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """Consumed to its end it goes to nobody, even if another worker had asked for it."""
    (key,) = add_shards(store, 1)
    a = coordinator_factory("a")
    a.renew()
    store.commit(store.read(), [row(store, key).evolve(lease_stealer="a")])
    a.held.mark_closed(key, ended=True)
    a.renew()
    ended = row(store, key)
    assert (ended.lease_owner, ended.lease_stealer, ended.state) == ("", "", ShardState.TERMINATED)


def test_what_is_given_to_a_worker_that_stops_is_free_at_once(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """A lease that it had asked for is handed over while it stops. Nobody waits until that lease expires, and
    no request stays behind.
    """
    add_shards(store, 4)
    a = coordinator_factory("a")
    a.renew()
    b = coordinator_factory("b")
    b.renew()
    (asked,) = a.renew().close[:1]
    b.held.drain()
    a.held.mark_closed(asked)
    a.renew()
    assert row(store, asked).lease_owner == "b"
    store.commit(store.read(), [row(store, asked).evolve(lease_stealer="c")])
    b.leave()
    assert {lease.lease_owner for lease in store.read().leases.values()} == {"a", ""}
    assert {lease.lease_stealer for lease in store.read().leases.values()} == {""}


def test_a_worker_that_lost_its_slot_frees_what_it_was_given(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """It holds nothing any more when it leaves. A lease that was handed to it while it slept is free at once
    all the same.
    """
    add_shards(store, 2)
    a = coordinator_factory("a")
    a.renew()
    b = coordinator_factory("b")
    b.renew()
    (asked,) = a.renew().close
    a.held.mark_closed(asked)
    a.renew()
    slot = b.held.slot
    assert slot is not None
    store.commit(store.read(), [row(store, slot).given_to("c")])
    assert slot in b.renew().lost
    b.leave()
    assert "b" not in owners(store).values()


def test_a_worker_that_leaves_without_draining_takes_nothing_back(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """A worker that gives up after an error frees its leases and does not take them in the same commit."""
    add_shards(store, 2)
    a = coordinator_factory("a")
    a.renew()
    a.leave()
    assert {lease.lease_owner for lease in store.read().leases.values()} == {""}


def test_what_a_renewal_takes_while_its_worker_begins_to_stop_is_free_with_the_next(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """The worker begins to stop while the store is asked. Nobody would consume what is gained, so it is not
    reported, and the next renewal frees it.
    """
    add_shards(store, 2)
    a = coordinator_factory("a")

    def stopping() -> Outcome:
        assert a.held.drain() == []
        return Outcome.OK

    store.outcome = stopping
    assert a.renew().gained == []
    assert set(owners(store).values()) == {"a"}
    assert a.held.wait_for_change(0.0), "the next renewal is due at once"
    a.renew()
    assert set(owners(store).values()) == {""}


def test_what_a_renewal_takes_while_its_worker_leaves_is_free_once_it_has_left(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """The renewal thread's commit is under way when the main thread gives everything up."""
    add_shards(store, 2)
    a = coordinator_factory("a")
    slot = a.held.slot
    assert slot is not None
    main = threading.Thread(target=a.leave)

    def left() -> Outcome:
        store.outcome = lambda: Outcome.OK
        main.start()
        wait_until(lambda: not a.held.holds(slot, 1), 10.0, "the main thread has begun to leave")
        return Outcome.OK

    store.outcome = left
    assert a.renew().gained == []
    main.join()
    assert {lease.lease_owner for lease in store.read().leases.values()} == {""}
