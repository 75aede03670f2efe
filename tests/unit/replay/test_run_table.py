"""The rows that replays leave in ``runs``, whatever their end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hindcast import Table, Topic, pipeline
from hindcast.errors import NothingToReplayError, UnknownRunError
from hindcast.installation import Installation
from hindcast.replay import inputs, run_replay
from hindcast.replay.planner import ReplayPlan
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_table import JudgedRange, Runs
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Undone
from hindcast.tables.run_states import RunKind, RunState
from hindcast.tables.table_names import ControlTable


@pipeline(
    source=Topic("words", schema="word string, ts timestamp"),
    event_time="ts",
    watermark="1 second",
    sink=Table("words"),
    version=3,
)
def words(frame: Any) -> Any:
    return frame


def test_a_replay_of_nothing_starts_no_session_and_leaves_a_row_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interval before the stream began: whoever looks for its run finds that it was skipped."""
    request = ReplayRequest(pipeline="words", run_id="r-1", everything=True)
    nothing = NothingToReplayError(
        pipeline="words", range=request.describe(), problem="the stream begins later"
    )

    def plan(*_: Any) -> Any:
        raise nothing

    def session() -> Any:
        raise AssertionError("a session was started")

    monkeypatch.setattr(run_replay, "plan_replay", plan)
    settings = Settings(home=tmp_path)
    with pytest.raises(NothingToReplayError):
        run_replay.run_replay(session, Installation(settings), words, request)
    rows = ControlTables(settings).rows(ControlTable.RUNS)
    assert [(row["run_id"], row["version"], row["state"], row["note"]) for row in rows] == [
        ("r-1", 3, "skipped", str(nothing))
    ]
    assert rows[0]["finished_at"] is not None


def test_a_retry_leaves_out_what_its_first_try_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the offsets of the first try, and these alone no longer tell what was left out."""
    installation = Installation(Settings(home=tmp_path))
    runs = Runs(installation.tables)

    def read(*_: Any) -> Any:
        return None

    def plan(_: Any, request: ReplayRequest, __: Any) -> ReplayPlan:
        left_out = ""
        if request.late:
            left_out = "the late rows of 2 windows"
        return ReplayPlan(
            pipeline="words",
            version=3,
            topic="words",
            asked=request.describe(),
            start={0: 5},
            end={0: 9},
            read_from={0: 5},
            seams={},
            windows_after_ms=0,
            windows_to_ms=0,
            sink_version=1,
            segments=(),
            batches=(),
            left_out=left_out,
        )

    monkeypatch.setattr(run_replay, "read_inputs", read)
    monkeypatch.setattr(run_replay, "make_plan", plan)
    request = ReplayRequest(pipeline="words", run_id="r-1", late=True)
    _, first = run_replay.plan_replay(installation, words, request)
    row = run_replay._first_row(installation.settings, words, first, "r-1", RunKind.REPLAY)
    runs.append(row)
    assert run_replay.plan_replay(installation, words, request) == ("r-1", first)
    assert first.left_out == "the late rows of 2 windows"
    other = ReplayRequest(pipeline="words", run_id="r-1", from_offsets={0: 5}, to_offsets={0: 9})
    assert run_replay.plan_replay(installation, words, other)[1].left_out == ""


def test_the_newest_plan_tells_how_many_records_a_run_reads(tmp_path: Path) -> None:
    """Those before its range count too: windows are fed by them. A run without a plan is unknown."""
    runs = Runs(ControlTables(Settings(home=tmp_path)))
    with pytest.raises(UnknownRunError):
        runs.planned_records("r-1")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for minute, end in ((0, 900), (1, 150)):
        plan = RecordedPlan(
            asked="",
            topic="t",
            read_from={0: 40, 1: 0},
            start={0: 50, 1: 0},
            end={0: end, 1: 10},
            sink_version=0,
        )
        row = {
            "run_id": "r-1",
            "pipeline": "words",
            "version": 3,
            "kind": RunKind.REPLAY.value,
            "state": RunState.PLANNED.value,
        }
        runs.append({**row, "plan": plan.text(), "started_at": at + timedelta(minutes=minute)})
    assert runs.planned_records("r-1") == (150 - 40) + 10
    runs.answer("r-2", "words", 3, RunKind.REPLAY, RunState.SKIPPED, "nothing to replay")
    with pytest.raises(UnknownRunError):
        runs.planned_records("r-2")


def test_the_ranges_of_verdicts_are_in_the_order_of_the_sinks_versions(tmp_path: Path) -> None:
    """Each with the end that its run planned last. Left out are the run itself, what was taken back, other
    versions, and verdicts whose run is unknown.
    """
    tables = ControlTables(Settings(home=tmp_path))
    runs = Runs(tables)
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def judged(run_id: str, sink_version: int, *ends: int, version: int = 3) -> None:
        of_run = {"run_id": run_id, "pipeline": "words", "version": version}
        for minute, end in enumerate(ends):
            plan = RecordedPlan(
                asked="", topic="t", read_from={0: 0}, start={0: 0}, end={0: end}, sink_version=sink_version
            )
            ended = {"state": RunState.SUCCEEDED.value, "finished_at": at + timedelta(minutes=minute)}
            runs.append({**of_run, **ended, "plan": plan.text()})
        tables.append(ControlTable.VERDICTS, [{**of_run, "sink_version": sink_version}])

    judged("later", 9, 90)
    judged("sooner", 4, 30, 40)
    judged("taken-back", 6, 60)
    judged("other-version", 5, 50, version=2)
    judged("no-run", 7)
    judged("itself", 8, 80)
    assert runs.judged_ranges("words", 3, without="itself", undone=[Undone(5, 7)]) == [
        JudgedRange({0: 40}, 4),
        JudgedRange({0: 90}, 9),
    ]
    assert Runs(ControlTables(Settings(home=tmp_path / "new"))).judged_ranges("words", 3) == []


def test_a_time_stands_for_what_the_first_plan_of_its_version_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the time is written. A partition that was added since had no record then."""
    tables = ControlTables(Settings(home=tmp_path))
    runs = Runs(tables)
    at = datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert runs.offsets_of("words", 3, at) is None
    for hour, version, offset in ((2, 3, 9), (1, 3, 7), (0, 4, 5)):
        plan = RecordedPlan(
            asked=f"times {at.isoformat()} to some later one",
            topic="t",
            read_from={0: 0},
            start={0: 0},
            end={0: offset},
            sink_version=0,
            instants={at: {0: offset}},
        )
        assert RecordedPlan.from_text(plan.text()) == plan
        row = {"run_id": f"r-{hour}", "pipeline": "words", "version": version, "kind": "replay"}
        runs.append(
            {**row, "state": "planned", "plan": plan.text(), "started_at": at + timedelta(hours=hour)}
        )
    runs.answer("r-9", "words", 3, RunKind.REPLAY, RunState.SKIPPED, "nothing to replay")
    assert runs.offsets_of("words", 3, at) == {0: 7}
    assert runs.offsets_of("words", 4, at) == {0: 5}
    assert runs.offsets_of("words", 3, at.astimezone(timezone(timedelta(hours=2)))) == {0: 7}
    assert runs.offsets_of("words", 3, at + timedelta(seconds=1)) is None
    monkeypatch.setattr(inputs, "offsets_at", lambda *_: {0: 12, 1: 4})
    topics: Any = None
    latest = {0: 15, 1: 6}
    assert inputs._offsets_of(at, tables, words, topics, {}, latest) == {0: 7, 1: 0}
    assert inputs._offsets_of(at + timedelta(1), tables, words, topics, {}, latest) == {0: 12, 1: 4}
