"""Replays and verdicts on a real topic, real tables and a real Spark session, against a stream that plain
Python simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.replayed_stream import LIST, ONCE, ReplayedStream
from support.simulated_platform import SINK_SCHEMA, publish, sink_row, store
from support.simulated_stream import Clockwork, simulate, trades

from hindcast.errors import BadInputError, PipelineError, UnknownRunError
from hindcast.replay.batch import answers_url
from hindcast.replay.compare_runs import compare_runs
from hindcast.replay.run_table import Runs
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.judge import judge

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]


@pytest.fixture
def one_key(scene: ReplayedStream) -> tuple[int, str]:
    """A key of the stream's table that a verdict over all judges."""
    keys = sorted(scene.stream.table)
    return keys[len(keys) // 2]


def test_a_healthy_stream_has_no_unexplained_difference(scene: ReplayedStream) -> None:
    """Every number of the verdict is what the simulation says, and late rows explain all that hindsight
    changes.
    """
    verdict = scene.judge()
    online, hindsight = scene.judged(verdict)
    usable = [record for record in scene.stream.records if record.event_ms is not None]
    assert (verdict["unexplained"], verdict["rounding"]) == (0, 0)
    assert verdict["passed"], verdict["failed"]
    assert verdict["input_rows"] == len(scene.stream.records)
    assert verdict["dead_letters"] == len(scene.stream.poison)
    assert verdict["late_rows"] == len(scene.stream.late)
    assert verdict["rows_compared"] == len(online)
    assert verdict["windows_compared"] == len({end for end, _ in hindsight})
    assert (
        verdict["late_differences"] == sum(online.get(key) != value for key, value in hindsight.items()) > 0
    )
    assert verdict["captured_results"] == pytest.approx(
        sum(online.get(key) == value for key, value in hindsight.items()) / len(hindsight)
    )

    def ends(record: Any) -> list[int]:
        return [
            end
            for end in Clockwork().window_ends(record.event_ms)
            if verdict["windows_after_ms"] < end <= verdict["windows_to_ms"]
        ]

    judged = [record for record in usable if ends(record)]
    late = [record for record in judged if min(ends(record)) <= scene.stream.thresholds[record.place]]
    assert verdict["captured"] == pytest.approx(1 - len(late) / len(judged))
    assert verdict["captured"] < 1
    ratio = {key: online[key][1] / hindsight[key][1] for key in online}
    assert json.loads(verdict["ratios"])["trades"]["mean"] == pytest.approx(sum(ratio.values()) / len(ratio))
    assert json.loads(verdict["ratios"])["trades"]["worst"] == pytest.approx(min(ratio.values()))


def test_both_answers_are_kept(scene: ReplayedStream) -> None:
    """The hindcast's table holds hindsight and online, each as the simulation has it; the same run again
    replaces them.
    """
    run = scene.replay(ONCE)
    bounds = (run["plan"]["windows_after_ms"], run["plan"]["windows_to_ms"])
    rows = DeltaTable(answers_url(scene.settings, LIST, ONCE)).to_pyarrow_table().to_pylist()
    for answer, online in (("online", True), ("hindsight", False)):
        found = {
            (int(row["window"]["end"].timestamp() * 1000), row["ticker"]): (
                row["min_ask"],
                row["trades"],
                row["avg_ask"],
            )
            for row in rows
            if row["answer"] == answer
        }
        assert found == scene.stream.answers(scene.stream.records, *bounds, online=online)


def test_a_run_is_a_benchmark(scene: ReplayedStream) -> None:
    """Its row of runs has what it cost, what the stream cost over the same batches, and the stream's
    latency.
    """
    run = scene.replay("measured")
    assert run["state"] == "succeeded"
    assert run["cpu_seconds"] > 0
    assert run["peak_memory_bytes"] > 100_000_000
    busy = sum(row.batch_seconds or 0 for row in scene.stream.ledger if row.start_offsets != row.end_offsets)
    assert run["stream_rows_per_second"] == pytest.approx(len(scene.stream.records) / busy)
    assert 2.0 <= run["latency_p50_seconds"] <= run["latency_p95_seconds"]


def test_two_runs_of_a_range_are_compared(scene: ReplayedStream) -> None:
    """The same code says the same; one value changed by hand is counted with its column; other ranges are
    refused.
    """
    again = scene.replay("again")
    same = compare_runs(scene.installation, scene.pipeline, ONCE, "again")
    rows = again["output_rows"]
    assert (same.results.rows, same.results.equal, same.results.changed) == ((rows, rows), rows, 0)
    assert {row["measure"] for row in same.costs()} == {
        "rows_per_second",
        "seconds",
        "cpu_seconds",
        "peak_memory_bytes",
    }
    table = DeltaTable(answers_url(scene.settings, LIST, "again"))
    table.update({"trades": "trades + 1"}, predicate="ticker = 'T1' AND answer = 'hindsight'")
    changed = compare_runs(scene.installation, scene.pipeline, ONCE, "again").results
    assert changed.changed_columns == {"trades": changed.changed}
    assert changed.equal == rows - changed.changed < rows
    ends = {int(p): end // 2 for p, end in again["plan"]["end"].items()}
    scene.replay("half", from_offsets=dict.fromkeys(ends, 0), to_offsets=ends)
    with pytest.raises(BadInputError, match="did not do the same work"):
        compare_runs(scene.installation, scene.pipeline, ONCE, "half")


def test_a_late_difference_names_its_window_and_its_late_rows(scene: ReplayedStream) -> None:
    """A sample says how many rows came after the window was final."""
    scene.judge()
    sample = scene.differences(ONCE, "late_rows")[0]
    keys = json.loads(sample["keys"])
    assert sample["late_rows"] > 0
    assert {"window", "ticker"} == set(keys)


def _delete(scene: ReplayedStream, key: tuple[int, str]) -> None:
    _rewrite(scene, lambda rows: [row for row in rows if not _is(row, key)])


def _rewrite(scene: ReplayedStream, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    rows = DeltaTable(scene.sink).to_pyarrow_table().to_pylist()
    write_deltalake(scene.sink, pa.Table.from_pylist(change(rows), schema=SINK_SCHEMA), mode="overwrite")


def _is(row: dict[str, Any], key: tuple[int, str]) -> bool:
    return row["ticker"] == key[1] and int(row["window"]["end"].timestamp() * 1000) == key[0]


def _change(column: str, by: float) -> Callable[[ReplayedStream, tuple[int, str]], None]:
    def change(scene: ReplayedStream, key: tuple[int, str]) -> None:
        _rewrite(
            scene, lambda rows: [{**row, column: row[column] * by} if _is(row, key) else row for row in rows]
        )

    return change


def _double(scene: ReplayedStream, key: tuple[int, str]) -> None:
    row = sink_row(scene.stream, key, scene.stream.table[key])
    write_deltalake(scene.sink, pa.Table.from_pylist([row], schema=SINK_SCHEMA), mode="append")


def _extra(scene: ReplayedStream, key: tuple[int, str]) -> None:
    row = {**sink_row(scene.stream, key, scene.stream.table[key]), "ticker": "NOBODY"}
    write_deltalake(scene.sink, pa.Table.from_pylist([row], schema=SINK_SCHEMA), mode="append")


def _null(scene: ReplayedStream, key: tuple[int, str]) -> None:
    _rewrite(scene, lambda rows: [{**row, "avg_ask": None} if _is(row, key) else row for row in rows])


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("break_it", "kind", "column"),
    [
        pytest.param(_delete, "missing", "", id="a row deleted"),
        pytest.param(_double, "doubled", "", id="a row doubled"),
        pytest.param(_extra, "extra", "", id="a row too many"),
        pytest.param(_change("trades", 2), "changed", "trades", id="a count changed"),
        pytest.param(
            _change("avg_ask", 1 + 1e-11), "changed", "avg_ask", id="an average changed by more than rounding"
        ),
        pytest.param(_null, "changed", "avg_ask", id="a value gone"),
    ],
)
def test_damage_to_the_sink_is_unexplained_and_named(
    scene: ReplayedStream,
    one_key: tuple[int, str],
    break_it: Callable[[ReplayedStream, tuple[int, str]], None],
    kind: str,
    column: str,
) -> None:
    """One damaged row gives exactly one unexplained difference, which names the row, and a verdict that fails
    with an event.
    """
    break_it(scene, one_key)
    verdict = scene.judge()
    assert verdict["unexplained"] == verdict[kind] == 1
    assert not verdict["passed"]
    (sample,) = scene.differences(ONCE)
    assert (sample["kind"], sample["column"]) == (kind, column)
    assert json.loads(sample["keys"])["ticker"] == ("NOBODY" if kind == "extra" else one_key[1])
    assert any("unexplained" in sentence for sentence in json.loads(verdict["failed"]))
    (event,) = ControlTables(scene.settings).rows(ControlTable.EVENTS, [("kind", "=", "verdict_failed")])
    assert ONCE in event["detail"]


def test_rounding_is_counted_apart_with_its_size(scene: ReplayedStream, one_key: tuple[int, str]) -> None:
    """A difference in the last place passes, but is counted, sized and named."""
    _change("avg_ask", 1 + 2**-52)(scene, one_key)
    verdict = scene.judge()
    assert (verdict["unexplained"], verdict["rounding"]) == (0, 1)
    assert verdict["passed"]
    assert 0 < json.loads(verdict["ratios"])["greatest_rounding"] < 1e-15
    (sample,) = scene.differences(ONCE, "rounding")
    assert sample["column"] == "avg_ask"


@pytest.mark.parametrize(
    ("tolerance", "is_near"), [(1.0, True), (1e-6, False)], ids=["within the tolerance", "beyond it"]
)
def test_a_tolerance_decides_about_a_difference(
    scene: ReplayedStream, one_key: tuple[int, str], tolerance: float, is_near: bool
) -> None:
    """Within it a changed average is rounding, and the verdict says how much it was. Beyond it the verdict
    fails with the figure, the bound and the cure.
    """
    _change("avg_ask", 1 + 1e-5)(scene, one_key)
    verdict = replace(scene, pipeline=replace(scene.pipeline, tolerance={"avg_ask": tolerance})).judge()
    found = json.loads(verdict["bounds"])["tolerance"]["avg_ask"]
    assert found["greatest"] == pytest.approx(scene.stream.table[one_key][2] * 1e-5)
    assert (found["bound"], found["beyond"]) == (tolerance, int(not is_near))
    assert (verdict["unexplained"], verdict["rounding"]) == (int(not is_near), int(is_near))
    assert verdict["passed"] is is_near
    if not is_near:
        sentences = json.loads(verdict["failed"])
        (of_bound,) = [sentence for sentence in sentences if "tolerance" in sentence]
        assert "its tolerance is 1e-06, and 1 row is beyond it" in of_bound
        (sample,) = scene.differences(ONCE)
        assert sample["column"] == "avg_ask"


def test_no_tolerance_hides_a_lost_value(scene: ReplayedStream, one_key: tuple[int, str]) -> None:
    """A null is near nothing."""
    _null(scene, one_key)
    verdict = replace(scene, pipeline=replace(scene.pipeline, tolerance={"avg_ask": 1e9})).judge()
    assert verdict["unexplained"] == verdict["changed"] == 1


def test_a_bound_of_an_unknown_column_is_refused(scene: ReplayedStream) -> None:
    """Before anything is compared, with the columns that may have one."""
    odd = replace(scene.pipeline, tolerance={"average": 1e-6})
    with pytest.raises(PipelineError, match=r"'average'.*those are: min_ask, trades, avg_ask"):
        judge(lambda: scene.spark, scene.installation, odd, ONCE)


def test_a_transformation_that_is_not_a_function_of_its_input_is_found_out(scene: ReplayedStream) -> None:
    """A random column differs in every row: each is unexplained."""

    def noisy(frame: DataFrame) -> DataFrame:
        return scene.pipeline.transform(frame).withColumn("avg_ask", F.col("avg_ask") + F.rand())

    verdict = replace(scene, pipeline=replace(scene.pipeline, transform=noisy)).judge(
        "noisy", everything=True
    )
    assert verdict["unexplained"] == verdict["changed"] == verdict["rows_compared"] > 100
    assert {sample["column"] for sample in scene.differences("noisy")} == {"avg_ask"}


@pytest.mark.parametrize("column", ["spread", "_spread"])
def test_a_column_that_only_one_side_has_is_unexplained(scene: ReplayedStream, column: str) -> None:
    """A changed transformation on an old sink does not pass as equal on what is left, whatever the column's
    name begins with.
    """

    def wider(frame: DataFrame) -> DataFrame:
        return scene.pipeline.transform(frame).withColumn(column, F.lit(1.0))

    run_id = f"wider{column}"
    verdict = replace(scene, pipeline=replace(scene.pipeline, transform=wider)).judge(run_id, everything=True)
    assert verdict["unexplained"] == 1
    assert [(sample["kind"], sample["column"]) for sample in scene.differences(run_id)] == [
        ("columns", column)
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [(ControlTable.LATE_ROWS, "late_rows_table"), (ControlTable.DEAD_LETTERS, "dead_letters_table")],
)
def test_a_row_that_its_account_lacks_or_has_twice_is_unexplained(
    scene: ReplayedStream, name: ControlTable, kind: str
) -> None:
    """The tables of late and poison rows are held against the replay offset by offset."""
    table = ControlTables(scene.settings).open(name)
    rows = table.to_pyarrow_table().slice(0, 2).to_pylist()
    places = [{"partition": row["partition"], "offset": row["offset"]} for row in rows]
    first = places[0]
    table.delete(f"partition = {first['partition']} AND offset = {first['offset']}")
    write_deltalake(
        table, pa.Table.from_pylist(rows[1:], schema=pa.schema(table.schema().to_arrow())), mode="append"
    )
    verdict = scene.judge()
    assert verdict["unexplained"] == 2
    found = scene.differences(ONCE)
    assert {sample["kind"] for sample in found} == {kind}
    assert sorted(
        (json.loads(sample["keys"])["offset"], sample["stream_value"]) for sample in found
    ) == sorted([(places[0]["offset"], "0 rows"), (places[1]["offset"], "2 rows")])


def test_incremental_verdicts_judge_each_window_once(scene: ReplayedStream) -> None:
    """Three verdicts in a row judge the windows of one over all, from offsets of their own."""
    whole = scene.judge()
    ends = json.loads(Runs(ControlTables(scene.settings)).succeeded(ONCE)["plan"])["end"]
    thirds = [{int(p): end * part // 3 for p, end in ends.items()} for part in (0, 1, 2)]
    parts = [
        scene.judge("part-1", from_offsets=thirds[0], to_offsets=thirds[1]),
        scene.judge("part-2", from_offsets=thirds[1], to_offsets=thirds[2]),
        scene.judge("part-3", from_offsets=thirds[2], to_offsets={int(p): end for p, end in ends.items()}),
    ]
    assert [part["unexplained"] for part in parts] == [0, 0, 0]
    assert [part["windows_after_ms"] for part in parts] == [
        0,
        parts[0]["windows_to_ms"],
        parts[1]["windows_to_ms"],
    ]
    for name in ("windows_compared", "rows_compared", "input_rows", "late_rows", "dead_letters"):
        assert sum(part[name] for part in parts) == whole[name], name


def test_a_failing_expectation_fails_the_verdict_and_its_page_says_so(scene: ReplayedStream) -> None:
    """The pipeline's own expectations are asserted on the judged rows; Data Docs are built with relative
    links.
    """
    expectations = (
        {"type": "expect_column_values_to_be_between", "column": "trades", "min_value": 1_000_000},
    )
    verdict = replace(scene, pipeline=replace(scene.pipeline, expectations=expectations)).judge()
    assert verdict["unexplained"] == 0
    assert not verdict["passed"]
    (sentence,) = json.loads(verdict["failed"])
    assert "min_value=1000000" in sentence
    docs = scene.settings.home / "data_docs"
    assert (docs / verdict["data_docs"]).is_file()
    index = (docs / "index.html").read_text()
    assert verdict["data_docs"] in index
    assert str(docs) not in index


def test_a_share_captured_below_the_floor_fails_the_verdict(scene: ReplayedStream) -> None:
    """captured_floor is an expectation on the verdict."""
    verdict = replace(scene, pipeline=replace(scene.pipeline, captured_floor=1.0)).judge()
    assert verdict["unexplained"] == 0
    assert "captured" in json.loads(verdict["failed"])[0]


def test_an_unknown_expectation_and_an_unknown_run_are_refused(scene: ReplayedStream) -> None:
    """Before any Spark work starts."""

    def never() -> SparkSession:
        raise AssertionError

    odd = replace(scene.pipeline, expectations=({"type": "expect_the_unexpected"},))
    with pytest.raises(PipelineError, match="expect_the_unexpected"):
        judge(never, scene.installation, odd, "none")
    with pytest.raises(UnknownRunError):
        judge(never, scene.installation, scene.pipeline, "none")


def test_a_failed_run_leaves_its_row_and_an_event_and_can_be_retried(scene: ReplayedStream) -> None:
    """The retry of the same run id replays the same offsets."""

    def broken(frame: DataFrame) -> DataFrame:
        return scene.pipeline.transform(frame).withColumn("answer", F.lit(1))

    with pytest.raises(BadInputError, match="answer"):
        replace(scene, pipeline=replace(scene.pipeline, transform=broken)).replay("retried")
    tables = ControlTables(scene.settings)
    assert {row["state"] for row in tables.rows(ControlTable.RUNS, [("run_id", "=", "retried")])} == {
        "planned",
        "failed",
    }
    assert [row["kind"] for row in tables.rows(ControlTable.EVENTS)] == ["run_failed"]
    assert scene.replay("retried")["state"] == "succeeded"


@pytest.fixture
def plain(scene: ReplayedStream, topic_factory: Callable[..., str]) -> ReplayedStream:
    """A stateless pipeline: each usable row goes to the sink as it is, equal rows as often as they came."""

    def keep(frame: DataFrame) -> DataFrame:
        return frame.select("ticker", F.floor("ask").alias("ask"))

    topic = topic_factory(2)
    stream = simulate(trades(5, count=400, partitions=2), seed=5, shards=1, pipeline="plain")
    stream.late.clear()
    pipeline = replace(
        scene.pipeline,
        name="plain",
        transform=keep,
        window=None,
        shards=1,
        expectations=(),
        source=replace(scene.pipeline.source, name=topic),
        sink=replace(scene.pipeline.sink, name="plain", keys=[]),
    )
    publish(scene.settings, topic, stream.records)
    schema = pa.schema([("ticker", pa.string()), ("ask", pa.int64())])
    store(
        scene.settings,
        stream,
        "plain",
        schema,
        lambda row: [
            {"ticker": r.ticker, "ask": int(r.ask)} for r in stream.read_in(row) if r.event_ms is not None
        ],
    )
    return replace(scene, pipeline=pipeline, stream=stream)


def test_a_pipeline_without_windows_is_compared_as_a_multiset(plain: ReplayedStream) -> None:
    """Equal rows are no doubles; one row less is missing."""
    verdict = plain.judge("plain", everything=True)
    assert (verdict["unexplained"], verdict["late_rows"], verdict["captured"]) == (0, 0, 1.0)
    assert verdict["passed"]
    rows = DeltaTable(plain.sink).to_pyarrow_table()
    write_deltalake(plain.sink, rows.slice(1), mode="overwrite")
    assert plain.judge("plain-less", everything=True)["missing"] == 1
