"""How long a worker waits before it starts a failed query again."""

from __future__ import annotations

import math

from hindcast.leases.lease import LeaseKey, StatusType
from hindcast.stream.query_backoff import MAX_BACKOFF_SECONDS, QueryBackoff

ONE, OTHER = (LeaseKey("p", StatusType.SHARD, f"v1.g0.s{number}") for number in range(2))


def test_the_wait_doubles_with_each_failure_up_to_a_minute() -> None:
    """A fault that passes costs a second; one that does not costs a start a minute."""
    backoff = QueryBackoff()
    waits = [backoff.failed(ONE, now=0.0) for _ in range(9)]
    assert waits == [1, 2, 4, 8, 16, 32, MAX_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS]
    assert backoff.failed(OTHER, now=0.0) == 1


def test_a_query_may_fail_for_days() -> None:
    """At a start a minute that is some thousand failures, and the wait stays a minute."""
    backoff = QueryBackoff()
    waits = [backoff.failed(ONE, now=0.0) for _ in range(5000)]
    assert set(waits[6:]) == {MAX_BACKOFF_SECONDS}


def test_a_shard_may_be_tried_again_once_its_wait_is_over() -> None:
    """Other shards never wait for it."""
    backoff = QueryBackoff()
    backoff.failed(ONE, now=100.0)
    assert not backoff.over(ONE, 100.9)
    assert backoff.over(ONE, 101.0)
    assert backoff.over(OTHER, 0.0)


def test_a_batch_that_was_committed_ends_the_wait() -> None:
    """The next failure counts as the first."""
    backoff = QueryBackoff()
    backoff.failed(ONE, now=0.0)
    backoff.failed(ONE, now=0.0)
    backoff.succeeded(ONE)
    assert backoff.over(ONE, 0.0)
    assert backoff.failed(ONE, now=0.0) == 1
    backoff.succeeded(OTHER)


def test_the_next_end_is_the_first_that_lies_ahead() -> None:
    """A poll finds the same as before until then."""
    backoff = QueryBackoff()
    assert backoff.next_end(0.0) == math.inf
    backoff.failed(ONE, now=10.0)
    backoff.failed(OTHER, now=12.0)
    assert backoff.next_end(10.0) == 11.0
    assert backoff.next_end(11.0) == 13.0
    assert backoff.next_end(13.0) == math.inf
