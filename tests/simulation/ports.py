"""What the simulated workers stand on: a lease store that answers as badly as a store can, and a sink that
refuses old epochs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from hindcast.errors import FenceMovedError, LeaseLostError, StoreUnavailableError
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.leases.store import Snapshot
from hindcast.testing import MemoryStore, Outcome

#: Of a shard's checkpoint: the last batch that its owner has reported.
BATCH = "batch"


class Place(StrEnum):
    """Where in a slow answer time passes: after the read, before the commit lands, or before its answer
    arrives.
    """

    READ = "read"
    COMMIT = "commit"
    ANSWER = "answer"


class Away:
    """In a plan of outcomes: the next read fails."""


AWAY = Away()
#: What a store answers to the commits (and reads) of one step, in their order; after the last it is well.
FAULTS: tuple[tuple[Outcome | Away, ...], ...] = (
    (),
    (Outcome.CONFLICT,),
    (Outcome.FAIL,),
    (Outcome.UNKNOWN_WRITTEN,),
    (Outcome.UNKNOWN_LOST,),
    (Outcome.UNKNOWN_WRITTEN, AWAY),
    (Outcome.UNKNOWN_LOST, AWAY),
    (Outcome.CONFLICT, Outcome.UNKNOWN_WRITTEN, AWAY),
    (Outcome.UNKNOWN_WRITTEN, Outcome.UNKNOWN_LOST, Outcome.CONFLICT),
)


class FaultyStore(MemoryStore):
    """Leases in memory. ``plan`` says how it answers; ``slow`` is called once at a place and may let others
    act meanwhile.
    """

    def __init__(self, landed: Callable[[Lease], None]) -> None:
        """:param landed: told of each row that is written, whatever its writer is told"""
        super().__init__(self._answer)
        self.landed = landed
        self.plan: list[Outcome | Away] = []
        self.slow: dict[Place, Callable[[], None]] = {}

    def read(self) -> Snapshot:
        if self.plan and self.plan[0] is AWAY:
            self.plan.pop(0)
            raise StoreUnavailableError(table="memory", action="read", reason="the simulation said so")
        snapshot = super().read()
        self._wait(Place.READ)
        return snapshot

    def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
        rows = list(changes)
        self._wait(Place.COMMIT)
        before = self.commits
        try:
            super().commit(snapshot, rows)
        finally:
            if self.commits > before:
                for row in rows:
                    self.landed(row)
            self._wait(Place.ANSWER)

    def copied(self, landed: Callable[[Lease], None]) -> FaultyStore:
        """The same rows, apart from now on."""
        twin = copy.copy(self)
        twin.landed, twin.outcome, twin.plan, twin.slow = landed, twin._answer, [], {}
        twin._leases = dict(self._leases)
        return twin

    @property
    def rows(self) -> dict[LeaseKey, Lease]:
        return self._leases

    def _answer(self) -> Outcome:
        outcome = self.plan.pop(0) if self.plan else Outcome.OK
        return outcome if isinstance(outcome, Outcome) else Outcome.FAIL

    def _wait(self, place: Place) -> None:
        if (meanwhile := self.slow.pop(place, None)) is not None:
            plan, self.plan = self.plan, []  # the faults are this step's alone
            meanwhile()
            self.plan = plan


class Fence(NamedTuple):
    """The twin of the sink's own fence: epochs first, batches within them."""

    epoch: int
    batch: int


class Reached(NamedTuple):
    """How far a shard is: the offsets up to which it was read, and up to which window end its windows are
    final.
    """

    end_offsets: dict[int, int]
    watermark_ms: int
    floors: dict[int, int]

    def final_ms(self, partition: int) -> int:
        return max(self.watermark_ms, self.floors.get(partition, 0))


class FencedSink:
    """The twin of the fenced table: for each shard one recorded place, replaced by compare-and-swap."""

    def __init__(
        self, landed: Callable[[LeaseKey, Fence, bool, Reached | None, Reached | None], None]
    ) -> None:
        """:param landed: told of each commit that is written: shard, fence, whether it is a seal, how far the
        shard was and is
        """
        self.landed = landed
        self.recorded: dict[LeaseKey, Fence] = {}
        self.reached: dict[LeaseKey, Reached] = {}
        self.meanwhile: Callable[[], None] | None = (
            None  # what happens once between a seal's read and its commit
        )

    def commit(
        self,
        key: LeaseKey,
        fence: Fence,
        after: Fence | None,
        *,
        seal: bool = False,
        start: Reached | None = None,
        reached: Reached | None = None,
    ) -> bool:
        """Record the fence; False where it is recorded already.

        :raises LeaseLostError: a later epoch is recorded
        :raises FenceMovedError: another place than ``after`` is recorded
        """
        recorded = self.recorded.get(key)
        if recorded == fence:
            return False
        if self.refuses(recorded, fence):
            raise LeaseLostError(
                owner="this worker", lease=key, epoch=fence.epoch, reason="a later epoch has written"
            )
        if recorded != after:
            raise FenceMovedError(table="sink", app=key, recorded=recorded, expected=after)
        self.recorded[key] = fence
        if reached is not None:
            self.reached[key] = reached
        self.landed(key, fence, seal, start, reached)
        return True

    def refuses(self, recorded: Fence | None, fence: Fence) -> bool:
        """The epoch check."""
        return recorded is not None and recorded.epoch > fence.epoch

    def copied(
        self, landed: Callable[[LeaseKey, Fence, bool, Reached | None, Reached | None], None]
    ) -> FencedSink:
        """The same places, apart from now on."""
        twin = copy.copy(self)
        twin.landed, twin.recorded, twin.reached = landed, dict(self.recorded), dict(self.reached)
        return twin
