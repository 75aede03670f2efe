"""The two tasks of `supervise`: launch the workers that are missing, then sleep until the fleet changes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from airflow.sdk import BaseOperator

from hindcast import Hindcast
from hindcast.airflow.kafka_connection import settings_of_children
from hindcast.airflow.links import ControlRoomLink
from hindcast.airflow.supervision.conditions import (
    OTHER_TROUBLE,
    SLOT_TROUBLE,
    TROUBLE,
    Heartbeat,
    desired_lines,
    fault_keys,
    lagging_shards,
    settle,
    slot_leases,
    slots_wanted,
)
from hindcast.airflow.supervision.restart_backoff import HOUR, RestartBackoff, files_fingerprint
from hindcast.airflow.supervision.trigger import FleetTrigger
from hindcast.clock import Clock, SystemClock
from hindcast.installation import Installation
from hindcast.leases.lease import Lease
from hindcast.processes.background_services import Service, Services, launch_worker
from hindcast.settings import Settings
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.slot_row import SlotHolder
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from airflow.sdk import Context

    from hindcast.tables.control_tables import ControlTables

#: A launched worker without a slot counts as starting for this long, and for one lease more: it may have to
#: wait for a dead owner's slot.
START_SECONDS = 120.0

_log = structlog.get_logger(__name__)


class ReconcileOperator(BaseOperator):
    """Declare every pipeline that loads, then launch the workers that are missing.

    A pipeline without a desired state gets one; an operator's choice stays. A worker is a detached process:
    it outlives this task, its scheduler, and the kill of either. A worker too many does no harm, because it
    finds no free slot and exits 0. Nothing is ever stopped here: only a desired state stops a stream.

    Returns (XCom) the outlook for :class:`WatchFleetOperator` and what was seen and launched.
    """

    operator_extra_links = (ControlRoomLink(),)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        hindcast = Hindcast()
        settings = hindcast.settings
        clock = SystemClock()
        events = EventLog(hindcast.tables, worker="supervise", clock=clock)
        looked_at = clock.now()
        # Before the pipelines are loaded: a file that is written meanwhile differs from this, and wakes the
        # supervisor again.
        files = files_fingerprint(settings.pipelines_dir)
        wakes = recent_wakes(hindcast.tables, looked_at)

        _report_refused(hindcast, events, looked_at)
        _declare(hindcast)

        leases, empty = settle(hindcast.lease_table.leases, settings, clock, time.sleep, last_lost(wakes))
        starting = starting_workers(Services(settings.home).workers(), leases, settings, clock)
        wanted = slots_wanted(leases, settings)
        live = [slot for slot in wanted if slot not in empty]
        self._log_fleet(leases, wanted, live, starting, settings)
        missing = max(len(empty) - len(starting), 0)
        launched = _launch(missing, settings, events)

        outlook = RestartBackoff.after(
            looked_at,
            faults=frozenset(fault_keys(empty, lagging_shards(leases, settings))),
            desired=desired_lines(leases),
            files=files,
            empty_slots=bool(empty),
            slot_wakes=sum(wake["reason"] in SLOT_TROUBLE for wake in wakes),
            other_wakes=sum(wake["reason"] in OTHER_TROUBLE for wake in wakes),
        )
        seen = {
            "slots": len(wanted),
            "live": len(live),
            "starting": len(starting),
            "refused": sorted(hindcast.catalog.errors),
            "desired": outlook.desired,
        }
        return {
            "outlook": outlook.to_json(),
            "seen": seen,
            "launched": [
                {"name": service.name, "pid": service.pid, "log": str(service.log)} for service in launched
            ],
        }

    def _log_fleet(
        self,
        leases: Collection[Lease],
        wanted: Collection[str],
        live: Collection[str],
        starting: Collection[Service],
        settings: Settings,
    ) -> None:
        slots = slot_leases(leases, settings)
        owners = [lease.lease_owner for slot, lease in slots.items() if slot in live]
        _log.info(
            f"The fleet {settings.fleet} needs {len(wanted)} workers: "
            f"{len(live)} live, {len(starting)} starting.",
            live=owners,
            starting=[service.name for service in starting],
        )


def _report_refused(installation: Installation, events: EventLog, now: datetime) -> None:
    """Record each file that does not load, once an hour."""
    rows = _recent_events(installation.tables, EventKind.PIPELINE_REFUSED, now)
    known = {row["message"] for row in rows}
    for file, error in installation.catalog.errors.items():
        message = str(error)
        if message in known:
            _log.warning(message, file=file)
            continue
        events.record(
            EventKind.PIPELINE_REFUSED,
            message,
            severity=Severity.WARNING,
            cure="Correct the file. The other pipelines keep running.",
            file=file,
        )


def _declare(installation: Installation) -> None:
    """Give every pipeline a desired state if it has none."""
    states = DesiredStates(installation.lease_table)
    for pipeline in installation.catalog.consumed():
        desired = states.declare(pipeline, installation.settings.workers)
        declared = installation.catalog.versions(pipeline.name)
        if desired.version not in declared:
            _log.warning(
                f"The stream of {pipeline.name} runs version {desired.version}, "
                f"its code is at version {declared[-1]}.",
                pipeline=pipeline.name,
            )


def _launch(count: int, settings: Settings, events: EventLog) -> list[Service]:
    launched = []
    for _ in range(count):
        service = launch_worker(settings_of_children(settings))
        launched.append(service)
        events.record(
            EventKind.WORKER_LAUNCHED,
            f"The supervisor launched the worker process {service.pid} for the fleet {settings.fleet}.",
            pid=service.pid,
            name=service.name,
            log=str(service.log),
        )
    return launched


def starting_workers(
    services: Iterable[Service], leases: Collection[Lease], settings: Settings, clock: Clock
) -> list[Service]:
    """Launched workers of the fleet on this host that run, hold no slot yet, and are not overdue."""
    host = socket.gethostname()
    holders = set()
    for lease in slot_leases(leases, settings).values():
        holder = SlotHolder.of(lease)
        if not lease.free and holder.host == host:
            holders.add(holder.pid)
    oldest = clock.now() - timedelta(seconds=START_SECONDS + settings.lease_seconds)

    def is_starting(service: Service) -> bool:
        if not service.running or service.started_at <= oldest:
            return False
        return service.detail.get("fleet") == settings.fleet and service.pid not in holders

    return [service for service in services if is_starting(service)]


def _recent_events(tables: ControlTables, kind: EventKind, now: datetime) -> list[dict[str, Any]]:
    """The events of this kind within the last hour."""
    return tables.rows(ControlTable.EVENTS, [("kind", "=", kind.value), ("at", ">=", now - HOUR)])


def recent_wakes(tables: ControlTables, now: datetime) -> list[dict[str, Any]]:
    """The wakes of the last hour, the oldest first
    (:meth:`hindcast.airflow.supervision.conditions.Wake.to_json`).
    """
    rows = _recent_events(tables, EventKind.SUPERVISOR_WOKE, now)
    rows.sort(key=lambda row: row["at"])
    return [json.loads(row["detail"]) for row in rows]


def last_lost(wakes: list[dict[str, Any]]) -> Mapping[str, Heartbeat]:
    """By slot, the last sign of each owner that the newest wake calls lost."""
    lost: dict[str, Heartbeat] = {}
    if not wakes:
        return lost
    for slot, (owner, epoch, counter) in wakes[-1]["lost"].items():
        lost[slot] = (str(owner), int(epoch), int(counter))
    return lost


class WatchFleetOperator(BaseOperator):
    """Sleep in the triggerer, on no worker slot, until the fleet differs from what was reconciled.

    Then this task ends, so that the next run begins. There is no ``on_kill``: clearing or killing this task
    must not touch a stream.

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
        """Record why the trigger fired.

        The next run need not wait for the owners that the event calls lost.
        """
        severity = Severity.INFO
        cure = ""
        if event["reason"] in TROUBLE:
            severity = Severity.WARNING
            cure = "An empty slot gets a worker now. For the rest see the errors in `hindcast events`."
        detail = {name: value for name, value in event.items() if name != "message"}
        events = EventLog(Hindcast().tables, worker="supervise")
        events.record(EventKind.SUPERVISOR_WOKE, event["message"], severity=severity, cure=cure, **detail)
        return event
