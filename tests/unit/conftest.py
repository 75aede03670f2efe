"""Coordinators on a clock that is moved by hand, and the command line in a test's home."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from support.command_line import Ended, Hindcast

from hindcast.delta.application_log import ApplicationLog
from hindcast.leases.store import LeaseStore
from hindcast.settings import Settings
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.slot_row import SlotHolder
from hindcast.tables import fenced_sink
from hindcast.testing import FakeClock, MemoryStore

LEASE = 10.0
Make = Callable[..., LeaseCoordinator]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def coordinator_factory(store: MemoryStore, clock: FakeClock) -> Make:
    """Make a coordinator that has a slot."""

    def make(
        owner: str,
        *,
        of: LeaseStore | None = None,
        slots: int = 4,
        wanted: Callable[..., bool] = lambda *_: True,
        slot: bool = True,
        worker: SlotHolder | None = None,
        **options: Any,
    ) -> LeaseCoordinator:
        made = LeaseCoordinator(
            of or store,
            clock,
            owner=owner,
            fleet="f",
            slots=slots,
            lease_seconds=LEASE,
            wanted=wanted,
            worker=worker,
            sleep=lambda _: None,
            **options,
        )
        if slot:
            assert made.acquire_slot(clock.advance)
        return made

    return make


@pytest.fixture
def hindcast(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Hindcast:
    """Run a command in this test's home."""
    from hindcast.cli.main import run

    monkeypatch.setenv("HINDCAST_HOME", str(settings.home))

    def command(*arguments: str) -> Ended:
        capsys.readouterr()
        code = run(arguments)
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    return command


@pytest.fixture
def options_seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str] | None]:
    """The store's options of each access to a table or to its files, as they come: without them an object
    store refuses who asks. Logs are read as those of an object store are.
    """
    monkeypatch.setattr(fenced_sink, "application_log", ApplicationLog)
    seen: list[dict[str, str] | None] = []

    def noted(of: Any, name: str) -> None:
        does = getattr(of, name)

        def note(*arguments: Any, **named: Any) -> Any:
            options = named.get("storage_options", named.get("options"))
            seen.append(next((argument for argument in arguments[1:] if isinstance(argument, dict)), options))
            return does(*arguments, **named)

        monkeypatch.setattr(of, name, note)

    noted(DeltaTable, "__init__")
    noted(DeltaTable, "create")
    noted(DeltaTable, "is_deltatable")
    noted(DeltaStorageHandler, "__init__")
    return seen
