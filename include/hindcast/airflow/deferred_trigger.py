"""What the triggers of deferred tasks have in common: when they may fire.

The process of a task that defers itself ends. Airflow learns of the end later than of the deferral: the
process's supervisor may look for it only once in ``[workers] min_heartbeat_interval`` seconds, and the
scheduler asks its executor once a loop. If the trigger has fired by then, the scheduler may take the end of
that process for the end of the resumed task. It notes a "state mismatch" and fails the try, although nothing
is wrong (https://github.com/apache/airflow/issues/71580, with Airflow 3.3).
"""

from __future__ import annotations

from abc import abstractmethod
from asyncio import get_running_loop, sleep
from collections.abc import AsyncIterator
from typing import Any

from airflow.configuration import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

#: A trigger fires no earlier than so many of Airflow's least heartbeat intervals after it began: one for the
#: supervisor of the process, and one for the scheduler's loop.
HEARTBEATS_UNTIL_NOTICED = 2


class DeferredTrigger(BaseTrigger):
    """Fires once, when its wait is over, but no earlier than Airflow has noticed the deferral.

    It only reads tables, so two triggerers may run it at once, and it may be stopped at any moment.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, self.arguments()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        loop = get_running_loop()
        interval = conf.getfloat("workers", "min_heartbeat_interval")
        noticed_at = loop.time() + HEARTBEATS_UNTIL_NOTICED * interval
        event = await self.wait()
        await sleep(max(noticed_at - loop.time(), 0.0))  # nothing tells that Airflow has noticed
        yield TriggerEvent(event)

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """What ``__init__`` needs to make an equal trigger, as JSON."""

    @abstractmethod
    async def wait(self) -> dict[str, Any]:
        """Wait for what ends the wait; returns the event, as JSON."""
