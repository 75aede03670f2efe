"""A pipeline over a few records, as a stream and as a batch, without a broker."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import Mode, Pipeline, Table, Topic, Window, catalog, pipeline
from hindcast.settings import project_root
from hindcast.stream.sample_records import sample_batches
from hindcast.stream.try_pipelines import try_pipelines
from hindcast.testing import run_pipeline

pytestmark = pytest.mark.integration

START = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = Topic("orders", schema="user string, ts timestamp, amount int", key="user")


def order(user: str, seconds: float, amount: int = 1) -> dict[str, Any]:
    return {"user": user, "ts": START + timedelta(seconds=seconds), "amount": amount}


def declared(function: Any, **fields: Any) -> Pipeline:
    """The function as a pipeline of orders."""
    given = {"source": ORDERS, "event_time": "ts", "watermark": "10 seconds", "version": 1, **fields}
    made: Pipeline = pipeline(**given)(function)
    return made


def totals(orders: DataFrame) -> DataFrame:
    return orders.groupBy("window", "user").agg(F.sum("amount").alias("amount"))


WINDOWED = declared(totals, window=Window("10 seconds"), sink=Table("totals", keys=["window", "user"]))


def test_windows_close_and_late_rows_are_left_out(spark: SparkSession) -> None:
    """The stream has what the batch has without the late row; the malformed record is a dead letter."""
    batches = [
        {"orders": [order("a", 1), order("a", 2), order("b", 3)]},
        {"orders": [order("a", 40), b"{no", order("b", 41)]},
        {"orders": [order("a", 80)]},
        {"orders": [order("a", 4, 100), order("a", 120)]},
    ]
    trial = run_pipeline(spark, WINDOWED, batches)
    found = {(row["window"]["start"], row["user"]): row["amount"] for row in trial.rows.to_pylist()}
    at = {seconds: START + timedelta(seconds=seconds) for seconds in (0, 40, 80)}
    assert found == {(at[0], "a"): 2, (at[0], "b"): 1, (at[40], "a"): 1, (at[40], "b"): 1, (at[80], "a"): 1}
    assert trial.late_rows == 1
    assert [(letter.offset, letter.value) for letter in trial.dead_letters] == [(4, b"{no")]
    assert trial.comparison.unexplained == 0
    assert trial.comparison.rows_compared == 5


def test_running_results_are_those_of_the_last_batch(spark: SparkSession) -> None:
    """An upsert keeps the newest row of each key."""

    def running(orders: DataFrame) -> DataFrame:
        return orders.groupBy("user").agg(F.sum("amount").alias("amount"))

    upsert = declared(running, sink=Table("running", keys=["user"], mode=Mode.UPSERT))
    trial = run_pipeline(
        spark, upsert, [{"orders": [order("a", 1), order("b", 2)]}, {"orders": [order("a", 3)]}]
    )
    assert {row["user"]: row["amount"] for row in trial.rows.to_pylist()} == {"a": 2, "b": 1}
    assert trial.comparison.unexplained == 0


def test_what_differs_from_run_to_run_is_found(spark: SparkSession) -> None:
    """A random value: the same records give another result."""

    def tagged(orders: DataFrame) -> DataFrame:
        return orders.select("user", "ts", F.expr("uuid()").alias("tag"))

    trial = run_pipeline(
        spark, declared(tagged, sink=Table("tagged", keys=["user", "ts"])), [{"orders": [order("a", 1)]}]
    )
    assert trial.comparison.changed == 1
    assert trial.comparison.samples[0].column == "tag"


@pytest.mark.parametrize(
    "batches", [[], [{"nobodys": []}], [{}] * 91], ids=["none", "another topic", "too many"]
)
def test_batches_that_cannot_be_tried_are_refused(spark: SparkSession, batches: Any) -> None:
    """Before anything runs."""
    with pytest.raises(ValueError, match=r"batches|reads orders"):
        run_pipeline(spark, WINDOWED, batches)


def test_samples_are_the_same_for_the_same_seed() -> None:
    """And of each kind: good, late, twice, malformed."""
    made = sample_batches(WINDOWED, batches=4, rows=100, seed=7)
    assert made == sample_batches(WINDOWED, batches=4, rows=100, seed=7)
    assert made != sample_batches(WINDOWED, batches=4, rows=100, seed=8)
    values = [value for batch in made for value in batch["orders"]]
    rows = [value for value in values if isinstance(value, dict)]
    times = [row["ts"] for row in rows]
    assert len(values) == 400
    assert 0 < len(values) - len(rows) < 20
    assert 5 < sum(value in values[:number] for number, value in enumerate(values)) < 60
    assert (
        5
        < sum(at < max(times[:number]) - timedelta(seconds=20) for number, at in enumerate(times) if number)
        < 60
    )


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", sorted(catalog.load(project_root() / "include" / "pipelines")))
def test_an_example_streams_what_its_batch_says(spark: SparkSession, name: str) -> None:
    """The pipelines that come with the platform, over samples of their topics."""
    example = catalog.load(project_root() / "include" / "pipelines")[name]
    (found,) = try_pipelines(spark, [example], batches=5, rows=40, seed=3)
    assert found["state"] in {"equal", "no results", "not tried"}, found
    assert (found["state"] == "equal") == (found.get("results", 0) > 0)
    if name in {"stock_stats", "retries", "click_enrichment"}:
        assert found["state"] == "equal"
        assert found["results"] > 0


def test_spark_compiles_all_of_a_trial(spark: SparkSession) -> None:
    """Else it prints an error of sixty lines, and goes on without compiled code."""
    example = catalog.load(project_root() / "include" / "pipelines")["stock_stats"]
    spark.conf.set("spark.sql.codegen.fallback", "false")
    try:
        (found,) = try_pipelines(spark, [example], batches=6, rows=100, seed=1)
    finally:
        spark.conf.unset("spark.sql.codegen.fallback")
    assert (found["state"], found["problem"]) == ("equal", "")


def only(folder: Path, name: str, result: str) -> Iterable[Pipeline]:
    """A pipeline of this name that returns this expression of its rows."""
    (folder / f"{name}.py").write_text(
        "from hindcast import Table, Topic, pipeline\n"
        "@pipeline(source=Topic('t', schema='a string, ts timestamp'), event_time='ts',"
        f" watermark='1 second', sink=Table('{name}'), version=1)\n"
        f"def {name}(rows):\n"
        f"    return {result}\n"
    )
    return catalog.load(folder).every()


def test_samples_that_come_to_nothing_prove_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Two empty tables are equal whatever the function does."""
    choosy = only(tmp_path, "choosy", "rows.where(\"a = 'a text that no sample has'\")")
    (found,) = try_pipelines(spark, choosy, batches=2, rows=3, seed=1)
    assert (found["state"], found["results"]) == ("no results", 0)
    assert "nothing was compared" in found["problem"]


def test_a_function_that_raises_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """As a difference: no stream would come to a result."""
    raising = only(tmp_path, "raising", "rows.select('b')")
    (found,) = try_pipelines(spark, raising, batches=2, rows=3, seed=1)
    assert found["state"] == "different"
    assert "`b` cannot be resolved" in found["problem"]
