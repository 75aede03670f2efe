"""The results of two replays side by side, from answers written by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from hindcast import Table, Topic, pipeline
from hindcast.installation import Installation
from hindcast.replay.batch import ANSWER, Answer, answers_url
from hindcast.replay.compare_runs import Results, compare_runs
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.replay.run_table import Runs
from hindcast.tables.run_states import RunKind, RunState

Rows = list[tuple[str, int | None, str]]


@pipeline(
    source=Topic("words", schema="word string, ts timestamp"),
    event_time="ts",
    watermark="1 second",
    sink=Table("words", keys=["word"]),
    version=1,
)
def words(frame: Any) -> Any:
    return frame


@pytest.fixture
def compared(installation: Installation) -> Callable[[Rows, Rows], Results]:
    """Compare two runs whose answers have these rows of a word, a number and a place."""

    def keep(run_id: str, rows: Rows) -> None:
        url = answers_url(installation.settings, "words", run_id)
        at = datetime(2026, 1, 1, tzinfo=UTC)
        plan = RecordedPlan(asked="", topic="t", read_from={0: 0}, start={0: 0}, end={0: 9}, sink_version=0)
        columns = {
            "word": [row[0] for row in rows],
            "number": [row[1] for row in rows],
            "place": [row[2] for row in rows],
            ANSWER: [Answer.HINDSIGHT.value for _ in rows],
        }
        schema = pa.schema(
            [("word", pa.string()), ("number", pa.int64()), ("place", pa.string()), (ANSWER, pa.string())]
        )
        write_deltalake(url, pa.table(columns, schema=schema))
        row = {
            "run_id": run_id,
            "pipeline": "words",
            "version": 1,
            "kind": RunKind.REPLAY.value,
            "state": RunState.SUCCEEDED.value,
            "plan": plan.text(),
            "hindcast_url": url,
            "started_at": at,
            "finished_at": at,
        }
        Runs(installation.tables).append(row)

    def compare(first: Rows, second: Rows) -> Results:
        keep("r-1", first)
        keep("r-2", second)
        return compare_runs(installation, words, "r-1", "r-2").results

    return compare


def test_rows_that_have_their_keys_alone_are_matched_by_them(
    compared: Callable[[Rows, Rows], Results],
) -> None:
    """A changed row is counted with its columns, others are of one run only."""
    first: Rows = [("same", 1, "a"), ("changed", 1, "a"), ("gone", 1, "a")]
    second: Rows = [("new", 1, "a"), ("changed", None, "a"), ("same", 1, "a")]
    found = compared(first, second)
    assert (found.equal, found.changed, found.only_first, found.only_second) == (1, 1, 1, 1)
    assert found.changed_columns == {"number": 1}


def test_rows_that_share_their_keys_are_all_compared(compared: Callable[[Rows, Rows], Results]) -> None:
    """Equal rows of a key are matched first, in whatever order they stand; none hides another."""
    first: Rows = [("k", 1, "a"), ("k", 2, "b"), ("k", 2, "b"), ("k", 3, "c"), ("one", 1, "a")]
    second: Rows = [("k", 3, "c"), ("k", 99, "b"), ("k", 2, "b"), ("one", 1, "a"), ("one", 1, "a")]
    found = compared(first, second)
    assert found.rows == (5, 5)
    assert (found.equal, found.changed, found.only_first, found.only_second) == (3, 1, 1, 1)
    assert found.changed_columns["number"] == 1
