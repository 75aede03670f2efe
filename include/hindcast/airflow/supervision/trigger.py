"""The trigger behind which the supervisor sleeps.

The triggerer imports it, so it is not in dags/ or plugins/.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from hindcast import Hindcast
from hindcast.airflow.deferred_trigger import DeferredTrigger
from hindcast.airflow.supervision.conditions import Wake, Watcher, recent_failures
from hindcast.airflow.supervision.restart_backoff import RestartBackoff, files_fingerprint
from hindcast.clock import SystemClock
from hindcast.errors import HindcastError

#: The leases are read this often within a lease's duration, as often as their owners renew them.
LOOKS_PER_LEASE = 4

_log = structlog.get_logger(__name__)


class FleetTrigger(DeferredTrigger):
    """Fires once the fleet differs from what the supervisor last saw, or after an hour.

    After a restart it has seen no heartbeat yet, so a lost worker is reported at most one lease later. It has
    no ``cleanup``: Airflow calls that on each restart of the triggerer, and a stream must outlive those.

    :param outlook: :meth:`hindcast.airflow.supervision.restart_backoff.RestartBackoff.to_json` of the last
    reconciliation
    """

    def __init__(self, outlook: dict[str, Any]) -> None:
        super().__init__()
        self.outlook = outlook

    def arguments(self) -> dict[str, Any]:
        return {"outlook": self.outlook}

    async def wait(self) -> dict[str, Any]:
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
                return wake.to_json()
            await asyncio.sleep(settings.lease_seconds / LOOKS_PER_LEASE)
