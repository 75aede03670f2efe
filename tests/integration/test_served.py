"""The served table as Spark reads it: whole, by its changes, as a stream, and by a name in the catalog."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.served_world import LAST, SCHEMA, World, counted, window

from hindcast.errors import RegistrationRefusedError
from hindcast.pipeline import Served
from hindcast.serving import served_table
from hindcast.serving.register import register, statement
from hindcast.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BY_KEY = Served(partition_by=["k"], properties={"delta.enableChangeDataFeed": "true"})
FEED = Served(properties={"delta.enableChangeDataFeed": "true"})


@pytest.fixture
def make(settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Make a world whose served table is declared so."""

    def made(served: Served) -> World:
        world = World(settings_factory(), served)
        monkeypatch.setattr(served_table, "newest", world.newest)
        return world

    return made


def rows(frame: DataFrame) -> Counter[str]:
    return counted(frame.toArrow().cast(pa.schema([*SCHEMA, ("_run_id", pa.string())])))


def live(world: World) -> None:
    """A table that has seen everything."""
    publisher = world.publisher()
    for end in range(1, LAST, 2):
        world.append(1, [end, end + 1])
        publisher.publish()
        if end % 4 == 1:
            world.join(1)
    world.correct(1, 2, 5, 3)
    publisher.publish()
    world.append(2, list(range(4, LAST + 1)), 7)
    world.promote(6)
    publisher.publish()


@pytest.mark.parametrize("served", [FEED, BY_KEY], ids=["plain", "partitioned"])
def test_spark_reads_what_readers_get(
    spark: SparkSession, make: Callable[..., World], served: Served
) -> None:
    """Whole, with a filter that skips files by their statistics, and by what its changes come to."""
    world = make(served)
    live(world)
    wanted = counted(world.newest().arrow())
    table = spark.read.format("delta").load(world.url)
    assert rows(table) == wanted
    end = window(9)["end"]
    late = table.where(table.window.end >= end)
    assert rows(late).total() == LAST - 8
    assert table.where("k = 'k9'").count() == 1
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    found: Counter[str] = Counter()
    for kind, sign in (("insert", 1), ("delete", -1)):
        of_kind = changes.load(world.url).where(f"_change_type = '{kind}'")
        counts = rows(of_kind.select("window", "k", "n", "_run_id"))
        for row, count in counts.items():
            found[row] += sign * count
    assert +found == wanted and not -found


def test_a_stream_from_it_gets_each_row_once(
    spark: SparkSession, make: Callable[..., World], tmp_path: Path
) -> None:
    """Though the sink's files, and so its own, are joined between its batches."""
    world = make(FEED)
    publisher = world.publisher()
    seen: Counter[str] = Counter()
    for end in range(1, 6):
        world.append(1, [end])
        publisher.publish()
        world.join(1)
        publisher.publish()
        stream = spark.readStream.format("delta").load(world.url).writeStream.trigger(availableNow=True)
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        stream.foreachBatch(lambda batch, _: seen.update(rows(batch))).start().awaitTermination()
    assert seen == counted(world.newest().arrow())


def test_it_has_a_name_in_the_catalog(spark: SparkSession, make: Callable[..., World]) -> None:
    """Once and for all: whatever is published later is read by it. Another table's name is refused."""
    world = make(FEED)
    publisher = world.publisher()
    publisher.publish()
    name = f"readers_{uuid.uuid4().hex}"
    for _ in range(2):
        register(spark, name, world.url)
    world.append(1, [1, 2, 3])
    publisher.publish()
    assert spark.table(name).count() == 3
    with pytest.raises(RegistrationRefusedError, match="it is the name of the table at"):
        register(spark, name, world.settings.sink(world.pipelines[1]))
    spark.sql(f"DROP TABLE {name}")


@pytest.mark.parametrize("name", ["a b", "a.b.c.d", "", "a`; DROP TABLE b", "1a"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    """Nothing that is not a name comes into the statement."""
    with pytest.raises(RegistrationRefusedError, match="it is no name of a table"):
        statement(name, "/tables/served/p")


def test_the_address_is_quoted() -> None:
    """Whatever is in it."""
    made: Any = statement("main.sales.p", "/it's\\here")
    assert made == ("CREATE TABLE IF NOT EXISTS `main`.`sales`.`p` USING DELTA LOCATION '/it\\'s\\\\here'")
