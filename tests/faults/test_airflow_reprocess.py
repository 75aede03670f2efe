"""A reprocessing under a real Airflow, which is killed where the run waits: for a person, and while it
watches what was promoted.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.fleet_sample import verdict
from support.real_airflow import ENDED, Platform, until

from hindcast import read
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.processes.background_services import Services, members
from hindcast.settings import Settings, project_root
from hindcast.shards.version_changes import Versions
from hindcast.tables.table_names import ControlTable
from hindcast_sandbox import airflow, stack
from hindcast_sandbox.load import ensure_topic

pytestmark = [pytest.mark.timeout(1500), pytest.mark.minutes]

PIPELINE = "stock_stats"
DAG_ID = f"reprocess.{PIPELINE}"
TOPIC = "trades"


@pytest.fixture
def platform(tmp_path: Path, jars_dir: Path) -> Iterator[Platform]:
    """A stream of version 1 under load, version 2 declared beside it, and an Airflow that has started
    nothing.
    """
    home = tmp_path / "home"
    (home / "pipelines").mkdir(parents=True)
    for file in (PIPELINE, f"{PIPELINE}_v2"):
        shutil.copy(project_root() / "include" / "pipelines" / f"{file}.py", home / "pipelines")
    settings = Settings(
        home=home,
        jars_dir=jars_dir,
        pipelines_dir=home / "pipelines",
        workers=1,
        lease_seconds=5.0,
        trigger_seconds=2.0,
    )
    try:
        settings = stack.up(settings, topic=None)
        ensure_topic(settings.bootstrap_servers, TOPIC)
        stack.start_workers(Installation(settings), settings.workers)
        stack.start_load(settings, TOPIC, 100.0, seed=2)
        made = Platform(settings, datetime.now(UTC))
        until("the first batches", lambda: made.committed() >= 6)
        yield made
    finally:
        stack.down(settings)
        left = [process.pid for service in Services(home).all() for process in members(service)]
        assert left == [], "I9"


class Reprocessing:
    """One run of the DAG, seen through the REST API."""

    def __init__(self, platform: Platform, **conf: Any) -> None:
        self.platform = platform
        platform.unpause(DAG_ID)
        self.run_id = platform.run(DAG_ID, conf)

    def task(self, name: str) -> dict[str, Any]:
        return next(task for task in self.platform.tasks(DAG_ID, self.run_id) if task["task_id"] == name)

    def wait(self, name: str, state: str) -> dict[str, Any]:
        """Until the task is in the state; fails with its log where it, or the run, ended otherwise."""

        def look() -> dict[str, Any] | None:
            found = self.platform.tasks(DAG_ID, self.run_id)
            failed = [
                task
                for task in found
                if task["state"] == "failed" and (task["task_id"], "failed") != (name, state)
            ]
            assert not failed, self.platform.log(failed[0])[-3000:]
            return next((task for task in found if task["task_id"] == name and task["state"] == state), None)

        return until(f"{name} to be {state}", look)

    def asked(self, method: str = "GET", body: Any = None) -> dict[str, Any]:
        path = f"/dags/{DAG_ID}/dagRuns/{self.run_id}/taskInstances/approve/-1/hitlDetails"
        found: dict[str, Any] = self.platform.api(method, path, body)
        return found


def kill_airflow(platform: Platform) -> None:
    """All of it, and whatever its tasks run; then start it again."""
    services = airflow.components(platform.settings)
    processes = [process for service in services for process in members(service)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=20)
    airflow.start(platform.settings)
    platform._token = airflow.login(platform.settings)


def windows(settings: Settings) -> Counter[Any]:
    rows = read(PIPELINE, settings).arrow().select(["window", "ticker"]).to_pylist()
    return Counter((row["window"]["end"], row["ticker"]) for row in rows)


@pytest.mark.row("reprocess")
def test_a_version_is_promoted_by_a_person_and_backed_out_by_a_verdict(
    platform: Platform, record_property: Any
) -> None:
    """Each change of the versions is made once, although Airflow dies while it asks and while it watches;
    readers lack no window.
    """
    settings = platform.settings
    run = Reprocessing(platform, version=2, new_table=True, watch_minutes=30.0)
    run.wait("approve", "awaiting_input")
    versions = Versions(LeaseTable(settings))
    assert versions.of(PIPELINE).active == 1
    body = run.asked()["body"]
    for words in ("Version 2 of stock\\_stats compared with version 1", "Proved.", "| trades |", "max\\_ask"):
        assert words in body

    kill_airflow(platform)
    assert run.task("approve")["state"] == "awaiting_input", "it still waits for the same answer"
    before = windows(settings)
    run.asked("PATCH", {"chosen_options": ["Promote"], "params_input": {"despite": ""}})
    run.wait("watch", "deferred")
    rollout = versions.of(PIPELINE)
    assert (rollout.active, rollout.change.who if rollout.change else "") == (2, airflow.ADMIN)
    after = windows(settings)
    assert {window for window, _ in before} <= {window for window, _ in after}
    assert max(after.values()) == 1
    assert run.task("discard")["state"] == "skipped"

    kill_airflow(platform)
    assert run.task("watch")["state"] not in ENDED
    row = verdict("made-up", version=2, passed=False, unexplained=1, change=versions.of(PIPELINE).changes)
    platform.tables.append(ControlTable.VERDICTS, [row])
    task = run.wait("watch", "failed")
    assert "its verdict made-up failed" in platform.log(task)
    assert platform.ended(DAG_ID, run.run_id) == "failed"
    assert versions.of(PIPELINE).active == 1
    assert max(windows(settings).values()) == 1
    kinds = ("reprocess_started", "reprocess_caught_up", "version_promoted", "version_backed_out")
    assert {kind: len(platform.events(kind)) for kind in kinds} == dict.fromkeys(kinds, 1)
    record_property("oracles", "I2 I9")
