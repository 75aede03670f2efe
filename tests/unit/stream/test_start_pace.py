"""How many shards a worker asks for, by how quickly it starts them."""

from __future__ import annotations

import pytest

from hindcast.stream.start_pace import StartPace
from hindcast.testing import FakeClock


def test_the_pace_is_that_of_the_slowest_of_the_last_starts(clock: FakeClock) -> None:
    """Half a lease bounds how many shards wait; one at least is taken, however slow this machine is."""
    pace = StartPace(clock, lease_seconds=10)
    assert pace.start_limit() == 5
    pace.note(2.0)
    pace.note(0.5)
    assert pace.start_limit() == 2
    pace.note(30.0)
    assert pace.start_limit() == 1
    for _ in range(StartPace.KEPT):
        pace.note(0.5)
    assert pace.start_limit() == 10


def test_a_start_that_takes_no_time_bounds_little(clock: FakeClock) -> None:
    """A clock may be too coarse to see it."""
    pace = StartPace(clock, lease_seconds=10)
    pace.note(0.0)
    assert pace.start_limit() == 5000


def test_a_start_that_fails_counts_as_well(clock: FakeClock) -> None:
    """It keeps the others waiting just as long."""
    pace = StartPace(clock, lease_seconds=10)
    clock.advance(7)

    def start() -> None:
        with pace.measured():
            clock.advance(2.5)
            raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        start()
    assert pace.start_limit() == 2
