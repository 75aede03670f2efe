"""The stores of the protocols, unchanged but for this: before each step another thread may go on, and a step
may fail or lose its answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from protocols.scheduler import Order, Scheduler

from hindcast.delta.application_log import LocalLog, Reached
from hindcast.errors import StoreUnavailableError
from hindcast.leases.lease import Lease
from hindcast.leases.store import Snapshot
from hindcast.testing import MemoryStore, Outcome


class SteppedLeases(MemoryStore):
    """Leases in memory."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(self._answer)
        self._scheduler = scheduler

    def read(self) -> Snapshot:
        snapshot: Snapshot = self._scheduler.call("leases read", super().read, _unavailable)
        return snapshot

    def leases_if_any(self) -> list[Lease]:
        return list(self.read().leases.values())

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
    #: The simulated wall clock, in seconds since 1970.
    now: Callable[[], float]

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
        date_checkpoint(self.url, version, self.now())


#: Where a process is about to give a commit of the sink its name, and one of a table beside it.
SINK_LINK, SIDE_LINK = "sink link", "side link"


class SteppedLinks:
    """The module :mod:`os` for the log of a table: others may go on right before an entry gets a name."""

    def __init__(self, scheduler: Scheduler, place: str) -> None:
        """:param place: of such a link in the sink"""
        self._scheduler = scheduler
        self._place = place

    def link(self, entry: Any, name: Any) -> None:
        self.wait(name)
        os.link(entry, name)

    def wait(self, name: Any) -> None:
        """Let others go on."""
        self._scheduler.pause(SIDE_LINK if "/control/" in str(name) else self._place)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class SteppedHandle:
    """A handle of the sink, as the upkeep has it."""

    def __init__(self, url: str, scheduler: Scheduler, now: Callable[[], float]) -> None:
        self._url = url
        self._scheduler = scheduler
        self._now = now

    def create_checkpoint(self) -> None:
        self._scheduler.pause("the upkeep's checkpoint")
        table = DeltaTable(self._url)
        table.create_checkpoint()
        date_checkpoint(self._url, table.version(), self._now())

    def metadata(self) -> Any:
        return DeltaTable(self._url).metadata()


def date_checkpoint(url: str, version: int, made_at: float) -> None:
    """Let a checkpoint be as old as the simulated clock says."""
    path = Path(url, "_delta_log", f"{version:020d}.checkpoint.parquet")
    if path.exists():
        os.utime(path, (made_at, made_at))


def _unavailable(reason: str) -> StoreUnavailableError:
    return StoreUnavailableError(table="memory", action="used", reason=reason)
