"""The worst figures and the trend of verdicts: a row of bounded size for each version."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleet_sample import RUN, run, verdict

from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.retention import maintain
from hindcast.tables.table_names import ControlTable
from hindcast.tables.verdict_trends import RECENT, TrendPoint, VerdictTrend, VerdictTrends, is_worse, point_of
from hindcast.testing import FakeClock

AT = datetime(2026, 1, 5, 12, tzinfo=UTC)


def point(number: int, **figures: float) -> TrendPoint:
    """The figures of the verdict of that number."""
    at = (AT + timedelta(hours=number)).isoformat()
    return TrendPoint(run_id=f"r-{number}", judged_at=at, passed=True, figures=figures)


@pytest.mark.parametrize(
    ("measure", "worse", "better"),
    [
        ("captured", 0.8, 0.9),
        ("captured_results", 0.0, 0.1),
        ("latency_p95_seconds", 3.0, 2.0),
        ("stream_cpu_seconds_per_million_rows", 9.0, 8.0),
        ("ratio_greatest.trucks", 1.5, 0.1),
        ("ratio_worst.trucks", 0.1, 1.5),
        ("ratio_mean.trucks", 1.4, 0.7),
        ("difference_greatest.avg_ask", 1e-6, 1e-7),
    ],
)
def test_what_is_worse(measure: str, worse: float, better: float) -> None:
    """Less is worse of what was captured, farther from 1 of a ratio, and more of everything else."""
    assert is_worse(measure, worse, better)
    assert not is_worse(measure, better, worse)
    assert not is_worse(measure, better, better)


def test_the_figures_of_a_verdict() -> None:
    """What was not measured is left out, and so is what is not finite: JSON has no word for it."""
    bounds = {
        "ratio_bound": {"trades": {"bound": 2, "greatest": 1.5, "beyond": 0}},
        "tolerance": {"avg_ask": {"bound": 1e-6, "greatest": None, "beyond": 0}},
    }
    ratios = {"trades": {"worst": inf, "mean": nan}, "avg_ask": {"worst": 0.5, "mean": 1.0}}
    row = verdict(
        captured=0.5,
        bounds=json.dumps(bounds),
        ratios=json.dumps({**ratios, "greatest_rounding": 1e-15}),
        judged_at=AT,
    )
    measured = run(
        input_rows=2_000_000,
        cpu_seconds=3.0,
        stream_cpu_seconds=None,
        latency_p50_seconds=1.0,
        latency_p95_seconds=2.0,
    )
    found = point_of(row, measured)
    assert found.figures == {
        "captured": 0.5,
        "captured_results": 0.9973,
        "ratio_worst.avg_ask": 0.5,
        "ratio_mean.avg_ask": 1.0,
        "ratio_greatest.trades": 1.5,
        "latency_p50_seconds": 1.0,
        "latency_p95_seconds": 2.0,
        "batch_cpu_seconds_per_million_rows": 1.5,
    }
    assert (found.run_id, found.passed, found.judged_at) == (RUN, True, "2026-01-05T12:00:00+00:00")
    assert not point_of({**row, "passed": False}, measured).passed
    streamed = point_of(row, {**measured, "stream_cpu_seconds": 4.0})
    assert streamed.figures["stream_cpu_seconds_per_million_rows"] == 2.0
    without = point_of(row, run(input_rows=0, cpu_seconds=3.0, stream_cpu_seconds=1.0))
    assert "batch_cpu_seconds_per_million_rows" not in without.figures


@given(st.lists(st.floats(0, 1), min_size=1, max_size=3 * RECENT))
def test_the_worst_is_kept_and_the_row_stays_small(captured: list[float]) -> None:
    """Whatever is judged: the worst is that of all verdicts, the trend is of the newest ones, and a row that
    is read back is the same.
    """
    trend = VerdictTrend("p", 1)
    for number, value in enumerate(captured):
        trend = trend.adding(point(number, captured=value))
        trend = VerdictTrend.of_row(trend.as_row())
    (measure,) = trend.measures()
    assert measure["worst"] == min(captured)
    assert measure["worst_run"] == f"r-{captured.index(min(captured))}"
    assert measure["recent"] == captured[-RECENT:]
    assert measure["newest"] == captured[-1]
    assert measure["verdicts"] == len(captured)


def test_a_run_that_is_judged_again_counts_once() -> None:
    """Its newer figures count. A worse one that was measured before stays the worst."""
    trend = VerdictTrend("p", 1).adding(point(1, captured=0.5)).adding(point(2, captured=0.9))
    again = trend.adding(point(1, captured=0.8))
    (measure,) = again.measures()
    assert (measure["verdicts"], measure["recent"], measure["worst"]) == (2, [0.9, 0.8], 0.5)


def test_a_measure_is_a_row_with_all_that_a_listing_shows() -> None:
    """Also one that none of the newest verdicts has: its worst stays."""
    trend = VerdictTrend("p", 3).adding(point(0, **{"ratio_worst.a.b": 2.0}))
    for number in range(1, RECENT + 1):
        trend = trend.adding(point(number))
    row = trend.as_row()
    assert row["updated_at"].tzinfo is UTC
    (measure,) = VerdictTrend.of_row(row).measures()
    assert measure == {
        "pipeline": "p",
        "version": 3,
        "measure": "ratio_worst",
        "column": "a.b",
        "newest": None,
        "median": None,
        "worst": 2.0,
        "worst_run": "r-0",
        "worst_at": AT,
        "verdicts": RECENT + 1,
        "recent": [None] * RECENT,
    }


def test_a_measure_that_a_verdict_lacks_is_unknown_there() -> None:
    """E.g. latency, if no batch of the range was measured."""
    trend = VerdictTrend("p", 1).adding(point(1, latency_p95_seconds=2.0, captured=1.0))
    trend = trend.adding(point(2, captured=0.9))
    by_measure = {row["measure"]: row for row in trend.measures()}
    assert by_measure["latency_p95_seconds"]["recent"] == [2.0, None]
    assert by_measure["latency_p95_seconds"]["newest"] is None
    assert by_measure["latency_p95_seconds"]["median"] == 2.0
    assert by_measure["captured"]["median"] == 0.95


def test_each_version_has_one_row(settings: Settings) -> None:
    """However many verdicts it had, and whatever the pipelines are called. Another one's row stays."""
    trends = VerdictTrends(ControlTables(settings))
    assert trends.read() == []
    for number in range(4):
        for name, version in (("a", 1), ("a", 2), ("it's", 1)):
            trends.add(name, version, point(number, captured=1 - number / 10))
    rows = ControlTables(settings).rows(ControlTable.VERDICT_TRENDS)
    assert sorted((row["pipeline"], row["version"], row["verdicts"]) for row in rows) == [
        ("a", 1, 4),
        ("a", 2, 4),
        ("it's", 1, 4),
    ]
    assert [(trend.pipeline, trend.version) for trend in trends.read("a")] == [("a", 1), ("a", 2)]
    (only,) = trends.read("it's")
    assert only.worst["captured"].run_id == "r-3"


def test_a_verdict_reads_one_versions_row(settings: Settings) -> None:
    """Rows of others lie in files of their own, and no upkeep joins them."""
    tables = ControlTables(settings)
    trends = VerdictTrends(tables)
    for version in range(1, 6):
        for number in range(3):
            trends.add("a", version, point(number, captured=1.0))
    assert len(tables.open(ControlTable.VERDICT_TRENDS).file_uris()) == 5
    tables.upkeep[ControlTable.VERDICT_TRENDS].run()
    maintain(settings, tables, [])
    assert len(tables.open(ControlTable.VERDICT_TRENDS).file_uris()) == 5
    assert [trend.verdicts for trend in trends.read()] == [3] * 5


def test_two_judges_at_once_lose_nothing(settings: Settings) -> None:
    """What one commits between another's read and its commit is read again."""
    tables = ControlTables(settings)
    attempts = []

    def slow(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        attempts.append(len(rows))
        if len(attempts) == 1:
            VerdictTrends(ControlTables(settings)).add("a", 1, point(1, captured=0.4))
            VerdictTrends(ControlTables(settings)).add("b", 1, point(1, captured=0.4))
        known = VerdictTrend("a", 1)
        if rows:
            known = VerdictTrend.of_row(rows[0])
        return [known.adding(point(2, captured=0.7)).as_row()]

    tables.replace(ControlTable.VERDICT_TRENDS, {"pipeline": "a", "version": 1}, slow)
    assert attempts == [0, 1]
    (trend,) = VerdictTrends(tables).read("a")
    assert (trend.verdicts, trend.worst["captured"].value) == (2, 0.4)


def test_many_judges_at_once_lose_nothing(settings: Settings) -> None:
    """Threads with handles of their own, on one version."""
    VerdictTrends(ControlTables(settings)).add("a", 1, point(0, captured=1.0))

    def add(number: int) -> None:
        VerdictTrends(ControlTables(settings)).add("a", 1, point(number, captured=1 - number / 100))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(1, 13)))
    (row,) = ControlTables(settings).rows(ControlTable.VERDICT_TRENDS)
    trend = VerdictTrend.of_row(row)
    assert trend.verdicts == 13
    assert trend.worst["captured"].value == 0.88


def test_a_replacement_that_landed_late_is_made_again(settings: Settings) -> None:
    """A process that slept may have committed into a gap of the log. Its figures then count once."""
    clock = FakeClock()
    tables = ControlTables(settings, clock)
    attempts = []

    def asleep_at_first(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        attempts.append(len(rows))
        if len(attempts) == 1:
            clock.advance(200.0)
        known = VerdictTrend("a", 1)
        if rows:
            known = VerdictTrend.of_row(rows[0])
        return [known.adding(point(1, captured=0.9)).as_row()]

    tables.replace(ControlTable.VERDICT_TRENDS, {"pipeline": "a", "version": 1}, asleep_at_first)
    assert attempts == [0, 1]
    (trend,) = VerdictTrends(tables).read()
    assert trend.verdicts == 1
