"""A backfill over many past intervals, cut short by SIGKILL of Airflow and of all its tasks, ends with the
rows of an uninterrupted one.

What was streamed is simulated, so that the intervals are there at once: the topic, the ledger and the sink
are real. The uninterrupted one replays the same intervals, one after the other, in a single process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable
from support.real_airflow import Platform, measured, until
from support.simulated_platform import publish, store
from support.simulated_stream import BASE_MS, simulate, trades

from hindcast.processes.background_services import Services, members
from hindcast.settings import Settings, project_root
from hindcast.tables.table_names import ControlTable
from hindcast_sandbox import airflow, stack

pytestmark = pytest.mark.timeout(7200)

PIPELINE, DAG_ID, TOPIC = "stock_stats", "replay.stock_stats", "trades"
INTERVAL = timedelta(minutes=1)
#: The first interval begins here: a yearly hour, so that the schedule itself adds no interval meanwhile.
BEGAN_AT = datetime.fromtimestamp(BASE_MS / 1000, UTC)
ROWS_EACH = 100

#: Replays the intervals given as arguments, in one session.
UNINTERRUPTED = """
import sys
from hindcast import catalog
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import run_replay
from hindcast.settings import Settings
from hindcast.spark.session import build
settings = Settings()
spark = build(settings, "uninterrupted")
pipeline = catalog.load(settings.pipelines_dir)["stock_stats"]
for number, (first, last) in enumerate(zip(sys.argv[1:], sys.argv[2:])):
    request = ReplayRequest.parse(pipeline="stock_stats", run_id=f"whole-{number}", from_time=first, to_time=last)
    run_replay(lambda: spark, Installation(settings), pipeline, request)
spark.stop()
"""


@pytest.fixture
def intervals(request: pytest.FixtureRequest, quick: bool) -> int:
    """How many past intervals are replayed."""
    return int(request.config.getoption("--intervals")) or (6 if quick else 24)


@pytest.fixture
def platform(tmp_path: Path, jars_dir: Path, intervals: int) -> Iterator[Platform]:
    """A stack without workers, whose stream has read as many intervals as are asked for, and one more that
    keeps the last open.
    """
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / f"{PIPELINE}.py").write_text(
        (project_root() / "include" / "pipelines" / f"{PIPELINE}.py").read_text()
    )
    settings = Settings(
        home=tmp_path,
        jars_dir=jars_dir,
        pipelines_dir=pipelines,
        replay_schedule=f"* {BEGAN_AT.hour} {BEGAN_AT.day} {BEGAN_AT.month} *",
    )
    try:
        settings = stack.up(settings, topic=None)
        count = (intervals + 1) * ROWS_EACH
        records = trades(3, count=count, partitions=4, rate_ms=INTERVAL.total_seconds() * 1000 / ROWS_EACH)
        publish(settings, TOPIC, records)
        store(settings, simulate(records, seed=3, shards=2, even=True), PIPELINE)
        yield Platform(settings, BEGAN_AT)
    finally:
        stack.down(settings)
        assert [process.pid for service in Services(tmp_path).all() for process in members(service)] == []


def hindcasts(settings: Settings, run_id: str) -> list[tuple[Any, ...]]:
    rows = DeltaTable(settings.table("hindcasts", PIPELINE, run_id)).to_pyarrow_table().to_pylist()
    return sorted(
        (row["answer"], row["window"]["end"], row["ticker"], row["min_ask"], row["trades"], row["avg_ask"])
        for row in rows
    )


def runs_of(platform: Platform, starts: list[datetime]) -> dict[datetime, dict[str, Any]]:
    """The backfill's runs by the beginning of their interval."""
    found = platform.api("GET", f"/dags/{DAG_ID}/dagRuns?limit=100")["dag_runs"]
    by_start = {datetime.fromisoformat(run["logical_date"]): run for run in found if run["logical_date"]}
    return {start: by_start[start] for start in starts if start in by_start}


def ended(platform: Platform, starts: list[datetime]) -> list[datetime]:
    return [start for start, run in runs_of(platform, starts).items() if run["state"] == "success"]


def backfills(platform: Platform) -> list[dict[str, Any]]:
    """All of the DAG: Airflow makes none while one is active, and says only once in half a minute that it is
    not.
    """
    found: list[dict[str, Any]] = platform.api("GET", f"/backfills?dag_id={DAG_ID}")["backfills"]
    assert found
    return found


def kill_all(platform: Platform) -> list[int]:
    """SIGKILL to the scheduler, its tasks and every other part of Airflow; the pids of replays, which must
    then end by themselves.
    """
    replays = [
        p.pid
        for p in psutil.process_iter(["cmdline"])
        if "hindcast.apps.replay" in " ".join(p.info["cmdline"] or []) and _ours(p, platform)
    ]
    killed = [
        process
        for part in airflow.components(platform.settings)
        for process in members(part)
        if process.pid not in replays
    ]
    for process in killed:
        process.kill()
    psutil.wait_procs(killed, timeout=20)
    return replays


def _ours(process: psutil.Process, platform: Platform) -> bool:
    try:
        return process.environ().get("HINDCAST_HOME") == str(platform.settings.home)
    except psutil.Error:
        return False


@pytest.mark.row("backfill")
def test_a_backfill_that_was_killed_and_resumed_gives_the_rows_of_an_uninterrupted_one(
    platform: Platform, intervals: int, record_property: Any
) -> None:
    """Newest intervals begin first, one replay at a time; after the kill each interval has one hindcast, with
    exactly the expected rows.
    """
    starts = [BEGAN_AT + position * INTERVAL for position in range(intervals)]
    platform.unpause(DAG_ID)
    began = time.monotonic()
    platform.backfill(DAG_ID, starts, "--run-backwards", "--max-active-runs", "3")
    until("a part of the intervals", lambda: len(ended(platform, starts)) >= max(1, intervals // 3), 3600)
    until(
        "a replay under way",
        lambda: [task for task in platform.tasks(DAG_ID) if task["state"] == "running"] or None,
    )
    before = ended(platform, starts)
    # Runs, not tasks: of the replays that runs under way wait for, Airflow's scheduler takes the one of the
    # oldest interval.
    begun = {
        start: run["start_date"] for start, run in runs_of(platform, starts).items() if run["start_date"]
    }
    assert sorted(begun, key=lambda start: begun[start]) == sorted(begun, reverse=True), (
        "the newest intervals begin first"
    )
    assert begun.keys() == set(starts[-len(begun) :])
    replays = kill_all(platform)
    until("its replays gone with it", lambda: not any(psutil.pid_exists(pid) for pid in replays), 60)
    assert set(starts) - set(before), "it was killed in the middle"
    airflow.start(platform.settings)
    until("every interval", lambda: len(ended(platform, starts)) == intervals, 3600)
    measured(f"{intervals} intervals, {len(before)} before the kill: {time.monotonic() - began:.0f} s")

    tasks = {
        datetime.fromisoformat(task["logical_date"]): task
        for task in platform.tasks(DAG_ID)
        if task["logical_date"]
    }
    run_ids = [platform.xcom(tasks[start])["run_id"] for start in starts]
    spans = sorted((task["start_date"], task["end_date"]) for start, task in tasks.items() if start in starts)
    assert all(first[1] <= second[0] for first, second in pairwise(spans)), "one replay at a time"
    kept = [run_id for run_id in run_ids if run_id]
    until(
        "the backfill is told to be over", lambda: all(made["completed_at"] for made in backfills(platform))
    )
    platform.backfill(DAG_ID, starts)  # again: reprocess behaviour none makes no run twice
    assert [platform.xcom(tasks[start])["run_id"] for start in starts] == kept
    assert len(set(run_ids)) == intervals

    bounds = [start.isoformat() for start in [*starts, starts[-1] + INTERVAL]]
    environment = {**airflow.environment(platform.settings), **platform.settings.environment()}
    subprocess.run([sys.executable, "-c", UNINTERRUPTED, *bounds], env=environment, check=True, timeout=3600)
    compared = 0
    for position, run_id in enumerate(run_ids):
        rows = hindcasts(platform.settings, run_id)
        assert rows == hindcasts(platform.settings, f"whole-{position}"), f"interval {starts[position]}"
        compared += len(rows)
    assert compared > 0
    states: dict[str, set[str]] = {}
    for row in platform.tables.rows(ControlTable.RUNS, [("pipeline", "=", PIPELINE)]):
        states.setdefault(row["run_id"], set()).add(row["state"])
    cut_short = [run_id for run_id, found in states.items() if found == {"planned"}]
    assert not set(cut_short) & set(run_ids)
    measured(
        f"{compared} rows of {intervals} hindcasts are those of an uninterrupted backfill; {len(cut_short)} replays were cut short"
    )
    record_property("oracles", "I9")
