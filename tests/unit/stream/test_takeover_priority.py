"""A shard that stands still goes first: what runs beside its take-over waits for it, and never for long."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hindcast.leases.lease import LeaseKey, StatusType
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.stream.takeover_priority import SECONDS, TakeoverPriority
from hindcast.testing import FakeClock

LEASE = 10.0
ONE, OTHER = (LeaseKey("p", StatusType.SHARD, f"v1.g0.s{number}") for number in range(2))


def waiting(precedence: TakeoverPriority) -> threading.Thread:
    """Something that gives way; it ends once nothing stands still."""
    thread = threading.Thread(target=precedence.give_way)
    thread.start()
    return thread


def test_all_gives_way_until_every_shard_is_served() -> None:
    """Two are taken at once: the first one's batch lets nobody pass yet."""
    precedence = TakeoverPriority(FakeClock())
    precedence.begin(ONE)
    precedence.begin(OTHER)
    thread = waiting(precedence)
    precedence.keep([OTHER])
    thread.join(0.1)
    assert thread.is_alive()
    precedence.keep([])
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_nothing_waits_where_no_shard_stands_still_or_for_long(clock: FakeClock) -> None:
    """A shard without new records commits nothing: the others go on after a while, and meet no wait any
    more.
    """
    precedence = TakeoverPriority(clock)
    precedence.give_way()
    precedence.begin(ONE)
    clock.advance(SECONDS)
    precedence.give_way()
    precedence.keep([ONE])
    precedence.give_way()
    precedence.begin(OTHER)
    thread = waiting(precedence)
    precedence.keep([])
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_what_gives_way_waits_for_what_is_left_of_the_time_and_no_longer(clock: FakeClock) -> None:
    """The time counts from the last shard taken, by this clock, which never began at zero."""

    class Told(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return super().wait(0)

    waited: list[float | None] = []
    clock.advance(100)
    precedence = TakeoverPriority(clock)
    precedence._none = Told()
    precedence.begin(ONE)
    for seconds in (1.0, SECONDS):
        clock.advance(seconds)
        precedence.give_way()
    assert waited == [SECONDS - 1, 0.0]


def test_a_worker_is_suspected_once_a_renewal_is_overdue_and_until_its_shards_are_taken(
    clock: FakeClock, coordinator_factory: Callable[..., LeaseCoordinator]
) -> None:
    """One that renews, or left long ago, or is oneself, is not."""
    one, other = coordinator_factory("a"), coordinator_factory("b")
    one.renew()
    assert not one.suspects()
    clock.advance(0.3 * LEASE)
    one.poll()
    assert not one.suspects()
    clock.advance(0.2 * LEASE)
    one.poll()
    assert one.suspects(), "b has not renewed for half a lease"
    other.renew()
    one.poll()
    assert not one.suspects()
    clock.advance(1.3 * LEASE)
    one.poll()
    assert one.suspects(), "its shards may just be on their way"
    clock.advance(0.2 * LEASE)
    one.poll()
    assert not one.suspects(), "nobody waits for a worker that is gone"


def test_a_worker_does_not_suspect_itself(
    clock: FakeClock, coordinator_factory: Callable[..., LeaseCoordinator]
) -> None:
    """Its own renewal is overdue: its shards wait for no other worker that may have died."""
    one = coordinator_factory("a")
    one.renew()
    one.poll()
    clock.advance(0.5 * LEASE)
    one.poll()
    assert not one.suspects()
