"""Verdicts of interval after interval on pipelines whose results depend on all that came before: each goes on
from the proof that the one before left, while the topics lose what was judged and the sink's log is cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from support.crashes import crash_at
from support.example_intervals import EXAMPLES, WINDOWED
from support.intervals import Intervals
from support.workload_harness import Workload, at

from hindcast import Table, Topic, pipeline
from hindcast.errors import ReplayFailedError
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.proofs import Proofs

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

Make = Callable[..., Workload]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_is_judged_interval_by_interval(workload: Make, example: str) -> None:
    """The topics lose what was judged, small files are joined and the log is cut to nothing. Each verdict
    reads the records of its interval alone, in the state that the one before left.
    """
    intervals = Intervals(workload(example))
    for interval in range(3):
        rows = EXAMPLES[example](interval)
        intervals.stream(rows)
        verdict = intervals.judge()
        assert (verdict["unexplained"], verdict["passed"]) == (0, True), intervals.made.differences(
            verdict["run_id"]
        )
        sent = sum(len(values) for values in rows.values())
        assert intervals.counted(verdict).rows_read == sent
        intervals.lose_the_beginning()
        intervals.tidy()
    plans = [intervals.plan(verdict) for verdict in intervals.verdicts]
    assert [plan.proof for plan in plans] == ["", "interval-0", "interval-1"]
    assert [plan.start for plan in plans[1:]] == [plan.end for plan in plans[:-1]]
    assert [plan.sink_after for plan in plans] == [-1, *(plan.sink_version for plan in plans[:-1])]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("example", WINDOWED)
def test_an_example_with_windows_needs_no_proof(workload: Make, example: str) -> None:
    """The topics lose what the last verdict did not read: the windows that it left open are all that the next
    one needs.
    """
    intervals = Intervals(workload(example))
    for interval in range(4):
        intervals.stream(WINDOWED[example](interval))
        verdict = intervals.judge()
        assert (verdict["unexplained"], verdict["passed"]) == (0, True)
        intervals.lose_what_was_judged_before()
        intervals.tidy()
    plans = [intervals.plan(verdict) for verdict in intervals.verdicts]
    assert {plan.proof for plan in plans} == {""}
    assert [plan.windows_after_ms for plan in plans[1:]] == [plan.windows_to_ms for plan in plans[:-1]]
    assert [verdict["windows_compared"] > 0 for verdict in intervals.verdicts[2:]] == [True, True]
    assert plans[2].read_from[0] < plans[3].read_from[0]


@pipeline(
    source=Topic("first", schema="word string NOT NULL, ts timestamp", key="word"),
    joined=[Topic("second", schema="word string NOT NULL, ts timestamp", key="word")],
    event_time="ts",
    watermark="10 seconds",
    sink=Table("said", keys=["window", "word"]),
    version=1,
    re_execute=True,
)
def said(first: DataFrame, second: DataFrame) -> DataFrame:
    """How often a word was said in ten seconds, of two topics that have a watermark each."""
    both = first.unionByName(second)
    return both.groupBy(F.window("ts", "10 seconds"), "word").agg(F.count("*").alias("count"))


def word(second: float) -> dict[str, Any]:
    return {"word": "a", "ts": at(second)}


def test_an_interval_knows_how_far_each_topic_was(workload: Make) -> None:
    """The second topic is ahead, and brings nothing in the second interval. The stream's query knows that it
    is; a query that goes on from a proof must know it, too.
    """
    intervals = Intervals(workload(said))
    intervals.stream({0: [word(0)], 1: [word(100)]})
    intervals.judge()
    for interval in range(2):
        intervals.lose_the_beginning()
        intervals.stream({0: [word(60 + 5 * interval)]})
        intervals.stream({0: [word(61 + 5 * interval)]})
        verdict = intervals.judge()
        assert verdict["unexplained"] == 0, intervals.made.differences(verdict["run_id"])
    assert len(intervals.made.rows()) == 1


def test_an_interval_knows_that_an_owner_did_not_know(workload: Make) -> None:
    """A query that is started again has forgotten how far each topic was, and the watermark waits for all of
    them. So does the query that runs its batches again.
    """
    intervals = Intervals(workload(said))
    made = intervals.made
    intervals.stream({0: [word(0)], 1: [word(100)]})
    made.retire(intervals.owner)
    del intervals.owner
    intervals.stream({0: [word(60)]})
    intervals.stream({0: [word(61)]})
    assert made.rows() == []
    verdict = intervals.judge()
    assert verdict["unexplained"] == 0, made.differences(verdict["run_id"])
    intervals.stream({1: [word(101)]})
    intervals.stream({0: [word(62)]})
    assert len(made.rows()) == 1
    verdict = intervals.judge()
    assert verdict["unexplained"] == 0, made.differences(verdict["run_id"])


def test_a_rebuilt_state_holds_what_the_stream_held_back(workload: Make) -> None:
    """An owner had forgotten how far the second topic was, so a window stayed open. A state that is rebuilt
    has it, and no row is lost.
    """
    intervals = Intervals(workload(said))
    made = intervals.made
    intervals.stream({0: [word(0)], 1: [word(100)]})
    made.retire(intervals.owner)
    del intervals.owner
    intervals.stream({0: [word(60)]})
    intervals.stream({0: [word(61)]})
    made.retire(intervals.owner)
    del intervals.owner
    assert made.rows() == []
    made.read("it was asked for")
    intervals.stream({1: [word(101)]})
    intervals.stream({0: [word(62)]})
    intervals.stream({0: [word(63)]})
    assert [row["count"] for row in made.rows()] == [1]
    verdict = intervals.judge()
    assert verdict["unexplained"] == 0, made.differences(verdict["run_id"])


PLANTED: dict[str, tuple[str, Callable[[Intervals], Any], dict[str, int]]] = {
    "a running result deleted": ("word_count", lambda made: made.delete("word = 'word1'"), {"missing": 1}),
    "an earlier one deleted": ("word_count", lambda made: made.delete("word = 'word0'"), {"missing": 1}),
    "a running result doubled": (
        "word_count",
        lambda made: made.double(pc.field("word") == "word1"),
        {"doubled": 1},
    ),
    "an earlier one changed": (
        "word_count",
        lambda made: made.change({"count": "7"}, "word = 'word0'"),
        {"changed": 1},
    ),
    "a sentence deleted": ("sentences", lambda made: made.delete("sentence = 'whole1.'"), {"missing": 1}),
    "an earlier sentence changed": (
        "sentences",
        lambda made: made.change({"words": "7"}, "sentence = 'whole0.'"),
        {"changed": 1},
    ),
    "a sentence doubled": (
        "sentences",
        lambda made: made.double(pc.field("sentence") == "whole1."),
        {"doubled": 1},
    ),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("example", "plant", "found"), PLANTED.values(), ids=PLANTED)
def test_a_planted_error_is_found_in_its_interval_and_only_there(
    workload: Make, example: str, plant: Callable[[Intervals], Any], found: dict[str, int]
) -> None:
    """Before and after it each verdict passes: the proof goes on from what the batch says, not from the
    table.
    """
    intervals = Intervals(workload(example))
    for interval in range(3):
        intervals.stream(EXAMPLES[example](interval))
        if interval == 1:
            plant(intervals)
        verdict = intervals.judge()
        assert intervals.kinds(verdict) == (found if interval == 1 else {})
        assert verdict["passed"] == (interval != 1)
        intervals.lose_the_beginning()
        intervals.tidy()


def test_ratios_are_of_verdicts_from_the_beginning(workload: Make) -> None:
    """The function for hindsight needs all rows. An interval has no ratio, and its bound is not judged."""
    intervals = Intervals(workload("rent_or_buy"))
    for interval in range(2):
        intervals.stream(EXAMPLES["rent_or_buy"](interval))
        intervals.judge()
    first, second = intervals.verdicts
    assert json.loads(first["ratios"]).keys() == {"days", "rent_until_equal", "always_buy"}
    assert json.loads(first["bounds"])["ratio_bound"].keys() == {"rent_until_equal", "always_buy"}
    assert (json.loads(second["ratios"]), json.loads(second["bounds"])) == ({}, {})
    whole = intervals.judge(everything=True)
    assert intervals.plan(whole).proof == ""
    assert json.loads(whole["bounds"])["ratio_bound"].keys() == {"rent_until_equal", "always_buy"}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("step", ["proof.1", "proof.2", "proof.3"])
def test_a_judge_that_dies_leaves_a_proof_or_none(
    workload: Make, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it had done, the verdict is given again with the same figures, and the next range goes on."""
    intervals = Intervals(workload("sentences"))
    intervals.stream(EXAMPLES["sentences"](0))
    crash_at(monkeypatch, step, 1)
    with pytest.raises(ReplayFailedError, match=step):
        intervals.judge()
    crash_at(monkeypatch, "", 1)
    intervals.judge()
    proofs = Proofs(ControlTables(intervals.made.settings)).of_version("sentences", 1)
    assert [proof.run_id for proof in proofs] == ["interval-0"]
    intervals.stream(EXAMPLES["sentences"](1))
    intervals.judge()
    assert [verdict["unexplained"] for verdict in intervals.verdicts] == [0, 0]
    assert intervals.plan(intervals.verdicts[1]).proof == "interval-0"
