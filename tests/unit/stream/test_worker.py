"""A worker of which a thread has failed says so and ends: half a worker would keep its slot from a whole
one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast.leases.lease import Lease
from hindcast.settings import Settings
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.held_leases import HeldLeases
from hindcast.spark import session
from hindcast.stream import worker
from hindcast.stream.shard_sync import ShardSync
from hindcast.stream.worker import Worker
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.schema import ControlTable
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


def _broken(*_: object) -> None:
    raise TypeError("this was not thought of")


@pytest.fixture
def made(settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Worker:
    """A worker without Spark that holds no shard, and whose audit is due at once."""
    monkeypatch.setattr(worker, "LeaseTable", lambda _: Store())
    monkeypatch.setattr(session, "build", lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr(Worker, "_rehearse", lambda *_: None)
    monkeypatch.setattr(worker, "TICK_SECONDS", 0.05)
    found = Worker(settings_factory(audit_seconds=0.01, pipelines_dir=tmp_path), FakeClock())
    found._woken = Impatient()
    return found


def _stopped(settings: Settings) -> list[dict[str, Any]]:
    return [
        row for row in ControlTables(settings).rows(ControlTable.EVENTS) if row["kind"] == "worker_stopped"
    ]


@pytest.mark.parametrize(
    ("thread", "owner", "method"),
    [
        ("renewal", LeaseCoordinator, "poll"),
        ("renewal", HeldLeases, "wait_for_change"),
        ("audit", ShardSync, "audit"),
    ],
)
def test_a_worker_of_which_a_thread_has_failed_ends(
    made: Worker, monkeypatch: pytest.MonkeyPatch, thread: str, owner: type, method: str
) -> None:
    """It gives its slot up, leaves one event that names the thread and a cure, and raises, for an exit code
    of 1.
    """
    monkeypatch.setattr(owner, method, _broken)
    with pytest.raises(TypeError, match="not thought of"):
        made.run()
    (event,) = _stopped(made._settings)
    assert f"its {thread} thread has failed: TypeError: this was not thought of" in event["message"]
    assert (event["severity"], "another worker" in event["cure"]) == ("error", True)
    assert [row.lease_owner for row in made._store.read().leases.values() if row.status_type == "slot"] == [
        "",
        "",
    ]


def test_a_thread_that_fails_ends_the_process_though_the_main_thread_is_stuck(
    made: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits as long as a main thread may take to come round, and then for nothing."""
    ended = threading.Event()
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(worker, "exit_now", leave)
    monkeypatch.setattr(worker, "STUCK_SECONDS", 0.05)
    made._in_thread("audit", _broken)
    assert ended.wait(30)
    assert codes == [1]
    assert len(_stopped(made._settings)) == 1
