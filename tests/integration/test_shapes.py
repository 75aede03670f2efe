"""The shapes of pipeline that faults are tried on, through the real engine: the answer in plain Python is the
one that Spark gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.live_stream import check_answer, declare
from support.shapes import SHAPES, Shape
from support.shard_harness import Shard
from support.simulated_stream import Clockwork, Record, Simulated, trades

from hindcast import catalog
from hindcast.settings import Settings
from hindcast.spark import kafka_source
from hindcast_sandbox.load import ensure_topic

if TYPE_CHECKING:
    from conftest import Broker
    from pyspark.sql import SparkSession

PARTITIONS = 2


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_shape_gives_the_answer_of_plain_python(
    spark: SparkSession,
    broker: Broker,
    topic_factory: Callable[..., str],
    settings_factory: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
    shape: Shape,
) -> None:
    """Over several batches and a rebuild of the state, with late and poison rows. With fewer records the
    answer is another.
    """
    monkeypatch.setattr(kafka_source, "MAX_RECORDS_PER_BATCH", 120)
    settings = settings_factory(bootstrap_servers=broker.bootstrap_servers, trigger_seconds=0.0)
    settings = settings.model_copy(update={"pipelines_dir": settings.home / "pipelines"})
    topic = topic_factory(partitions=PARTITIONS)
    for own in shape.topics(topic)[1:]:
        ensure_topic(broker.bootstrap_servers, own, PARTITIONS)
    declare(settings, topic, name="shaped", shape=shape)
    pipeline = catalog.load(settings.pipelines_dir)["shaped"]
    shard = Shard(spark, settings, pipeline, broker.bootstrap_servers, PARTITIONS, shape=shape)
    records = shape.spread(trades(7, count=400, partitions=PARTITIONS, rate_ms=100.0))
    records = placed(records)
    try:
        shard.serve(records[:200])
        shard.serve(records[200:], rebuild="the test wants it")
        shard.check()
    finally:
        for owner in shard.running:
            shard.die(owner)
    fewer = [
        record if number % 3 else replace(record, event_ms=None) for number, record in enumerate(records)
    ]
    with pytest.raises(AssertionError):
        check_answer(settings, fewer, Simulated(Clockwork(), fewer), "shaped", shape)


def placed(records: list[Record]) -> list[Record]:
    """The records at the offsets that their topics give them."""
    offsets: dict[int, int] = {}
    made = []
    for record in records:
        offset = offsets.get(record.partition, 0)
        made.append(replace(record, offset=offset))
        offsets[record.partition] = offset + 1
    return made
