"""A worker renews its leases only as long as its main thread comes round."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hindcast.errors import StoreUnavailableError
from hindcast.shards.coordinator import LeaseCoordinator, Renewal
from hindcast.stream.renewal_loop import RenewalLoop
from hindcast.stream.worker_threads import STUCK_SECONDS, WorkerThreads
from hindcast.testing import FakeClock


class Rounds:
    """The renewal loop of one worker, run for some rounds; each takes a second of the worker's clock."""

    def __init__(
        self, coordinator: LeaseCoordinator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.threads = WorkerThreads(clock, lambda *_: None)
        self.loop = RenewalLoop(coordinator, clock, self.threads)
        self._clock = clock
        self._left = 0
        monkeypatch.setattr(coordinator.held, "wait_for_change", self._wait)
        monkeypatch.setattr(coordinator, "poll", lambda: False)

    def _wait(self, _: float) -> bool:
        self._clock.advance(1)
        self._left -= 1
        if self._left == 0:
            self.threads.ended.set()
        return False

    def run(self, rounds: int) -> list[Renewal]:
        """Run so many rounds; return the renewals that the main thread is given."""
        self._left = rounds
        self.threads.ended.clear()
        self.loop.run()
        found = []
        while not self.loop.renewals.empty():
            found.append(self.loop.renewals.get())
        return found


@pytest.fixture
def rounds(
    coordinator_factory: Callable[..., LeaseCoordinator], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> Rounds:
    """With a lease of 10 s, so that a renewal is due every 2.5 s."""
    return Rounds(coordinator_factory("a"), clock, monkeypatch)


def test_each_renewal_that_is_due_is_given_to_the_main_thread(rounds: Rounds) -> None:
    """The main thread is woken for it."""
    assert len(rounds.run(2)) == 0
    assert not rounds.threads.woken.is_set()
    assert len(rounds.run(9)) == 3
    assert rounds.threads.woken.is_set()


def test_the_leases_of_a_main_thread_that_is_stuck_are_not_renewed(rounds: Rounds, clock: FakeClock) -> None:
    """Others take its shards. Once it comes round again the worker renews, or learns what it has lost."""
    clock.advance(STUCK_SECONDS)
    assert rounds.run(9) == []
    rounds.threads.come_round()
    assert len(rounds.run(9)) == 3


def test_a_store_that_is_away_is_asked_again(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread goes on: it would cost the worker its slot."""
    tries: list[int] = []

    def away(_: LeaseCoordinator) -> Renewal:
        tries.append(1)
        raise StoreUnavailableError(table="leases")

    monkeypatch.setattr(LeaseCoordinator, "renew", away)
    assert rounds.run(9) == []
    assert len(tries) == 3
