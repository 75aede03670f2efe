"""One Spark session for all integration tests, and one shard on a topic of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.live_stream import declare, on_topic
from support.replayed_stream import LIST, ONCE, ReplayedStream
from support.shapes import Shape
from support.shard_harness import Shard
from support.simulated_platform import publish, store
from support.simulated_stream import simulate, trades
from support.workload_harness import Workload, renamed

from hindcast import catalog
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings, project_root
from hindcast.spark import kafka_source
from hindcast.spark.lookups import LOOKUPS
from hindcast_sandbox import jars
from hindcast_sandbox.load import ensure_topic

if TYPE_CHECKING:
    from conftest import Broker
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, jars_dir: Path) -> Iterator[SparkSession]:
    """A session with Delta and Kafka, as workers and replays have it."""
    from hindcast.spark import session

    # Hundreds of plans and queries in one session, each run a few times: in the heap of a worker it would
    # collect garbage most of the time.
    settings = Settings(home=tmp_path_factory.mktemp("spark"), jars_dir=jars_dir, spark_driver_memory="2g")
    # With those of S3, for the tests that need them.
    jars.fetch(settings.model_copy(update={"storage_options": {"aws_region": "none"}}))
    built = session.build(settings, "tests", options=session.QUICK_COMPILER)
    yield built
    built.stop()


@pytest.fixture
def shard(
    spark: SparkSession,
    broker: Broker,
    topic_factory: Callable[..., str],
    settings_factory: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shard]:
    """A shard of two partitions whose batches are small."""
    monkeypatch.setattr(kafka_source, "MAX_RECORDS_PER_BATCH", 80)
    settings = settings_factory(bootstrap_servers=broker.bootstrap_servers, trigger_seconds=0.0)
    example = catalog.load(project_root() / "include" / "pipelines")["stock_stats"]
    made = Shard(spark, settings, on_topic(example, topic_factory(partitions=2)), broker.bootstrap_servers, 2)
    yield made
    for owner in made.running:
        made.die(owner)


@pytest.fixture
def shard_of(
    spark: SparkSession,
    broker: Broker,
    topic_factory: Callable[..., str],
    settings_factory: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Shape], Shard]]:
    """Make a shard of two partitions of a pipeline of this shape, on topics of its own; its batches are
    small.
    """
    monkeypatch.setattr(kafka_source, "MAX_RECORDS_PER_BATCH", 120)
    made: list[Shard] = []

    def make(shape: Shape) -> Shard:
        settings = settings_factory(bootstrap_servers=broker.bootstrap_servers, trigger_seconds=0.0)
        settings = settings.model_copy(update={"pipelines_dir": settings.home / "pipelines"})
        topic = topic_factory(partitions=2)
        for own in shape.topics(topic)[1:]:
            ensure_topic(broker.bootstrap_servers, own, 2)
        declare(settings, topic, name="shaped", shape=shape)
        pipeline = catalog.load(settings.pipelines_dir)["shaped"]
        made.append(Shard(spark, settings, pipeline, broker.bootstrap_servers, 2, shape=shape))
        return made[-1]

    yield make
    for one in made:
        for owner in one.running:
            one.die(owner)


@pytest.fixture
def workload(
    spark: SparkSession,
    broker: Broker,
    topic_factory: Callable[..., str],
    settings_factory: Callable[..., Settings],
) -> Iterator[Callable[..., Workload]]:
    """Make a pipeline ready, or the example of a name, on topics of its own with so many partitions each."""
    made: list[Workload] = []

    def make(pipeline: str | Pipeline, partitions: int = 1) -> Workload:
        settings = settings_factory(bootstrap_servers=broker.bootstrap_servers, trigger_seconds=0.0)
        spark.conf.set(LOOKUPS, settings.table("lookups"))
        declared = (
            catalog.load(project_root() / "include" / "pipelines")[pipeline]
            if isinstance(pipeline, str)
            else pipeline
        )
        made.append(
            Workload(
                spark, settings, renamed(declared, topic_factory()), broker.bootstrap_servers, partitions
            )
        )
        made[-1].begin()
        return made[-1]

    yield make
    for one in made:
        for owner in one.running:
            one.die(owner)


@pytest.fixture(scope="session")
def finished(
    spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory, jars_dir: Path
) -> ReplayedStream:
    """One stream for all; its tables are copied for each test that changes them."""
    stream = simulate(trades(11, count=1_500, partitions=4, rate_ms=40.0), seed=11, shards=2, even=True)
    settings = Settings(
        home=tmp_path_factory.mktemp("finished"),
        jars_dir=jars_dir,
        bootstrap_servers=broker.bootstrap_servers,
    )
    topic = f"verdicts-{tmp_path_factory.getbasetemp().name}".replace("_", "-")
    ensure_topic(broker.bootstrap_servers, topic, 4)
    declared = catalog.load(project_root() / "include" / "pipelines")[LIST]
    pipeline = replace(declared, source=replace(declared.source, name=topic), captured_floor=0.5)
    publish(settings, topic, stream.records)
    store(settings, stream, pipeline.sink.name)
    scene = ReplayedStream(spark, settings, pipeline, stream)
    scene.replay(ONCE)
    return scene


@pytest.fixture
def scene(finished: ReplayedStream, tmp_path: Path) -> ReplayedStream:
    """The stream in a home of this test's own."""
    shutil.copytree(finished.settings.home / "tables", tmp_path / "tables")
    return replace(finished, settings=finished.settings.model_copy(update={"home": tmp_path}))
