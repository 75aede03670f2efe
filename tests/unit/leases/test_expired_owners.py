"""The observer: a lease that it has seen unchanged for its whole duration has expired, by its own clock."""

from __future__ import annotations

import math

from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import Lease, StatusType
from hindcast.testing import FakeClock

LEASE = 10.0
OWNED = Lease(stream_id="p", status_type=StatusType.SHARD, status_value="s", lease_owner="a")


def test_the_next_expiry_lies_ahead(clock: FakeClock) -> None:
    """At the moment of its expiry a lease has expired, so the next expiry is that of another lease, or never
    comes. A free lease has none.
    """
    observer = Observer(clock, LEASE)
    later = OWNED.evolve(status_value="later")
    observer.observe([OWNED, OWNED.evolve(status_value="free", lease_owner="")])
    clock.advance(1)
    observer.observe([OWNED, later])
    assert observer.next_expiry(clock.monotonic()) == LEASE
    clock.advance(LEASE - 1)
    assert (observer.expired(OWNED), observer.expired(later)) == (True, False)
    assert observer.next_expiry(clock.monotonic()) == LEASE + 1
    clock.advance(1)
    assert observer.next_expiry(clock.monotonic()) == math.inf


def test_a_lease_counts_from_when_it_was_first_seen_as_it_is(clock: FakeClock) -> None:
    """A lease that was never observed, or that has changed since, has not been unchanged for any time."""
    observer = Observer(clock, LEASE)
    clock.advance(5)
    assert observer.unchanged_seconds(OWNED) == 0.0
    observer.observe([OWNED])
    clock.advance(3)
    observer.observe([OWNED])
    assert observer.unchanged_seconds(OWNED) == 3.0
    for other in (OWNED.renewed(), OWNED.evolve(epoch=1), OWNED.evolve(lease_owner="b")):
        assert observer.unchanged_seconds(other) == 0.0
        observer.observe([other])
        clock.advance(LEASE)
        assert (observer.expired(other), observer.alive(other)) == (True, False)
        observer.observe([OWNED])
        clock.advance(3)
        assert observer.unchanged_seconds(OWNED) == 3.0
    assert (observer.expired(OWNED.given_to("")), observer.alive(OWNED.given_to(""))) == (False, False)
