"""Intervals of time that a real topic and the ledger answer without Spark: before the stream, not read yet,
and partly covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from kafka import KafkaProducer
from support.counted import NOTHING_COUNTED
from support.live_stream import on_topic

from hindcast import catalog
from hindcast.errors import NothingToReplayError, RangeNotYetConsumedError
from hindcast.installation import Installation
from hindcast.partitions import app_id
from hindcast.pipeline import Mode, Pipeline, Table
from hindcast.replay.planner import ReplayPlan
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import run_replay
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import Fence, FencedTable
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from conftest import Broker

BEGAN_AT = datetime(2026, 11, 20, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def settings(broker: Broker, settings_factory: Callable[..., Settings]) -> Settings:
    return settings_factory(bootstrap_servers=broker.bootstrap_servers)


WINDOWED = pytest.param(("stock_stats", Mode.APPEND), id="windowed")
RUNNING = pytest.param(("word_count", Mode.UPSERT), id="running results")
ROW_BY_ROW = pytest.param(("word_count", Mode.APPEND), id="row by row")


@pytest.fixture(params=[WINDOWED, RUNNING])
def pipeline(
    request: pytest.FixtureRequest, settings: Settings, topic_factory: Callable[..., str]
) -> Pipeline:
    """A pipeline of one partition whose topic has a record in each minute of an hour; nothing of it is read
    yet.
    """
    name, mode = request.param
    declared = catalog.load(settings.pipelines_dir)[name]
    if mode is Mode.APPEND:
        declared = replace(declared, sink=Table(declared.sink.name))
    found = on_topic(declared, topic_factory(partitions=1))
    send(settings, found, range(60))
    return found


def send(settings: Settings, pipeline: Pipeline, minutes: Iterable[int]) -> None:
    """Send a record of each of these minutes after the beginning, stamped so by the producer."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for minute in minutes:
        at = BEGAN_AT + timedelta(minutes=minute)
        producer.send(pipeline.source.name, key=b"k", value=b"{}", timestamp_ms=int(at.timestamp() * 1000))
    producer.flush()
    producer.close()


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


def committed(settings: Settings, pipeline: Pipeline, batch: int, start: int, end: int) -> None:
    """A batch of the stream that read these offsets: in the sink, in the ledger, its late and poison rows
    filed.
    """
    shard = f"v{pipeline.version}.g0.s0"
    app = app_id(pipeline.name, shard)
    before = Fence(1, batch - 1) if batch > 1 else None
    sink = FencedTable(settings.sink(pipeline), {}, app)
    sink.create(pa.schema([("word", pa.string())]))
    version = sink.commit(Fence(1, batch), [], after=before)
    read_to = BEGAN_AT + timedelta(minutes=end)
    row = LedgerRow.unmeasured(
        pipeline=pipeline.name,
        version=pipeline.version,
        shard=shard,
        epoch=1,
        batch=batch,
        worker="w",
        topic=pipeline.source.name,
        start_offsets={0: start},
        end_offsets={0: end},
        late_watermark_ms=0,
        watermark_ms=int(read_to.timestamp() * 1000),
        output_rows=0,
        sink_version=version,
        committed_at=read_to,
    )
    tables = ControlTables(settings)
    Ledger(tables).append([row])
    for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
        tables.open(name)
        FencedTable(tables.url(name), {}, app).commit(Fence(1, batch), [], after=before)


def planned(
    settings: Settings, pipeline: Pipeline, run_id: str, start: datetime, end: datetime
) -> ReplayPlan:
    """The plan of a replay that goes through all steps but that of Spark."""
    session: Any = None
    return run_replay(
        lambda: session,
        Installation(settings),
        pipeline,
        ReplayRequest(pipeline=pipeline.name, run_id=run_id, from_time=start, to_time=end),
        work=lambda *_: NOTHING_COUNTED,
    ).plan


@pytest.mark.parametrize("pipeline", [WINDOWED, ROW_BY_ROW], indirect=True)
def test_what_comes_between_two_intervals_with_a_stamp_of_the_first_is_in_the_second(
    settings: Settings, pipeline: Pipeline
) -> None:
    """A partition was idle at the end of the first one, so that ended with the last record. What came next
    was stamped by a clock that was behind: it is in the range that begins there, and in no other, also if
    either is replayed again.
    """
    committed(settings, pipeline, 1, 0, 60)
    first = planned(settings, pipeline, "r-1", BEGAN_AT, BEGAN_AT + HOUR)
    assert (first.start, first.end) == ({0: 0}, {0: 60})
    send(settings, pipeline, (59, 65))
    committed(settings, pipeline, 2, 60, 62)
    second = planned(settings, pipeline, "r-2", BEGAN_AT + HOUR, BEGAN_AT + 2 * HOUR)
    assert (second.start, second.end) == ({0: 60}, {0: 62})
    for run_id in ("r-1", "r-3"):
        again = planned(settings, pipeline, run_id, BEGAN_AT, BEGAN_AT + HOUR)
        assert (again.start, again.end) == (first.start, first.end)
    # A time that nobody had asked for is asked of the broker.
    other = planned(settings, pipeline, "r-4", BEGAN_AT, BEGAN_AT + HOUR + timedelta(minutes=1))
    assert other.end == {0: 61 if pipeline.window else 60}
