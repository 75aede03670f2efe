"""The nemesis: one to three faults at a time, drawn from those that can be mixed, for a minute; then healing,
and every oracle.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from support.check_all_oracles import CheckAllOracles
from support.fleet import START_SECONDS, Worker
from support.waiting import wait_until
from support.warm_fleet import WarmStream

from hindcast.processes.background_services import Services
from hindcast.settings import Settings
from hindcast.shards.pipeline_row import DesiredState
from hindcast_sandbox import broker as broker_service

if TYPE_CHECKING:
    from conftest import Broker

LONGEST_REST_SECONDS = 6.0
LONGEST_FAULT_SECONDS = 5.0
HEALING_SECONDS = 120.0
MOST_WORKERS = 3


@dataclass
class Nemesis:
    """Makes faults, and knows how to take back each that lasts."""

    stream: WarmStream
    broker: Settings
    rng: random.Random
    history: list[str] = field(default_factory=list)
    healing: list[tuple[float, str, Callable[[], None]]] = field(default_factory=list)

    def act(self) -> None:
        """One to three faults at once."""
        faults = [
            self.kill,
            self.stop_and_go,
            self.broker_dies,
            self.pause_and_resume,
            self.replace,
            self.read_only,
        ]
        for fault in self.rng.sample(faults, self.rng.randint(1, 3)):
            self.history.append(f"{time.strftime('%X')} {fault.__name__}")
            fault()

    def heal(self, *, everything: bool = False) -> None:
        """Take back what has lasted its time."""
        due = [entry for entry in self.healing if everything or entry[0] <= time.monotonic()]
        self.healing = [entry for entry in self.healing if entry not in due]
        for _, what, mend in due:
            self.history.append(f"{time.strftime('%X')} {what}")
            mend()

    def _later(self, what: str, mend: Callable[[], None]) -> None:
        self.healing.append((time.monotonic() + self.rng.uniform(0.5, LONGEST_FAULT_SECONDS), what, mend))

    def _victim(self) -> Worker | None:
        alive = self.stream.fleet.alive()
        return self.rng.choice(alive) if alive else None

    # -- the faults
    # --------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill -9 of a worker and its JVM; another is started."""
        if (victim := self._victim()) is not None:
            self.stream.fleet.kill(victim)
        self._start()

    def stop_and_go(self) -> None:
        if (victim := self._victim()) is not None:
            self.stream.fleet.signal_all(victim, signal.SIGSTOP)
            self._later("SIGCONT", lambda: self.stream.fleet.signal_all(victim, signal.SIGCONT))

    def replace(self) -> None:
        """SIGTERM of one worker and a new one beside it."""
        if (victim := self._victim()) is not None:
            victim.terminate()
        self._start()

    def _start(self) -> None:
        if len(self.stream.fleet.alive()) < MOST_WORKERS:
            self.stream.fleet.start()

    def broker_dies(self) -> None:
        service = Services(self.broker.home).find(broker_service.NAME)
        if service is not None and service.running:
            psutil.Process(service.pid).kill()
            self._later("broker restarted", lambda: broker_service.start(self.broker) and None)

    def pause_and_resume(self) -> None:
        """What is wanted changes, and changes back."""
        self._want(DesiredState.PAUSED)
        self._later("resumed", lambda: self._want(DesiredState.RUNNING))

    def _want(self, state: DesiredState) -> None:
        with suppress(
            Exception
        ):  # the lease table may be read-only at this moment; healing wants it running at the end
            self.stream.want(state)

    def read_only(self) -> None:
        """The log of the sink or of the leases cannot be written."""
        sink, leases = (
            Path(self.stream.settings.table(*parts))
            for parts in (("sinks", self.stream.name), ("control", "leases"))
        )
        log = str(self.rng.choice([sink, leases]) / "_delta_log")
        if subprocess.run(["chattr", "+i", log], capture_output=True, check=False).returncode == 0:
            self._later("writable again", lambda: subprocess.run(["chattr", "-i", log], check=True) and None)

    def end(self) -> None:
        """Heal everything, and see that the fleet is whole."""
        self.heal(everything=True)
        self.stream.want()
        for process in self.stream.fleet.alive():
            self.stream.fleet.signal_all(process, signal.SIGCONT)


@pytest.mark.row("nemesis")
@pytest.mark.timeout(1800)
def test_the_nemesis(
    broker: Broker,
    stream: WarmStream,
    pair: tuple[Worker, Worker],
    prove: CheckAllOracles,
    seed: int,
    request: pytest.FixtureRequest,
) -> None:
    """Whatever mix of faults a seed draws, once they are healed the stream is exact, and every oracle
    agrees.
    """
    nemesis = Nemesis(stream, broker.settings, random.Random(seed))
    until = time.monotonic() + request.config.getoption("--nemesis-seconds")
    try:
        while time.monotonic() < until:
            nemesis.act()
            rest = time.monotonic() + nemesis.rng.uniform(0.0, LONGEST_REST_SECONDS)
            while time.monotonic() < rest:
                nemesis.heal()
                if not any("broker" in what for _, what, _ in nemesis.healing):
                    stream.send_more(30)
                time.sleep(0.3)  # the pace of the records
    finally:
        nemesis.end()
        print("\n".join(nemesis.history))  # noqa: T201 - shown where it fails
    wait_until(
        lambda: len(stream.fleet.alive()) <= MOST_WORKERS,
        START_SECONDS,
        "workers that were asked to stop have stopped",
    )
    if len(stream.fleet.alive()) < 2:
        stream.fleet.whole()
    prove(stream, live=False, healing_seconds=HEALING_SECONDS)
    for process in stream.fleet.alive()[2:]:
        stream.fleet.stop(process)
