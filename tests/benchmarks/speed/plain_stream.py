"""The job that somebody would write with Structured Streaming alone: the same from Kafka into a sink.

``python plain_stream.py`` imports nothing of Hindcast. ``--tuned`` is what a person tunes by hand on a small
machine; without it every setting has Spark's or Delta's default. It runs until SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

TUNED = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
}


def session(name: str, jars: Path, tuned: Mapping[str, str]) -> SparkSession:
    """A session on two cores, with Delta and Kafka and these settings."""
    builder = (
        SparkSession.builder.appName(name)
        .master("local[2]")
        .config("spark.jars", ",".join(sorted(str(jar) for jar in jars.glob("*.jar"))))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    spark = builder.config(map=dict(tuned)).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def trades(records: DataFrame) -> DataFrame:
    """The topic's records, taken apart."""
    parsed = F.from_json(F.col("value").cast("string"), "ticker string, ts timestamp, ask double")
    return records.select(parsed.alias("t")).select("t.*")


def stats(records: DataFrame) -> DataFrame:
    """The windows of the topic's records."""
    return (
        trades(records)
        .withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "5 seconds", "1 second"), "ticker")
        .agg(F.min("ask").alias("min_ask"), F.count("*").alias("trades"), F.avg("ask").alias("avg_ask"))
    )


JOBS = {"windows": stats, "copy": trades}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the table and the checkpoint")
    parser.add_argument("--jars", type=Path, required=True, help="Spark's extra jars")
    parser.add_argument("--job", choices=sorted(JOBS), default="windows")
    parser.add_argument("--sink", choices=("delta", "noop"), default="delta")
    parser.add_argument("--tuned", action="store_true")
    asked = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = session("plain-stream", asked.jars, TUNED if asked.tuned else {})
    # So that all commits can be read when the run is over; by default the last 100.
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "100000")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", asked.servers)
        .option("subscribe", asked.topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = (
        JOBS[asked.job](records)
        .writeStream.outputMode("append")
        .option("checkpointLocation", str(asked.folder / "checkpoint"))
    )
    if asked.sink == "delta":
        query = writer.format("delta").start(str(asked.folder / "table"))
    else:
        query = writer.format("noop").start()
    print("ready", flush=True)  # noqa: T201 - the runner waits for it
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    while query.isActive and not asked_to_end.wait(0.5):
        pass
    failure = query.exception()
    query.stop()
    if failure is not None:
        raise SystemExit(str(failure))


if __name__ == "__main__":
    main()
