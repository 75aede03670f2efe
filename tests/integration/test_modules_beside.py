"""What lies beside a pipeline runs on Spark's Python workers, which cannot import it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast import catalog
from hindcast.spark import kafka_source, parsed_records, transformation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATES = "RATE = 6\n"
PRICES = """
import pandas as pd
import rates
from pyspark.sql import functions as F

class Price:
    def up(self, value):
        return value * rates.RATE

@F.udf("long")
def raised(value):
    return Price().up(value)

def parsed(line):
    return F.struct(F.to_timestamp(F.lit("2026-01-05 12:00:00")).alias("ts"), raised(F.length(line)).alias("a"))

def in_batches(frames):
    for frame in frames:
        yield pd.DataFrame({"a": frame["a"] + rates.RATE})
"""
PIPELINE = """
from hindcast import Table, Topic, pipeline
from . import prices

@pipeline(
    source=Topic("t", "ts timestamp, a long", format="text", parse=prices.parsed),
    event_time="ts", watermark="1 second", sink=Table("one"), version=1,
)
def one(rows):
    return rows.select(prices.raised("a").alias("a")).mapInPandas(prices.in_batches, "a long")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"rates": RATES, "prices": PRICES, "one": PIPELINE}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def test_functions_of_a_helper_run_on_the_executors(spark: SparkSession, folder: Path) -> None:
    """A UDF in the parser of lines, one in the transformation and a function of batches, each of which uses
    another module beside it.
    """
    found = catalog.load(folder)
    assert found.errors == {}
    record = (None, b"abc", "t", 0, 0, datetime(2026, 1, 5, 12, tzinfo=UTC))
    raw = spark.createDataFrame([record], kafka_source.record_ddl(found["one"].source))
    rows = parsed_records.usable(parsed_records.parse(raw, found["one"]))
    assert [row.a for row in transformation.transform([rows], found["one"]).collect()] == [3 * 6 * 6 + 6]
