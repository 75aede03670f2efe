"""The trigger behind which the supervisor sleeps. It lives here, outside dags/ and plugins/, so that the triggerer can import it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import structlog
from airflow.triggers.base import BaseTrigger, TriggerEvent

from hindcast.airflow.fleet import Wake, Watcher, recent_failures
from hindcast.airflow.outlook import Outlook, files_fingerprint
from hindcast.clock import SystemClock
from hindcast.control.lease_table import LeaseTable
from hindcast.control.tables import ControlTables
from hindcast.errors import HindcastError
from hindcast.settings import Settings

#: A lease is looked at this often in its duration, as often as its owner renews it.
LOOKS_PER_LEASE = 4

_log = structlog.get_logger(__name__)


class FleetTrigger(BaseTrigger):
    """Fires once the fleet differs from what the supervisor last saw, or after an hour.

    It only reads tables and never writes one, so it may run twice at once (two triggerers) and may be stopped at any moment: a
    restarted one begins its observation of heartbeats anew, which delays the news of a lost worker by at most one lease. It has no
    ``cleanup``: that is called on each restart of the triggerer, and a stream must outlive those.

    :param outlook: :meth:`hindcast.airflow.outlook.Outlook.to_json` of the last reconciliation
    """

    def __init__(self, outlook: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.outlook = outlook

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"outlook": self.outlook}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        outlook = Outlook.from_json(self.outlook)
        settings = Settings()
        watcher = Watcher(outlook, settings, SystemClock())
        leases, tables = LeaseTable(settings), ControlTables(settings)

        def look() -> Wake | None:
            failures = recent_failures(tables, outlook.looked_at)
            files = files_fingerprint(settings.pipelines_dir)
            return watcher.look(leases.leases(), failures, files)

        while True:
            try:
                wake = await asyncio.to_thread(look)
            except (HindcastError, OSError) as error:  # a store that is away must not end the watch: it would spin
                _log.warning("The fleet cannot be seen just now; looking again.", reason=str(error))
                wake = None
            if wake is not None:
                _log.info("The supervisor wakes.", reason=wake.reason.value, message=wake.message)
                yield TriggerEvent(wake.to_json())
                return
            await asyncio.sleep(settings.lease_seconds / LOOKS_PER_LEASE)
