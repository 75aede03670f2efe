"""When Spark drivers start: the delay of scheduled runs, and who comes first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
import support.airflow_home  # noqa: F401 - before Airflow
import time_machine
from airflow.timetables.base import DataInterval, TimeRestriction

from hindcast.airflow.scheduling import AskedFirst, SpreadCronTimetable, part

NAMES = (
    "bin_packing",
    "click_enrichment",
    "rent_or_buy",
    "retries",
    "sentences",
    "stock_stats",
    "web_log",
    "word_count",
)
HOUR = timedelta(hours=1)
START = pendulum.datetime(2020, 1, 1, tz="UTC")


def hourly(name: str = "replay.stock_stats", spread_seconds: float = 3600.0) -> SpreadCronTimetable:
    return SpreadCronTimetable("0 * * * *", name=name, spread_seconds=spread_seconds)


def first_run(timetable: SpreadCronTimetable, *, catchup: bool = False) -> Any:
    found = timetable.next_dagrun_info(
        last_automated_data_interval=None, restriction=TimeRestriction(START, None, catchup)
    )
    assert found is not None
    return found


def test_intervals_stay_whole_hours_and_follow_on_each_other() -> None:
    """Only the run comes later: no record is of two intervals, none of no interval."""
    timetable, info = hourly(), None
    ends = []
    for _ in range(5):
        last = info.data_interval if info else None
        info = timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=TimeRestriction(START, None, True)
        )
        assert info is not None and info.data_interval is not None
        assert info.data_interval.end - info.data_interval.start == HOUR
        assert info.run_after == info.data_interval.end + timetable.delay(HOUR)
        ends.append(info.data_interval.end)
    assert ends == [START.add(hours=hour) for hour in range(1, 6)]


def test_starts_are_spread_over_the_hour_and_stay_where_they_are() -> None:
    """Each name has its own delay, below an hour, the same in every process."""
    delays = {name: hourly(f"replay.{name}").delay(HOUR) for name in NAMES}
    assert len(set(delays.values())) == len(NAMES)
    assert all(timedelta(0) <= delay < HOUR for delay in delays.values())
    assert part("replay.stock_stats") == pytest.approx(0.50745, abs=0.0001)


def test_a_delay_is_shorter_than_its_interval() -> None:
    """Else a run would come after the next interval's: a cron of every five minutes is spread over five
    minutes.
    """
    timetable = hourly()
    assert timetable.delay(timedelta(minutes=5)) < timedelta(minutes=5)
    assert hourly(spread_seconds=0).delay(HOUR) == timedelta(0)


@pytest.mark.parametrize("minutes", [1, 29, 59])
def test_an_unpaused_dag_runs_the_newest_interval_that_has_ended(minutes: int) -> None:
    """Also between the interval's end and its run: the run that is due next is that interval's, not the one's
    before.
    """
    now = datetime(2026, 11, 20, 12, minutes, tzinfo=UTC)
    with time_machine.travel(now, tick=False):
        info = first_run(hourly())
    assert info.data_interval.start == now.replace(hour=11, minute=0)
    assert info.data_interval.end == now.replace(minute=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("minute", "second"), [(0, 1), (30, 0), (59, 59)])
def test_an_interval_whose_run_is_late_is_not_passed_over(name: str, minute: int, second: int) -> None:
    """A scheduler that stood still while the run was due makes it once it goes on, and then the next one."""
    timetable = hourly(f"replay.{name}")
    ended = pendulum.datetime(2026, 11, 20, 12, tz="UTC")
    last = DataInterval(ended.subtract(hours=2), ended.subtract(hours=1))
    now = ended.add(hours=1, minutes=minute, seconds=second)
    with time_machine.travel(now, tick=False):
        info = timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=TimeRestriction(START, None, False)
        )
    assert info is not None and info.data_interval is not None
    is_over = now >= ended.add(hours=1) + timetable.delay(HOUR)
    expected = ended
    if is_over:  # the next interval's run is due by now: without catch-up only that one is made
        expected = ended.add(hours=1)
    assert info.data_interval.end == expected
    assert info.run_after == expected + timetable.delay(HOUR)


def test_it_survives_its_way_into_the_database() -> None:
    """The scheduler only ever sees the serialized form."""
    made = hourly(spread_seconds=1800.0)
    again = SpreadCronTimetable.deserialize(made.serialize())
    assert isinstance(again, SpreadCronTimetable)
    assert (again.serialize(), again.delay(HOUR)) == (made.serialize(), made.delay(HOUR))


def test_what_a_person_asked_for_comes_first() -> None:
    """Then verdicts, then the schedule, then backfills; a run id of a person's own is a person's."""
    kinds = ("backfill__1", "scheduled__1", "asset_triggered__1", "manual__1")
    weights = [AskedFirst().get_weight(SimpleNamespace(run_id=run_id)) for run_id in kinds]  # type: ignore[arg-type]
    assert weights == sorted(set(weights))
    assert AskedFirst().get_weight(SimpleNamespace(run_id="mine")) == weights[-1]  # type: ignore[arg-type]
