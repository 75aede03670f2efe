"""The stores of the protocols, unchanged but for this: before each step another thread may go on, and a step
may fail or lose its answer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from protocols.scheduler import Order, Scheduler

from hindcast.delta.application_log import LocalLog, Reached
from hindcast.errors import StoreUnavailableError
from hindcast.leases.store import Snapshot
from hindcast.testing import FakeClock, MemoryStore, Outcome


class SteppedLeases(MemoryStore):
    """Leases in memory."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(self._answer)
        self._scheduler = scheduler

    def read(self) -> Snapshot:
        snapshot: Snapshot = self._scheduler.call("leases read", super().read, _unavailable)
        return snapshot

    def _answer(self) -> Outcome:
        order = self._scheduler.pause("leases commit")
        if order is Order.FAIL:
            return Outcome.FAIL
        if order is Order.LOSE_THE_ANSWER:
            return Outcome.UNKNOWN_WRITTEN
        return Outcome.OK


class SteppedLog(LocalLog):
    """The log of a sink, on a disk in memory."""

    scheduler: Scheduler
    clock: FakeClock
    #: The wall clock's reading when the clock above stood at zero.
    began_at: float

    def reached(self) -> Reached:
        read: Reached = self.scheduler.call("sink read", super().reached, _unavailable)
        return read

    def _put(self, version: int, entry: bytes) -> None:
        def put() -> None:
            super(SteppedLog, self)._put(version, entry)

        self.scheduler.call("sink commit", put, OSError)

    def _checkpoint(self, version: int) -> None:
        self.scheduler.pause("sink checkpoint")
        super()._checkpoint(version)
        path = Path(self.url, "_delta_log", f"{version:020d}.checkpoint.parquet")
        if path.exists():
            made_at = self.began_at + self.clock.monotonic()
            os.utime(path, (made_at, made_at))


class SteppedLinks:
    """The module :mod:`os` for the log of a sink: others may go on right before an entry gets its name."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def link(self, draft: Any, entry: Any) -> None:
        self._scheduler.pause("sink link")
        os.link(draft, entry)


def _unavailable(reason: str) -> StoreUnavailableError:
    return StoreUnavailableError(table="memory", action="used", reason=reason)
