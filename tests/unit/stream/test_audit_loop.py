"""A worker files late and poison rows while no take-over needs its cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast.errors import BrokerUnavailableError
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.stream.audit_loop import AuditLoop
from hindcast.stream.worker_threads import WorkerThreads
from hindcast.testing import FakeClock

#: Passes after which a worker counts as one that goes on.
PASSES = 3


class Rounds:
    """The audit loop of a worker that ends after some passes."""

    def __init__(self, coordinator: LeaseCoordinator, clock: FakeClock) -> None:
        self.threads = WorkerThreads(clock, lambda *_: None)
        self.passes = 0
        self.asked: list[set[tuple[str, int]]] = []
        self.refusals: list[Exception] = []
        audit = SimpleNamespace(due=threading.Event(), run=self._pass)
        self.committed: list[list[str]] = []
        shards: Any = SimpleNamespace(audit=audit, versions=lambda: {("p", 1)}, running=lambda: ["a shard"])
        groups: Any = SimpleNamespace(commit=self.committed.append)
        creation: Any = SimpleNamespace(reshard_for_new_partitions=self._look_for_partitions)
        self.loop = AuditLoop(shards, creation, coordinator, self.threads, groups, audit_seconds=0.01)

    def _pass(self) -> None:
        self.passes += 1
        if self.passes == PASSES:
            self.threads.ended.set()

    def _look_for_partitions(self, held: Collection[tuple[str, int]]) -> None:
        self.asked.append(set(held))
        if self.refusals:
            raise self.refusals.pop()


@pytest.fixture
def rounds(coordinator_factory: Callable[..., LeaseCoordinator], clock: FakeClock) -> Rounds:
    return Rounds(coordinator_factory("a"), clock)


def test_after_each_pass_the_worker_looks_for_new_partitions(rounds: Rounds) -> None:
    """Those of the pipelines that have shards here. A broker that does not answer is asked again."""
    rounds.refusals.append(BrokerUnavailableError(servers="nowhere", reason="it is away"))
    rounds.loop.run()
    assert rounds.passes == PASSES
    assert rounds.asked == [{("p", 1)}] * PASSES
    assert rounds.committed == [["a shard"]] * PASSES


def test_no_pass_begins_while_another_worker_may_have_died(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards may be taken over in the time of a pass. A worker that ends meanwhile begins none."""
    answers = [True, True]

    def suspects(_: LeaseCoordinator) -> bool:
        if not answers:
            rounds.threads.ended.set()
            return True
        assert rounds.passes == 0
        return answers.pop()

    monkeypatch.setattr(LeaseCoordinator, "suspects", suspects)
    rounds.loop.run()
    assert rounds.passes == 0
