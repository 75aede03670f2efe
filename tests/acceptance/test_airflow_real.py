"""Hindcast under a real Airflow: its scheduler, triggerer and API server, a real broker, and real workers.

One stack serves the whole module. Its topic begins with some minutes of history, sent in slices that the
stream commits one by one, so that there are past intervals to replay at once. The tests run in any order: one
that needs a whole fleet, or paused streams, asks for that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaProducer
from support.real_airflow import ENDED, Platform, measured, until

from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, StatusType
from hindcast.processes.background_services import Services, members
from hindcast.settings import Settings, project_root
from hindcast.shards.desired_state import DesiredStates, desired_of
from hindcast.shards.pipeline_row import DesiredState
from hindcast.tables.table_names import ControlTable
from hindcast_sandbox import airflow, stack
from hindcast_sandbox.generators.trades import trades

TOPIC = "trades"
PIPELINES = ("stock_stats", "dice")
LEASE_SECONDS = 5.0
#: A batch costs the same CPU whatever its size: with fewer of them Airflow has cores to run on.
TRIGGER_SECONDS = 2.0
HISTORY = timedelta(minutes=6)
HISTORY_ROWS_PER_SECOND = 40.0
#: The replay DAGs' intervals are these minutes of the history, counted from its beginning, and then none for
#: most of an hour. A DAG that is unpaused runs its newest interval by itself; the two before it are for the
#: backfill.
MARKS = [timedelta(minutes=minute) for minute in (1, 2, 3, 4)]
#: Where the slices of the history end. Each is awaited, so there are no more than make every interval end
#: behind a batch.
SLICE_ENDS = [*MARKS, HISTORY]
LIVE_ROWS_PER_SECOND = 100.0

DICE = '''
"""A pipeline that breaks the one rule: its result is not a function of its input."""

from pyspark.sql import functions as F
from hindcast import Table, Topic, Window, pipeline


@pipeline(
    source=Topic("trades", schema="ticker string, ts timestamp, ask double", key="ticker"),
    event_time="ts", watermark="10 seconds", window=Window("10 seconds"), sink=Table("dice", keys=["window", "ticker"]), version=1,
)
def dice(trades):
    return trades.withColumn("roll", F.rand()).groupBy("window", "ticker").agg(F.max("roll").alias("roll"))
'''


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, jars_dir: Path) -> Iterator[Platform]:
    """A stack with history, and all of Airflow's DAGs still paused."""
    home = tmp_path_factory.mktemp("airflow-real")
    pipelines = home / "pipelines"
    pipelines.mkdir()
    (pipelines / "stock_stats.py").write_text(
        (project_root() / "include" / "pipelines" / "stock_stats.py").read_text()
    )
    (pipelines / "dice.py").write_text(DICE)
    began_at = datetime.now(UTC).replace(second=0, microsecond=0) - HISTORY
    settings = Settings(
        home=home,
        jars_dir=jars_dir,
        pipelines_dir=pipelines,
        lease_seconds=LEASE_SECONDS,
        trigger_seconds=TRIGGER_SECONDS,
        replay_schedule=schedule(began_at),
    )
    try:
        yield Platform(stack.up(settings, topic=None), began_at)
    finally:
        stack.down(settings)
        left = [process.pid for service in Services(home).all() for process in members(service)]
        assert left == []


def schedule(began_at: datetime) -> str:
    """Cron of the marks."""
    return ",".join(str((began_at + mark).minute) for mark in MARKS) + " * * * *"


def stream_history(platform: Platform) -> None:
    """Send records whose broker timestamps lie in the past, and have each slice committed before the next, as
    happened when it was now.
    """
    producer = KafkaProducer(bootstrap_servers=platform.settings.bootstrap_servers, linger_ms=20)
    ends: dict[int, int] = {}
    records = trades(1, HISTORY_ROWS_PER_SECOND, platform.began_at)
    for slice_end in SLICE_ENDS:
        futures = []
        for record in records:
            at = platform.began_at + timedelta(seconds=record.due_seconds)
            futures.append(
                producer.send(
                    TOPIC, key=record.key, value=record.value, timestamp_ms=int(at.timestamp() * 1000)
                )
            )
            if at >= platform.began_at + slice_end:
                break
        producer.flush()
        for sent in (future.get() for future in futures):
            ends[sent.partition] = max(ends.get(sent.partition, 0), sent.offset + 1)
        for pipeline in PIPELINES:
            until(
                f"{pipeline} to commit the history up to {slice_end}",
                lambda pipeline=pipeline: platform.committed_to(pipeline) == ends,
            )
    producer.close()


@pytest.fixture(scope="module")
def fleet(platform: Platform) -> dict[str, Any]:
    """The fleet, started by nothing but the unpausing of `supervise`; what was seen of it on the way."""
    before = platform.workers()
    unpaused_at = time.monotonic()
    platform.unpause("supervise")
    pids = platform.wait_whole()
    seconds = time.monotonic() - unpaused_at
    measured(f"From unpausing to a whole fleet: {seconds:.1f} s")
    stream_history(platform)
    stack.start_load(platform.settings, TOPIC, LIVE_ROWS_PER_SECOND, seed=2)
    wanted = {
        name: desired.state.value
        for name, desired in desired_of(LeaseTable(platform.settings).leases()).items()
    }
    return {"before": before, "pids": pids, "seconds": seconds, "wanted": wanted}


@pytest.fixture
def whole(platform: Platform, fleet: dict[str, Any]) -> set[int]:
    """The pids of a whole fleet that the supervisor watches, with both pipelines wanted running."""
    want(platform, DesiredState.RUNNING)
    platform.watching()
    return platform.wait_whole()


@pytest.fixture
def quiet(platform: Platform, fleet: dict[str, Any]) -> None:
    """Both pipelines paused, so that replays have the cores to themselves; that a replay runs beside a live
    stream is shown elsewhere. They stay so until a test needs a whole fleet.
    """
    want(platform, DesiredState.PAUSED)
    until("the shards to be free", lambda: not any(lease.lease_owner for lease in shards_of(platform)))


def want(platform: Platform, state: DesiredState) -> None:
    """Want a state of both pipelines. If it is another one, wait until the supervisor has reconciled with both
    and watches again.

    It may wake between the two wishes, for one or for both: what tells is what its newest reconciliation saw.
    """
    states = DesiredStates(LeaseTable(platform.settings))
    if all(states.get(pipeline).state is state for pipeline in PIPELINES):
        return
    for pipeline in PIPELINES:
        states.set_state(pipeline, state)

    def seen() -> dict[str, Any] | None:
        newest = [
            task
            for task in platform.tasks("supervise")
            if task["task_id"] == "reconcile" and task["state"] == "success"
        ][-1]
        desired = platform.xcom(newest)["seen"]["desired"]
        return (
            newest if all(desired[pipeline].startswith(f"{state.value} ") for pipeline in PIPELINES) else None
        )

    platform.watching(
        after=until(f"the supervisor to see that both are to be {state.value}", seen)["start_date"]
    )


def shards_of(platform: Platform) -> list[Lease]:
    return [
        lease for lease in LeaseTable(platform.settings).leases() if lease.status_type is StatusType.SHARD
    ]


def test_unpausing_supervise_starts_the_fleet(platform: Platform, fleet: dict[str, Any]) -> None:
    """No worker before; as many as there are slots after, each launched by the supervisor, and every pipeline
    wanted running.
    """
    assert fleet["before"] == []
    launched = [json.loads(event["detail"])["pid"] for event in platform.events("worker_launched")]
    assert fleet["pids"] <= set(launched)
    assert fleet["wanted"] == {"stock_stats": "running", "dice": "running"}


def test_a_killed_worker_is_replaced(platform: Platform, whole: set[int]) -> None:
    """The other worker takes its shards, the supervisor wakes and launches one, and the fleet is whole
    again.
    """
    victim, survivor = sorted(whole)
    woke = len(platform.events("supervisor_woke"))
    psutil.Process(victim).kill()
    killed_at = time.monotonic()
    platform.wait_owned({survivor})
    measured(f"From the kill to the survivor owning every shard: {time.monotonic() - killed_at:.1f} s")
    after = until(
        "a whole fleet without the victim",
        lambda: pids if (pids := platform.whole()) and victim not in pids else None,
    )
    measured(f"From the kill to a whole fleet: {time.monotonic() - killed_at:.1f} s")
    assert survivor in after
    woken = until("the wake's event", lambda: platform.events("supervisor_woke")[woke:] or None)
    assert json.loads(woken[0]["detail"])["reason"] == "worker_lost"


@pytest.mark.row("F25")
def test_killing_all_of_airflow_stops_no_stream(platform: Platform, whole: set[int]) -> None:
    """Batches go on being committed; the restarted Airflow goes on watching, and there are still exactly the
    same two workers.
    """
    supervised = platform.watching()
    killed = [
        process for component in airflow.components(platform.settings) for process in members(component)
    ]
    assert len(killed) >= len(airflow.COMPONENTS)
    for process in killed:
        process.kill()
    psutil.wait_procs(killed, timeout=20)
    assert [component for component in airflow.components(platform.settings) if component.running] == []
    committed = platform.committed()
    until("batches committed without Airflow", lambda: platform.committed() >= committed + 4)
    assert platform.whole() == whole
    restarted = time.monotonic()
    airflow.start(platform.settings)
    resumed = platform.watching()
    measured(f"From the restart of Airflow to the supervisor watching: {time.monotonic() - restarted:.1f} s")
    assert resumed["dag_run_id"] >= supervised["dag_run_id"]
    look_again(platform)
    assert platform.whole() == whole


@pytest.mark.row("F26")
def test_clearing_the_supervising_tasks_starts_no_third_worker(platform: Platform, whole: set[int]) -> None:
    """Both tasks run again over a whole fleet, and launch nothing."""
    launched = look_again(platform)
    assert launched == []
    assert platform.whole() == whole


def look_again(platform: Platform) -> list[dict[str, Any]]:
    """Clear the running `supervise` and wait until its reconciliation has run once more; returns what that
    launched.
    """
    task = platform.watching()
    first = next(
        other for other in platform.tasks("supervise", task["dag_run_id"]) if other["task_id"] == "reconcile"
    )
    platform.api(
        "POST",
        "/dags/supervise/clearTaskInstances",
        {
            "dry_run": False,
            "dag_run_id": task["dag_run_id"],
            "task_ids": ["reconcile"],
            "include_downstream": True,
            "only_failed": False,
        },
    )

    def again() -> dict[str, Any] | None:
        found = next(
            other
            for other in platform.tasks("supervise", task["dag_run_id"])
            if other["task_id"] == "reconcile"
        )
        return found if found["try_number"] > first["try_number"] and found["state"] == "success" else None

    second = until("the second reconciliation", again)
    platform.watching(after=second["start_date"])
    return list(platform.xcom(second)["launched"])


@pytest.mark.row("F27")
def test_pausing_the_supervising_dag_stops_no_stream(platform: Platform, whole: set[int]) -> None:
    """Batches go on being committed by the same two workers, and once its DAG is unpaused the supervisor
    watches them again.
    """
    platform.api("PATCH", "/dags/supervise", {"is_paused": True})
    committed = platform.committed()
    until("batches committed meanwhile", lambda: platform.committed() >= committed + 4)
    assert platform.whole() == whole
    platform.unpause("supervise")
    platform.watching()
    assert platform.wait_whole() == whole


def test_a_supervisor_that_is_content_sleeps(platform: Platform, whole: set[int]) -> None:
    """Over a healthy fleet no run of `supervise` ends: @continuous would begin the next one at once."""
    watching = platform.watching()
    committed = platform.committed()
    until("some batches", lambda: platform.committed() >= committed + 6)
    assert platform.watching()["dag_run_id"] == watching["dag_run_id"]


def replays_of(platform: Platform, starts: list[datetime]) -> list[dict[str, Any]] | None:
    """The replay tasks of these data intervals, once all have succeeded."""
    runs = {
        datetime.fromisoformat(run["logical_date"]): run
        for run in platform.api("GET", "/dags/replay.stock_stats/dagRuns?limit=100")["dag_runs"]
        if run["logical_date"]
    }
    if any(start not in runs for start in starts):
        return None
    found = [platform.tasks("replay.stock_stats", runs[start]["dag_run_id"])[0] for start in starts]
    assert not any(task["state"] == "failed" for task in found), [
        platform.log(task)[-3000:] for task in found
    ]
    return found if all(task["state"] == "success" for task in found) else None


def test_an_interval_before_the_stream_is_skipped_and_leaves_a_row_that_says_why(
    platform: Platform, fleet: dict[str, Any]
) -> None:
    """As the schedule's first run of a new pipeline is: neither red nor retried."""
    platform.unpause("replay.stock_stats")
    times = {"from_time": "2020-01-01T00:00:00+00:00", "to_time": "2020-01-01T01:00:00+00:00"}
    dag_run = platform.run("replay.stock_stats", {"range": "from one time to another", **times})
    assert platform.ended("replay.stock_stats", dag_run) == "success"
    task = platform.tasks("replay.stock_stats", dag_run)[0]
    assert (task["state"], task["try_number"]) == ("skipped", 1)
    row = platform.tables.rows(ControlTable.RUNS, [("run_id", "=", platform.xcom(task, "run_id"))])[0]
    assert row["state"] == "skipped"
    assert "no record from there on came before" in row["note"]


def test_drivers_take_slots_of_their_pool_and_a_persons_run_goes_first(
    platform: Platform, fleet: dict[str, Any]
) -> None:
    """The pool is made with Airflow. A run of the schedule has the lesser weight, so of two that wait a
    person's starts first.
    """
    pools = {pool["name"]: pool for pool in platform.api("GET", "/pools")["pools"]}
    assert pools["hindcast_spark"]["slots"] >= 1
    platform.unpause("replay.stock_stats")
    asked = platform.run("replay.stock_stats", {"range": "data interval of the run"})
    weights: dict[str, int] = {}

    def weighed() -> bool:
        for task in platform.tasks("replay.stock_stats"):
            assert task["pool"] == "hindcast_spark"
            weights[task["dag_run_id"].partition("__")[0]] = task["priority_weight"]
        return {"scheduled", "manual"} <= weights.keys()

    until("a run of the schedule and one that was asked for", weighed)
    assert weights["manual"] > weights["scheduled"]
    assert platform.ended("replay.stock_stats", asked) == "failed", "it has no data interval"


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        (
            {"range": "from offsets to offsets", "from_offsets": {"0": 5}, "to_offsets": {"0": 1}},
            "cannot be replayed",
        ),
        ({"range": "data interval of the run"}, "no data interval"),
    ],
)
def test_a_range_that_cannot_be_replayed_fails_at_once_and_says_why(
    platform: Platform, fleet: dict[str, Any], conf: dict[str, Any], words: str
) -> None:
    """No retry could help, so none is made."""
    platform.unpause("replay.stock_stats")
    dag_run = platform.run("replay.stock_stats", conf)
    assert platform.ended("replay.stock_stats", dag_run) == "failed"
    task = platform.tasks("replay.stock_stats", dag_run)[0]
    assert task["try_number"] == 1
    assert words in platform.log(task)


@pytest.mark.usefixtures("quiet")
class TestWhileTheStreamsArePaused:
    """What replays do when they have the cores to themselves. Grouped, so that the streams are paused once."""

    def test_a_backfill_gives_each_interval_its_hindcast_and_its_verdict(self, platform: Platform) -> None:
        """`airflow backfill create` over past minutes; its end date is inclusive."""
        platform.unpause("replay.stock_stats")
        platform.unpause("validate.stock_stats")
        starts = [platform.began_at + mark for mark in MARKS[:2]]
        platform.backfill("replay.stock_stats", starts)
        tasks = until("both replays", lambda: replays_of(platform, starts))
        run_ids = [platform.xcom(task)["run_id"] for task in tasks]
        assert len(set(run_ids)) == len(starts)
        for run_id in run_ids:
            verdict = platform.judged(run_id)
            assert verdict["unexplained"] == 0
            assert verdict["windows_compared"] > 0
            assert verdict["passed"]
        for run_id in run_ids:
            judging = [
                task
                for task in platform.tasks("validate.stock_stats")
                if task["task_id"] == "judge" and platform.xcom(task, "run_id") == run_id
            ]
            assert len(judging) == 1, "each hindcast is judged by exactly one task"

    def test_a_trigger_with_typed_params_replays_an_offset_range(self, platform: Platform) -> None:
        """The REST API, as the form of the UI uses it: exactly the rows between the offsets are read, and
        judged.
        """
        platform.unpause("replay.stock_stats")
        platform.unpause("validate.stock_stats")
        first, last = {"0": 500, "1": 500, "2": 500, "3": 500}, {"0": 1500, "1": 1400, "2": 1400, "3": 1500}
        dag_run = platform.run(
            "replay.stock_stats",
            {"range": "from offsets to offsets", "from_offsets": first, "to_offsets": last},
        )
        assert platform.ended("replay.stock_stats", dag_run) == "success"
        task = platform.tasks("replay.stock_stats", dag_run)[0]
        result = platform.xcom(task)
        assert result["input_rows"] == sum(last[partition] - first[partition] for partition in first)
        verdict = platform.judged(result["run_id"])
        assert verdict["unexplained"] == 0
        assert verdict["windows_compared"] > 0
        assert "Replaying stock_stats: offsets" in platform.log(task)
        links = platform.api(
            "GET", f"/dags/replay.stock_stats/dagRuns/{dag_run}/taskInstances/hindcast/links"
        )["extra_links"]
        assert links["Verdict"] == f"{platform.settings.airflow_url}/hindcast/verdicts/{result['run_id']}"

    def test_a_replay_waits_for_a_stream_that_is_behind_without_a_try(self, platform: Platform) -> None:
        """The range's records are in the topic and the stream is paused: the task is deferred and says so, and
        once the stream goes on it replays the range in its first try. Nothing was red meanwhile.
        """
        platform.unpause("replay.stock_stats")
        first = {str(partition): offset for partition, offset in platform.committed_to("stock_stats").items()}
        last = {partition: offset + 5 for partition, offset in first.items()}
        dag_run = platform.run(
            "replay.stock_stats",
            {"range": "from offsets to offsets", "from_offsets": first, "to_offsets": last},
        )

        def waiting() -> dict[str, Any] | None:
            task = platform.tasks("replay.stock_stats", dag_run)[0]
            return (
                task
                if task["state"] == "deferred" and "hindcast resume stock_stats" in platform.log(task)
                else None
            )

        deferred = until("the replay deferred, and its log naming the pause", waiting)
        assert "records of the range are still to be committed" in platform.log(deferred)
        want(platform, DesiredState.RUNNING)
        assert platform.ended("replay.stock_stats", dag_run) == "success"
        task = platform.tasks("replay.stock_stats", dag_run)[0]
        assert task["try_number"] == 1, platform.audit(dag_run)
        assert platform.xcom(task)["input_rows"] == 5 * len(first)

    def test_a_failing_verdict_fails_its_task_and_names_the_rows(self, platform: Platform) -> None:
        """The pipeline with a random column, replayed by its schedule: red, after one try, with the rows in the
        log and the verdict as XCom.
        """
        platform.unpause("replay.dice")
        platform.unpause("validate.dice")

        def judged() -> dict[str, Any] | None:
            return next(
                (
                    task
                    for task in platform.tasks("validate.dice")
                    if task["task_id"] == "judge" and task["state"] in ENDED
                ),
                None,
            )

        task = until("the judging task ended", judged)
        assert task["state"] == "failed"
        assert task["try_number"] == 1
        assert platform.xcom(task, "verdict")["unexplained"] > 0
        log = platform.log(task)
        assert "ticker" in log
        assert "roll" in log


def test_the_control_room_is_open_to_the_signed_in_alone(platform: Platform, fleet: dict[str, Any]) -> None:
    """Through the whole API server, with its middlewares: 401 without a token, the page with one."""
    import http.client

    def get(path: str, token: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection(
            platform.settings.airflow_url.removeprefix("http://"), timeout=30
        )
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    for path in ("/hindcast/", "/hindcast/pipelines/stock_stats", "/hindcast/data-docs/index.html"):
        assert get(path)[0] == 401
    status, page = get("/hindcast/", airflow.login(platform.settings))
    assert status == 200
    assert "stock_stats" in page
    plugins = platform.api("GET", "/plugins")["plugins"]
    assert [plugin["name"] for plugin in plugins] == ["hindcast"]
    assert platform.api("GET", "/plugins/importErrors")["import_errors"] == []
