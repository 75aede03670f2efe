"""Older records come into an archive from a Delta table that somebody else has filled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from support.live_stream import delete_records, ends
from support.shard_harness import CrashError, Shard, crash_at, parts

from hindcast.archive.copy_topic import archive_topic
from hindcast.archive.import_table import import_table
from hindcast.archive.verify import verify
from hindcast.errors import BadInputError
from hindcast.installation import Installation
from hindcast.settings import Settings
from hindcast.tables.archive_schema import archive_url
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from conftest import Broker
    from pyspark.sql import SparkSession


class Lake:
    """A topic of two partitions, its archive, and a table that a job of a team's own keeps of it."""

    def __init__(self, spark: SparkSession, settings: Settings, topic: str) -> None:
        self.spark = spark
        self.settings = settings
        self.topic = topic
        self.table = f"{settings.home}/bronze/{topic}"
        self.installation = Installation(settings)

    def send(self, count: int, first: int = 0) -> None:
        """Records with and without keys, values and headers."""
        rows = []
        for number in range(first, first + count):
            headers = [("trace", b"\xff"), ("none", None)] if number % 4 == 0 else []
            key = None if number % 3 == 0 else b"key-%d" % number
            value = None if number % 5 == 0 else b"\x00%d" % number
            rows.append((number % 2, key, value, headers))
        schema = "partition int, key binary, value binary, headers array<struct<key: string, value: binary>>"
        options = {
            "kafka.bootstrap.servers": self.settings.bootstrap_servers,
            "topic": self.topic,
            "includeHeaders": "true",
        }
        frame = self.spark.createDataFrame(rows, schema).coalesce(1)
        frame.write.format("kafka").options(**options).save()

    def in_topic(self) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self.settings.bootstrap_servers,
            "subscribe": self.topic,
            "includeHeaders": "true",
        }
        return self.spark.read.format("kafka").options(**options).load()

    def keep(self, records: DataFrame | None = None) -> None:
        """What the team's job does: append what the topic has now."""
        (records or self.in_topic()).write.format("delta").mode("append").save(self.table)

    def drop(self, before: dict[int, int]) -> None:
        delete_records(self.settings.bootstrap_servers, self.topic, before)

    def archive(self) -> dict[str, Any]:
        return archive_topic(lambda: self.spark, self.installation, self.topic)

    def import_(self, **options: Any) -> dict[str, Any]:
        given: dict[str, Any] = {"step_offsets": 1_000_000, **options}
        return import_table(lambda: self.spark, self.installation, self.topic, self.table, **given)

    def archived(self) -> list[str]:
        """Every archived record, doubled ones twice, with all that it holds."""
        rows = DeltaTable(archive_url(self.settings, self.topic)).to_pyarrow_table().to_pylist()
        return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)

    def verified(self) -> dict[str, Any]:
        return verify(lambda: self.spark, self.installation, self.topic)


@pytest.fixture
def lake(
    spark: SparkSession,
    broker: Broker,
    topic_factory: Callable[..., str],
    settings_factory: Callable[..., Settings],
) -> Lake:
    return Lake(
        spark, settings_factory(bootstrap_servers=broker.bootstrap_servers), topic_factory(partitions=2)
    )


@pytest.fixture
def whole(lake: Lake) -> list[str]:
    """What the archive of the whole topic is, made before anything is dropped: 30 records a partition. The
    archive is moved away; the table has all of it, and the topic the last ten of each partition.
    """
    lake.send(60)
    lake.keep()
    lake.archive()
    found = lake.archived()
    lake.spark.catalog.clearCache()
    url = Path(archive_url(lake.settings, lake.topic))
    url.rename(url.with_name("whole.before"))
    lake.drop({0: 20, 1: 20})
    return found


def test_a_table_fills_what_lies_before_the_archive(lake: Lake, whole: list[str]) -> None:
    """Byte for byte, each record once, whatever the steps; a second run finds nothing."""
    lake.archive()
    done = lake.import_(step_offsets=15)
    assert (done["rows"], done["steps"], done["ranges"]) == (40, 3, {"0": [[0, 30]], "1": [[0, 30]]})
    assert lake.archived() == whole
    again = lake.import_()
    assert (again["rows"], again["steps"]) == (0, 0)
    assert lake.verified()["equal"]
    (event,) = lake.installation.tables.rows(ControlTable.EVENTS, [("kind", "=", "archive_imported")])
    assert "took 40 older records" in event["message"]


def test_an_archive_may_begin_with_a_table(lake: Lake, whole: list[str]) -> None:
    """It goes on in the topic where the table ends."""
    assert lake.import_()["rows"] == 60
    assert lake.archived() == whole
    lake.send(10, first=60)
    assert lake.archive()["rows"] == 10
    assert lake.verified()["equal"]


def test_a_run_that_dies_anywhere_is_finished_by_the_next(
    lake: Lake, whole: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between each two of its steps, one after the other: nothing is missing and nothing is twice."""
    lake.archive()
    for step in ("import.1", "import.2", "archive.3", "archive.4", "import.5"):
        with monkeypatch.context() as patch:
            crash_at(patch, step, 1)
            with pytest.raises(CrashError):
                lake.import_(step_offsets=15)
    lake.import_(step_offsets=15)
    assert lake.archived() == whole


def test_a_table_that_does_not_fit_is_refused(lake: Lake, whole: list[str]) -> None:
    """A record twice, one that is missing, one that the topic never gave, a column, the table itself: nothing
    is archived.
    """
    records = lake.spark.read.format("delta").load(lake.table).cache()
    records.count()
    good = lake.table

    def refuses(message: str, changed: DataFrame, name: str) -> None:
        lake.table = f"{good}-{name}"
        lake.keep(changed)
        with pytest.raises(BadInputError, match=message):
            lake.import_()

    first = (F.col("partition") == 1) & (F.col("offset") == 3)
    refuses("has 1 records of partition 1 more than once", records.unionByName(records.where(first)), "twice")
    refuses("no record at 1 of the offsets", records.where(~first), "hole")
    beyond = records.withColumn("offset", F.col("offset") + 1)
    refuses("has offset 30 of partition ., and .* ends at 30", beyond, "beyond")
    refuses("has no column timestamp", records.drop("timestamp"), "column")
    refuses("has no record of", records.withColumn("topic", F.lit("other")), "other")
    lake.table = f"{good}-none"
    with pytest.raises(BadInputError, match="There is no Delta table"):
        lake.import_()
    with pytest.raises(BadInputError, match="too long"):
        lake.import_(accept_holes="x" * 501)
    lake.table = f"{good}-hole"
    assert lake.import_(accept_holes="a transaction was aborted")["rows"] == 59
    assert lake.archive()["ranges"] == {"0": [[0, 30]], "1": [[0, 30]]}
    (event,) = lake.installation.tables.rows(ControlTable.EVENTS, [("kind", "=", "archive_imported")])
    assert "a transaction was aborted" in event["message"]


def test_a_table_may_have_fewer_columns_and_other_types(lake: Lake, whole: list[str]) -> None:
    """Text instead of bytes, and neither headers nor types of timestamps."""
    records = lake.spark.read.format("delta").load(lake.table)
    plain = records.select(
        "partition", "offset", "timestamp", F.col("key").cast("string").alias("key"), "value"
    )
    lake.table += "-plain"
    lake.keep(plain)
    assert lake.import_()["rows"] == 60
    rows = DeltaTable(archive_url(lake.settings, lake.topic)).to_pyarrow_table().to_pylist()
    assert {row["timestamp_type"] for row in rows} == {0}
    assert all(row["headers"] is None for row in rows)
    assert {row["key"] for row in rows} == {None, *(b"key-%d" % number for number in range(60) if number % 3)}


def test_a_stream_begins_in_an_imported_table(shard: Shard) -> None:
    """Its topic has dropped all of the first half, and no archive was kept meanwhile."""
    first, second = parts()
    lake = Lake(shard.spark, shard.settings, shard.pipeline.source.name)
    shard.send(first)
    lake.keep()
    lake.drop(ends(first))
    lake.import_()
    shard.serve(second)
    shard.check()
