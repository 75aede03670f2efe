"""A worker that gains more shards at once than it can start in the time of a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.leased_shards import owners

from hindcast.installation import Installation
from hindcast.leases.lease import Lease, StatusType
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.coordinator import Renewal
from hindcast.shards.desired_state import DesiredStates
from hindcast.stream import shard_starter, worker
from hindcast.stream.shard_topics import ShardTopics
from hindcast.stream.worker import Worker
from hindcast.testing import FakeClock, MemoryStore

PIPELINES, SHARDS_EACH = 50, 4
START_SECONDS, STOP_SECONDS = 1.5, 0.3
#: A thread that does not come to its wait in this time never will.
PATIENCE_SECONDS = 30.0

DECLARED = """
@pipeline(
    source=Topic("words", schema="word string, ts timestamp", key="word"),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("sink_{0}"),
    version=1,
    shards=4,
)
def pipeline_{0}(words):
    return words.select("word", "ts")
"""


class Turns:
    """A worker's clock and its two threads, in turns.

    Time passes on the main thread alone. The renewal thread runs once its wait is over.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.until = float("inf")
        self.when_idle: Callable[[], None] = lambda: None
        self._closed = threading.Event()
        self._due = 0.0
        self.renewing = False
        self._parked, self._go_on = threading.Semaphore(0), threading.Semaphore(0)

    def drive(self, made: Worker) -> None:
        """Let this worker wait here instead of in real time."""
        held = made.coordinator.held
        self._closed = held._changed
        held.wait_for_change = self._wait_for_renewal  # type: ignore[method-assign]
        woken: Any = SimpleNamespace(wait=self._wait_for_main, clear=lambda: None, set=lambda: None)
        made.threads.woken = woken

    def _wait_for_renewal(self, seconds: float) -> bool:
        self._due = self.clock.monotonic() + seconds
        self._parked.release()
        self._go_on.acquire()
        closed = self._closed.is_set()
        self._closed.clear()
        return closed

    def _wait_for_main(self, seconds: float) -> None:
        self.when_idle()
        self.pass_time(seconds)

    def parked(self) -> None:
        """Return once the renewal thread waits."""
        assert self._parked.acquire(timeout=PATIENCE_SECONDS), "the renewal thread has ended"

    def pass_time(self, seconds: float) -> None:
        """The main thread is busy for so long."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.advance(0.25)
            if self.renewing and (self.clock.monotonic() >= self._due or self._closed.is_set()):
                self._go_on.release()
                self.parked()
        if self.clock.monotonic() > self.until:
            pytest.fail(f"not settled after {self.until:.0f} s")

    def end(self) -> None:
        self._go_on.release()


@dataclass
class Query:
    """Stands in for :class:`hindcast.stream.shard_runner.ShardRunner`.

    Its query reads nothing, but it takes time to stop.
    """

    lease: Lease
    turns: Turns
    draining: bool = False
    rebuilt: str = ""
    failure: BaseException | None = None
    progressed: bool = True
    end_offsets: dict[int, int] = field(default_factory=dict)

    @property
    def drained(self) -> bool:
        return self.draining

    def go_on(self) -> None: ...

    def flush(self) -> None: ...

    def drain(self) -> None:
        self.draining = True

    def stop(self) -> None:
        self.turns.pass_time(STOP_SECONDS)


@dataclass
class TakenOver:
    """Stands in for :class:`hindcast.stream.shard_takeover.ShardTakeover`."""

    lease: Lease
    turns: Turns
    started: list[Lease]

    @property
    def app(self) -> str:
        return str(self.lease.key)

    def prepare(self) -> None: ...

    def seal(self) -> Query:
        return Query(self.lease, self.turns)

    def start(self, _: str, *, held: Callable[[], object]) -> Query:
        self.started.append(self.lease)
        self.turns.pass_time(START_SECONDS)
        held()
        return Query(self.lease, self.turns)


class Filed:
    """Stands in for the audit: there is nothing to file."""

    def __init__(self, *_: Any) -> None: ...


class Rig:
    """One worker with a lease of 10 s. Its threads move in turns, and its queries cost nothing but time."""

    def __init__(self, settings: Settings, patch: pytest.MonkeyPatch) -> None:
        self.store, self.started = MemoryStore(), list[Lease]()
        self.turns = Turns(FakeClock())
        installation: Any = Installation(settings)
        installation.lease_table = self.store
        self.events: list[str] = []
        events: Any = SimpleNamespace(record=lambda kind, *_, **__: self.events.append(kind))
        patch.setattr(worker, "EventLog", lambda *_: events)
        patch.setattr(
            shard_starter,
            "ShardTakeover",
            lambda _spark, _installation, _pipeline, lease, *_, **__: TakenOver(
                lease, self.turns, self.started
            ),
        )
        patch.setattr(shard_starter, "Audit", Filed)
        patch.setattr(ShardTopics, "check_retained", lambda *_: None)
        self.worker = Worker(installation, self.turns.clock)
        for pipeline in installation.catalog.values():
            DesiredStates(self.store).declare(pipeline, 1)  # type: ignore[arg-type]
            resharding.create(self.store, pipeline.name, 1, SHARDS_EACH, dict.fromkeys(range(SHARDS_EACH), 0))
        self.coordinator = self.worker.coordinator
        assert self.coordinator.acquire_slot(self.turns.clock.advance)
        self.coordinator.held.mark_ready()
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None))
        self.main_loop = self.worker.main_loop(spark)
        self.shards = self.main_loop.shards
        self.turns.drive(self.worker)

    def serve(self, *, seconds: float, when_idle: Callable[[], None]) -> bool:
        """Run the worker's threads until it has stopped; fail after so many seconds."""
        self.turns.until, self.turns.when_idle = seconds, when_idle
        renewal = threading.Thread(target=self.worker.renewal_loop.run, daemon=True)
        renewal.start()
        self.turns.parked()
        self.turns.renewing = True
        try:
            return self.main_loop.serve()
        finally:
            self.worker.threads.ended.set()
            self.turns.end()
            renewal.join(PATIENCE_SECONDS)

    def rows(self) -> list[Lease]:
        return [row for row in self.store.read().leases.values() if row.status_type is StatusType.SHARD]


@pytest.fixture
def rig_of(
    settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], Rig]:
    """One worker, and so many pipelines of four shards each."""

    def make(pipelines: int) -> Rig:
        folder = tmp_path / "pipelines"
        folder.mkdir()
        declared = [DECLARED.format(number) for number in range(pipelines)]
        (folder / "many.py").write_text("from hindcast import Table, Topic, pipeline\n" + "".join(declared))
        return Rig(settings_factory(lease_seconds=10, pipelines_dir=folder), monkeypatch)

    return make


@pytest.fixture
def rig(rig_of: Callable[[int], Rig]) -> Rig:
    """One pipeline: as many shards as a worker takes at once."""
    return rig_of(1)


def test_a_worker_settles_with_200_shards_of_50_pipelines(rig_of: Callable[[int], Rig]) -> None:
    """Each is taken once and none is lost, though their starts take thirty leases. When it stops, the worker
    gives all of them back.
    """
    rig = rig_of(PIPELINES)
    most = PIPELINES * SHARDS_EACH
    settled: list[float] = []

    def look() -> None:
        if len(rig.shards.running()) == most and set(owners(rig.store).values()) == {rig.worker.id}:
            settled.append(rig.turns.clock.monotonic())
            rig.worker.threads.ask_to_stop()

    assert rig.serve(seconds=most * (START_SECONDS + STOP_SECONDS) * 1.25, when_idle=look)
    assert settled
    assert settled[0] < most * START_SECONDS * 1.2
    assert len(rig.started) == most
    assert {row.epoch for row in rig.rows()} == {1}
    assert {(row.lease_owner, row.state) for row in rig.rows()} == {("", "CLOSED")}
    assert "lease_lost" not in rig.events


def test_what_a_renewal_has_changed_is_acted_on_between_two_starts(rig: Rig) -> None:
    """A pipeline that is paused while its shards wait gets them back without a start. A shard that is lost is
    not started either.
    """
    renewal = rig.coordinator.renew()
    gained = {lease.key: lease for lease in renewal.gained}
    assert len(gained) == SHARDS_EACH
    one, two, *rest = gained.values()
    rig.worker.renewal_loop.renewals.put(renewal)
    rig.worker.renewal_loop.renewals.put(Renewal(lost=[one.key], close=[two.key], leases=renewal.leases))
    rig.main_loop.act_on_renewals()
    while rig.shards.start_next():
        pass
    assert rig.started == rest
    assert not rig.coordinator.held.holds(two.key, two.epoch)
    assert rig.events.count("lease_lost") == 1


def test_a_shard_that_was_lost_and_taken_again_in_one_renewal_is_started_again_and_kept(rig: Rig) -> None:
    """The query of the earlier epoch ends. The lease of the later epoch is not given back with it."""
    gained = rig.coordinator.renew().gained
    for lease in gained:
        rig.shards.take(lease)
        rig.shards.start_next()
    lease = gained[0]
    taken = rig.store.read().leases[lease.key].given_to("thief")
    rig.store.commit(rig.store.read(), [taken])
    rig.store.commit(rig.store.read(), [taken.renewed(lease_owner="")])
    rig.worker.renewal_loop.renewals.put(rig.coordinator.renew())
    rig.main_loop.act_on_renewals()
    rig.shards.tick()
    again = next(found for found in rig.shards.waiting() if found.lease.key == lease.key).lease
    assert again.epoch == lease.epoch + 2
    while rig.shards.start_next():
        rig.shards.tick()
    assert rig.coordinator.held.holds(lease.key, again.epoch)
    assert [shard.runner.lease for shard in rig.shards.running() if shard.runner.lease.key == lease.key] == [
        again
    ]


def test_a_superseded_shard_that_waits_is_started_to_be_ended(rig: Rig) -> None:
    """The renewal after its take-over says that it must close. If it were given back for that, it would be
    taken and given back for ever.
    """
    lease = rig.coordinator.renew().gained[0]
    rig.shards.superseded = frozenset({lease.key})
    rig.shards.take(lease)
    rig.shards.close(lease.key, lease.epoch)
    assert rig.shards.start_next()
    (running,) = rig.shards.running()
    assert running.runner.lease.key == lease.key
    assert running.draining
    assert rig.coordinator.held.holds(lease.key, lease.epoch)
