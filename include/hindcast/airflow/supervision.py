"""The two tasks of `supervise`: make the fleet whole, then sleep until it is not."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from airflow.sdk import BaseOperator

from hindcast.airflow.fleet import (
    OTHER_TROUBLE,
    SLOT_TROUBLE,
    TROUBLE,
    Fault,
    Sign,
    desired_lines,
    lagging_shards,
    settle,
    slot_leases,
    slots_wanted,
)
from hindcast.airflow.links import ControlRoomLink
from hindcast.airflow.outlook import HOUR, Outlook, files_fingerprint
from hindcast.airflow.triggers import FleetTrigger
from hindcast.catalog import Catalog, load
from hindcast.clock import Clock, SystemClock
from hindcast.control.desired import DesiredStates
from hindcast.control.events import EventKind, EventLog, Severity
from hindcast.control.lease_table import LeaseTable
from hindcast.control.leases import Lease
from hindcast.control.schema import ControlTable
from hindcast.control.tables import ControlTables
from hindcast.local.processes import Service, Services, launch_worker
from hindcast.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk import Context

#: A launched worker that has no slot counts as starting for so long, beyond the lease it may have to wait for a dead owner's slot.
START_SECONDS = 120.0

_log = structlog.get_logger(__name__)


class ReconcileOperator(BaseOperator):
    """Want every loadable pipeline running unless something else is wanted of it, then launch the workers that are missing.

    A worker is a detached process: it outlives this task, its scheduler, and the kill of either. Launching one too many is
    harmless, as it finds no free slot and exits 0. Nothing is ever stopped here: stopping goes through the desired state.

    Returns (XCom) the outlook for :class:`WatchFleetOperator` and what was seen and launched.
    """

    operator_extra_links = (ControlRoomLink(),)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        settings, clock = Settings(), SystemClock()
        tables, store = ControlTables(settings), LeaseTable(settings)
        events = EventLog(tables, worker="supervise", clock=clock)
        looked_at = clock.now()
        woke = recent_wakes(tables, looked_at)
        refused = self._declare(load(settings.pipelines_dir), DesiredStates(store), settings, events, tables, looked_at)
        leases, empty = settle(store.leases, settings, clock, time.sleep, last_lost(woke))
        starting = starting_workers(Services(settings.home).workers(), leases, settings, clock)
        wanted = slots_wanted(leases, settings)
        live = [slot for slot in wanted if slot not in empty]
        _log.info(
            f"The fleet {settings.fleet} wants {len(wanted)} workers: {len(live)} live, {len(starting)} starting.",
            live=[lease.lease_owner for slot, lease in slot_leases(leases, settings).items() if slot in live],
            starting=[service.name for service in starting],
        )
        launched = self._launch(max(len(empty) - len(starting), 0), settings, events)
        outlook = Outlook.after(
            looked_at,
            faults=frozenset(
                {
                    *(f"{Fault.SLOT_EMPTY}:{slot}" for slot in empty),
                    *(f"{Fault.SHARD_LAGS}:{shard}" for shard in lagging_shards(leases, settings)),
                }
            ),
            desired=desired_lines(leases),
            files=files_fingerprint(settings.pipelines_dir),
            empty_slots=bool(empty),
            slot_wakes=sum(wake["reason"] in SLOT_TROUBLE for wake in woke),
            other_wakes=sum(wake["reason"] in OTHER_TROUBLE for wake in woke),
        )
        seen = {"slots": len(wanted), "live": len(live), "starting": len(starting), "refused": refused, "desired": outlook.desired}
        return {
            "outlook": outlook.to_json(),
            "seen": seen,
            "launched": [{"name": service.name, "pid": service.pid, "log": str(service.log)} for service in launched],
        }

    def _declare(
        self, catalog: Catalog, states: DesiredStates, settings: Settings, events: EventLog, tables: ControlTables, now: datetime
    ) -> list[str]:
        """Want every loadable pipeline; report the refused ones, each once an hour. Returns the files that were refused."""
        known = {
            row["message"]
            for row in tables.rows(ControlTable.EVENTS, [("kind", "=", EventKind.PIPELINE_REFUSED.value), ("at", ">=", now - HOUR)])
        }
        for file, error in catalog.errors.items():
            if str(error) in known:
                _log.warning(str(error), file=file)
            else:
                events.record(
                    EventKind.PIPELINE_REFUSED,
                    str(error),
                    severity=Severity.WARNING,
                    cure="Mend the file; the other pipelines go on.",
                    file=file,
                )
        for pipeline in catalog.values():
            desired = states.declare(pipeline, settings.workers)
            if desired.version not in (declared := catalog.versions(pipeline.name)):
                _log.warning(
                    f"The stream of {pipeline.name} runs version {desired.version}, its code is at version {declared[-1]}.",
                    pipeline=pipeline.name,
                )
        return sorted(catalog.errors)

    def _launch(self, count: int, settings: Settings, events: EventLog) -> list[Service]:
        launched = []
        for _ in range(count):
            service = launch_worker(settings)
            launched.append(service)
            message = f"The supervisor launched the worker process {service.pid} for the fleet {settings.fleet}."
            events.record(EventKind.WORKER_LAUNCHED, message, pid=service.pid, name=service.name, log=str(service.log))
        return launched


def starting_workers(services: Iterable[Service], leases: Collection[Lease], settings: Settings, clock: Clock) -> list[Service]:
    """Launched workers of the fleet on this host that run, hold no slot yet, and are not overdue."""
    host = socket.gethostname()
    holders = {
        lease.detail.get("pid") for lease in slot_leases(leases, settings).values() if not lease.free and lease.detail.get("host") == host
    }
    youngest = clock.now() - timedelta(seconds=START_SECONDS + settings.lease_seconds)
    return [
        service
        for service in services
        if service.running
        and service.detail.get("fleet") == settings.fleet
        and service.pid not in holders
        and service.started_at > youngest
    ]


def recent_wakes(tables: ControlTables, now: datetime) -> list[dict[str, Any]]:
    """The wakes of the last hour, the oldest first, as :meth:`hindcast.airflow.fleet.Wake.to_json` made them."""
    rows = tables.rows(ControlTable.EVENTS, [("kind", "=", EventKind.SUPERVISOR_WOKE.value), ("at", ">=", now - HOUR)])
    return [json.loads(row["detail"]) for row in sorted(rows, key=lambda row: row["at"])]


def last_lost(wakes: list[dict[str, Any]]) -> Mapping[str, Sign]:
    """The slots whose owners the newest wake had watched for a whole lease, with the sign each left."""
    if not wakes:
        return {}
    return {slot: (str(owner), int(epoch), int(counter)) for slot, (owner, epoch, counter) in wakes[-1]["lost"].items()}


class WatchFleetOperator(BaseOperator):
    """Sleep in the triggerer, on no worker slot, until the fleet differs from what was reconciled; then end, so that the next run begins.

    There is no ``on_kill``: clearing or killing this task must not touch a stream.

    :param reconciled: what :class:`ReconcileOperator` returned
    """

    template_fields = ("reconciled",)
    operator_extra_links = (ControlRoomLink(),)

    def __init__(self, *, reconciled: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reconciled = reconciled

    def execute(self, context: Context) -> NoReturn:  # noqa: ARG002 - Airflow's signature
        outlook = self.reconciled["outlook"]
        _log.info("Watching the fleet.", faults_already_known=outlook["faults"], retry_at=outlook["retry_at"])
        self.defer(trigger=FleetTrigger(outlook), method_name="woke")

    def woke(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Record why the trigger fired; what it saw of dead owners tells the next run whom it need not wait for."""
        trouble = event["reason"] in TROUBLE
        EventLog(ControlTables(Settings()), worker="supervise").record(
            EventKind.SUPERVISOR_WOKE,
            event["message"],
            severity=Severity.WARNING if trouble else Severity.INFO,
            cure="An empty slot gets a worker now. For the rest see the errors in `hindcast events`." if trouble else "",
            **{name: value for name, value in event.items() if name != "message"},
        )
        return event
