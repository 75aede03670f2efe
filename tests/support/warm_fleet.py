"""A fleet that stays warm between tests: dead workers are replaced in the background, and any worker is made
faulty while it runs.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.evidence import LeaseHistory, TableFolder
from support.faulty_worker import BROKEN, FAULTS
from support.fleet import HEALED_SECONDS, LEASE_SECONDS, SHARDS, START_SECONDS, Fleet, Stream, Worker
from support.waiting import wait_until

from hindcast.leases.lease import StatusType
from hindcast.shards.slot_row import SlotHolder

FAULTY = Path(__file__).with_name("faulty_worker.py")
TAKEN_SECONDS = LEASE_SECONDS + HEALED_SECONDS
#: Workers beyond those that a test asks for, so that it need not wait for a JVM where the one before has
#: killed one.
SPARES = 1
#: Slots of the fleet: enough for those that starved or died and whose lease still runs.
SLOTS = 8


@dataclass
class WarmFleet(Fleet):
    """Workers that fail when they are told to. A test takes :meth:`whole`; the next one finds what it left,
    and a spare.
    """

    spares: int = SPARES

    def __post_init__(self) -> None:
        leases = TableFolder(self.settings.table("control", "leases"), self.settings.storage_options)
        self.history = LeaseHistory(leases).start()

    def start(self, program: Path = FAULTY, **environment: str) -> Worker:
        self._faults.mkdir(exist_ok=True)
        return super().start(program, **{FAULTS: str(self._faults), **environment})

    @property
    def _faults(self) -> Path:
        return self.settings.home / "faults"

    def whole(self, count: int = 2) -> tuple[Worker, ...]:
        """So many workers that are ready for shards. Others start beside them, and are not waited for."""
        for _ in range(count + self.spares - len(self.alive())):
            self.start()
        wait_until(lambda: len(self.ready()) >= count, START_SECONDS, f"{count} workers are ready")
        return tuple(self.ready()[:count])

    def ready(self) -> list[Worker]:
        """The living workers that take shards."""
        slots = [
            slot
            for slot in self.leases(StatusType.SLOT)
            if slot.lease_owner and not SlotHolder.of(slot).starting
        ]
        pids = {SlotHolder.of(slot).pid for slot in slots}
        return [process for process in self.alive() if process.pid in pids]

    def arm(self, processes: Sequence[Worker] | None = None, **faults: Any) -> None:
        """Make these workers, all by default, faulty from now on: see :mod:`support.faulty_worker`."""
        for process in self.alive() if processes is None else processes:
            file = self._faults / f"{process.pid}.json"
            beside = file.with_suffix(".new")
            beside.write_text(json.dumps(faults))
            beside.rename(file)

    def disarm(self) -> None:
        for file in self._faults.glob("*.json"):
            file.unlink()

    @contextmanager
    def armed(self, processes: Sequence[Worker] | None = None, **faults: Any) -> Iterator[None]:
        """Faulty for as long as the block lasts."""
        self.arm(processes, **faults)
        try:
            yield
        finally:
            self.disarm()

    def broken(self, store: str = "") -> int:
        """How many commits, to this store or to any, were made to fail so far."""
        words = f"{BROKEN} {store}" if store else BROKEN
        return sum(
            self.log(number).read_text(errors="replace").count(words) for number in range(len(self.started))
        )

    def calm(self) -> None:
        """Nobody is faulty any more, and nobody stands still."""
        self.disarm()
        for process in self.alive():
            os.killpg(process.pid, signal.SIGCONT)


@dataclass
class WarmStream(Stream):
    """A stream on a warm fleet, of whose workers any may own its shards."""

    fleet: WarmFleet

    def owners(self) -> list[Worker]:
        """The living workers that own a shard, in the order of their shards."""
        pids = dict.fromkeys(pid for _, pid in sorted(self.fleet.owners(self.name).items()))
        by_pid = {process.pid: process for process in self.fleet.alive()}
        return [by_pid[pid] for pid in pids if pid in by_pid]

    def wait_shared(self) -> None:
        """Until each shard has an owner of its own."""
        wait_until(
            lambda: len(self.owners()) == SHARDS,
            START_SECONDS,
            f"{SHARDS} workers share the shards of {self.name}",
        )

    def wait_owned(self, *, without: Worker | None = None, seconds: float = TAKEN_SECONDS) -> None:
        """Until living workers own every shard, this one none."""

        def taken() -> bool:
            pids = set(self.fleet.owners(self.name).values())
            others = {process.pid for process in self.fleet.alive() if process is not without}
            return bool(pids) and pids <= others

        wait_until(taken, seconds, f"living workers own every shard of {self.name}")
