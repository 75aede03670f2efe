"""The rows that replays leave in ``runs``, whatever their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hindcast import Table, Topic, pipeline
from hindcast.errors import NothingToReplayError
from hindcast.replay import run_replay
from hindcast.replay.request import ReplayRequest
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.schema import ControlTable


@pipeline(source=Topic("words", schema="word string, ts timestamp"), event_time="ts", watermark="1 second", sink=Table("words"), version=3)
def words(frame: Any) -> Any:
    return frame


def test_a_replay_of_nothing_starts_no_session_and_leaves_a_row_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval before the stream began: whoever looks for its run finds that it was skipped."""
    request = ReplayRequest(pipeline="words", run_id="r-1", everything=True)
    nothing = NothingToReplayError(pipeline="words", range=request.describe(), problem="the stream begins later")

    def plan(*_: Any) -> Any:
        raise nothing

    def session() -> Any:
        raise AssertionError("a session was started")

    monkeypatch.setattr(run_replay, "plan_replay", plan)
    settings = Settings(home=tmp_path)
    with pytest.raises(NothingToReplayError):
        run_replay.run_replay(session, settings, words, request)
    rows = ControlTables(settings).rows(ControlTable.RUNS)
    assert [(row["run_id"], row["version"], row["state"], row["note"]) for row in rows] == [("r-1", 3, "skipped", str(nothing))]
    assert rows[0]["finished_at"] is not None
