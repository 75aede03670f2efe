"""Fingerprints of parts: what they tell apart, and that rows which they pass over count in every figure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from hindcast.spark.session import bytes_of
from hindcast.verdict.bounds import BoundFound
from hindcast.verdict.compare import Comparison, Sides, compare
from hindcast.verdict.fingerprints import Parts, Same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOWS = 20
TICKERS = 50
WINDOWED = "window struct<start timestamp, end timestamp>, ticker string, cost double, trades long"
MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)

#: Values of one type that a careless hash takes for the same.
CONFUSED: dict[str, list[tuple[str, Any, Any]]] = {
    "nulls in another column": [("struct<a int, b int>", (None, 5), (5, None))],
    "null and empty": [
        ("string", None, ""),
        ("array<int>", None, []),
        ("struct<a int>", None, (None,)),
        ("binary", None, b""),
    ],
    "where one value ends": [
        ("struct<a string, b string>", ("ab", "c"), ("a", "bc")),
        ("array<string>", ["ab", "c"], ["a", "bc"]),
        ("struct<a array<int>, b array<int>>", ([1], [2]), ([1, 2], [])),
        ("struct<a array<int>, b array<int>>", ([1], [0]), ([1, 0], [])),  # 0 is hashed as false is
    ],
    "nulls in arrays": [
        ("array<int>", [1, None], [1]),
        ("array<int>", [None, 1], [1, None]),
        ("array<struct<a int, b int>>", [(1, None)], [(None, 1)]),
    ],
    "nested arrays": [
        ("array<array<int>>", [[1], []], [[], [1]]),
        ("array<array<int>>", [[1, 2]], [[1], [2]]),
        ("map<string, array<int>>", {"a": [1], "b": []}, {"a": [], "b": [1]}),
    ],
}


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table counts as a large one."""
    monkeypatch.setattr("hindcast.verdict.compare.FINGERPRINTED_BYTES", 0)


@pytest.mark.parametrize("reason", CONFUSED)
def test_values_that_are_alike_are_told_apart(spark: SparkSession, reason: str) -> None:
    """A verdict on them finds the row; and none if the values are the same."""
    for kind, here, there in CONFUSED[reason]:
        schema = f"key int, value {kind}"
        stream = spark.createDataFrame([(1, here), (2, there)], schema)
        assert compare(_judged(stream, stream), 20).unexplained == 0
        other = spark.createDataFrame([(1, there), (2, there)], schema)
        assert compare(_judged(stream, other), 20).changed == 1, (kind, here, there)


def _judged(stream: DataFrame, answer: DataFrame) -> Sides:
    return Sides(stream, answer, answer, ["key"])


def test_rows_that_are_doubled_in_pairs_are_told_apart(spark: SparkSession) -> None:
    """Hashes that were added without carrying, or by exclusive or, would cancel each other."""
    stream = spark.createDataFrame([(1, 7), (1, 7), (1, 8), (1, 8)], "key int, value int")
    answer = spark.createDataFrame([(1, 9), (1, 9), (1, 6), (1, 6)], "key int, value int")
    assert compare(_judged(stream, answer), 20).changed == 4


def _windows(spark: SparkSession) -> DataFrame:
    rows = []
    for number in range(WINDOWS):
        start = MIDNIGHT + timedelta(seconds=number)
        window = (start, start + timedelta(seconds=5))
        rows += [(window, f"T{ticker}", float(ticker), number) for ticker in range(TICKERS)]
    return spark.createDataFrame(rows, WINDOWED)


def _with_cost(rows: DataFrame, second: int, ticker: str, cost: float) -> DataFrame:
    there = (F.unix_seconds("window.start") == int(MIDNIGHT.timestamp()) + second) & (
        F.col("ticker") == ticker
    )
    return rows.withColumn("cost", F.when(there, cost).otherwise(F.col("cost")))


def test_only_the_part_that_differs_is_compared(spark: SparkSession) -> None:
    """A share of the keys of one window, on every side."""
    rows = _windows(spark)
    sides = {"s": _with_cost(rows, 3, "T7", 8.0), "o": rows}
    tagged = [side.withColumns({"_side": F.lit(name)}) for name, side in sides.items()]
    both = tagged[0].unionByName(tagged[1])
    both = both.select("window", "ticker", "_side", F.struct("cost", "trades").alias("_row"))
    parts = Parts(both, ["window", "ticker"], list(sides), {"dear": F.col("_row.cost") > 40})
    fingerprints = parts.fingerprints()
    same = parts.same(fingerprints)
    assert same.different_parts == 1
    assert 1 <= same.different_rows < TICKERS
    assert same.rows == WINDOWS * TICKERS - same.different_rows
    assert same.windows == WINDOWS
    kept = parts.different_rows(fingerprints).collect()
    assert len(kept) == 2 * same.different_rows
    assert {row["window"]["start"].second for row in kept} == {3}
    dear = sum(row["_row"]["cost"] > 40 for row in kept if row["_side"] == "s")
    assert same.counts == {"dear": WINDOWS * 9 - dear}


def test_rows_that_are_the_same_count_in_every_figure(spark: SparkSession) -> None:
    """As they would if each of them had been compared."""
    rows = _windows(spark)
    cheap = _with_cost(rows, 3, "T8", 4.0)  # the stream's cost of 8 is twice that
    found = compare(
        Sides(
            rows,
            rows,
            cheap,
            ["window", "ticker"],
            late=spark.createDataFrame(
                [(int((MIDNIGHT.timestamp() + 8) * 1000), 5)], "end_ms long, late_rows long"
            ),
            tolerance={"cost": 0.5},
            ratio_bound={"cost": 1.5},
        ),
        20,
    )
    assert found.unexplained == 0
    assert found.late_differences == 1
    assert (found.rows_compared, found.windows_compared) == (WINDOWS * TICKERS, WINDOWS)
    assert found.captured_results == (WINDOWS * TICKERS - 1) / (WINDOWS * TICKERS)
    assert found.ratios == {
        "cost": {"worst": 2.0, "mean": (WINDOWS * TICKERS + 1) / (WINDOWS * TICKERS)},
        "trades": {"worst": 1.0, "mean": 1.0},
    }
    assert found.ratio_bounds == {"cost": BoundFound(bound=1.5, greatest=2.0, beyond=1, without_figure=0)}
    assert found.tolerances == {"cost": BoundFound(bound=0.5, greatest=0.0, beyond=0)}


def test_tables_that_are_equal_have_the_same_figures(spark: SparkSession) -> None:
    """None of their rows is compared one by one."""
    rows = _windows(spark)
    costs = [0.0, -1.0, None, float("nan"), float("inf"), 2.0]
    odd = spark.createDataFrame([(number, cost) for number, cost in enumerate(costs)], "key int, cost double")
    declared: dict[str, Any] = {"tolerance": {"cost": 0.5}, "ratio_bound": {"cost": 1.5}}
    found = compare(Sides(rows, rows, rows, ["window", "ticker"], **declared), 20)
    assert (found.rows_compared, found.windows_compared) == (WINDOWS * TICKERS, WINDOWS)
    assert _figures(found, "cost") == (1.0, 1.0, 1.0, 0.0)
    found = compare(Sides(odd, odd, odd, ["key"], **declared), 20)
    assert (found.rows_compared, found.windows_compared, found.captured_results) == (6, 0, 1.0)
    assert _figures(found, "cost") == (1.0, 1.0, 1.0, 0.0)
    nothing = odd.where("cost is null")
    found = compare(Sides(nothing, nothing, nothing, ["key"], **declared), 20)
    assert found.ratios == {}
    assert (found.ratio_bounds["cost"].greatest, found.tolerances["cost"].greatest) == (None, None)


def _figures(found: Comparison, name: str) -> tuple[float, float, float | None, float | None]:
    ratios = found.ratios[name]
    return (
        ratios["worst"],
        ratios["mean"],
        found.ratio_bounds[name].greatest,
        found.tolerances[name].greatest,
    )


def test_tables_with_nothing_in_common_are_compared_whole(spark: SparkSession) -> None:
    """Every row of both is named."""
    stream = spark.createDataFrame([(number, 1) for number in range(10)], "key int, value int")
    answer = spark.createDataFrame([(number, 1) for number in range(10, 15)], "key int, value int")
    found = compare(_judged(stream, answer), 20)
    assert (found.extra, found.missing, found.rows_compared) == (10, 5, 15)
    assert len(found.samples) == 15


def test_large_tables_alone_are_fingerprinted(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the bytes of their files."""
    spark.range(1000).selectExpr("id key", "id value").write.format("delta").save(str(tmp_path))
    rows = spark.read.format("delta").load(str(tmp_path))
    size = bytes_of(rows)
    assert 1000 < size < 100_000
    fingerprinted = []
    same = Parts.same

    def noted(parts: Parts, fingerprints: DataFrame) -> Same:
        fingerprinted.append(parts)
        return same(parts, fingerprints)

    monkeypatch.setattr(Parts, "same", noted)
    for limit, times in ((size, 1), (100 * size, 1)):
        monkeypatch.setattr("hindcast.verdict.compare.FINGERPRINTED_BYTES", limit)
        assert compare(_judged(rows, rows), 20).rows_compared == 1000
        assert len(fingerprinted) == times


def test_rows_count_once_if_most_parts_differ(spark: SparkSession) -> None:
    """All rows are compared then, those of the same parts too."""
    stream = spark.createDataFrame([(number, 1) for number in range(10)], "key int, value int")
    answer = stream.withColumn("value", F.when(F.col("key") < 8, 2).otherwise(F.col("value")))
    found = compare(_judged(stream, answer), 20)
    assert (found.changed, found.rows_compared, found.captured_results) == (8, 10, 0.2)
    assert found.ratios["value"]["mean"] == (8 * 0.5 + 2 * 1.0) / 10
