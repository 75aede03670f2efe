"""A worker of which a thread has failed says so and ends: half a worker would keep its slot from a whole
one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.live_stream import MODULE

from hindcast.installation import Installation
from hindcast.leases.lease import Lease
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.held_leases import HeldLeases
from hindcast.spark import background_compiler, session
from hindcast.stream import main_loop, worker, worker_threads
from hindcast.stream.audit_passes import AuditPasses
from hindcast.stream.worker import Worker
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock, MemoryStore

#: Waits of the main thread, each a tick at most, after which a worker counts as one that goes on.
MOST_WAITS = 100


class Impatient(threading.Event):
    """What the main thread waits for; it does not wait for ever."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        if self.waits > MOST_WAITS:
            pytest.fail("the worker goes on without its thread")
        return super().wait(timeout)


class Store(MemoryStore):
    """A lease store in memory that has the lease table's short form of a read."""

    def leases(self) -> list[Lease]:
        return list(self.read().leases.values())


def _declared(settings: Settings, folder: Path, shards: int) -> Installation:
    """An installation of one pipeline that is wanted and has these shards, with leases in memory."""
    (folder / "p.py").write_text(MODULE.format(topic="t", name="p", version=1, shards=shards))
    installation: Any = Installation(settings)
    store = installation.lease_table = Store()
    DesiredStates(store).declare(installation.catalog["p"], settings.workers)
    resharding.create(store, "p", 1, shards, dict.fromkeys(range(shards), 0))
    found: Installation = installation
    return found


def _broken(*_: object) -> None:
    raise TypeError("this was not thought of")


@pytest.fixture
def audited(settings_factory: Callable[..., Settings], tmp_path: Any) -> Installation:
    """An installation without pipelines, with leases in memory, and whose audit is due at once."""
    installation: Any = Installation(settings_factory(audit_seconds=0.01, pipelines_dir=tmp_path))
    installation.lease_table = Store()
    found: Installation = installation
    return found


@pytest.fixture
def made(audited: Installation, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker without Spark that holds no shard."""
    monkeypatch.setattr(session, "build", lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr(background_compiler, "give_way", lambda _: None)
    monkeypatch.setattr(worker, "load_libraries", lambda _: None)
    monkeypatch.setattr(main_loop, "TICK_SECONDS", 0.05)
    found = Worker(audited, FakeClock())
    found.threads.woken = Impatient()
    return found


def _stopped(installation: Installation) -> list[dict[str, Any]]:
    rows = installation.tables.rows(ControlTable.EVENTS)
    return [row for row in rows if row["kind"] == "worker_stopped"]


@pytest.mark.parametrize(
    ("thread", "owner", "method"),
    [
        ("renewal", LeaseCoordinator, "poll"),
        ("renewal", HeldLeases, "wait_for_change"),
        ("audit", AuditPasses, "run"),
    ],
)
def test_a_worker_of_which_a_thread_has_failed_ends(
    made: Worker,
    audited: Installation,
    monkeypatch: pytest.MonkeyPatch,
    thread: str,
    owner: type,
    method: str,
) -> None:
    """It gives its slot up, leaves one event that names the thread and a cure, and raises, for an exit code
    of 1.
    """
    monkeypatch.setattr(owner, method, _broken)
    with pytest.raises(TypeError, match="not thought of"):
        made.run()
    (event,) = _stopped(audited)
    assert f"its {thread} thread has failed: TypeError: this was not thought of" in event["message"]
    assert (event["severity"], "another worker" in event["cure"]) == ("error", True)
    assert event["worker"] == made.id
    rows = audited.lease_table.read().leases.values()
    assert [row.lease_owner for row in rows if row.status_type == "slot"] == ["", ""]


def test_a_thread_that_fails_ends_the_process_though_the_main_thread_is_stuck(
    made: Worker, audited: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits as long as a main thread may take to come round, and then for nothing. It leaves one event."""
    ended = threading.Event()
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(worker_threads, "exit_now", leave)
    monkeypatch.setattr(worker_threads, "STUCK_SECONDS", 0.05)
    made.threads.start("audit", _broken)
    assert ended.wait(30)
    assert codes == [1]
    assert len(_stopped(audited)) == 1


def test_a_worker_takes_no_more_shards_than_it_can_start_in_half_a_lease(
    settings_factory: Callable[..., Settings], tmp_path: Path
) -> None:
    """Its coordinator goes by its pace: a start takes a second, until one was measured."""
    settings = settings_factory(lease_seconds=6.0, workers=1, pipelines_dir=tmp_path)
    worker = Worker(_declared(settings, tmp_path, 20), FakeClock())
    assert worker.coordinator.acquire_slot(lambda _: False)
    worker.coordinator.held.mark_ready()
    gained = [lease for lease in worker.coordinator.renew().gained if lease.status_type == "shard"]
    assert len(gained) == 3
    assert not worker.coordinator.renew().gained, "those wait here for their start"
    for lease in gained:
        worker.coordinator.held.mark_started(lease.key, lease.epoch)
    assert len(worker.coordinator.renew().gained) == 3


def test_a_worker_rehearses_only_what_others_serve_meanwhile(
    settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that nobody serves stands still: a rehearsal would only make it wait."""
    rehearsed: list[str] = []
    monkeypatch.setattr(session, "build", lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr(background_compiler, "give_way", lambda _: None)
    monkeypatch.setattr(worker, "load_libraries", lambda _: None)
    monkeypatch.setattr(worker, "warm_up", lambda _, __, pipeline: rehearsed.append(pipeline.name))

    def end(_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(HeldLeases, "mark_ready", end)  # what a worker does after its rehearsal
    installation = _declared(settings_factory(workers=3, pipelines_dir=tmp_path), tmp_path, 1)
    with pytest.raises(InterruptedError):
        Worker(installation, FakeClock()).run()
    assert rehearsed == []
    store = installation.lease_table
    (shard,) = resharding.of_version(store.leases(), "p", 1)
    store.commit(store.read(), [shard.given_to("another", state=shard.state)])
    with pytest.raises(InterruptedError):
        Worker(installation, FakeClock()).run()
    assert rehearsed == ["p"]
