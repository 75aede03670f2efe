"""The trigger, awaited as the triggerer does, over real tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from airflow._shared.module_loading import import_string
from support.fleet_sample import desired, put, slot

from hindcast.airflow.supervision.conditions import desired_lines
from hindcast.airflow.supervision.restart_backoff import RestartBackoff, files_fingerprint
from hindcast.airflow.supervision.trigger import FleetTrigger
from hindcast.leases.delta_store import LeaseTable
from hindcast.settings import Settings

DEADLINE_SECONDS = 20


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """A fleet of two whose leases last a second; the trigger finds it through the environment, as in the
    triggerer.
    """
    monkeypatch.setenv("HINDCAST_HOME", str(tmp_path))
    monkeypatch.setenv("HINDCAST_LEASE_SECONDS", "1")
    settings = Settings()
    put(settings, desired(), slot(0, "worker-0"), slot(1, "worker-1"))
    return settings


@pytest.fixture
def outlook_factory(fleet: Settings) -> Callable[..., RestartBackoff]:
    def make(**changes: Any) -> RestartBackoff:
        values = {
            "faults": frozenset(), "desired": desired_lines(LeaseTable(fleet).leases()), "files": files_fingerprint(fleet.pipelines_dir),
            "empty_slots": False, "slot_wakes": 0,
            "other_wakes": 0,
        }  # fmt: skip
        return RestartBackoff.after(datetime.now(UTC), **{**values, **changes})

    return make


async def renew(settings: Settings, *numbers: int) -> None:
    """Renew these slots as their owners would, until cancelled."""
    counter = 100
    while True:
        counter += 1
        await asyncio.to_thread(
            put, settings, *(slot(number, f"worker-{number}", counter=counter) for number in numbers)
        )
        await asyncio.sleep(0.2)  # the pace of the renewals themselves


@pytest.fixture
async def renewing() -> AsyncIterator[Callable[..., asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []

    def begin(settings: Settings, *numbers: int) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(renew(settings, *numbers)))
        return tasks[-1]

    yield begin
    for task in tasks:
        task.cancel()


async def fired(trigger: FleetTrigger, seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
    async with asyncio.timeout(seconds):
        event = await anext(trigger.run())
    return event.payload


def test_serialize_rebuilds_an_equal_trigger(outlook_factory: Callable[..., RestartBackoff]) -> None:
    """The class path can be imported and the arguments make the same trigger."""
    trigger = FleetTrigger(outlook_factory().to_json())
    path, arguments = trigger.serialize()
    again = import_string(path)(**arguments)
    assert again.serialize() == trigger.serialize()


async def test_it_sleeps_while_the_fleet_lives(
    fleet: Settings, outlook_factory: Callable[..., RestartBackoff], renewing: Any
) -> None:
    """Two renewing workers do not wake the supervisor."""
    renewing(fleet, 0, 1)
    with pytest.raises(TimeoutError):
        await fired(FleetTrigger(outlook_factory().to_json()), seconds=3)


async def test_it_fires_when_a_worker_falls_silent(
    fleet: Settings, outlook_factory: Callable[..., RestartBackoff], renewing: Any
) -> None:
    """One renews, the other does not."""
    renewing(fleet, 0)
    payload = await fired(FleetTrigger(outlook_factory().to_json()))
    assert payload["reason"] == "worker_lost"
    assert payload["lost"] == {"1": ["worker-1", 1, 7]}


async def test_it_fires_when_the_desired_state_changes(
    fleet: Settings, outlook_factory: Callable[..., RestartBackoff], renewing: Any
) -> None:
    """A command of an operator is heard within a quarter of a lease."""
    outlook = outlook_factory()
    renewing(fleet, 0, 1)
    put(fleet, desired(state="paused"))
    assert (await fired(FleetTrigger(outlook.to_json())))["reason"] == "desired_changed"


async def test_two_at_once_fire_for_the_same_reason(
    fleet: Settings, outlook_factory: Callable[..., RestartBackoff], renewing: Any
) -> None:
    """Two triggerers may run it; neither writes, so neither disturbs the other."""
    renewing(fleet, 1)
    version = LeaseTable(fleet).read().leases.keys()
    outlook = outlook_factory().to_json()
    first, second = await asyncio.gather(fired(FleetTrigger(outlook)), fired(FleetTrigger(outlook)))
    assert first["reason"] == second["reason"] == "worker_lost"
    assert LeaseTable(fleet).read().leases.keys() == version


async def test_a_store_that_is_away_does_not_end_the_watch(
    fleet: Settings,
    outlook_factory: Callable[..., RestartBackoff],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It looks again until the table can be read, instead of ending a run that would begin again at once."""
    outlook = outlook_factory()
    log = Path(fleet.table("control", "leases")) / "_delta_log"
    hidden = log.rename(log.with_name("hidden"))
    log.write_text("not a folder")
    running = asyncio.create_task(fired(FleetTrigger(outlook.to_json())))
    await asyncio.sleep(1)  # some looks that must all fail
    assert not running.done()
    log.unlink()
    hidden.rename(log)
    assert (await running)["reason"] == "worker_lost"
