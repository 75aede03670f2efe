"""Between two renewals a coordinator polls: it acts at once on what a poll finds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.leased_shards import add_shards, owners

from hindcast.leases.lease import REMOVED, Lease, ShardState
from hindcast.leases.store import Snapshot
from hindcast.shards import resharding
from hindcast.shards.coordinator import POLLS, LeaseCoordinator
from hindcast.shards.slot_row import SlotHolder
from hindcast.testing import FakeClock, MemoryStore

LEASE = 10.0
Make = Callable[..., LeaseCoordinator]


def test_a_poll_finds_an_expired_lease_before_the_next_renewal(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """A poll writes nothing. It answers True once a lease was seen unchanged for its whole duration."""
    (key,) = add_shards(store, 1)
    coordinator_factory("a").renew()
    b = coordinator_factory("b")
    clock.advance(1)
    assert not b.poll()
    commits = store.commits
    clock.advance(LEASE - 1.1)
    assert not b.poll()
    clock.advance(0.2)
    assert b.poll()
    assert store.commits == commits
    assert {lease.key for lease in b.renew().gained} == {key}


@given(
    st.lists(
        st.tuples(st.sampled_from(["a renews", "b renews", "nothing"]), st.floats(0.0, LEASE)), max_size=20
    )
)
def test_what_a_poll_remembers_never_changes_its_answer(moves: list[tuple[str, float]]) -> None:
    """Whatever expires or is written between two polls, each answers like one that remembers nothing. Each
    reading moves the clock.
    """

    class Ticking(FakeClock):
        def monotonic(self) -> float:
            self.advance(0.125)
            return super().monotonic()

    store, clock = MemoryStore(), Ticking()
    add_shards(store, 2)
    common: dict[str, Any] = {"fleet": "f", "slots": 2, "lease_seconds": LEASE, "wanted": lambda *_: True}
    a, b = (LeaseCoordinator(store, clock, owner=owner, **common) for owner in "ab")
    for one in (a, b):
        assert one.acquire_slot(lambda _: None)
    for move, seconds in moves:
        {"a renews": a.renew, "b renews": b.renew, "nothing": lambda: None}[move]()
        due = b.poll()
        assert due or not b._is_due(store.read(), b._share.room()) or b.poll()
        clock.advance(seconds)


def test_a_poll_weighs_nothing_if_nothing_was_written_or_has_expired(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """Nearly every poll is one of these, and costs no more than the read."""
    add_shards(store, 2)
    weighed = []
    one = coordinator_factory("a", wanted=lambda *_: weighed.append(1) or True)
    one.renew()
    assert not one.poll()
    times = len(weighed)
    clock.advance(1)
    assert not one.poll()
    assert len(weighed) == times
    resharding.create(store, "q", 1, 1, {0: 0})
    assert one.poll()


def test_a_poll_waits_no_longer_than_until_something_expires(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """Polls are a part of a lease apart, but the poll that finds an expired lease is not late. No wait is
    ever none at all.
    """
    add_shards(store, 1)
    coordinator_factory("a").renew()
    b = coordinator_factory("b")
    often = b.poll_seconds
    assert often == LEASE / POLLS
    clock.advance(LEASE / 2)
    assert not b.poll()
    clock.advance(LEASE / 2 - often / 4)
    assert not b.poll()
    assert b.poll_seconds == pytest.approx(often / 4)
    clock.advance(b.poll_seconds)
    assert b.poll_seconds == often
    assert b.poll()
    assert b.poll_seconds == often


def test_a_poll_finds_that_a_lease_was_lost(store: MemoryStore, coordinator_factory: Make) -> None:
    """Its consumer must stop now, and not with the next renewal. That holds too if the row was removed, and
    for the worker's slot.
    """
    taken, removed = add_shards(store, 2)
    a = coordinator_factory("a")
    for change in (
        store.read().leases[taken].given_to("b"),
        store.read().leases[removed].evolve(state=REMOVED),
        store.read().leases[a.held.slot].given_to("b"),
    ):
        a.renew()
        assert not a.poll()
        store.commit(store.read(), [change])
        assert a.poll()
        assert change.key in a.renew().lost


def test_a_poll_finds_that_shards_may_be_opened(store: MemoryStore, coordinator_factory: Make) -> None:
    """Children whose parent has just ended are opened, and taken, at once."""
    (parent,) = resharding.create(store, "p", 1, 1, {0: 0, 1: 0})
    resharding.reshard(store, "p", 1, 2, {0: 0, 1: 0})
    a = coordinator_factory("a", wanted=lambda lease, _: lease.key != parent.key)
    assert not a.poll()
    store.commit(store.read(), [store.read().leases[parent.key].moved(ShardState.TERMINATED)])
    assert a.poll()
    a.renew()
    assert set(owners(store).values()) == {"", "a"}


def test_a_poll_leaves_alone_what_belongs_to_others(store: MemoryStore, coordinator_factory: Make) -> None:
    """A worker that has its share does not renew early for a shard that is free for another."""
    a, b = coordinator_factory("a"), coordinator_factory("b")
    add_shards(store, 4)
    assert len(a.renew().gained) == 2
    assert (a.poll(), b.poll()) == (False, True)


def test_a_worker_that_may_take_nothing_finds_nothing_to_take(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """Neither does a worker that has no slot yet, nor one that stops."""
    add_shards(store, 1)
    without, stopping = coordinator_factory("without", slot=False), coordinator_factory("stopping")
    stopping.held.drain()
    assert (without.poll(), stopping.poll()) == (False, False)


def test_a_hand_over_waits_for_no_renewal(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """The request, the closing and the transfer are each found by the next poll: the clock hardly moves."""
    add_shards(store, 2)
    a = coordinator_factory("a")
    a.renew()
    b = coordinator_factory("b")
    clock.advance(0.1)
    assert not b.poll()
    assert len(b.renew().gained) == 0
    assert a.poll(), "a shard is asked for"
    (key,) = a.renew().close
    assert not a.poll()
    assert not a.held.wait_for_change(0.0)
    a.held.mark_closed(key)
    assert a.held.wait_for_change(0.0), "its lease may be given away"
    a.renew()
    assert b.poll(), "it was given to b"
    assert [lease.key for lease in b.renew().gained] == [key]


def test_a_slow_first_read_costs_no_slot(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """A dead worker's slot is taken however long the table took to open. What counts is how long the slot was
    seen unchanged.
    """

    class SlowToOpen(MemoryStore):
        def read(self) -> Snapshot:
            if not self.opened:
                clock.advance(LEASE)
                self.opened = True
            return store.read()

        def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
            store.commit(snapshot, changes)

        opened = False

    coordinator_factory("dead", slots=1)
    assert coordinator_factory("heir", of=SlowToOpen(), slots=1).held.slot is not None


def test_a_worker_that_is_still_starting_takes_and_asks_for_nothing(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """Shards stay with those that can consume them until the newcomer can. Until then nobody counts on it."""
    add_shards(store, 2)
    newcomer = coordinator_factory("newcomer", slots=2, worker=SlotHolder(starting=True))
    assert newcomer.renew().gained == []
    assert not newcomer.poll(), "two are free, and not for it"
    able = coordinator_factory("able", slots=2)
    assert len(able.renew().gained) == 2, "the share of one worker, as the other cannot consume"
    newcomer.renew()
    assert not newcomer.poll()
    assert able.renew().close == []
    newcomer.held.mark_ready()
    assert newcomer.held.wait_for_change(0.0)
    newcomer.renew()
    newcomer.renew()
    assert len(able.renew().close) == 1


def test_a_worker_takes_no_more_than_it_can_start_and_the_rest_as_it_does(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """A shard that waits for its start stands still. A shard that was started makes room for another, and the
    next poll finds the room.
    """
    add_shards(store, 5)
    one = coordinator_factory("a", start_limit=lambda: 2)
    gained = one.renew().gained
    assert len(gained) == 2
    assert (one.poll(), one.renew().gained) == (False, [])
    one.held.mark_started(gained[0].key, gained[0].epoch + 1)
    assert not one.poll(), "that was another epoch"
    one.held.mark_started(gained[0].key, gained[0].epoch)
    assert one.poll()
    (third,) = one.renew().gained
    one.held.mark_closed(gained[1].key, gained[1].epoch)
    one.held.mark_started(third.key, third.epoch)
    assert len(one.renew().gained) == 2


def test_a_worker_asks_others_for_no_more_than_it_can_start(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """A shard that it asked for counts until it is started. So its share comes to it in parts, and each shard
    changes hands once.
    """
    add_shards(store, 8)
    a, b = coordinator_factory("a"), coordinator_factory("b", start_limit=lambda: 2, slot=False)
    for lease in a.renew().gained:
        a.held.mark_started(lease.key, lease.epoch)
    assert b.acquire_slot(lambda _: None)
    for _ in range(4):  # two rounds are enough for four shards, two at a time; more change nothing
        b.renew()
        assert sum(lease.lease_stealer == "b" for lease in store.read().leases.values()) <= 2
        for key in a.renew().close:
            a.held.mark_closed(key)
        a.renew()
        gained = b.renew().gained
        assert len(gained) <= 2
        for lease in gained:
            b.held.mark_started(lease.key, lease.epoch)
    assert Counter(owners(store).values()) == {"a": 4, "b": 4}
    assert {
        lease.epoch
        for lease in store.read().leases.values()
        if lease.lease_owner == "b" and lease.status_type == "shard"
    } == {2}


def test_what_was_asked_for_counts_as_what_will_be_started(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """Once a worker can start one more, it asks for one more."""
    add_shards(store, 12)
    coordinator_factory("a").renew()
    room = [1]
    b = coordinator_factory("b", start_limit=lambda: room[0])
    for room[0] in (1, 1, 2, 3):
        b.renew()
        assert sum(lease.lease_stealer == "b" for lease in store.read().leases.values()) == room[0]


def test_two_workers_that_start_slowly_share_what_is_free_and_take_nothing_from_each_other(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """Neither asks the other for a shard while there are free ones, however uneven they are."""
    add_shards(store, 40)
    workers = {
        "a": coordinator_factory("a", start_limit=lambda: 1),
        "b": coordinator_factory("b", start_limit=lambda: 5),
    }
    for _ in range(25):
        for one in workers.values():
            for lease in one.renew().gained:
                one.held.mark_started(lease.key, lease.epoch)
    assert Counter(owners(store).values()) == {"a": 20, "b": 20}
    assert {lease.epoch for lease in store.read().leases.values() if lease.status_type == "shard"} == {1}


def test_a_shard_that_failed_is_tried_again_once_its_backoff_is_over(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """Not with the next renewal: a poll finds that the time has come. The polls before it find nothing."""
    add_shards(store, 1)
    again_at = 1.0
    one = coordinator_factory(
        "a",
        wanted=lambda *_: clock.monotonic() >= again_at,
        wanted_changes_at=lambda now: again_at if now < again_at else math.inf,
    )
    assert one.renew().gained == []
    assert not one.poll()
    clock.advance(again_at - one.poll_seconds / 2)
    assert not one.poll()
    clock.advance(one.poll_seconds)
    assert one.poll()
    assert len(one.renew().gained) == 1
