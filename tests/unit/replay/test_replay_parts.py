"""The small parts of a replay and a verdict: requests, costs, accounts and expectations' names. No JVM."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pandas as pd
import pytest
from support.counted import NOTHING_COUNTED
from support.simulated_stream import simulate, trades

from hindcast import catalog
from hindcast.apps import replay as replay_app
from hindcast.errors import BadNameError, BadRangeError, PipelineError
from hindcast.replay.cost import Meter, StreamCost, peak_memory_bytes, slow_note
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.replay.request import RANGE_OPTIONS, RangeFields, ReplayRequest, new_run_id
from hindcast.settings import project_root
from hindcast.verdict.check_side_rows import mismatches, within
from hindcast.verdict.expectations import check_types, columns_of

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "request_",
    [
        ReplayRequest(pipeline="p", run_id="r", from_offsets={0: 1, 10: 2}, to_offsets={0: 3, 10: 4}),
        ReplayRequest(pipeline="p", from_time=AT, to_time=AT + timedelta(hours=1)),
        ReplayRequest(pipeline="p", since_last_verdict=True),
        ReplayRequest(pipeline="p", everything=True),
        ReplayRequest(pipeline="p", everything=True, version=2),
    ],
)
def test_a_request_goes_through_its_own_arguments(request_: ReplayRequest) -> None:
    """What the CLI and Airflow write is what the Spark app reads."""
    asked = vars(replay_app._parser().parse_args(["hindcast", *request_.to_arguments()]))
    del asked["command"], asked["tried_again"]
    assert ReplayRequest.parse(**asked) == request_


def test_a_range_is_declared_once() -> None:
    """Its options are fields of a request, and the arguments that a caller in Python may give."""
    names = [option.field for option in RANGE_OPTIONS]
    assert names == [
        field.name for field in fields(ReplayRequest) if field.name not in {"pipeline", "run_id", "version"}
    ]
    assert names == list(RangeFields.__annotations__)


def test_an_unknown_part_of_a_range_is_no_range() -> None:
    """A caller that misspells a part hears of it."""
    with pytest.raises(TypeError, match="from_ofsets"):
        ReplayRequest.parse(pipeline="p", from_ofsets="{}", everything=True)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({}, "0 ranges"),
        ({"everything": True, "since_last_verdict": True}, "2 ranges"),
        ({"from_offsets": '{"0": 1}'}, "only one of its two ends"),
        ({"from_offsets": "[1]", "to_offsets": "{}"}, "not JSON of partition"),
        ({"from_offsets": '{"0": -1}', "to_offsets": '{"0": 1}'}, "whole numbers from 0"),
        ({"from_offsets": '{"0": 1.5}', "to_offsets": '{"0": 2}'}, "whole numbers from 0"),
        ({"from_time": "yesterday", "to_time": AT.isoformat()}, "not a time"),
        ({"from_time": "2026-01-01T00:00:00", "to_time": AT.isoformat()}, "no offset from UTC"),
    ],
)
def test_a_range_that_is_none_is_refused(texts: dict[str, Any], problem: str) -> None:
    """Exit code 2, with the form of a good one."""
    with pytest.raises(BadRangeError, match=problem) as caught:
        ReplayRequest.parse(pipeline="p", **texts)
    assert caught.value.exit_code == 2


def test_times_are_taken_to_utc_and_names_are_checked() -> None:
    """A zone's time is the same instant; a name that is a path is refused."""
    text = AT.astimezone(timezone(timedelta(hours=5))).isoformat()
    assert ReplayRequest.parse(pipeline="p", from_time=text, to_time=text).from_time == AT
    with pytest.raises(BadNameError):
        ReplayRequest(pipeline="p", run_id="../etc", everything=True)
    assert len(new_run_id("p" * 64, AT)) <= 64


def test_the_app_ends_with_2_on_bad_input_before_any_spark(capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence goes to stderr, without a traceback, and nothing to stdout."""
    assert replay_app.main(["judge", "--pipeline", "nobody", "--all"]) == 2
    assert (
        replay_app.main(["hindcast", "--pipeline", "stock_stats", "--from-offsets", "x", "--to-offsets", "y"])
        == 2
    )
    shown = capsys.readouterr()
    assert "There is no pipeline named nobody" in shown.err
    assert "Traceback" not in shown.err
    assert not shown.out


def _run(rate: float, read: int = 1_000, rows: int = 1_000) -> dict[str, Any]:
    """A row of ``runs`` of a run that succeeded.

    :param read: how many records it read, those before its range included
    :param rows: how many records its range held
    """
    counted = replace(NOTHING_COUNTED, rows_read=read, input_rows=rows)
    start = {0: 500_000}
    end = {0: 500_000 + rows}
    plan = RecordedPlan(
        asked="", topic="t", start=start, end=end, read_from={0: 0}, sink_version=1, counted=counted
    )
    return {"rows_per_second": rate, "input_rows": rows, "plan": plan.text()}


def test_a_run_below_the_band_of_its_like_is_slow() -> None:
    """The median of runs of a like size counts; few runs, or runs of other sizes, say nothing."""
    earlier = [_run(rate) for rate in (900.0, 1_000.0, 1_100.0)]
    assert slow_note(701, 1_000, earlier) == ""
    assert "31 % below the median 1,000 of the last 3 runs" in slow_note(690, 1_000, earlier)
    assert slow_note(10, 1_000, earlier[:2]) == ""
    assert slow_note(10, 1_000, [_run(1_000.0, read=5_000)] * 5) == ""


def test_the_size_of_a_run_is_all_that_it_read() -> None:
    """An hour is replayed with the day before it, which its windows need: earlier runs that did the same are
    of a like size, and a run of 25 hours without more is none of theirs.
    """
    hourly = [_run(1_000.0, read=25_000, rows=1_000)] * 3
    assert "of a like size" in slow_note(100, 25_000, hourly)
    assert slow_note(100, 1_000, hourly) == ""


def test_a_run_that_did_not_record_what_it_read_is_compared_with_none() -> None:
    """Nothing says of which size it was."""
    counted = _run(1_000.0)
    plan = json.loads(counted["plan"])
    del plan["counted"]
    uncounted = {**counted, "plan": json.dumps(plan)}
    for earlier in (uncounted, {**counted, "plan": None}):
        assert slow_note(100, 1_000, [earlier] * 5) == ""


def test_the_streams_cost_leaves_out_batches_it_does_not_know() -> None:
    """A batch that a take-over repaired has no durations."""
    rows = simulate(trades(1, count=200, partitions=1), seed=1, shards=1).ledger
    known = [row for row in rows if row.input_rows]
    unknown = replace(known[0], input_rows=None, batch_seconds=None, cpu_seconds=None)
    cost = StreamCost.of([unknown, *known[1:3]])
    assert cost.rows_per_second == sum(row.input_rows or 0 for row in known[1:3]) / 1.0
    assert cost.cpu_seconds == 0.5
    assert StreamCost.of([unknown]) == StreamCost(None, None)


def test_a_meter_counts_the_work_of_this_process() -> None:
    """CPU-seconds and peak memory are above nothing and of this machine."""
    meter = Meter()
    sum(number * number for number in range(300_000))
    assert meter.cpu_seconds() > 0
    assert peak_memory_bytes() > 10_000_000


def test_accounts_differ_by_what_is_lacking_spare_or_twice() -> None:
    """Only offsets of the range count, and each by how often it is there."""
    found = pd.DataFrame({"partition": [0, 0, 1], "offset": [5, 6, 5]})
    filed = pd.DataFrame({"partition": [0, 0, 0, 1, 7], "offset": [5, 5, 99, 4, 1]})
    wrong = mismatches(found, within(filed, {0: 0, 1: 0}, {0: 50, 1: 50}))
    assert wrong.to_numpy().tolist() == [[0, 5, 1, 2], [0, 6, 1, 0], [1, 4, 0, 1], [1, 5, 1, 0]]
    assert mismatches(found, found).empty
    assert mismatches(found[:0], filed[:0]).empty


def test_an_expectation_of_an_unknown_type_is_refused_by_name() -> None:
    """Without importing Great Expectations; the known ones pass."""
    stock_stats = catalog.load(project_root() / "include" / "pipelines")["stock_stats"]
    check_types(stock_stats)
    for odd in ({"type": "expect_nothing"}, {"column": "ticker"}):
        with pytest.raises(PipelineError, match="no expectation of the type"):
            check_types(replace(stock_stats, expectations=(odd,)))


def test_only_columns_that_expectations_look_at_are_read() -> None:
    """One that looks at the table as a whole needs all of them."""
    assert columns_of(
        (
            {"type": "a", "column": "x"},
            {"type": "b", "column_list": ["y", "x"]},
            {"type": "c", "column_A": "z", "column_B": "x"},
        )
    ) == ["x", "y", "z"]
    assert (
        columns_of(({"type": "a", "column": "x"}, {"type": "expect_table_row_count_to_equal", "value": 1}))
        is None
    )
