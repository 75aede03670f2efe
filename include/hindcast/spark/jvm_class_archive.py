"""An archive of the classes that Spark loads.

A new JVM maps it instead of reading and checking 20,000 classes. This is the JVM's own class-data sharing
(`java -XX:ArchiveClassesAtExit`, JEP 350). One practice session, ended in order, leaves the archive in the
folder of the jars. Every later session of the same JVM and jars maps it. Another JVM or other jars have an
archive of another name, so an old one is never used. A session that finds no archive is as slow as without
one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.errors import PrerequisiteError
from hindcast.pipeline import Pipeline, Table, Topic, Window, pipeline
from hindcast.settings import PREFIX, Settings
from hindcast.spark import parquet_writer, parsed_records, session, transformation

#: The practice takes one minute, and four on a busy machine.
TIMEOUT_SECONDS = 600.0
_ROWS = 100


@pipeline(
    source=Topic("practice", schema="name string, ts timestamp, value double", key="name"),
    event_time="ts",
    watermark="10 seconds",
    window=Window("5 seconds", slide="1 second"),
    sink=Table("practice", keys=["window", "name"]),
    version=1,
)
def practice(rows: DataFrame) -> DataFrame:
    """A query of the usual kind."""
    mean = F.avg("value").alias("mean")
    most = F.max("value").alias("most")
    return rows.groupBy("window", "name").agg(F.count("*").alias("rows"), mean, most)


def _first_of_each(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicatesWithinWatermark(["name"])


def make(settings: Settings, say: Callable[[str], None] = print) -> None:
    """Make the archive if there is none and its folder can be written. It takes about a minute, once.

    :param say: gets one line if there is something to do
    :raises PrerequisiteError: if the practice session breaks, with its last words, or hangs
    """
    place = session.class_archive(settings)
    if place.exists() or not os.access(place.parent, os.W_OK):
        return
    if _has_spark_conf():
        say(
            "Spark's classes are not archived: a JVM shares none beside a folder with files, and "
            "SPARK_CONF_DIR names one. Sessions are only slower to start."
        )
        return
    say("Archiving Spark's classes, so that each session starts sooner: about a minute, once ...")
    with tempfile.TemporaryDirectory(prefix="hindcast-practice-") as folder:
        draft = Path(folder) / "classes.jsa"
        _run_practice(settings, Path(folder), draft)
        for old in place.parent.glob("classes-*.jsa"):
            old.unlink()
        shutil.copyfile(draft, place.with_suffix(".draft"))
        place.with_suffix(".draft").rename(place)


def _has_spark_conf() -> bool:
    """Whether Spark puts a folder with files into the class path, which class-data sharing refuses."""
    folder = os.environ.get("SPARK_CONF_DIR")
    return bool(folder) and Path(str(folder)).is_dir() and any(Path(str(folder)).iterdir())


def _run_practice(settings: Settings, home: Path, draft: Path) -> None:
    """Run the practice session as a process that leaves the archive in ``draft``.

    It runs on this machine alone, whatever cluster and store the deployment has: all sessions load the same
    classes.

    :raises PrerequisiteError: if it breaks or hangs
    """
    own = Settings.model_construct(home=home, jars_dir=settings.spark_jars_dir)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environment = {**inherited, **own.environment()}
    command = [sys.executable, "-m", "hindcast.spark.jvm_class_archive", str(draft)]
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise _missing(f"the practice session took more than {TIMEOUT_SECONDS:.0f} s") from error
    if ended.returncode != 0 or not draft.exists():
        last_words = ended.stderr.strip()[-2000:]
        raise _missing(f"the practice session ended with {ended.returncode}: {last_words}")


def _missing(problem: str) -> PrerequisiteError:
    cure = (
        "Sessions run without it, only slower to start. `hindcast doctor` checks Java and the jars; "
        "`hindcast jars` tries again."
    )
    return PrerequisiteError(what="The archive of Spark's classes", problem=problem, cure=cure)


def rehearse(spark: SparkSession, folder: Path) -> None:
    """Load the classes: run a stream with state in memory, one with state on disk, a batch, a Delta table."""
    records = folder / "rows"
    rows = _practice_records(spark)
    rows.repartition(4).write.parquet(str(records))
    with_own_state = replace(practice, name="first", window=None, re_execute=True, transform=_first_of_each)
    for one in (practice, with_own_state):
        _stream(spark, one, rows, folder / one.name)
    parsed = parsed_records.parse(spark.read.parquet(str(records)), practice)
    _write(transformation.result([parsed], practice, {}), folder / "batch")
    write_deltalake(folder / "table", pa.table({"n": [1, 2, 3]}))
    table = spark.read.format("delta").option("versionAsOf", "0").load(str(folder / "table"))
    numbers = spark.range(3).withColumnRenamed("id", "n")
    table.join(numbers, "n", "full_outer").groupBy("n").count().collect()


def _practice_records(spark: SparkSession) -> DataFrame:
    """Records as Kafka's source gives them, with the values of :func:`practice`'s topic."""
    now = F.current_timestamp()
    name = F.concat(F.lit("n"), F.col("id") % 7).alias("name")
    value = F.to_json(F.struct(name, now.alias("ts"), F.rand().alias("value")))
    return spark.range(_ROWS).select(
        F.lit(b"k").alias("key"),
        value.cast("binary").alias("value"),
        F.lit("practice").alias("topic"),
        F.lit(0).alias("partition"),
        F.col("id").alias("offset"),
        now.alias("timestamp"),
        F.lit(0).alias("timestampType"),
    )


def _write(frame: DataFrame, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parquet_writer.write_files(frame, folder.as_uri(), {}, "b")


def _stream(spark: SparkSession, one: Pipeline, rows: DataFrame, folder: Path) -> None:
    reader = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)
    raw = reader.parquet(str(folder.parent / "rows"))
    session.keep_state_for(spark, one)
    query = (
        transformation.result([parsed_records.parse(raw, one)], one, {})
        .writeStream.foreachBatch(lambda frame, _: _write(frame, folder / "out"))
        .outputMode(transformation.output_mode(one))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _practise(draft: str) -> None:
    """Rehearse, then end in order: only then does the JVM write its archive.

    It warns of a thousand classes that it leaves out, and its errors say why there is no archive.
    """
    settings = Settings()
    options = (
        f'{session.QUICK_COMPILER} "-XX:ArchiveClassesAtExit={draft}" -Xlog:cds=off -Xlog:cds=error:stderr'
    )
    spark = session.build(settings, "practice", options=options)
    with tempfile.TemporaryDirectory(dir=settings.home) as folder:
        rehearse(spark, Path(folder))
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # a JVM that Python has started ends by this
    code = gateway.proc.wait(TIMEOUT_SECONDS)
    if code != 0:
        sys.exit(f"the JVM ended with {code}")


if __name__ == "__main__":
    _practise(sys.argv[1])
