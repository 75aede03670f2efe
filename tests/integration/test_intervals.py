"""Intervals of time that a real topic and the ledger answer without Spark: before the stream, not read yet,
and partly covered.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer
from support.live_stream import on_topic

from hindcast import catalog
from hindcast.errors import NothingToReplayError, RangeNotYetConsumedError
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import run_replay
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from conftest import Broker

BEGAN_AT = datetime(2026, 11, 20, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def settings(broker: Broker, settings_factory: Callable[..., Settings]) -> Settings:
    return settings_factory(bootstrap_servers=broker.bootstrap_servers)


@pytest.fixture(params=["stock_stats", "word_count"], ids=["windowed", "without windows"])
def pipeline(
    request: pytest.FixtureRequest, settings: Settings, topic_factory: Callable[..., str]
) -> Pipeline:
    """A pipeline of one partition whose topic has a record in each minute of an hour; nothing of it is read
    yet.
    """
    declared = catalog.load(settings.pipelines_dir)[request.param]
    found = on_topic(declared, topic_factory(partitions=1))
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for minute in range(60):
        at = BEGAN_AT + timedelta(minutes=minute)
        producer.send(found.source.name, key=b"k", value=b"{}", timestamp_ms=int(at.timestamp() * 1000))
    producer.flush()
    producer.close()
    return found


def ask(settings: Settings, pipeline: Pipeline, start: datetime, end: datetime) -> Any:
    def session() -> Any:
        raise AssertionError("a Spark session was started")

    return run_replay(
        session,
        Installation(settings),
        pipeline,
        ReplayRequest(pipeline=pipeline.name, run_id="r-1", from_time=start, to_time=end),
    )


def test_before_the_stream_has_begun(settings: Settings, pipeline: Pipeline) -> None:
    """No sink and no ledger: what came before the first record is skipped at once, what came after it is
    waited for.
    """
    with pytest.raises(NothingToReplayError, match="no record of"):
        ask(settings, pipeline, BEGAN_AT - HOUR, BEGAN_AT)
    rows = ControlTables(settings).rows(ControlTable.RUNS)
    assert [(row["run_id"], row["state"]) for row in rows] == [("r-1", "skipped")]
    with pytest.raises(RangeNotYetConsumedError, match="has committed no batch") as caught:
        ask(settings, pipeline, BEGAN_AT, BEGAN_AT + HOUR)
    assert caught.value.awaited is not None


def test_before_the_streams_first_offset(settings: Settings, pipeline: Pipeline) -> None:
    """A stream that began at half past: the half hour before it is skipped, and is not what was waited
    for.
    """
    row = LedgerRow.unmeasured(
        pipeline=pipeline.name,
        version=pipeline.version,
        shard=f"v{pipeline.version}.g0.s0",
        epoch=1,
        batch=1,
        worker="w",
        topic=pipeline.source.name,
        start_offsets={0: 30},
        end_offsets={0: 40},
        late_watermark_ms=0,
        watermark_ms=0,
        output_rows=0,
        sink_version=1,
        committed_at=BEGAN_AT + HOUR,
    )
    Ledger(ControlTables(settings)).append([row])
    with pytest.raises(NothingToReplayError, match=r'begins at offset \{"0": 30\}'):
        ask(settings, pipeline, BEGAN_AT, BEGAN_AT + HOUR / 2)
