"""What comparing two whole tables costs beside reading both once: ``make bench-compare``.

Both tables hold the same windowed rows (ROWS of them; key, count, least and mean), each in an order and files of
its own. The comparison is that of a verdict in which no row came late. The scan reads every column of both tables
and keeps none. They run by turns in one session, and the first pair warms up. Then one row of a table is changed,
one deleted and one doubled: the comparison must say exactly that.

Prints medians and the ratio of the pairs, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.benchmark_figures import Figure, expect, print_figures
from support.benchmark_home import benchmark_home

from hindcast.spark import session
from hindcast.verdict.compare import Comparison, Sides, compare

_KEYS = ("window", "ticker")
_TICKERS = 1000
_FILES = 8
_SAMPLES = 1000
#: A goal.
_RATIO = 1.5


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    """So many windows of tickers; the same at each call."""
    number = F.col("id")
    start = F.timestamp_seconds(1_700_000_000 + F.floor(number / _TICKERS))
    least = F.pmod(F.xxhash64(number), F.lit(6400)) / 64.0
    return spark.range(rows).select(
        F.struct(start.alias("start"), (start + F.expr("INTERVAL 5 SECONDS")).alias("end")).alias("window"),
        F.concat(F.lit("T"), F.pmod(number, F.lit(_TICKERS)).cast("string")).alias("ticker"),
        least.alias("min_ask"),
        F.pmod(number, F.lit(97)).alias("trades"),
        (least + F.pmod(number, F.lit(13)) / 7.0).alias("avg_ask"),
    )


def spoiled(rows: DataFrame) -> DataFrame:
    """With one row changed, one deleted and one doubled."""
    second = F.unix_seconds("window.start") - 1_700_000_000
    ticker = F.col("ticker")
    changed = F.when((second == 0) & (ticker == "T3"), F.col("trades") + 1).otherwise(F.col("trades"))
    kept = rows.withColumn("trades", changed).where(~((second == 1) & (ticker == "T4")))
    return kept.unionByName(rows.where((second == 2) & (ticker == "T5")))


def measure(spark: SparkSession, folder: Path, rows: int, pairs: int) -> Iterator[Figure]:
    tables = {name: str(folder / name) for name in ("stream", "hindcast", "spoiled")}
    made = rows_of(spark, rows)
    _write(made.repartitionByRange(_FILES, "window"), tables["stream"])
    _write(made.repartition(_FILES, "ticker"), tables["hindcast"])
    _write(spoiled(made).repartitionByRange(_FILES, "window"), tables["spoiled"])

    def compared(stream: str) -> Comparison:
        answer = _read(spark, tables["hindcast"])
        return compare(Sides(_read(spark, tables[stream]), answer, answer, _KEYS), _SAMPLES)

    def scanned() -> None:
        for name in ("stream", "hindcast"):
            _read(spark, tables[name]).write.format("noop").mode("overwrite").save()

    def equal() -> None:
        found = compared("stream")
        expect(found.unexplained == 0 and found.rows_compared == rows, f"all {rows} rows are equal")

    sides: dict[str, Callable[[], Any]] = {"comparison": equal, "scan": scanned}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(pairs + 1):
        for name in sides if number % 2 else reversed(sides):
            began = time.perf_counter()
            sides[name]()
            if number:
                seconds[name].append(time.perf_counter() - began)
    for name, found in seconds.items():
        yield Figure(f"{name} of {rows:,} rows on each side", statistics.median(found), unit="s")
    ratios = [a / b for a, b in zip(seconds["comparison"], seconds["scan"], strict=True)]
    yield Figure(f"ratio of {pairs} pairs", statistics.median(ratios), _RATIO, "x")
    yield Figure("ratio, least", min(ratios), unit="x")
    yield Figure("ratio, greatest", max(ratios), unit="x")
    began = time.perf_counter()
    wrong = compared("spoiled")
    yield Figure("comparison that finds three differences", time.perf_counter() - began, unit="s")
    figures = (wrong.changed, wrong.missing, wrong.doubled, wrong.unexplained)
    expect(figures == (1, 1, 1, 3), "one row is changed, one missing and one doubled")


def _write(rows: DataFrame, table: str) -> None:
    rows.write.format("delta").save(table)


def _read(spark: SparkSession, table: str) -> DataFrame:
    return spark.read.format("delta").load(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    with benchmark_home("compare", spark_driver_memory="2g") as settings:
        spark = session.build(settings, "compare-cost")
        try:
            return print_figures(measure(spark, settings.home, asked.rows, asked.pairs))
        finally:
            spark.stop()


if __name__ == "__main__":
    sys.exit(main())
