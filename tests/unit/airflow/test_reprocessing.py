"""The tasks of a reprocessing over real control tables, with a stand-in for Spark: a child process of a few
lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from support.fleet_sample import desired, put, verdict
from support.stand_in_programs import take_programs_from

from hindcast.airflow.reprocessing import (
    AwaitCaughtUpOperator,
    CompareVersionsOperator,
    DiscardVersionOperator,
    JudgeVersionOperator,
    PromoteVersionOperator,
    StartChoice,
    StartVersionOperator,
    WatchPromotedOperator,
)
from hindcast.errors import ChildFailedError, TryLaterError
from hindcast.kafka.offsets import TopicOffsets
from hindcast.leases.delta_store import LeaseTable
from hindcast.replay.wait_for_stream import Awaited
from hindcast.settings import Settings
from hindcast.shards.active_version import Rollout
from hindcast.shards.pipeline_row import InactiveState, InactiveVersion
from hindcast.shards.version_changes import Versions
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable

pytestmark = pytest.mark.filterwarnings("ignore")

NAME = "stock_stats"
TASK = {"task_id": "task", "pipeline": NAME, "version": "2"}
#: What hindcast.apps.versions does in the end when it begins, and when it promotes.
BEGIN = """
from hindcast.kafka.offsets import TopicOffsets
from hindcast.leases.delta_store import LeaseTable
from hindcast.shards.pipeline_row import InactiveVersion, InactiveState
from hindcast.shards.version_changes import Versions
from hindcast.replay.wait_for_stream import Awaited
from hindcast.settings import Settings
beside = InactiveVersion(version=2, state=InactiveState.CATCHING_UP, shards=1, tables=("sinks/stock_stats_v2",))
Versions(LeaseTable(Settings())).begin("stock_stats", beside, {0: 0}, columns_from=1)
"""
SWAP = """
from hindcast.kafka.offsets import TopicOffsets
from hindcast.leases.delta_store import LeaseTable
from hindcast.shards.version_changes import Versions
from hindcast.replay.wait_for_stream import Awaited
from hindcast.settings import Settings
given = dict(argument[2:].split("=", 1) for argument in sys.argv if argument.startswith("--") and "=" in argument)
Versions(LeaseTable(Settings())).promote(
    "stock_stats", 2, ("sinks/stock_stats",), warm_seconds=3600.0, barrier={0: 7},
    since=given["since"], who=given["by"], despite=given.get("despite", ""),
)
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Version 1 is active; settings as a task finds them, through the environment."""
    monkeypatch.setenv("HINDCAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HINDCAST_LEASE_SECONDS", "1")
    made = Settings()
    put(made, desired())
    return made


class App:
    """The stand-in for a program of hindcast.apps: what it is to do, and how often it was asked for
    what.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.calls_file = folder / "calls"

    def ends(
        self, *endings: int, last_words: str = "", code: str = "", name: str = "versions", **result: Any
    ) -> None:
        """Each call ends as the next of the endings says, the last one for good."""
        text = f"""
import json, pathlib, sys
calls = pathlib.Path({str(self.calls_file)!r})
with calls.open("a") as file: file.write(json.dumps(sys.argv[1:]) + chr(10))
endings = {list(endings)!r}
ending = endings[min(len(calls.read_text().splitlines()), len(endings)) - 1]
if ending == 0:
    pass
{chr(10).join("    " + line for line in code.splitlines())}
print({last_words!r}, file=sys.stderr)
print(json.dumps({{"arguments": sys.argv[1:], **json.loads({json.dumps(result)!r})}}))
sys.exit(ending)
"""
        (self._folder / "apps" / f"{name}.py").write_text(text)

    @property
    def calls(self) -> list[list[str]]:
        return (
            [json.loads(line) for line in self.calls_file.read_text().splitlines()]
            if self.calls_file.exists()
            else []
        )


@pytest.fixture
def app(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    take_programs_from(tmp_path / "apps", monkeypatch)
    return App(tmp_path)


@pytest.fixture
def context() -> dict[str, Any]:
    pushed: dict[str, Any] = {}
    instance = SimpleNamespace(
        pushed=pushed, try_number=1, max_tries=6, xcom_push=lambda key, value: pushed.update({key: value})
    )
    return {"ti": instance, "dag": SimpleNamespace(dag_id=f"reprocess.{NAME}")}


def versions(settings: Settings) -> Versions:
    return Versions(LeaseTable(settings))


def begin(settings: Settings) -> None:
    beside = InactiveVersion(
        version=2, state=InactiveState.CATCHING_UP, shards=1, tables=("sinks/stock_stats_v2",)
    )
    versions(settings).begin(NAME, beside, {0: 0}, columns_from=1)


def live(settings: Settings) -> dict[str, Any]:
    """Version 2 has caught up; what the task returns that waited for it."""
    begin(settings)
    versions(settings).note_caught_up(versions(settings).of(NAME))
    return {"news": "live", "since": change(settings)}


def change(settings: Settings) -> str:
    found = versions(settings).of(NAME).change
    assert found is not None
    return found.id


def promoted(settings: Settings) -> dict[str, Any]:
    """Version 2 is active; what the task returns that promoted it."""
    since = live(settings)["since"]
    done = versions(settings).promote(
        NAME, 2, ("sinks/stock_stats",), warm_seconds=3600.0, barrier={0: 7}, since=since
    )
    assert done.change is not None
    return {"change": done.change.id, "since": done.change.number, "at": done.change.at.isoformat()}


def told(settings: Settings, kind: str) -> list[dict[str, Any]]:
    return ControlTables(settings).rows(ControlTable.EVENTS, [("kind", "=", kind)])


def rollout(settings: Settings) -> Rollout:
    return versions(settings).of(NAME)


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({}, "earliest"),
        (
            {"start": StartChoice.TIME.value, "from_time": "2026-01-01T00:00:00+00:00"},
            "2026-01-01T00:00:00+00:00",
        ),
        ({"start": StartChoice.OFFSETS.value, "from_offsets": '{"0": 5}'}, '{"0": 5}'),
    ],
)
def test_a_version_is_begun_where_the_form_says(
    app: App, context: dict[str, Any], fields: dict[str, Any], start: str
) -> None:
    """The same command as a person's, with the DAG for its author."""
    app.ends(0, version=2)
    assert StartVersionOperator(**TASK, **fields, new_table="True").execute(context)["begun"] is True
    about = ["begin", "--pipeline", NAME, "--version", "2"]
    assert app.calls == [[*about, f"--from={start}", f"--by=reprocess.{NAME}", "--new-table"]]


@pytest.mark.parametrize(
    "fields", [{"start": "tomorrow"}, {"start": StartChoice.TIME.value, "from_time": ""}]
)
def test_a_wrong_start_fails_at_once(app: App, context: dict[str, Any], fields: dict[str, Any]) -> None:
    """No child is started."""
    with pytest.raises(AirflowFailException, match=r"Choose one of|Fill from_time in"):
        StartVersionOperator(**TASK, **fields).execute(context)
    assert app.calls == []


def test_a_version_that_was_begun_is_not_begun_again(
    app: App, home: Settings, context: dict[str, Any]
) -> None:
    """A try that was killed after it, or a person, began it: nothing is there twice. One being discarded is
    for `begin` to refuse.
    """
    begin(home)
    assert StartVersionOperator(**TASK).execute(context)["begun"] is False
    assert app.calls == []
    versions(home).leave(NAME, 2)
    app.ends(2, last_words="version 2 is being discarded")
    with pytest.raises(AirflowFailException, match="is being discarded"):
        StartVersionOperator(**TASK).execute(context)


def test_waiting_holds_no_slot_and_ends_live_or_gone(home: Settings, context: dict[str, Any]) -> None:
    """The change since which the version is live is what a promotion is later bound to."""
    wait = AwaitCaughtUpOperator(**TASK)
    begin(home)
    with pytest.raises(TaskDeferred) as deferred:
        wait.execute(context)
    assert deferred.value.trigger.serialize()[1] == {"pipeline": NAME, "version": 2}
    versions(home).note_caught_up(rollout(home))
    assert (
        wait.execute(context)
        == wait.settled(context, wait.execute(context))
        == {"news": "live", "since": change(home)}
    )
    with pytest.raises(AirflowFailException, match=r"no shadow .* Nothing has changed here"):
        wait.settled(context, {"news": "gone"})


def test_a_verdict_that_fails_is_for_a_person_to_judge(app: App, context: dict[str, Any]) -> None:
    """It is returned; a child that breaks, or comes too early, is tried again."""
    judge = JudgeVersionOperator(**TASK)
    app.ends(3, name="replay", passed=False, last_words="2 differences are unexplained")
    done = judge.execute(context)
    assert done["passed"] is False
    assert done["arguments"] == [
        "judge",
        "--pipeline",
        NAME,
        "--version",
        "2",
        "--all",
        "--run-id",
        context["ti"].pushed["run_id"],
        "--tried-again",
    ]
    for ending, error in ((75, TryLaterError), (1, ChildFailedError), (2, AirflowFailException)):
        app.ends(ending, name="replay")
        with pytest.raises(error):
            judge.execute(context)


def test_a_comparison_that_fails_is_for_a_person_to_judge(app: App, context: dict[str, Any]) -> None:
    """It is of the asked version, or of none."""
    compare = CompareVersionsOperator(**TASK)
    app.ends(3, version=2, passed=False)
    assert compare.execute(context)["passed"] is False
    assert app.calls == [["compare", "--pipeline", NAME]]
    app.ends(0, version=3, passed=True)
    with pytest.raises(AirflowFailException, match="Version 3 is compared with"):
        compare.execute(context)
    app.ends(75, version=2)
    with pytest.raises(TryLaterError):
        compare.execute(context)


@pytest.fixture
def promote(home: Settings) -> Callable[..., PromoteVersionOperator]:
    """A task whose promotion was approved after the last change."""

    def make(despite: str = "", **fields: Any) -> PromoteVersionOperator:
        approval = {"answer": "Promote", "despite": despite, "who": "mira"}
        return PromoteVersionOperator(
            **TASK, **{"approval": approval, "caught_up": {"since": change(home)}, **fields}
        )

    return make


def test_a_promotion_repeated_is_no_second_one(
    app: App, home: Settings, promote: Callable[..., Any], context: dict[str, Any]
) -> None:
    """Killed after the swap, and tried again: one swap, one child, the same promotion for the watch."""
    live(home)
    app.ends(0, code=SWAP, promoted=True)
    task = promote()
    first = task.execute(context)
    made = rollout(home)
    assert (made.active, made.change.who, first["change"], first["since"]) == (
        2,
        "mira",
        made.change.id,
        made.change.number,
    )
    assert first["at"] == made.change.at.isoformat()
    again = task.execute(context)
    assert again["promoted"] is False
    assert [again[name] for name in ("change", "since", "at")] == [
        first[name] for name in ("change", "since", "at")
    ]
    assert len(app.calls) == 1
    assert rollout(home) == made


def test_the_reason_is_used_only_where_it_is_needed(
    app: App, home: Settings, promote: Callable[..., Any], context: dict[str, Any]
) -> None:
    """Proved after all: it is not recorded. Refused: it is, and one that looks like an option stays a
    reason.
    """
    live(home)
    app.ends(2, 0, code=SWAP, last_words="its newest verdict failed")
    promote("--by=me; rm -rf ~").execute(context)
    assert [any(part.startswith("--despite") for part in call) for call in app.calls] == [False, True]
    assert (rollout(home).change.despite, rollout(home).change.who) == ("--by=me; rm -rf ~", "mira")
    app.calls_file.unlink()
    versions(home).back_out(NAME)
    app.ends(0, code=SWAP)
    promote("a reason").execute(context)
    assert rollout(home).change.despite == ""


def test_what_an_outlived_child_did_counts(
    app: App, home: Settings, promote: Callable[..., Any], context: dict[str, Any]
) -> None:
    """The child of a try that was given up goes on, and may be the faster one: what it began or promoted is
    there, once, and is told.
    """
    app.ends(0, code=BEGIN + "sys.exit(2)")
    assert StartVersionOperator(**TASK).execute(context)["begun"] is False
    versions(home).note_caught_up(rollout(home))
    app.ends(0, code=SWAP + "sys.exit(1)")
    done = promote().execute(context)
    assert (rollout(home).active, done["promoted"], done["change"]) == (2, False, change(home))
    assert len(told(home, "version_promoted")) == 1


@pytest.mark.parametrize(("endings", "despite"), [((2,), ""), ((2, 2), "a reason")])
def test_a_refused_promotion_fails_at_once(
    app: App,
    home: Settings,
    promote: Callable[..., Any],
    context: dict[str, Any],
    endings: tuple[int, ...],
    despite: str,
) -> None:
    """It says why; nothing has changed."""
    live(home)
    app.ends(*endings, last_words="something changed since it was approved")
    before = rollout(home)
    with pytest.raises(AirflowFailException, match="something changed"):
        promote(despite).execute(context)
    assert rollout(home) == before


def test_only_what_was_approved_is_promoted(
    app: App, home: Settings, promote: Callable[..., Any], context: dict[str, Any]
) -> None:
    """A cleared task after "Discard" promotes nothing."""
    live(home)
    with pytest.raises(AirflowFailException, match="Nobody approved"):
        promote(approval={"answer": "Discard", "despite": "", "who": "mira"}).execute(context)
    assert app.calls == []


def test_discarding_twice_is_discarding_once(home: Settings, context: dict[str, Any]) -> None:
    """Also after a try that was killed before it could say so; the active version is never discarded."""
    live(home)
    task = DiscardVersionOperator(**TASK)
    assert task.execute(context)["active"] == 1
    made = rollout(home)
    assert made.beside is None
    assert task.execute(context)["deleted"] == []
    assert rollout(home) == made
    assert len(told(home, "version_discarded")) == 1
    with pytest.raises(AirflowFailException, match="it is the active one"):
        DiscardVersionOperator(**{**TASK, "version": 1}).execute(context)


@pytest.fixture
def watch(home: Settings) -> Callable[..., WatchPromotedOperator]:
    done = promoted(home)

    def make(minutes: str = "30.0") -> WatchPromotedOperator:
        return WatchPromotedOperator(**TASK, promoted=done, minutes=minutes)

    return make


def test_the_watch_is_counted_from_the_promotion(
    home: Settings, watch: Callable[..., Any], context: dict[str, Any]
) -> None:
    """However often it is tried; it holds no slot."""
    ends = []
    for _ in range(2):
        with pytest.raises(TaskDeferred) as deferred:
            watch().execute(context)
        ends.append(deferred.value.trigger.serialize()[1])
    assert ends[0] == ends[1]
    change = rollout(home).change
    assert datetime.fromisoformat(ends[0]["until"]) - change.at == timedelta(minutes=30)
    assert ends[0]["since"] == change.number
    ControlTables(home).append(ControlTable.VERDICTS, [verdict(version=2, change=change.number)])
    assert watch("0").execute(context) == {"news": "over", "verdicts": 1}


def test_a_failed_verdict_returns_to_the_old_version_once(
    home: Settings, watch: Callable[..., Any], context: dict[str, Any]
) -> None:
    """A try that was killed after the back-out finds it done; the event says who did it and why."""
    ControlTables(home).append(
        ControlTable.VERDICTS,
        [verdict("bad", version=2, passed=False, unexplained=4, change=rollout(home).changes)],
    )
    with pytest.raises(AirflowFailException, match=r"backed out to version 1: .* verdict bad failed with 4"):
        watch().execute(context)
    made = rollout(home)
    assert (made.active, made.beside.version, made.beside.state) == (1, 2, "live")
    with pytest.raises(
        AirflowFailException, match=r"active no more, version 1 is\. .* by the watch: its verdict bad failed"
    ):
        watch().execute(context)
    assert rollout(home) == made
    (event,) = told(home, "version_backed_out")
    assert "the watch: its verdict bad failed" in event["message"]


def test_killed_between_the_back_out_and_its_event(
    home: Settings, watch: Callable[..., Any], context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try writes the event, once."""
    from hindcast.airflow import reprocessing

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reprocessing, "record_changes", die)
        with pytest.raises(KeyboardInterrupt):
            watch().seen(context, {"news": "failed", "run_id": "bad", "unexplained": 4})
    assert (rollout(home).active, told(home, "version_backed_out")) == (1, [])
    for _ in range(2):
        with pytest.raises(AirflowFailException, match="active no more"):
            watch().execute(context)
    assert len(told(home, "version_backed_out")) == 1


def test_the_watch_returns_if_a_bound_is_exceeded(
    home: Settings, watch: Callable[..., Any], context: dict[str, Any]
) -> None:
    """Such a verdict has no unexplained difference. The error says where the reason is."""
    with pytest.raises(AirflowFailException, match="failed: `hindcast verdicts --run bad` says why"):
        watch().seen(context, {"news": "failed", "run_id": "bad", "unexplained": 0})
    assert rollout(home).active == 1


def test_the_watch_undoes_no_other_promotion(
    home: Settings, watch: Callable[..., Any], context: dict[str, Any]
) -> None:
    """Somebody backed out and promoted it again, despite all: that is theirs to undo."""
    task = watch()
    versions(home).back_out(NAME)
    again = versions(home).promote(
        NAME,
        2,
        ("sinks/stock_stats",),
        warm_seconds=3600.0,
        barrier={0: 7},
        since=change(home),
        despite="I know",
    )
    with pytest.raises(AirflowFailException, match="something changed since that promotion"):
        task.seen(context, {"news": "failed", "run_id": "bad", "unexplained": 4})
    assert rollout(home) == again


def awaited(**what: Any) -> dict[str, Any]:
    """What the application waits for."""
    return Awaited(pipeline=NAME, version=2, **what).to_json()


@pytest.mark.parametrize("tries", [1, 7])
def test_a_watch_over_a_quiet_topic_ends_well(
    app: App, watch: Callable[..., Any], context: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """The version has read its whole topic, and its last verdict covers all of that: there is nothing to wait
    for. That is no fault of the version, nor of a run, on the last try neither.
    """
    asked: list[str] = []

    def latest(_: TopicOffsets, topic: str) -> dict[int, int]:
        asked.append(topic)
        return {0: 10, 1: 5}

    context["ti"].try_number = tries
    monkeypatch.setattr(TopicOffsets, "latest", latest)
    app.ends(75, name="replay", last_words="nothing was committed", awaited=awaited(beyond={0: 10, 1: 5}))
    assert watch("0").execute(context) == {"news": "over", "verdicts": 0}
    assert ControlTables(Settings()).rows(ControlTable.EVENTS) == []
    assert len(asked) == 1, "two answers could differ"


def test_a_watch_asks_the_brokers_of_airflows_connection(
    app: App, watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, context: dict[str, Any]
) -> None:
    """As its children do."""
    extra = json.dumps({"bootstrap.servers": "kafka-of-airflow:9092"})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA", json.dumps({"conn_type": "kafka", "extra": extra}))
    monkeypatch.setenv("HINDCAST_KAFKA_CONNECTION", "kafka")
    asked: list[str] = []
    made = TopicOffsets.__init__

    def make(self: TopicOffsets, settings: Settings, **named: Any) -> None:
        asked.append(settings.bootstrap_servers)
        made(self, settings, **named)

    monkeypatch.setattr(TopicOffsets, "__init__", make)
    monkeypatch.setattr(TopicOffsets, "latest", lambda *_: {0: 10, 1: 5})
    app.ends(75, name="replay", last_words="nothing was committed", awaited=awaited(beyond={0: 10, 1: 5}))
    assert watch("0").execute(context) == {"news": "over", "verdicts": 0}
    assert asked == ["kafka-of-airflow:9092"]


def test_a_watch_over_a_stream_that_stands_still_is_tried_again(
    app: App, watch: Callable[..., Any], context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic has records that the version has not read. Whether it may stay active is not known."""
    monkeypatch.setattr(TopicOffsets, "latest", lambda *_: {0: 10, 1: 6})
    app.ends(75, name="replay", last_words="nothing was committed", awaited=awaited(beyond={0: 10, 1: 5}))
    with pytest.raises(TryLaterError):
        watch("0").execute(context)


def test_a_watch_without_a_verdict_ends_with_its_own(
    app: App, home: Settings, watch: Callable[..., Any], context: dict[str, Any]
) -> None:
    """Else it would have shown nothing; where that one fails, the old version is back."""
    app.ends(75, name="replay", last_words="rows are still to be filed", awaited=awaited(batches={"s": 3}))
    with pytest.raises(TryLaterError):
        watch("0").execute(context)
    app.ends(0, name="replay", passed=True, run_id="own")
    assert watch("0").execute(context) == {"news": "over", "verdicts": 1, "run_id": "own"}
    assert "--since-last-verdict" in app.calls[-1]
    assert app.calls[-1][:5] == ["judge", "--pipeline", NAME, "--version", "2"]
    app.ends(3, name="replay", passed=False, run_id="own", failed=["captured is 0.5"], last_words="failed")
    with pytest.raises(AirflowFailException, match=r"backed out .* verdict own failed: captured is 0\.5"):
        watch("0").execute(context)
    assert rollout(home).active == 1
