"""Faults of a real Airflow: its parts die, its database is locked, its DAGs are cleared, run by hand, paused,
edited and deleted.

The stream never notices, no second consumer is ever started, and the supervisor goes on when its Airflow
does. One stack serves the module.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import fault_oracles
from support.evidence import LeaseHistory, TableFolder, collect
from support.real_airflow import Platform, until

from hindcast.errors import ServiceError
from hindcast.leases.delta_store import LeaseTable
from hindcast.processes.background_services import Services, members
from hindcast.settings import Settings, project_root
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import DesiredState
from hindcast_sandbox import airflow, stack

#: The quick forms of these rows are in the acceptance tests, which have an Airflow.
pytestmark = [pytest.mark.timeout(1500), pytest.mark.minutes]

PIPELINE = "stock_stats"
TOPIC = "trades"
#: Five parts of Airflow share two cores with two workers.
AIRFLOW_LEASE_SECONDS = 5.0
LOCKED_SECONDS = 120.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, jars_dir: Path) -> Iterator[Platform]:
    """A stack under load whose `supervise` has started the fleet. Its DAG files are a copy, which a test may
    edit.
    """
    home = tmp_path_factory.mktemp("airflow-faults")
    dags = home / "dags"
    shutil.copytree(project_root() / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
    (home / "pipelines").mkdir()
    shutil.copy(project_root() / "include" / "pipelines" / f"{PIPELINE}.py", home / "pipelines")
    settings = Settings(
        home=home,
        jars_dir=jars_dir,
        pipelines_dir=home / "pipelines",
        lease_seconds=AIRFLOW_LEASE_SECONDS,
        trigger_seconds=2.0,
    )
    try:
        settings = stack.up(settings, with_airflow=False, topic=None)
        settings = airflow.start(settings, dags=dags)
        stack.keep(settings)
        made = Platform(settings, datetime.now(UTC))
        made.unpause("supervise")
        made.wait_whole()
        stack.start_load(settings, TOPIC, 100.0, seed=2)
        until("the first batches", lambda: made.committed() >= 4)
        yield made
    finally:
        stack.down(settings)
        left = [process.pid for service in Services(home).all() for process in members(service)]
        assert left == [], "I9"


@pytest.fixture
def whole(platform: Platform) -> set[int]:
    platform.watching()
    return platform.wait_whole()


Sound = Callable[..., None]


@pytest.fixture
def sound(
    platform: Platform, whole: set[int], record_property: Callable[[str, object], None]
) -> Iterator[Sound]:
    """See that the stream went on, that the same two workers run and no third ever did, and that the tables
    agree.
    """
    began_at = datetime.now(UTC)
    history = LeaseHistory(TableFolder(platform.settings.table("control", "leases"))).start()

    def judge(*, same_workers: bool = True) -> None:
        committed = platform.committed()
        until("the stream goes on", lambda: platform.committed() >= committed + 2)
        platform.watching()
        pids = platform.wait_whole()
        assert not same_workers or pids == whole, "the same two workers, and no other"
        evidence = collect(platform.settings, PIPELINE, began_at, history)
        fault_oracles.one_owner(evidence)
        fault_oracles.written_once(evidence)
        fault_oracles.no_loss(evidence)
        if same_workers:
            fault_oracles.alive(evidence, AIRFLOW_LEASE_SECONDS)
            assert {seen.epoch for seen in evidence.leases} == {seen.epoch for seen in evidence.leases[:2]}, (
                "nobody lost a shard"
            )
        fault_oracles.told(evidence)
        record_property("oracles", "I1 I2 I3 I6 I7 I9")

    yield judge
    history.stop()


def restart(platform: Platform) -> None:
    airflow.start(platform.settings, dags=platform.settings.home / "dags")
    platform._token = airflow.login(platform.settings)


def kill(platform: Platform, *names: str) -> None:
    services = [
        service
        for service in airflow.components(platform.settings)
        if service.name.removeprefix(airflow.PREFIX) in names
    ]
    assert len(services) == len(names)
    processes = [process for service in services for process in members(service)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=20)


@pytest.mark.row("F25")
@pytest.mark.parametrize("part", [*airflow.COMPONENTS, "all of them"])
def test_a_part_of_airflow_is_killed(platform: Platform, whole: set[int], sound: Sound, part: str) -> None:
    """The stream goes on without it; restarted, it launches no worker twice and watches on."""
    kill(platform, *(airflow.COMPONENTS if part == "all of them" else (part,)))
    committed = platform.committed()
    until("batches committed meanwhile", lambda: platform.committed() >= committed + 2)
    assert platform.whole() == whole
    restart(platform)
    sound()


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Nobody else can write, and before long nobody can read."""
    connection = sqlite3.connect(database, timeout=60.0, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@pytest.mark.row("F25")
def test_the_database_of_airflow_is_locked_for_two_minutes(
    platform: Platform, whole: set[int], sound: Sound
) -> None:
    """The stream goes on; whatever part of Airflow gave up is started again, and no worker was started
    twice.
    """
    with locked(airflow.home(platform.settings) / "airflow.db"):
        committed = platform.committed()
        time.sleep(LOCKED_SECONDS)  # the two minutes are the fault
        assert platform.committed() > committed
        assert platform.whole() == whole
    restart(platform)
    sound()


@pytest.mark.row("F26")
def test_clear_retry_manual_runs_and_a_backfill_at_once(
    platform: Platform, whole: set[int], sound: Sound
) -> None:
    """Everything that can start a job is asked for it at the same moment: one consumer a shard, and no replay
    touches a live lease.
    """
    launched = len(platform.events("worker_launched"))
    run = platform.watching()["dag_run_id"]
    clearing = {"dry_run": False, "dag_run_id": run, "only_failed": False, "reset_dag_runs": True}
    platform.unpause(f"replay.{PIPELINE}")
    platform.unpause(f"validate.{PIPELINE}")
    offsets = {str(partition): 0 for partition in range(4)}
    ends = {str(partition): end for partition, end in platform.committed_to(PIPELINE).items()}
    conf = {"range": "from offsets to offsets", "from_offsets": offsets, "to_offsets": {**offsets, **ends}}
    replays = [platform.run(f"replay.{PIPELINE}", conf) for _ in range(2)]
    platform.api("POST", "/dags/supervise/clearTaskInstances", clearing)
    with suppress(
        ServiceError
    ):  # `supervise` allows one run at a time; whether a second is queued or refused is Airflow's business
        platform.run("supervise", {})
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    backfill = {
        "dag_id": f"replay.{PIPELINE}",
        "from_date": (hour - timedelta(hours=1)).isoformat(),
        "to_date": hour.isoformat(),
    }
    platform.api(
        "POST", "/backfills", {**backfill, "run_backwards": False, "dag_run_conf": {}, "max_active_runs": 2}
    )
    states = [platform.ended(f"replay.{PIPELINE}", run_id) for run_id in replays]
    assert states == ["success", "success"]
    sound()
    assert len(platform.events("worker_launched")) == launched, "nobody was launched"


@pytest.mark.row("F27")
@pytest.mark.parametrize("what", ["paused", "deleted", "edited"])
def test_the_supervising_dag_is(platform: Platform, whole: set[int], sound: Sound, what: str) -> None:
    """The stream does not care, and the supervisor goes on once its DAG is back."""
    if what == "paused":
        platform.api("PATCH", "/dags/supervise", {"is_paused": True})
    elif what == "deleted":
        platform.api("DELETE", "/dags/supervise")
    else:
        path = platform.settings.home / "dags" / "fleet.py"
        path.write_text(path.read_text() + "\n# edited during a run\n")
    committed = platform.committed()
    until("batches committed meanwhile", lambda: platform.committed() >= committed + 4)
    assert platform.whole() == whole
    platform.unpause("supervise")
    sound()


def in_hand(platform: Platform) -> list[dict[str, Any]]:
    """The replays and verdicts that Airflow's executor has begun or is about to begin."""
    found = platform.api("GET", "/dags/~/dagRuns/~/taskInstances?state=running&state=queued&limit=100")
    return [task for task in found["task_instances"] if task["dag_id"] != "supervise"]


@pytest.mark.row("F27")
def test_the_scheduler_gets_sigterm(platform: Platform, whole: set[int], sound: Sound) -> None:
    """It ends; the workers are not its children, so they stay, and the next scheduler finds a whole fleet."""
    for dag_id in (f"replay.{PIPELINE}", f"validate.{PIPELINE}"):  # what the faults before have asked for
        platform.api("PATCH", f"/dags/{dag_id}", {"is_paused": True})
    until("no replay in the executor's hand, which it would end first", lambda: not in_hand(platform))
    (service,) = [
        service for service in airflow.components(platform.settings) if service.name.endswith("scheduler")
    ]
    psutil.Process(service.pid).send_signal(signal.SIGTERM)
    until("the scheduler has ended", lambda: not service.running)
    assert platform.whole() == whole
    restart(platform)
    sound()


@pytest.mark.row("F27")
def test_the_pipeline_is_stopped_and_started(platform: Platform, whole: set[int], sound: Sound) -> None:
    """Paused as a whole and wanted again: the shards are given up and taken again, and each offset is read
    once.
    """
    states = DesiredStates(LeaseTable(platform.settings))
    states.set_state(PIPELINE, DesiredState.PAUSED)
    until("no shard owned", lambda: not any(lease.lease_owner for lease in platform.leases("shard")))  # type: ignore[arg-type]
    states.set_state(PIPELINE, DesiredState.RUNNING)
    sound(same_workers=False)


@pytest.mark.row("F27")
def test_everything_is_stopped_and_started(platform: Platform, whole: set[int], sound: Sound) -> None:
    """`hindcast down` in the middle of the stream leaves no process; `up` goes on where it stopped."""
    settings = platform.settings
    stack.down(settings)
    assert [process.pid for service in Services(settings.home).all() for process in members(service)] == []
    before = ledger_ends(platform)
    stack.up(settings, with_airflow=False, topic=None)
    restart(platform)
    stack.start_load(settings, TOPIC, 100.0, seed=3)
    sound(same_workers=False)
    assert all(end >= before[partition] for partition, end in ledger_ends(platform).items())


def ledger_ends(platform: Platform) -> dict[int, Any]:
    return platform.committed_to(PIPELINE)
