"""The tasks, with a stand-in for Spark: a real child process of a few lines that ends as hindcast.apps.replay
may end.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from structlog.testing import capture_logs
from support.fleet_sample import FAILED_RUN, desired, difference, put, slot, verdict
from support.stand_in_programs import take_programs_from

from hindcast.airflow.assets import hindcast_asset
from hindcast.airflow.operators import (
    ArchiveOperator,
    BenchmarkOperator,
    FindHindcastsOperator,
    HindcastReplayOperator,
    MaintainOperator,
    RangeChoice,
    ValidateOperator,
)
from hindcast.airflow.supervision import operators
from hindcast.airflow.supervision.operators import ReconcileOperator, WatchFleetOperator, starting_workers
from hindcast.airflow.supervision.restart_backoff import files_fingerprint
from hindcast.clock import SystemClock
from hindcast.errors import ChildFailedError, StoreUnavailableError, TryLaterError
from hindcast.leases.delta_store import LeaseTable
from hindcast.processes.background_services import Service
from hindcast.replay.run_table import newest_by_run
from hindcast.replay.wait_for_stream import Awaited
from hindcast.settings import Settings, project_root
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable

pytestmark = pytest.mark.filterwarnings("ignore")

START, END = datetime(2026, 11, 20, 10, tzinfo=UTC), datetime(2026, 11, 20, 11, tzinfo=UTC)


class FakeTask:
    """What a task instance is to an operator: somewhere to push XComs, and the count of its tries."""

    def __init__(self, try_number: int = 1) -> None:
        self.pushed: dict[str, Any] = {}
        self.try_number = try_number
        self.max_tries = 6

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Settings as a task finds them: through the environment."""
    monkeypatch.setenv("HINDCAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HINDCAST_LEASE_SECONDS", "1")
    return Settings()


@pytest.fixture
def app(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say how the replay application is to end. Its arguments are in its result."""
    take_programs_from(tmp_path / "apps", monkeypatch)

    def ends(exit_code: int, last_words: str = "", **result: Any) -> None:
        code = f"""
import json, sys
print({last_words!r}, file=sys.stderr)
print(json.dumps({{"arguments": sys.argv[1:], **json.loads({json.dumps(result)!r})}}))
sys.exit({exit_code})
"""
        for name in ("replay", "archive"):
            (tmp_path / "apps" / f"{name}.py").write_text(code)

    return ends


@pytest.fixture
def context() -> dict[str, Any]:
    events: defaultdict[Any, SimpleNamespace] = defaultdict(lambda: SimpleNamespace(extra={}))
    return {
        "ti": FakeTask(),
        "outlet_events": events,
        "data_interval_start": START,
        "data_interval_end": END,
        "triggering_asset_events": {},
    }


def replay(**fields: Any) -> HindcastReplayOperator:
    return HindcastReplayOperator(task_id="hindcast", pipeline="stock_stats", **fields)


def test_a_replay_may_raise_no_event(app: Any, context: dict[str, Any]) -> None:
    """If another task judges it."""
    app(0, run_id="r-1")
    assert replay(announced=False).execute(context)["run_id"] == "r-1"
    assert not context["outlet_events"]


def test_a_replay_covers_the_data_interval_and_names_its_run_in_the_event(
    app: Any, context: dict[str, Any]
) -> None:
    """The asset event carries the run id, by which the validation finds the hindcast."""
    app(0, run_id="r-1", input_rows=3)
    result = replay().execute(context)
    arguments = result["arguments"]
    assert arguments[:3] == ["hindcast", "--pipeline", "stock_stats"]
    assert arguments[arguments.index("--from-time") + 1] == START.isoformat()
    assert arguments[arguments.index("--to-time") + 1] == END.isoformat()
    assert context["outlet_events"][hindcast_asset("stock_stats")].extra == {
        "run_id": "r-1",
        "pipeline": "stock_stats",
    }
    assert context["ti"].pushed["run_id"] == arguments[arguments.index("--run-id") + 1]


def test_nothing_to_correct_skips_the_run(app: Any, context: dict[str, Any]) -> None:
    """Every late row is in a correction: that is no fault, and no hindcast to judge."""
    app(0, pipeline="stock_stats", corrected=False, note="no late row waits")
    with pytest.raises(AirflowSkipException, match="no late row waits"):
        replay(choice=RangeChoice.LATE).execute(context)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"choice": RangeChoice.OFFSETS, "from_offsets": '{"0": 1}', "to_offsets": '{"0": 9}'},
            ["--from-offsets", '{"0": 1}', "--to-offsets", '{"0": 9}'],
        ),
        ({"choice": RangeChoice.SINCE_LAST_VERDICT}, ["--since-last-verdict"]),
        ({"choice": RangeChoice.LATE}, ["--late"]),
        ({"choice": RangeChoice.ALL}, ["--all"]),
        (
            {
                "choice": RangeChoice.TIMES,
                "from_time": "2026-01-01T00:00:00Z",
                "to_time": "2026-01-02T00:00:00+00:00",
            },
            ["--from-time", "2026-01-01T00:00:00+00:00", "--to-time", "2026-01-02T00:00:00+00:00"],
        ),
    ],
)
def test_each_choice_becomes_its_arguments(
    app: Any, context: dict[str, Any], fields: dict[str, Any], expected: list[str]
) -> None:
    """One range, and only that one."""
    app(0, run_id="r")
    arguments = replay(**fields).execute(context)["arguments"][3:]
    at = arguments.index("--run-id")
    assert [*arguments[:at], *arguments[at + 2 :]] == [*expected, "--tried-again"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"choice": RangeChoice.OFFSETS, "from_offsets": "null", "to_offsets": '{"0": 9}'},
            "from_offsets is empty",
        ),
        (
            {
                "choice": RangeChoice.TIMES,
                "from_time": "2026-01-01T00:00:00",
                "to_time": "2026-01-02T00:00:00",
            },
            "offset from UTC",
        ),
        ({"choice": "tomorrow"}, "there is no such choice"),
    ],
)
def test_a_wrong_range_fails_at_once(
    app: Any, context: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    """No child is started and no retry is made; the message says what to do."""
    app(0, run_id="r")
    with pytest.raises(AirflowFailException, match=words):
        replay(**fields).execute(context)


def test_a_run_without_an_interval_asks_for_a_range(app: Any, context: dict[str, Any]) -> None:
    """A run that was triggered without a logical date covers nothing by itself."""
    app(0, run_id="r")
    with pytest.raises(AirflowFailException, match="no data interval"):
        replay().execute({**context, "data_interval_start": None, "data_interval_end": None})


@pytest.mark.parametrize(
    ("exit_code", "error"),
    [(75, TryLaterError), (2, AirflowFailException), (1, ChildFailedError), (-9, ChildFailedError)],
)
def test_the_exit_code_says_whether_a_retry_can_help(
    app: Any, context: dict[str, Any], exit_code: int, error: type[Exception]
) -> None:
    """Not yet consumed and broken: try again. Bad input: never."""
    app(exit_code, "partition 0 is at 12, the range ends at 99")
    with pytest.raises(error, match="partition 0 is at 12"):
        replay().execute(context)


def behind(home: Settings, **awaited: Any) -> dict[str, Any]:
    """What the application prints when the stream has not read the range yet."""
    return {"state": "waiting", "awaited": Awaited(pipeline="stock_stats", version=1, **awaited).to_json()}


def test_a_stream_that_is_behind_is_waited_for_without_a_try(
    app: Any, context: dict[str, Any], home: Settings
) -> None:
    """The task defers to a trigger that knows what is awaited; resumed, it runs the same request under the
    same run id.
    """
    app(75, "The stream has not committed the whole range yet.", **behind(home, offsets={0: 9}))
    with pytest.raises(TaskDeferred) as deferred:
        replay().execute(context)
    assert deferred.value.trigger.serialize()[1]["awaited"]["offsets"] == {"0": 9}
    assert deferred.value.method_name == "consumed"
    kept = json.loads(json.dumps(deferred.value.kwargs))
    with pytest.raises(TaskDeferred) as again:
        replay().consumed(context, {"wait": "met", "paused": False, "text": ""}, **kept)
    assert again.value.kwargs["began"] == kept["began"], "the limit counts from the first wait"
    assert again.value.trigger.serialize()[1]["tries"] == 1
    app(0, run_id="r-1")
    resumed = {**kept, "event": {"wait": "met", "paused": False, "text": ""}}
    result = replay().resume_execution(deferred.value.method_name, resumed, context)  # type: ignore[arg-type]
    assert result["arguments"] == kept["arguments"]
    assert result["arguments"][-2:] == [context["ti"].pushed["run_id"], "--tried-again"]


@pytest.mark.parametrize(("paused", "error", "state", "cure"), [
    (False, AirflowFailException, "failed", "HINDCAST_REPLAY_WAIT_SECONDS"),
    (True, AirflowSkipException, "skipped", "hindcast resume stock_stats"),
])  # fmt: skip
def test_a_wait_ends_at_its_limit(
    app: Any,
    context: dict[str, Any],
    home: Settings,
    paused: bool,
    error: type[Exception],
    state: str,
    cure: str,
) -> None:
    """A stream that is too slow is a failure; one that an operator paused is not. Either leaves a row in
    `runs` that says so.
    """
    app(75, "Not yet.", **behind(home, offsets={0: 9}))
    with pytest.raises(TaskDeferred) as deferred:
        replay().execute(context)
    over = {"wait": "over", "paused": paused, "text": "4 records of the range are still to be committed"}
    with pytest.raises(error, match=cure):
        replay().consumed(context, over, **deferred.value.kwargs)
    row = ControlTables(home).rows(ControlTable.RUNS)[0]
    assert (row["run_id"], row["state"]) == (context["ti"].pushed["run_id"], state)
    assert "4 records" in row["note"]
    assert len(events(home, "run_failed")) == (0 if paused else 1)


def test_a_wait_that_the_replay_never_finds_met_ends_at_its_limit_too(
    app: Any, context: dict[str, Any], home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trigger may take a gap in the ledger for progress; the replay itself decides, and it does not wait
    for ever.
    """
    monkeypatch.setenv("HINDCAST_REPLAY_WAIT_SECONDS", "0")
    put(home, desired())
    app(75, "Not yet.", **behind(home, offsets={0: 9}))
    with pytest.raises(AirflowFailException, match="Not yet"):
        replay().execute(context)


def test_an_interval_before_the_stream_skips_the_run(app: Any, context: dict[str, Any]) -> None:
    """No hindcast, so no asset event and nothing to judge; the task says why."""
    app(0, pipeline="stock_stats", state="skipped", note="the stream begins at offset 7")
    with pytest.raises(AirflowSkipException, match="begins at offset 7"):
        replay().execute(context)
    assert context["outlet_events"] == {}


def test_a_partly_covered_interval_says_what_was_left_out(app: Any, context: dict[str, Any]) -> None:
    """In the task's log, as a warning."""
    app(0, run_id="r-1", plan={"left_out": "the stream began later"})
    with capture_logs() as logs:
        replay().execute(context)
    assert any(
        "the stream began later" in entry["event"] for entry in logs if entry["log_level"] == "warning"
    )


def ends_of_runs(settings: Settings) -> list[tuple[str, str, str]]:
    """(run id, state, note) of each run that is listed."""
    return [
        (row["run_id"], row["state"], row["note"])
        for row in newest_by_run(ControlTables(settings).rows(ControlTable.RUNS))
    ]


@pytest.mark.parametrize(
    ("exit_code", "try_number", "state", "kind"),
    [
        (75, 1, "", ""),
        (75, 6, "", ""),
        (75, 7, "failed", "run_failed"),
        (2, 1, "refused", "run_refused"),
        (1, 1, "failed", "run_failed"),
    ],
)
def test_a_run_that_ended_badly_is_listed_once_with_the_reason(
    app: Any, context: dict[str, Any], home: Settings, exit_code: int, try_number: int, state: str, kind: str
) -> None:
    """Whatever its process wrote. While the stream is behind it has no end, until the last try."""
    app(exit_code, "partition 0 is at 12")
    context["ti"] = FakeTask(try_number)
    with pytest.raises(Exception, match="partition 0 is at 12"):
        replay().execute(context)
    run_id = context["ti"].pushed["run_id"]
    assert ends_of_runs(home) == [(run_id, state, "partition 0 is at 12")] * bool(state)
    assert [event["cure"] != "" for event in events(home, kind)] == [True] * bool(state)


@pytest.mark.parametrize("planned", [False, True])
def test_a_replay_that_is_killed_is_listed_as_failed(
    home: Settings, context: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: bool
) -> None:
    """By SIGKILL, as the kernel does where memory is short, before or after it wrote what it plans: no
    process is left to say so.
    """
    take_programs_from(tmp_path / "apps", monkeypatch)
    (tmp_path / "apps" / "replay.py").write_text(
        f"""
import os, signal, sys
from datetime import UTC, datetime
from hindcast.tables.table_names import ControlTable
from hindcast.tables.control_tables import ControlTables
from hindcast.settings import Settings
run_id = sys.argv[sys.argv.index("--run-id") + 1]
row = {{"run_id": run_id, "pipeline": "stock_stats", "version": 3, "state": "planned", "started_at": datetime.now(UTC)}}
if {planned}:
    ControlTables(Settings()).append(ControlTable.RUNS, [row])
print("reading", file=sys.stderr, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    with pytest.raises(ChildFailedError):
        replay().execute(context)
    killed = "Its process was killed by SIGKILL. The last thing it said: reading"
    assert ends_of_runs(home) == [(context["ti"].pushed["run_id"], "failed", killed)]
    (event,) = events(home, "run_failed")
    assert "ran out of memory" in event["cure"]


def test_a_form_that_makes_no_range_leaves_a_refused_run(
    app: Any, context: dict[str, Any], home: Settings
) -> None:
    """Although no child was started."""
    app(0, run_id="r")
    with pytest.raises(AirflowFailException):
        replay(choice="tomorrow").execute(context)
    ((_, state, note),) = ends_of_runs(home)
    assert (state, "there is no such choice" in note) == ("refused", True)
    assert len(events(home, "run_refused")) == 1


def test_a_passed_verdict_is_returned(app: Any, context: dict[str, Any]) -> None:
    """And pushed under its own name, with the run for the links."""
    app(0, unexplained=0, captured=0.99)
    verdict = ValidateOperator(task_id="judge", pipeline="stock_stats", run_id="r-1").execute(context)
    assert verdict["arguments"] == ["verdict", "--pipeline", "stock_stats", "--run-id", "r-1"]
    assert context["ti"].pushed == {"run_id": "r-1", "verdict": verdict}


def test_a_failed_verdict_fails_the_task_and_names_the_rows(
    app: Any, context: dict[str, Any], home: Settings
) -> None:
    """Without a retry: judging again changes nothing. The verdict is kept as XCom although the task fails.
    Rows beyond a bound are named, too; what late rows explain is not.
    """
    beyond = difference(cause="bound", kind="ratio", column="trucks", stream_value="9", hindcast_value="5")
    late = difference(cause="late_rows", stream_value="12345")
    tables = ControlTables(home)
    tables.append(ControlTable.DIFFERENCES, [difference(), beyond, late])
    tables.append(ControlTable.VERDICTS, [verdict(FAILED_RUN)])
    app(3, "stock_stats: 1 difference is unexplained", unexplained=1)
    with capture_logs() as logs, pytest.raises(AirflowFailException, match="1 difference is unexplained"):
        ValidateOperator(task_id="judge", pipeline="stock_stats", run_id=FAILED_RUN).execute(context)
    named = [entry for entry in logs if entry["log_level"] == "error"]
    assert len(named) == 2
    assert named[1]["event"].startswith("ratio: the row ")
    assert named[1]["event"].endswith("column trucks")
    assert "NVDA" in named[0]["event"]
    assert "131.07" in named[0]["stream"]
    assert "129.88" in named[0]["hindcast"]
    assert context["ti"].pushed["verdict"]["unexplained"] == 1


def test_every_event_that_led_to_the_run_is_judged_once(context: dict[str, Any]) -> None:
    """Several hindcasts may lead to one run; the same one may come twice."""
    events = [SimpleNamespace(extra={"run_id": name}) for name in ("r-1", "r-2", "r-1", "r-3")]
    context["triggering_asset_events"] = {hindcast_asset("stock_stats"): [*events, SimpleNamespace(extra={})]}
    assert FindHindcastsOperator(task_id="find", pipeline="stock_stats").execute(context) == [
        "r-1",
        "r-2",
        "r-3",
    ]


def test_a_run_that_was_asked_for_is_judged(context: dict[str, Any]) -> None:
    """A person may judge a hindcast again."""
    assert FindHindcastsOperator(task_id="find", pipeline="stock_stats", run_id="r-9").execute(context) == [
        "r-9"
    ]


@pytest.mark.parametrize(("run_id", "words"), [("", "no hindcast"), ("../x", "not a valid name")])
def test_nothing_to_judge_is_an_error(context: dict[str, Any], run_id: str, words: str) -> None:
    """An empty green run would look like a passed verdict."""
    with pytest.raises(AirflowFailException, match=words):
        FindHindcastsOperator(task_id="find", pipeline="stock_stats", run_id=run_id).execute(context)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Service]:
    """Workers that were asked for; none is really started."""
    launched: list[Service] = []

    def launch(settings: Settings) -> Service:
        service = Service(
            name=f"worker-{len(launched)}",
            pid=0,
            birth="",
            log=tmp_path / "log",
            started_at=datetime.now(UTC),
            token="",
        )
        launched.append(service)
        return service

    monkeypatch.setattr(operators, "launch_worker", launch)
    return launched


def reconcile() -> dict[str, Any]:
    return ReconcileOperator(task_id="reconcile").execute({})


def events(settings: Settings, kind: str) -> list[dict[str, Any]]:
    return ControlTables(settings).rows(ControlTable.EVENTS, [("kind", "=", kind)])


def test_reconciling_an_empty_platform_wants_all_pipelines_and_launches_the_fleet(
    home: Settings, launches: list[Service]
) -> None:
    """The first run after `supervise` was unpaused: each pipeline runs, but for those that say they wait."""
    result = reconcile()
    wanted = result["seen"].pop("desired")
    assert wanted.pop("stock_stats") == "running at version 1, 2 shards, 2 workers"
    assert wanted
    assert all(line.startswith("paused at version 1") for line in wanted.values())
    assert len(launches) == home.workers == 2
    assert result["seen"] == {"slots": 2, "live": 0, "starting": 0, "refused": []}
    assert len(result["launched"]) == len(events(home, "worker_launched")) == 2
    assert result["outlook"]["faults"] == ["slot_empty:0", "slot_empty:1"]
    assert result["outlook"]["retry_at"] is not None


def test_a_file_that_comes_while_the_supervisor_looks_wakes_it_again(
    home: Settings, launches: list[Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not declared, so what was seen of the files must not contain it."""
    folder = tmp_path / "pipelines"
    shutil.copytree(home.pipelines_dir, folder)
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(folder))
    settle = operators.settle

    def settle_and_save(*given: Any) -> Any:
        (folder / "late.py").write_text("# saved a moment too late")
        return settle(*given)

    monkeypatch.setattr(operators, "settle", settle_and_save)
    seen = reconcile()["outlook"]["files"]
    assert seen != files_fingerprint(folder)
    (folder / "late.py").unlink()
    assert seen == files_fingerprint(folder)


def test_reconciling_a_paused_platform_launches_nothing(home: Settings, launches: list[Service]) -> None:
    """What an operator wants is left as it is."""
    put(home, desired(state="paused"))
    assert reconcile()["seen"]["slots"] == 0
    assert launches == []


def test_reconciling_a_silent_fleet_launches_what_is_missing(home: Settings, launches: list[Service]) -> None:
    """An owner that does not renew for a lease is dead; a free slot is empty."""
    put(home, desired(), slot(0, "worker-0"), slot(1))
    assert reconcile()["seen"]["live"] == 0
    assert len(launches) == 2


def test_a_refused_pipeline_is_reported_once_and_the_others_go_on(
    home: Settings, launches: list[Service], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The event names the file; the next run within the hour does not repeat it."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "broken.py").write_text("import no_such_module")
    (tmp_path / "pipelines" / "good.py").write_text((home.pipelines_dir / "stock_stats.py").read_text())
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(tmp_path / "pipelines"))
    first, _ = reconcile(), reconcile()
    assert [Path(file).name for file in first["seen"]["refused"]] == ["broken.py"]
    assert list(first["seen"]["desired"]) == ["stock_stats"]
    refused = events(home, "pipeline_refused")
    assert len(refused) == 1
    assert "broken.py" in refused[0]["message"]


def test_wakes_of_the_last_hour_lengthen_the_back_off(home: Settings, launches: list[Service]) -> None:
    """The events table is the memory between runs."""
    watch = WatchFleetOperator(task_id="watch", reconciled={})
    for _ in range(5):
        watch.woke(
            {},
            {
                "reason": "worker_lost",
                "message": "No sign of life.",
                "faults": ["slot_empty:0"],
                "lost": {"0": ["worker-0", 1, 7]},
            },
        )
    outlook = reconcile()["outlook"]
    waited = datetime.fromisoformat(outlook["slots_not_before"]) - datetime.fromisoformat(
        outlook["looked_at"]
    )
    assert waited.total_seconds() == 30
    assert outlook["others_not_before"] == outlook["looked_at"]
    assert len(events(home, "supervisor_woke")) == 5


def test_a_launched_process_without_a_slot_counts_as_starting(home: Settings) -> None:
    """Until it holds a slot, has ended, or is overdue."""
    import os
    import socket

    from hindcast.processes import detach

    me = Service(
        name="worker-x",
        pid=os.getpid(),
        birth=detach.birth(os.getpid()) or "",
        log=home.home / "log",
        started_at=datetime.now(UTC),
        token="",
        detail={"fleet": "default"},
    )
    ended = Service(
        name="worker-y",
        pid=me.pid,
        birth="another",
        log=me.log,
        started_at=me.started_at,
        token="",
        detail=me.detail,
    )
    overdue = Service(
        name="worker-z",
        pid=me.pid,
        birth=me.birth,
        log=me.log,
        started_at=START.replace(year=2020),
        token="",
        detail=me.detail,
    )
    put(home, slot(0, "other"))
    assert starting_workers([me, ended, overdue], LeaseTable(home).leases(), home, SystemClock()) == [me]
    put(home, slot(1, "mine").evolve(detail={"pid": me.pid, "host": socket.gethostname()}))
    assert starting_workers([me], LeaseTable(home).leases(), home, SystemClock()) == []


def test_a_topic_is_archived_or_the_task_fails_as_the_application_ended(
    app: Any, context: dict[str, Any]
) -> None:
    """A gap needs a person, so no retry; a broker that is away is tried again."""
    task = ArchiveOperator(task_id="trades", topic="trades")
    app(0, rows=3)
    assert task.execute(context)["arguments"] == ["run", "trades"]
    app(2, "The topic dropped offsets 0 to 4 of partition 0.")
    with pytest.raises(AirflowFailException, match="0 to 4"):
        task.execute(context)
    app(75, "The brokers did not answer.")
    with pytest.raises(TryLaterError):
        task.execute(context)


VERSIONS = """
from hindcast import Table, Topic, Window, pipeline

@pipeline(source=Topic("t", schema="ts timestamp"), event_time="ts", watermark="1 second", sink=Table("p"), version=1)
def p(frame):
    return frame

@pipeline(
    source=Topic("t", schema="ts timestamp"), event_time="ts", watermark="1 second", sink=Table("p2", keys=["window"]), version=2,
    window=Window("10 seconds"), policy="correct", reference=('{"0": 0}', '{"0": 500}'),
)
def p(frame):
    return frame
"""


@pytest.fixture
def two_versions(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A pipeline ``p``: version 2 corrects and pins a reference range, version 1 does neither. Call it to
    make one of them active.
    """
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "p.py").write_text(VERSIONS)
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(tmp_path / "two"))
    return lambda version: put(home, desired("p", version=version))


def test_a_benchmark_names_its_pipeline_and_no_range(
    app: Any, context: dict[str, Any], two_versions: Callable[[int], None]
) -> None:
    """The range is in the declaration of the active version; one that was not streamed yet is tried again."""
    two_versions(2)
    task = BenchmarkOperator(task_id="p", pipeline="p")
    run = {"run_id": "a", "rows_per_second": 5.0}
    app(0, batch=run, re_execution=run)
    assert task.execute(context)["arguments"] == ["benchmark", "--pipeline", "p"]
    app(75, "Version 2 has committed no batch.")
    with pytest.raises(TryLaterError):
        task.execute(context)


@pytest.mark.parametrize("dag", ["correct", "benchmark"])
def test_corrections_and_benchmarks_follow_the_active_version(
    app: Any, context: dict[str, Any], two_versions: Callable[[int], None], dag: str
) -> None:
    """The DAG is there as soon as a version asks for it; each run looks which one is active, so promotions
    and back-outs count at once.
    """
    found = DagBag(dag_folder=project_root() / "dags" / "pipelines.py").dags
    (asked,) = [found[name] for name in found if name.partition(".")[0] == dag]
    task = next(iter(asked.tasks))
    run = {"run_id": "a", "rows_per_second": 5.0}
    app(0, run_id="a", batch=run, re_execution=run)
    for version, runs in ((1, False), (2, True), (1, False), (2, True)):
        two_versions(version)
        if runs:
            assert "--pipeline" in task.execute(context)["arguments"]
        else:
            with pytest.raises(AirflowSkipException, match="Version 1 of p is active"):
                task.execute(context)
    two_versions(3)
    with pytest.raises(AirflowFailException, match="No file declares version 3"):
        task.execute(context)


def test_a_table_that_cannot_be_read_fails_the_task_once_all_others_are_maintained(home: Settings) -> None:
    """A green task would hide it: the log of a table that nobody can read only grows."""
    tables = ControlTables(home)
    for table in (ControlTable.EVENTS, ControlTable.RUNS):
        tables.append(table, [])
        tables.open(table)
    task = MaintainOperator(task_id="maintain")
    maintained = {row["table"] for row in task.execute({})}
    assert {"events", "runs"} <= maintained
    log = Path(home.table("control", "events")) / "_delta_log"
    torn = log / f"{tables.open(ControlTable.EVENTS).version() + 1:020d}.json"
    torn.write_text("no commit")
    with capture_logs() as logs, pytest.raises(StoreUnavailableError, match="events could not be maintained"):
        task.execute({})
    said = [entry["event"] for entry in logs]
    assert "Maintained runs." in said
