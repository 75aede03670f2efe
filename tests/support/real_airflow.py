"""A running stack, seen from outside: through its tables, its recorded processes, and Airflow's REST API."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

from hindcast.errors import ServiceError
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, StatusType
from hindcast.processes.background_services import Service, Services
from hindcast.settings import Settings
from hindcast.shards.slot_row import SlotHolder
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger
from hindcast.tables.table_names import ControlTable
from hindcast_sandbox import airflow

#: For a slow machine that does much else: a day's backfill takes 340 s on two busy cores. Nothing waits
#: longer than its condition takes.
DEADLINE_SECONDS = 900.0
ENDED = {"success", "failed"}

Found = TypeVar("Found")


def until(what: str, look: Callable[[], Found | None], seconds: float = DEADLINE_SECONDS) -> Found:
    """The first value that is neither None nor False; fails with what was last seen after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} seconds"
        time.sleep(0.5)  # between two looks at the condition


def measured(line: str) -> None:
    """Tell a duration; none is asserted, as they are the machine's."""
    print(line)  # noqa: T201 - shown with pytest -s


class Platform:
    """The running stack, seen through the tables, the recorded processes and Airflow's REST API."""

    def __init__(self, settings: Settings, began_at: datetime) -> None:
        self.settings = settings
        self.began_at = began_at
        self.tables = ControlTables(settings)
        self._token = airflow.login(settings)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        return airflow.request(self.settings.airflow_url, method, f"/api/v2{path}", body, self._token)

    def workers(self) -> list[Service]:
        return [service for service in Services(self.settings.home).workers() if service.running]

    def leases(self, kind: StatusType) -> list[Lease]:
        return [lease for lease in LeaseTable(self.settings).leases() if lease.status_type is kind]

    def whole(self) -> set[int] | None:
        """The pids of the workers, once each slot is held by one that runs and no further worker does."""
        running = {service.pid for service in self.workers()}
        holders = {SlotHolder.of(lease).pid for lease in self.leases(StatusType.SLOT) if lease.lease_owner}
        return running if running == holders and len(running) == self.settings.workers else None

    def wait_whole(self) -> set[int]:
        return until("a whole fleet", self.whole)

    def wait_owned(self, owners: set[int]) -> None:
        """Wait until every shard is held by one of these and was renewed by it."""

        def look() -> bool:
            before = {lease.key: lease for lease in self.leases(StatusType.SHARD)}
            return (
                bool(before)
                and all(
                    int(lease.lease_owner.split("-")[-2] or 0) in owners
                    for lease in before.values()
                    if lease.lease_owner
                )
                and all(lease.lease_owner for lease in before.values())
            )

        until("every shard owned", look)

    def committed(self, pipeline: str = "stock_stats") -> int:
        """How many batches the ledger has."""
        return len(self.tables.rows(ControlTable.CHECKPOINTS, [("pipeline", "=", pipeline)]))

    def committed_to(self, pipeline: str) -> dict[int, int]:
        """The end offset of each partition that has committed rows."""
        ends: dict[int, int] = {}
        for row in Ledger(self.tables).batches(pipeline):
            for partition, offset in row.end_offsets.items():
                ends[partition] = max(ends.get(partition, 0), offset)
        return {partition: offset for partition, offset in ends.items() if offset > 0}

    def events(self, kind: str) -> list[dict[str, Any]]:
        return sorted(self.tables.rows(ControlTable.EVENTS, [("kind", "=", kind)]), key=lambda row: row["at"])

    def verdicts(self) -> dict[str, dict[str, Any]]:
        return {row["run_id"]: row for row in self.tables.rows(ControlTable.VERDICTS)}

    def unpause(self, dag_id: str) -> None:
        until(
            f"the DAG {dag_id}",
            lambda: any(dag["dag_id"] == dag_id for dag in self.api("GET", "/dags?limit=100")["dags"]),
        )
        self.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})

    def backfill(self, dag_id: str, starts: list[datetime], *options: str) -> None:
        """Ask for a run of each interval with `airflow backfill create`; its end date is inclusive."""
        arguments = [
            "--dag-id",
            dag_id,
            "--from-date",
            starts[0].isoformat(),
            "--to-date",
            starts[-1].isoformat(),
            *options,
        ]
        done = subprocess.run(
            [airflow.executable(), "backfill", "create", *arguments],
            env=airflow.environment(self.settings),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def tasks(self, dag_id: str, run_id: str = "~") -> list[dict[str, Any]]:
        """Task instances, the oldest first."""
        found = self.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=100&order_by=id")[
            "task_instances"
        ]
        return sorted(found, key=lambda task: task["start_date"] or "9")

    def xcom(self, task: dict[str, Any], key: str = "return_value") -> Any:
        """What the task pushed; None where it has not."""
        try:
            value = self.api("GET", f"{self._path(task)}/xcomEntries/{key}?map_index={task['map_index']}")[
                "value"
            ]
        except ServiceError as error:
            if "with 404" in str(error):
                return None
            raise
        return json.loads(value) if isinstance(value, str) and value[:1] in "[{" else value

    def log(self, task: dict[str, Any]) -> str:
        return json.dumps(
            self.api("GET", f"{self._path(task)}/logs/{task['try_number']}?map_index={task['map_index']}")
        )

    def audit(self, run_id: str) -> list[str]:
        """What Airflow noted of the tasks of a run, the oldest first."""
        notes = self.api("GET", f"/eventLogs?run_id={quote(run_id)}&order_by=when&limit=100")["event_logs"]
        return [f"{note['when']} {note['event']} {note['extra'] or ''}" for note in notes]

    def _path(self, task: dict[str, Any]) -> str:
        return f"/dags/{task['dag_id']}/dagRuns/{task['dag_run_id']}/taskInstances/{task['task_id']}"

    def watching(self, after: str = "") -> dict[str, Any]:
        """The deferred watch, once there is one whose trigger runs."""

        def look() -> dict[str, Any] | None:
            deferred = [
                task
                for task in self.tasks("supervise")
                if task["task_id"] == "watch" and task["state"] == "deferred"
            ]
            return next(
                (task for task in deferred if task["triggerer_job"] and (task["start_date"] or "") > after),
                None,
            )

        return until("the supervisor watching", look)

    def run(self, dag_id: str, conf: dict[str, Any]) -> str:
        return str(
            self.api("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})["dag_run_id"]
        )

    def ended(self, dag_id: str, run_id: str) -> str:
        def look() -> str | None:
            state = self.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"]
            return state if state in ENDED else None

        return until(f"{dag_id} {run_id} ended", look)

    def judged(self, run_id: str) -> dict[str, Any]:
        return until(f"the verdict on {run_id}", lambda: self.verdicts().get(run_id))
