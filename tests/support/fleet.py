"""Real workers as real processes, and the streams they consume: started, killed, paused, looked at through
their tables.

A :class:`Fleet` is a home with worker processes; a :class:`Stream` is one pipeline of it on a topic of its
own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from support.live_stream import all_filed, check_answer, check_filed, ends, ledger, produce, sink_rows
from support.shapes import APPEND, Shape
from support.simulated_stream import Clockwork, Record, Simulated, trades
from support.waiting import wait_until

from hindcast import catalog
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import NOT_HELD, Lease, StatusType
from hindcast.settings import Settings, project_root
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import DesiredState
from hindcast.shards.slot_row import SlotHolder
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable

#: A machine that does much else needs longer ones: what the tests wait for is in proportion.
LEASE_SECONDS = float(os.environ.get("TEST_LEASE_SECONDS", "3"))
#: I6: after healing all shards are owned, and what was sent is read, within a lease and this.
HEALED_SECONDS = 10 * LEASE_SECONDS
START_SECONDS = 150.0  # a JVM and its rehearsal on a busy machine of two cores
PARTITIONS = 4
SHARDS = 2
WORKER = project_root() / "spark_apps" / "consume.py"

Worker = subprocess.Popen[bytes]


def fleet_settings(settings: Settings, servers: str) -> Settings:
    """The settings of a quick fleet that loads the pipelines of its own home."""
    quick = {
        "bootstrap_servers": servers,
        "lease_seconds": LEASE_SECONDS,
        "trigger_seconds": 0.3,
        "audit_seconds": 2.0,
    }
    return settings.model_copy(update={**quick, "pipelines_dir": settings.home / "pipelines"})


@dataclass
class Fleet:
    """The worker processes of one home. Whoever makes one calls :meth:`end`."""

    settings: Settings
    started: list[Worker] = field(default_factory=list)
    wrapper: Sequence[str] = ()  # goes before the worker's command line

    def start(self, program: Path = WORKER, **environment: str) -> Worker:
        """Start one worker, with these variables besides the settings'."""
        scratch = self.settings.home / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        env = {
            **os.environ,
            **self.settings.environment(),
            "TMPDIR": str(scratch),
            "PYTHONFAULTHANDLER": "1",
            **environment,
        }
        command = [*self.wrapper, sys.executable, str(program)]
        with self.log(len(self.started)).open("wb") as log:
            # A group of its own, as a detached worker has it.
            process = subprocess.Popen(
                command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.started.append(process)
        return process

    def log(self, number: int) -> Path:
        return self.settings.home / f"worker-{number}.log"

    def alive(self) -> list[Worker]:
        return [process for process in self.started if process.poll() is None]

    def whole(self, count: int = 2) -> tuple[Worker, ...]:
        """Start workers until so many run; wait until each holds a slot."""
        for _ in range(count - len(self.alive())):
            self.start()

        def held() -> bool:
            pids = {SlotHolder.of(slot).pid for slot in self.leases(StatusType.SLOT) if slot.lease_owner}
            return {process.pid for process in self.alive()} <= pids

        wait_until(held, START_SECONDS, f"{count} workers hold slots")
        assert len(self.alive()) == count
        return tuple(self.alive())

    def kill(self, process: Worker, number: int = signal.SIGKILL) -> None:
        """Send a signal to the whole process group: the worker and its JVM."""
        os.killpg(process.pid, number)
        if number == signal.SIGKILL:
            process.wait()

    def signal_all(self, process: Worker, number: int) -> None:
        """Send a signal to the worker and everything below it, Spark's Python workers too (they have a group
        of their own).
        """
        for member in self.family(process):
            with suppress(psutil.NoSuchProcess):
                member.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()

    def family(self, process: Worker) -> list[psutil.Process]:
        """The worker and everything below it, the worker first."""
        try:
            worker = psutil.Process(process.pid)
            return [worker, *worker.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def jvm(self, process: Worker) -> psutil.Process:
        return next(member for member in self.family(process) if "java" in member.name())

    def stop(self, process: Worker) -> int:
        """Ask a worker to stop and wait for it; its exit code."""
        process.terminate()
        return process.wait(timeout=START_SECONDS)

    def end(self) -> None:
        """Kill what is left; nothing of this fleet outlives it."""
        for process in self.alive():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
            self.kill(process)
        for (
            left
        ) in self.remains():  # a JVM may outlive its worker for a moment, or for ever where it is stuck
            with suppress(psutil.NoSuchProcess):
                left.kill()

    def remains(self) -> list[psutil.Process]:
        """I9: the processes that belong to the home: workers, their JVMs, Spark's Python workers."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if (
                    process.environ().get("HINDCAST_HOME") == str(self.settings.home)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found

    def leases(self, kind: StatusType, pipeline: str | None = None) -> list[Lease]:
        found = [lease for lease in LeaseTable(self.settings).leases() if lease.status_type is kind]
        return [lease for lease in found if pipeline in (None, lease.stream_id)]

    def owners(self, pipeline: str) -> dict[str, int | None]:
        """The pid that owns each shard of a pipeline that has begun and not ended; None where the owner holds
        no slot any more.
        """
        leases = LeaseTable(self.settings).leases()
        pids = {
            row.lease_owner: SlotHolder.of(row).pid
            for row in leases
            if row.status_type is StatusType.SLOT and row.lease_owner
        }
        return {
            row.status_value: pids.get(row.lease_owner)
            for row in leases
            if row.status_type is StatusType.SHARD and row.stream_id == pipeline and row.state not in NOT_HELD
        }

    def id_of(self, process: Worker) -> str:
        """The worker's id, empty while it holds no slot."""
        slots = self.leases(StatusType.SLOT)
        return next(
            (
                slot.lease_owner
                for slot in slots
                if slot.lease_owner and SlotHolder.of(slot).pid == process.pid
            ),
            "",
        )

    def rows(self, table: ControlTable, *where: tuple[str, str, Any]) -> list[dict[str, Any]]:
        return ControlTables(self.settings).rows(table, where)

    def events(self, since: datetime | None = None) -> list[dict[str, Any]]:
        """Events in the order of their time."""
        found = self.rows(ControlTable.EVENTS)
        return sorted(
            (row for row in found if since is None or row["at"] >= since), key=lambda row: row["at"]
        )


@dataclass
class Stream:
    """One pipeline on one topic: what was sent to it, and what became of it."""

    fleet: Fleet
    topic: str
    name: str = "stock_stats"
    seed: int = 11
    partitions: int = PARTITIONS
    shape: Shape = APPEND
    sent: list[Record] = field(default_factory=list)
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _feed: list[Record] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return self.fleet.settings

    # -- what goes in
    # ------------------------------------------------------------------------------------------------------

    def want(self, state: DesiredState = DesiredState.RUNNING) -> None:
        """Declare the pipeline, or want another state of it."""
        states = DesiredStates(LeaseTable(self.settings))
        states.declare(catalog.load(self.settings.pipelines_dir)[self.name], 2)
        states.set_state(self.name, state)

    def send(self, records: list[Record]) -> None:
        produce(self.settings.bootstrap_servers, self.topic, records, self.shape)
        self.sent += records

    def more(self, count: int = 300) -> list[Record]:
        """The next records of the stream's own feed (ten tickers, 5 % late, 1 % poison), at the offsets after
        what was sent.
        """
        if not self._feed:
            self._feed = self.shape.spread(trades(self.seed, count=20_000, partitions=self.partitions))
        taken, self._feed = self._feed[:count], self._feed[count:]
        offsets: Counter[int] = Counter()
        for record in self.sent:
            offsets[record.partition] = max(offsets[record.partition], record.offset + 1)
        placed = []
        for record in taken:
            placed.append(replace(record, offset=offsets[record.partition]))
            offsets[record.partition] += 1
        return placed

    def send_more(self, count: int = 300) -> None:
        self.send(self.more(count))

    # -- what is seen
    # ------------------------------------------------------------------------------------------------------

    def leases(self) -> list[Lease]:
        return self.fleet.leases(StatusType.SHARD, self.name)

    def owned_by(self, *processes: Worker) -> bool:
        """Whether these processes, each with one at least, own all shards."""
        owners = self.fleet.owners(self.name)
        return bool(owners) and set(owners.values()) == {process.pid for process in processes}

    def wait_owned_by(self, *processes: Worker, seconds: float = START_SECONDS) -> None:
        wait_until(
            lambda: self.owned_by(*processes),
            seconds,
            f"{len(processes)} workers own all shards of {self.name}",
        )

    def committed(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for row in ledger(self.settings, self.name):
            found.update(row.end_offsets)
        return found

    def wait_read(self, seconds: float = START_SECONDS, to: Mapping[int, int] | None = None) -> None:
        wanted = dict(to) if to is not None else ends(self.sent)
        wait_until(
            lambda: self.committed() == wanted, seconds, f"everything sent to {self.topic} is in the ledger"
        )

    def wait_free(self, seconds: float = START_SECONDS) -> None:
        wait_until(
            lambda: not any(lease.lease_owner for lease in self.leases()),
            seconds,
            f"the shards of {self.name} are free",
        )

    def wait_filed(self) -> None:
        wait_until(
            lambda: all_filed(self.settings, self.name, self.shape),
            START_SECONDS,
            "the late and poison rows are filed",
        )

    def pause(self) -> None:
        """Want it paused, and wait until its shards are free and all that was read is filed: then its tables
        stand still.
        """
        self.want(DesiredState.PAUSED)
        self.wait_free()
        if self.committed():
            self.wait_filed()

    def check(self) -> None:
        """The exact answer, from plain Python, over real offsets. Call while nothing is being read."""
        oracle = Simulated(Clockwork(), self.sent)
        check_answer(self.settings, self.sent, oracle, self.name, self.shape)
        check_filed(self.settings, self.sent, oracle, self.name, self.shape)

    def results(self) -> list[tuple[Any, Any]]:
        """The sink's rows as they stand."""
        return sink_rows(self.settings, self.name, self.shape)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """The pipeline's own events, in the order of their time."""
        return [
            row
            for row in self.fleet.events()
            if row["pipeline"] == self.name and (not kinds or row["kind"] in kinds)
        ]

    def wait_event(self, kind: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        wait_until(lambda: self.events(kind), seconds, f"an event {kind} of {self.name}")
        return self.events(kind)[-1]


def feed(parts: int, count: int = 600) -> list[list[Record]]:
    """One feed in equal parts."""
    records = trades(11, count=count * parts, partitions=PARTITIONS)
    return [records[part * count : (part + 1) * count] for part in range(parts)]
