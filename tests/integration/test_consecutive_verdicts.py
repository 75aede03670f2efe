"""Verdicts on one interval after the other, each at the price of its interval, while the topic loses what was
judged and the sink's log is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame
from support.intervals import Intervals
from support.workload_harness import Value, Workload, at

from hindcast import Table, Topic, pipeline
from hindcast.errors import VersionLostError
from hindcast.tables.table_names import ControlTable

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

Make = Callable[..., Workload]


@pipeline(
    source=Topic("offers", schema="item string NOT NULL, price double NOT NULL, ts timestamp"),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("bargains"),
    version=1,
    paused=True,
    expectations=[{"type": "expect_table_row_count_to_be_between", "min_value": 1}],
)
def bargains(offers: DataFrame) -> DataFrame:
    """The cheap ones, row by row."""
    return offers.where("price < 10").select("item", "price")


def offers(interval: int) -> list[Value]:
    """Three bargains, two of them the same, something dear and a line that is no JSON."""
    cheap = [{"item": f"i{interval}", "price": float(price), "ts": at(interval)} for price in (1, 2, 2)]
    return [*cheap, {"item": "dear", "price": 99.0, "ts": at(interval)}, b"no json"]


@pytest.fixture
def intervals(workload: Make) -> Intervals:
    return Intervals(workload(bargains))


def test_each_interval_is_judged_at_its_own_price(intervals: Intervals) -> None:
    """The topic loses what was judged, small files are joined and the log is cut to nothing: each verdict
    reads the interval's records and finds all of its rows.
    """
    for interval in range(4):
        intervals.stream({0: offers(interval)})
        intervals.stream({0: offers(interval)})
        if interval % 2:
            intervals.tidy()
        verdict = intervals.judge()
        assert verdict["passed"], verdict
        assert (verdict["unexplained"], verdict["captured_results"]) == (0, 1.0)
        assert (verdict["input_rows"], verdict["dead_letters"]) == (10, 2)
        assert intervals.counted(verdict).rows_read == 10
        intervals.lose_the_beginning()
        intervals.tidy()
    plans = [intervals.plan(verdict) for verdict in intervals.verdicts]
    assert [plan.start for plan in plans] == [{0: 0}, {0: 10}, {0: 20}, {0: 30}]
    assert [plan.sink_after for plan in plans] == [-1, *(plan.sink_version for plan in plans[:-1])]


PLANTED: dict[str, tuple[Callable[[Intervals], Any], dict[str, int]]] = {
    "a row deleted": (lambda made: made.delete("item = 'i1' AND price = 1"), {"missing": 1}),
    "a row doubled": (
        lambda made: made.double((pc.field("item") == "i1") & (pc.field("price") == 1)),
        {"doubled": 1},
    ),
    "an earlier row doubled": (
        lambda made: made.double((pc.field("item") == "i0") & (pc.field("price") == 1)),
        {"extra": 1},
    ),
    "a row changed": (
        lambda made: made.change({"price": "3"}, "item = 'i1' AND price = 1"),
        {"missing": 1, "extra": 1},
    ),
    "an earlier row deleted": (lambda made: made.delete("item = 'i0' AND price = 1"), {"missing": 1}),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("plant", "found"), PLANTED.values(), ids=PLANTED)
def test_a_planted_error_is_found_in_its_interval_and_only_there(
    intervals: Intervals, plant: Callable[[Intervals], Any], found: dict[str, int]
) -> None:
    """Before and after it each verdict passes, also if the files are joined in between."""
    for interval in range(3):
        intervals.stream({0: offers(interval)})
        if interval == 1:
            plant(intervals)
        verdict = intervals.judge()
        assert intervals.kinds(verdict) == (found if interval == 1 else {})
        assert verdict["passed"] == (interval != 1)
        intervals.tidy()


def test_a_range_in_the_middle_is_judged_alone(intervals: Intervals) -> None:
    """Offsets in the middle are rounded to whole batches. A range whose first version is in no log, and at
    which no replay ended, is refused with the cure and leaves its run.
    """
    for interval in range(3):
        intervals.stream({0: offers(interval)})
    middle = intervals.judge(from_offsets={0: 7}, to_offsets={0: 13})
    plan = intervals.plan(middle)
    assert (plan.start, plan.end, intervals.counted(middle).rows_read) == ({0: 5}, {0: 10}, 5)
    assert (middle["unexplained"], middle["rows_compared"]) == (0, 3)
    intervals.lose_the_beginning()
    intervals.stream({0: offers(3)})
    intervals.tidy()
    with pytest.raises(VersionLostError, match="begin where an earlier replay ended"):
        intervals.judge(from_offsets={0: 15}, to_offsets={0: 20})
    runs = intervals.made.filed(ControlTable.RUNS)
    assert [run["state"] for run in runs if run["run_id"] == "interval-1"] == ["refused"]
