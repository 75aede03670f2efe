"""When a trigger may fire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import support.airflow_home  # noqa: F401 - before Airflow

from hindcast.airflow import deferred_trigger
from hindcast.airflow.deferred_trigger import DeferredTrigger


class Waited(DeferredTrigger):
    """Waits for so many seconds of a clock that only sleeping moves."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock = clock
        self.seconds = seconds

    def arguments(self) -> dict[str, Any]:
        return {"clock": self.clock, "seconds": self.seconds}

    async def wait(self) -> dict[str, Any]:
        await self.clock.sleep(self.seconds)  # no real time passes
        return {"waited": self.seconds}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Airflow's supervisors look for the end of a process every five seconds."""
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "5")
    made = Clock()
    monkeypatch.setattr(deferred_trigger, "get_running_loop", lambda: made)
    monkeypatch.setattr(deferred_trigger, "sleep", made.sleep)
    return made


@pytest.mark.parametrize(("waited", "fires_after"), [(0.0, 10.0), (2.0, 10.0), (12.0, 12.0)])
async def test_it_fires_no_earlier_than_airflow_has_noticed_the_deferral(
    clock: Clock, waited: float, fires_after: float
) -> None:
    """Twice the interval in which the supervisor of the deferred task's process looks for its end."""
    event = await anext(Waited(clock, waited).run())
    assert event.payload == {"waited": waited}
    assert clock.now - 100.0 == fires_after


async def test_a_wait_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it holds its event, too: a triggerer that is stopped stops its triggers."""
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "3600")

    class Done(DeferredTrigger):
        def arguments(self) -> dict[str, Any]:
            return {}

        async def wait(self) -> dict[str, Any]:
            return {}

    async def fired() -> None:
        await anext(Done().run())

    running = asyncio.create_task(fired())
    await asyncio.wait([running], timeout=0.1)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
