"""The triggers of a reprocessing, awaited as the triggerer does, over real tables."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from airflow._shared.module_loading import import_string
from support.fleet_sample import desired, put, verdict

from hindcast.airflow import version_triggers
from hindcast.airflow.version_triggers import PromotedTrigger, ShadowTrigger, look_at_promoted
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.settings import Settings
from hindcast.shards.pipeline_row import Change, InactiveState, InactiveVersion
from hindcast.shards.version_changes import Versions
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable

NAME = "stock_stats"
DEADLINE_SECONDS = 20


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Version 2 catches up beside version 1; the triggers find it through the environment, as in the
    triggerer.
    """
    monkeypatch.setenv("HINDCAST_HOME", str(tmp_path))
    monkeypatch.setattr(version_triggers, "FIRST_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(version_triggers, "MOST_WAIT_SECONDS", 0.1)
    made = Settings()
    put(made, desired())
    beside = InactiveVersion(
        version=2, state=InactiveState.CATCHING_UP, shards=1, tables=("sinks/stock_stats_v2",)
    )
    versions(made).begin(NAME, beside, {0: 0}, columns_from=1)
    return made


def versions(settings: Settings) -> Versions:
    return Versions(LeaseTable(settings))


def promote(settings: Settings) -> Change:
    versions(settings).note_caught_up(versions(settings).of(NAME))
    change = versions(settings).of(NAME).change
    assert change is not None
    done = versions(settings).promote(
        NAME, 2, ("sinks/stock_stats",), warm_seconds=3600.0, barrier={0: 7}, since=change.id
    )
    assert done.change is not None
    return done.change


async def fired(trigger: Any, seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
    async with asyncio.timeout(seconds):
        event = await anext(trigger.run())
    return event.payload


@pytest.mark.parametrize(
    "trigger", [ShadowTrigger(NAME, 2), PromotedTrigger(NAME, 2, 3, "2026-01-02T00:00:00+00:00")]
)
def test_serialize_rebuilds_an_equal_trigger(trigger: Any) -> None:
    """The class path can be imported and the arguments make the same trigger."""
    path, arguments = trigger.serialize()
    assert import_string(path)(**arguments).serialize() == trigger.serialize()


async def test_it_waits_while_the_version_catches_up(settings: Settings) -> None:
    """Then it says since which change the version is live."""
    waiting = asyncio.create_task(fired(ShadowTrigger(NAME, 2)))
    with pytest.raises(TimeoutError):
        await fired(ShadowTrigger(NAME, 2), seconds=1)
    assert not waiting.done()
    live = versions(settings).note_caught_up(versions(settings).of(NAME))
    assert live is not None and live.change is not None
    assert await waiting == {"news": "live", "since": live.change.id}


@pytest.mark.parametrize("what", ["leaving", "discarded", "promoted", "another"])
async def test_a_version_that_is_no_shadow_is_gone(settings: Settings, what: str) -> None:
    """Nobody waits for what will not come."""
    if what == "promoted":
        promote(settings)
    elif what != "another":
        versions(settings).leave(NAME, 2)
        if what == "discarded":
            versions(settings).remove(NAME, 2)
    assert await fired(ShadowTrigger(NAME, 3 if what == "another" else 2)) == {"news": "gone"}


async def test_a_promoted_version_is_watched_to_the_end(settings: Settings) -> None:
    """Verdicts since the promotion count, those before it do not, whatever the clocks of those who judged
    say.
    """
    tables = ControlTables(settings)
    tables.append(
        ControlTable.VERDICTS,
        [
            verdict(
                "before", version=2, passed=False, change=1, judged_at=datetime.now(UTC) + timedelta(hours=1)
            )
        ],
    )
    promoted = promote(settings)
    tables.append(ControlTable.VERDICTS, [verdict("of-1", passed=False, change=promoted.number)])
    tables.append(
        ControlTable.VERDICTS,
        [
            verdict(
                "good", version=2, change=promoted.number, judged_at=datetime.now(UTC) - timedelta(hours=1)
            )
        ],
    )
    until = promoted.at + timedelta(minutes=5)
    assert look_at_promoted(Installation(settings), NAME, 2, promoted.number, until) is None
    assert await fired(PromotedTrigger(NAME, 2, promoted.number, promoted.at.isoformat())) == {
        "news": "over",
        "verdicts": 1,
    }


async def test_a_verdict_that_fails_is_news(settings: Settings) -> None:
    """At once, whatever is left of the time; also when a better one came after it."""
    promoted = promote(settings)
    waiting = asyncio.create_task(
        fired(PromotedTrigger(NAME, 2, promoted.number, (promoted.at + timedelta(hours=1)).isoformat()))
    )
    rows = [
        verdict("bad", version=2, passed=False, unexplained=4, change=promoted.number),
        verdict("good", version=2, change=promoted.number, number=2),
    ]
    ControlTables(settings).append(ControlTable.VERDICTS, rows)
    assert await waiting == {"news": "failed", "run_id": "bad", "unexplained": 4}


async def test_a_version_that_is_active_no_more_is_news(settings: Settings) -> None:
    """Somebody backed out by hand."""
    promoted = promote(settings)
    versions(settings).back_out(NAME)
    event = await fired(
        PromotedTrigger(NAME, 2, promoted.number, (promoted.at + timedelta(hours=1)).isoformat())
    )
    assert event == {"news": "inactive"}


async def test_a_store_that_is_away_does_not_end_the_wait(settings: Settings) -> None:
    """It looks again until the table can be read; two at once disturb neither each other nor the tables."""
    log = Path(settings.table("control", "leases")) / "_delta_log"
    hidden = log.rename(log.with_name("hidden"))
    log.write_text("not a folder")
    both = [asyncio.create_task(fired(ShadowTrigger(NAME, 2))) for _ in range(2)]
    await asyncio.sleep(0.5)  # some looks that must all fail
    assert not any(task.done() for task in both)
    log.unlink()
    hidden.rename(log)
    versions(settings).note_caught_up(versions(settings).of(NAME))
    assert [event["news"] for event in await asyncio.gather(*both)] == ["live", "live"]
