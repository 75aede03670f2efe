"""A replay that is refused, fails or is killed has one row in ``runs`` that says why, and an event that says
what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hindcast import catalog
from hindcast.errors import (
    BadRangeError,
    BrokerUnavailableError,
    HindcastError,
    NothingLateError,
    RangeNotYetConsumedError,
)
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.replay import run_replay as running
from hindcast.replay.planner import ReplayPlan
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_table import Runs, newest_by_run
from hindcast.settings import Settings, project_root
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.run_states import BadEnd, RunState, close_run
from hindcast.tables.table_names import ControlTable

WRONG = BadRangeError(range="all", problem="it is reversed", cure="Give it the right way round.")
BEHIND = RangeNotYetConsumedError(pipeline="stock_stats", problem="partition 0 is at 12")
AWAY = BrokerUnavailableError(servers="nowhere", topic="trades", reason="no answer")
NOTHING = NothingLateError(pipeline="stock_stats")


@pytest.fixture
def stock_stats() -> Pipeline:
    return catalog.load(project_root() / "include" / "pipelines")["stock_stats"]


def never() -> Any:
    raise AssertionError("a session was started")


@pytest.fixture
def replay(settings: Settings, stock_stats: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replay under a run id, with a planner that raises."""

    def go(error: Exception, *, tried_again: bool = False, run_id: str = "r-1") -> None:
        def plan(*_: Any) -> tuple[str, ReplayPlan]:
            raise error

        monkeypatch.setattr(running, "plan_replay", plan)
        request = ReplayRequest(pipeline="stock_stats", run_id=run_id, everything=True)
        with pytest.raises(type(error)):
            running.run_replay(never, Installation(settings), stock_stats, request, tried_again=tried_again)

    return go


def listed(settings: Settings) -> list[dict[str, Any]]:
    return newest_by_run(ControlTables(settings).rows(ControlTable.RUNS))


def recorded_events(settings: Settings) -> list[tuple[str, str]]:
    """(kind, run) of the events. Each has a cure."""
    events = ControlTables(settings).rows(ControlTable.EVENTS)
    assert all(event["cure"] and event["severity"] == "error" for event in events)
    return sorted((event["kind"], json.loads(event["detail"])["run_id"]) for event in events)


@pytest.mark.parametrize(
    ("error", "state", "kind"),
    [(WRONG, "refused", "run_refused"), (BEHIND, "failed", "run_failed"), (AWAY, "failed", "run_failed")],
)
def test_a_replay_that_could_not_be_planned_has_a_row_and_an_event(
    settings: Settings, replay: Callable[..., None], error: HindcastError, state: str, kind: str
) -> None:
    """With the reason, although nothing was run."""
    replay(error)
    (row,) = listed(settings)
    assert (row["run_id"], row["pipeline"], row["version"], row["kind"]) == (
        "r-1",
        "stock_stats",
        1,
        "replay",
    )
    assert (row["state"], row["note"]) == (state, str(error))
    assert row["started_at"] <= row["finished_at"]
    assert recorded_events(settings) == [(kind, "r-1")]


def test_a_replay_without_an_id_has_a_row_too(settings: Settings, replay: Callable[..., None]) -> None:
    """Under the id that it got."""
    replay(WRONG, run_id="")
    (row,) = listed(settings)
    assert row["run_id"].startswith("stock_stats-")
    assert recorded_events(settings) == [("run_refused", row["run_id"])]


@pytest.mark.parametrize(("error", "again"), [(BEHIND, True), (AWAY, True), (NOTHING, False)])
def test_what_is_no_end_leaves_nothing(
    settings: Settings, replay: Callable[..., None], error: HindcastError, again: bool
) -> None:
    """The caller asks again once the stream is further. A correction that has nothing to do is no fault."""
    replay(error, tried_again=again)
    assert listed(settings) == recorded_events(settings) == []


def test_a_wrong_range_is_an_end_even_if_the_caller_asks_again(
    settings: Settings, replay: Callable[..., None]
) -> None:
    """No retry can help."""
    replay(WRONG, tried_again=True)
    assert [row["state"] for row in listed(settings)] == ["refused"]


def test_each_attempt_is_the_run_as_it_is_listed_and_keeps_its_plan(
    settings: Settings, replay: Callable[..., None]
) -> None:
    """The same run id replays the same offsets, also after an attempt that was refused in between."""
    runs = Runs(ControlTables(settings))
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    row = {"run_id": "r-1", "pipeline": "stock_stats", "version": 1, "kind": "replay", "started_at": long_ago}
    plan = RecordedPlan(
        asked="all of it", topic="t", start={0: 0}, end={0: 9}, read_from={0: 0}, sink_version=1
    )
    runs.append({**row, "state": "planned", "plan": plan.text()})
    runs.append(
        {
            **row,
            "state": "succeeded",
            "plan": plan.text(),
            "seconds": 3.0,
            "finished_at": long_ago + timedelta(minutes=1),
        }
    )
    replay(AWAY)
    (now,) = listed(settings)
    assert (now["state"], now["seconds"]) == ("failed", None)
    assert runs.recorded_plan("r-1", "all of it") == plan
    assert runs.succeeded("r-1")["seconds"] == 3.0, "what an earlier attempt wrote is there still"


def test_a_process_that_died_leaves_one_row_whatever_it_wrote(settings: Settings) -> None:
    """`planned` becomes failed. An end that the process wrote itself stays, and one of an earlier attempt
    does not count.
    """
    tables = ControlTables(settings)
    now = datetime.now(UTC)
    row = {"pipeline": "p", "version": 4, "kind": "replay", "plan": "{}", "started_at": now}
    tables.append(
        ControlTable.RUNS,
        [
            {**row, "run_id": "planned", "state": "planned"},
            {**row, "run_id": "failed", "state": "failed", "note": "its own words", "finished_at": now},
            {
                **row,
                "run_id": "earlier",
                "state": "failed",
                "note": "last week",
                "finished_at": now - timedelta(days=7),
            },
        ],
    )
    end = BadEnd.of_process(-9, "reading")
    closed = [
        close_run(tables, run_id, "p", end, since=now)
        for run_id in ("planned", "failed", "earlier", "unheard-of")
    ]
    assert closed == [True, False, True, True]
    notes = {row["run_id"]: (row["state"], row["note"], row["version"]) for row in listed(settings)}
    killed = "Its process was killed by SIGKILL. The last thing it said: reading"
    assert notes == {
        "planned": ("failed", killed, 4),
        "failed": ("failed", "its own words", 4),
        "earlier": ("failed", killed, 4),
        "unheard-of": ("failed", killed, None),
    }
    assert recorded_events(settings) == [
        ("run_failed", "earlier"),
        ("run_failed", "planned"),
        ("run_failed", "unheard-of"),
    ]
    assert not close_run(tables, "planned", "p", end, since=now), "asked twice it is done once"


@pytest.mark.parametrize(
    ("exit_code", "state", "words"),
    [
        (1, RunState.FAILED, "disk full"),
        (2, RunState.REFUSED, "disk full"),
        (75, RunState.FAILED, "disk full"),
        (-9, RunState.FAILED, "SIGKILL"),
        (137, RunState.FAILED, "SIGKILL"),
        (134, RunState.FAILED, "SIGABRT"),
        (-99, RunState.FAILED, "signal 99"),
    ],
)
def test_an_exit_code_says_how_it_ended(exit_code: int, state: RunState, words: str) -> None:
    """A signal is named, whether the process's own code or its shell's says it."""
    end = BadEnd.of_process(exit_code, "disk full")
    assert end.state is state
    assert words in end.reason
    assert end.cure
