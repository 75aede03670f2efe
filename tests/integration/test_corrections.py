"""Corrections: readers get the batch's answer for closed windows, the stream's for all others, and the next
verdict is whole.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from support.replayed_stream import ONCE, ReplayedStream
from support.shard_harness import CrashError, crash_at

from hindcast.errors import CorrectionRefusedError, NothingLateError
from hindcast.replay.run_table import Runs
from hindcast.serving.corrected_windows import Corrections
from hindcast.serving.reading import Reading
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.apply_correction import correct

pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

Answers = dict[tuple[int, str], tuple[Any, ...]]


def answer_of(row: dict[str, Any]) -> tuple[tuple[int, str], tuple[Any, ...]]:
    return (int(row["window"]["end"].timestamp() * 1000), row["ticker"]), (
        row["min_ask"],
        row["trades"],
        row["avg_ask"],
    )


def read(scene: ReplayedStream) -> Answers:
    """What readers get, the same by Spark and by Arrow; each key once."""
    reading = Reading.pin(scene.settings, scene.pipeline)
    rows = reading.arrow().to_pylist()
    by_spark = [
        row.asDict(recursive=True)
        for row in reading.spark(scene.spark).withColumn("end", F.unix_millis("window.end")).collect()
    ]
    found = dict(map(answer_of, rows))
    assert len(found) == len(rows) == len(by_spark)
    assert found == {
        (row["end"], row["ticker"]): (row["min_ask"], row["trades"], row["avg_ask"]) for row in by_spark
    }
    assert {row["_run_id"] for row in rows} == {row["_run_id"] for row in by_spark}
    return found


def events(scene: ReplayedStream) -> list[dict[str, Any]]:
    return ControlTables(scene.settings).rows(ControlTable.EVENTS, [("kind", "=", "windows_corrected")])


def test_corrected_windows_are_the_batchs_and_all_others_the_streams(scene: ReplayedStream) -> None:
    """Captured is below 1 before and 1 after; done again nothing changes."""
    before = scene.judge()
    assert before["captured"] < 1
    assert read(scene) == scene.stream.table
    done = correct(scene.installation, scene.pipeline, ONCE)
    assert done["corrected"]
    after_ms, to_ms = done["windows_after_ms"], done["windows_to_ms"]
    hindsight = scene.stream.answers(scene.stream.records, after_ms, to_ms, online=False)
    open_still = {key: value for key, value in scene.stream.table.items() if not after_ms < key[0] <= to_ms}
    assert read(scene) == {**hindsight, **open_still}
    version = Corrections(scene.settings, scene.pipeline).current().version
    assert not correct(scene.installation, scene.pipeline, ONCE)["corrected"]
    assert Corrections(scene.settings, scene.pipeline).current().version == version
    assert [json.loads(row["detail"])["run_id"] for row in events(scene)] == [ONCE]
    verdict = scene.judge("again", everything=True)
    assert (
        verdict["unexplained"],
        verdict["captured"],
        verdict["captured_results"],
        verdict["late_differences"],
    ) == (0, 1.0, 1.0, 0)
    assert verdict["passed"], verdict["failed"]
    whole = read(scene)
    assert not correct(scene.installation, scene.pipeline, "again")["corrected"], "it found nothing late"
    assert read(scene) == whole


def test_a_late_row_that_comes_after_a_correction_is_corrected_by_the_next(scene: ReplayedStream) -> None:
    """The second correction begins at the first window that such a row was for; then none waits any more."""
    ends = {
        int(p): end
        for p, end in json.loads(Runs(ControlTables(scene.settings)).succeeded(ONCE)["plan"])["end"].items()
    }
    half = {partition: end // 2 for partition, end in ends.items()}
    assert scene.judge("first", from_offsets=dict.fromkeys(ends, 0), to_offsets=half)["unexplained"] == 0
    assert correct(scene.installation, scene.pipeline, "first")["corrected"]
    first = Corrections(scene.settings, scene.pipeline).current().ranges
    late = scene.judge("late", late=True)
    assert (late["unexplained"], late["passed"]) == (0, True)
    assert late["windows_after_ms"] < first[0].to_ms < late["windows_to_ms"]
    assert late["captured"] < 1
    assert correct(scene.installation, scene.pipeline, "late")["corrected"]
    judged = scene.judge("whole", everything=True)
    assert (judged["unexplained"], judged["captured"]) == (0, 1.0)
    bounds = judged["windows_after_ms"], judged["windows_to_ms"]
    corrected = {key: value for key, value in read(scene).items() if bounds[0] < key[0] <= bounds[1]}
    assert corrected == scene.stream.answers(scene.stream.records, *bounds, online=False)
    with pytest.raises(NothingLateError):
        scene.replay("none", late=True)


def the_best_ask(trades: DataFrame) -> DataFrame:
    """An answer in hindsight that no stream gives: the greatest ask in the place of the least."""
    return trades.groupBy("window", "ticker").agg(
        F.max("ask").alias("min_ask"), F.count("*").alias("trades"), F.avg("ask").alias("avg_ask")
    )


def test_windows_with_an_answer_of_their_own_in_hindsight_can_be_judged_again(scene: ReplayedStream) -> None:
    """Readers get that answer for corrected windows. So a later verdict compares these with it, over the rows
    that the correction had read, and all others with the stream's own function.
    """
    scene = replace(scene, pipeline=replace(scene.pipeline, hindsight=the_best_ask))
    ends = {
        int(p): end
        for p, end in json.loads(Runs(ControlTables(scene.settings)).succeeded(ONCE)["plan"])["end"].items()
    }
    half = {partition: end // 2 for partition, end in ends.items()}
    first = scene.judge("first", from_offsets=dict.fromkeys(ends, 0), to_offsets=half)
    assert first["unexplained"] == 0
    assert correct(scene.installation, scene.pipeline, "first")["corrected"]
    whole = scene.judge("whole", everything=True)
    assert whole["windows_to_ms"] > first["windows_to_ms"]
    assert whole["unexplained"] == 0, scene.differences("whole")
    assert correct(scene.installation, scene.pipeline, "whole")["corrected"]
    again = scene.judge("again", everything=True)
    assert (again["unexplained"], again["captured"], again["captured_results"]) == (0, 1.0, 1.0)
    asks: dict[tuple[int, str], list[float]] = {}
    for record in scene.stream.records:
        if record.event_ms is not None:
            for end in scene.stream.clockwork.window_ends(record.event_ms):
                asks.setdefault((end, record.ticker), []).append(record.ask)
    found = read(scene)
    for key, (best, count, _) in found.items():
        if whole["windows_after_ms"] < key[0] <= whole["windows_to_ms"]:
            assert (best, count) == (max(asks[key]), len(asks[key]))
    DeltaTable(Corrections(scene.settings, scene.pipeline).url).delete("ticker = 'T1'")
    assert scene.judge("harmed", everything=True)["missing"] > 0, "readers lack rows of corrected windows"


def test_a_run_that_had_read_less_replaces_nothing(scene: ReplayedStream) -> None:
    """Corrections that are applied out of order, as a backfill may: the one that knew more stays."""
    scene.judge()
    correct(scene.installation, scene.pipeline, ONCE)
    whole = read(scene)
    ends = json.loads(Runs(ControlTables(scene.settings)).succeeded(ONCE)["plan"])["end"]
    scene.judge(
        "half",
        from_offsets={int(p): 0 for p in ends},
        to_offsets={int(p): end // 2 for p, end in ends.items()},
    )
    assert not correct(scene.installation, scene.pipeline, "half")["corrected"]
    assert read(scene) == whole


def test_whoever_is_killed_before_the_event_writes_it_the_next_time(scene: ReplayedStream) -> None:
    """The correction is in one commit: it is there, once, and so is its event in the end."""
    scene.judge()
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, "correct.3", 1)
        with pytest.raises(CrashError):
            correct(scene.installation, scene.pipeline, ONCE)
    whole, version = read(scene), Corrections(scene.settings, scene.pipeline).current().version
    assert not events(scene)
    correct(scene.installation, scene.pipeline, ONCE)
    assert (read(scene), Corrections(scene.settings, scene.pipeline).current().version) == (whole, version)
    assert len(events(scene)) == 1


def test_what_is_not_known_to_be_right_is_never_given_to_readers(scene: ReplayedStream) -> None:
    """A run that was not judged, one with unexplained differences, one of another version."""
    with pytest.raises(CorrectionRefusedError, match="it was not judged"):
        correct(scene.installation, scene.pipeline, ONCE)
    DeltaTable(scene.sink).delete("ticker = 'T1'")
    assert scene.judge()["unexplained"] > 0
    with pytest.raises(CorrectionRefusedError, match="unexplained"):
        correct(scene.installation, scene.pipeline, ONCE)
    with pytest.raises(
        CorrectionRefusedError, match="of stock_stats version 1, not of stock_stats version 2"
    ):
        correct(scene.installation, replace(scene.pipeline, version=2), ONCE)
    assert read(scene).keys() == {key for key in scene.stream.table if key[1] != "T1"}


def test_a_reading_is_pinned(scene: ReplayedStream) -> None:
    """What is corrected or streamed after it was made is not in it."""
    reading = Reading.pin(scene.settings, scene.pipeline)
    before = reading.arrow()
    scene.judge()
    correct(scene.installation, scene.pipeline, ONCE)
    DeltaTable(scene.sink).delete()
    assert reading.arrow().equals(before)
    assert reading.spark(scene.spark).count() == before.num_rows
