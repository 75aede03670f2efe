"""The trigger behind which a replay waits for its stream, awaited as the triggerer does, over real tables."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from airflow._shared.module_loading import import_string
from structlog.testing import capture_logs
from support.fleet_sample import desired, put
from support.simulated_stream import simulate, trades

from hindcast.airflow import replay_trigger
from hindcast.airflow.replay_trigger import ConsumedTrigger
from hindcast.partitions import app_id
from hindcast.replay.wait_for_stream import Awaited
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger
from hindcast.tables.table_names import ControlTable

NAME = "stock_stats"
SHARD = "v1.g0.s0"
DEADLINE_SECONDS = 20
#: The batches of one shard of two partitions.
STREAM = simulate(trades(1, count=60, partitions=2), seed=1, shards=1, batch_rows=10)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """A stream that is to run, and that has committed nothing yet."""
    monkeypatch.setenv("HINDCAST_HOME", str(tmp_path))
    monkeypatch.setattr(replay_trigger, "FIRST_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(replay_trigger, "MOST_WAIT_SECONDS", 0.1)
    made = Settings()
    put(made, desired())
    return made


def trigger(limit_seconds: float = 60.0, **awaited: Any) -> ConsumedTrigger:
    until = datetime.now(UTC) + timedelta(seconds=limit_seconds)
    return ConsumedTrigger(Awaited(pipeline=NAME, version=1, **awaited).to_json(), until.isoformat())


async def fired(waiting: ConsumedTrigger, seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
    async with asyncio.timeout(seconds):
        event = await anext(waiting.run())
    return dict(event.payload)


def file_rows(settings: Settings, batch: int) -> None:
    """As the audit does: an empty commit of each of its tables that remembers the batch."""
    from deltalake import CommitProperties, Transaction, write_deltalake

    tables = ControlTables(settings)
    for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
        table = tables.open(name)
        done = CommitProperties(app_transactions=[Transaction(app_id(NAME, SHARD), (1 << 32) | batch)])
        write_deltalake(table, table.to_pyarrow_table().slice(0, 0), mode="append", commit_properties=done)


def test_serialize_rebuilds_an_equal_trigger() -> None:
    """The class path can be imported and the arguments make the same trigger."""
    made = trigger(offsets={0: 5}, batches={SHARD: 2}, beyond={1: 3}, at="2026-01-01T00:00:00+00:00")
    assert Awaited.from_json(json.loads(json.dumps(made.awaited))).beyond == {1: 3}
    path, arguments = made.serialize()
    assert import_string(path)(**arguments).serialize() == made.serialize()


async def test_it_waits_for_the_offsets_and_tells_how_far_the_stream_is(settings: Settings) -> None:
    """Each line of the log says what is left; two of it at once both fire."""
    rows = STREAM.ledger
    await asyncio.to_thread(Ledger(ControlTables(settings)).append, rows[:2])
    ends = rows[-1].end_offsets
    left = sum(ends.values()) - sum(rows[1].end_offsets.values())
    with capture_logs() as logs:
        waiting = [asyncio.create_task(fired(trigger(offsets=ends))) for _ in range(2)]
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not any(f"{left} records" in entry["event"] for entry in logs):  # noqa: ASYNC110 - a log has no event to wait for
                await asyncio.sleep(0.05)  # between two looks at the log
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(Ledger(ControlTables(settings)).append, rows[2:])
        assert [(await task)["wait"] for task in waiting] == ["met", "met"]


async def test_it_waits_for_the_audit(settings: Settings) -> None:
    """The batches are committed; what they left out is to be filed, up to the batch that the range needs."""
    await asyncio.to_thread(file_rows, settings, 1)
    waiting = asyncio.create_task(fired(trigger(batches={SHARD: 3})))
    with pytest.raises(TimeoutError):
        await fired(trigger(batches={SHARD: 3}), seconds=1)
    assert not waiting.done()
    await asyncio.to_thread(file_rows, settings, 3)
    assert (await waiting)["wait"] == "met"


async def test_it_waits_for_a_first_batch(settings: Settings) -> None:
    """A stream that has not begun: nothing but its first batch is known to be missing."""
    waiting = asyncio.create_task(fired(trigger()))
    with pytest.raises(TimeoutError):
        await fired(trigger(), seconds=1)
    await asyncio.to_thread(Ledger(ControlTables(settings)).append, STREAM.ledger[:1])
    assert (await waiting)["wait"] == "met"


async def test_it_waits_for_more_than_is_committed(settings: Settings) -> None:
    """A replay of what came since the last verdict, of a quiet stream: the next batch is news, those before
    it are not.
    """
    await asyncio.to_thread(Ledger(ControlTables(settings)).append, STREAM.ledger[:2])
    known = STREAM.ledger[1].end_offsets
    with pytest.raises(TimeoutError):
        await fired(trigger(beyond=known), seconds=1)
    await asyncio.to_thread(Ledger(ControlTables(settings)).append, STREAM.ledger[2:])
    assert (await fired(trigger(beyond=known)))["wait"] == "met"


async def test_it_waits_for_a_time_to_come(settings: Settings) -> None:
    """Whatever is committed before it."""
    await asyncio.to_thread(Ledger(ControlTables(settings)).append, STREAM.ledger)
    at = datetime.now(UTC) + timedelta(seconds=2)
    assert (await fired(trigger(at=at.isoformat())))["wait"] == "met"
    assert datetime.now(UTC) >= at


@pytest.mark.parametrize("state", ["running", "paused", "drained"])
async def test_it_ends_at_the_limit_and_says_whether_the_pipeline_is_paused(
    settings: Settings, state: str
) -> None:
    """What is paused goes no further; the log says how to let it."""
    put(settings, desired(state=state))
    with capture_logs() as logs:
        event = await fired(trigger(1.0, offsets={0: 5}))
    assert event == {
        "wait": "over",
        "paused": state != "running",
        "text": "5 records of the range are still to be committed",
    }
    assert any("hindcast resume" in entry["event"] for entry in logs) == (state != "running")


async def test_a_store_that_is_away_ends_no_wait(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again."""
    looks: list[Exception | None] = [OSError("away"), None]
    look = replay_trigger.read_progress

    def flaky(*arguments: Any) -> Any:
        error = looks.pop(0) if looks else None
        if error is not None:
            raise error
        return look(*arguments)

    monkeypatch.setattr(replay_trigger, "read_progress", flaky)
    Ledger(ControlTables(settings)).append(STREAM.ledger)
    assert (await fired(trigger(offsets={0: 1})))["wait"] == "met"
