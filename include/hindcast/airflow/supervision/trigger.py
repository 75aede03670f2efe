"""The trigger behind which the supervisor sleeps.

The triggerer imports it, so it is not in dags/ or plugins/.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import structlog
from airflow.triggers.base import BaseTrigger, TriggerEvent

from hindcast import Hindcast
from hindcast.airflow.supervision.conditions import Wake, Watcher, recent_failures
from hindcast.airflow.supervision.restart_backoff import RestartBackoff, files_fingerprint
from hindcast.clock import SystemClock
from hindcast.errors import HindcastError

#: The leases are read this often within a lease's duration, as often as their owners renew them.
LOOKS_PER_LEASE = 4

_log = structlog.get_logger(__name__)


class FleetTrigger(BaseTrigger):
    """Fires once the fleet differs from what the supervisor last saw, or after an hour.

    It only reads tables, so two triggerers may run it at once, and it may be stopped at any moment. After a
    restart it has seen no heartbeat yet, so a lost worker is reported at most one lease later. It has no
    ``cleanup``: Airflow calls that on each restart of the triggerer, and a stream must outlive those.

    :param outlook: :meth:`hindcast.airflow.supervision.restart_backoff.RestartBackoff.to_json` of the last
    reconciliation
    """

    def __init__(self, outlook: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.outlook = outlook

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"outlook": self.outlook}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        outlook = RestartBackoff.from_json(self.outlook)
        hindcast = Hindcast()
        settings = hindcast.settings
        watcher = Watcher(outlook, settings, SystemClock())

        def poll() -> Wake | None:
            failures = recent_failures(hindcast.tables, outlook.looked_at)
            files = files_fingerprint(settings.pipelines_dir)
            return watcher.look(hindcast.lease_table.leases(), failures, files)

        while True:
            wake = None
            try:
                wake = await asyncio.to_thread(poll)
            except (HindcastError, OSError) as error:
                # An error would end the watch, and the supervisor would spin until the store is back.
                _log.warning("The fleet cannot be read just now; the trigger retries.", reason=str(error))
            if wake is not None:
                _log.info("The supervisor wakes.", reason=wake.reason.value, message=wake.message)
                yield TriggerEvent(wake.to_json())
                return
            await asyncio.sleep(settings.lease_seconds / LOOKS_PER_LEASE)
