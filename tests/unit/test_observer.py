"""The observer: a lease that it has seen unchanged for its whole duration has expired, by its own clock."""

from __future__ import annotations

import math

from hindcast.control.leases import Lease, StatusType
from hindcast.control.observer import Observer
from hindcast.testing import FakeClock

LEASE = 10.0
OWNED = Lease(stream_id="p", status_type=StatusType.SHARD, status_value="s", lease_owner="a")


def test_the_next_expiry_lies_ahead(clock: FakeClock) -> None:
    """At the moment of its expiry a lease has expired, so the next expiry is another one's, or never comes; a free lease has none."""
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
