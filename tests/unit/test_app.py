"""One installation as an object: what it reads, what it writes, and what it leaves alone. No JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.arrow_memory import arrow_memory
from support.live_stream import MODULE

from hindcast import Hindcast, catalog
from hindcast.app import FEW_RECORDS
from hindcast.errors import (
    BadInputError,
    BadNameError,
    BadRangeError,
    NothingToReplayError,
    PipelineError,
    StoreUnavailableError,
    UnknownPipelineError,
    UnknownRunError,
    UnknownVersionError,
)
from hindcast.pipeline import Policy
from hindcast.replay import run_replay
from hindcast.replay.run_table import Runs
from hindcast.settings import Settings
from hindcast.shards.pipeline_row import DesiredState, InactiveState, InactiveVersion
from hindcast.shards.version_changes import Versions
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.run_states import RunKind, RunState
from hindcast.tables.table_names import ControlTable

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """An installation with one pipeline that is declared in two versions."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "p_1.py").write_text(MODULE.format(topic="t", name="p", version=1, shards=2))
    later = MODULE.format(topic="t", name="p", version=2, shards=3)
    (folder / "p_2.py").write_text(later.replace('Table("p"', 'Table("p_v2"'))
    return Settings(home=tmp_path / "home", pipelines_dir=folder)


@pytest.fixture
def hindcast(settings: Settings) -> Hindcast:
    return Hindcast(settings)


def test_reading_an_installation_that_never_ran_makes_nothing(hindcast: Hindcast) -> None:
    """All listings are empty, and no table and no folder is made."""
    assert hindcast.leases() == []
    listings: list[Any] = [
        hindcast.checkpoints(),
        hindcast.runs(),
        hindcast.verdicts(),
        hindcast.differences("r-1"),
        hindcast.corrections("p"),
        hindcast.dead_letters(),
        hindcast.archives(),
        hindcast.events(),
    ]
    assert listings == [[]] * len(listings)
    assert not hindcast.settings.home.exists()


def test_a_pipeline_is_found_by_name_and_version(hindcast: Hindcast) -> None:
    """Without a version it is the active one: the lowest, as long as none was promoted."""
    assert [found.name for found in hindcast.pipelines()] == ["p"]
    assert hindcast.pipeline("p").version == 1
    assert hindcast.pipeline("p", 2).declared.shards == 3
    with pytest.raises(UnknownPipelineError, match="nobody"):
        hindcast.pipeline("nobody")
    with pytest.raises(UnknownVersionError, match="9"):
        hindcast.pipeline("p", 9)
    with pytest.raises(BadNameError):
        hindcast.pipeline("../p")


def test_a_started_version_is_not_the_active_one(hindcast: Hindcast) -> None:
    """Until it is promoted a name means the version before; the new one is named by its number."""
    hindcast.pipeline("p").resume()
    versions = Versions(hindcast.lease_table)
    second = InactiveVersion(version=2, state=InactiveState.LIVE, shards=3, tables=("sinks/p_v2",))
    versions.begin("p", second, {0: 0}, columns_from=1, who="test")
    assert hindcast.pipeline("p").version == 1
    assert hindcast.pipeline("p", 2).version == 2
    states = {row["version"]: row["state"] for row in hindcast.versions("p")}
    assert states == {1: "active", 2: "live"}


def test_desired_states_are_written_and_read_back(hindcast: Hindcast) -> None:
    """Pausing, draining, resuming and resharding each write one desired state."""
    pipeline = hindcast.pipeline("p")
    assert pipeline.pause().state is DesiredState.PAUSED
    assert pipeline.drain().state is DesiredState.DRAINED
    assert pipeline.resume().state is DesiredState.RUNNING
    assert pipeline.reshard(4).shards == 4
    with pytest.raises(PipelineError, match="shards"):
        pipeline.reshard(0)
    [desired] = pipeline.leases()
    assert desired.detail["shards"] == 4


def test_a_pipeline_is_paused_although_the_file_of_its_active_version_is_gone(
    hindcast: Hindcast, settings: Settings
) -> None:
    """Whoever must stop a stream need not mend a file first."""
    (settings.pipelines_dir / "p_1.py").rename(settings.pipelines_dir / "p_1.txt")
    pipeline = hindcast.pipeline("p")
    pipeline.resume()
    (settings.pipelines_dir / "p_2.py").unlink()
    (settings.pipelines_dir / "p_1.txt").rename(settings.pipelines_dir / "p_1.py")
    again = Hindcast(settings).pipeline("p")
    with pytest.raises(UnknownVersionError):
        _ = again.version
    assert again.pause().state is DesiredState.PAUSED


def test_listings_are_chosen_and_in_order(hindcast: Hindcast, settings: Settings) -> None:
    """The newest comes first; pipeline, kind, severity, age and number of rows choose."""
    events = EventLog(ControlTables(settings))
    for index, name in enumerate(["p", "q", "p"]):
        severity = Severity.ERROR if index else Severity.INFO
        events.record(EventKind.QUERY_FAILED, f"event {index}", severity=severity, pipeline=name)

    def messages(**chosen: Any) -> list[str]:
        return [row["message"] for row in hindcast.events(**chosen)]

    assert messages() == ["event 2", "event 1", "event 0"]
    assert messages(pipeline="p") == ["event 2", "event 0"]
    assert messages(pipeline="p", severity="error") == ["event 2"]
    assert messages(kind="worker_started") == []
    assert messages(limit=1) == ["event 2"]
    assert messages(since=datetime.now(UTC) + timedelta(hours=1)) == []
    assert [row["message"] for row in hindcast.pipeline("p").events(limit=1)] == ["event 2"]
    assert sorted(hindcast.values("events", "pipeline")) == ["p", "q"]
    with pytest.raises(BadNameError):
        hindcast.events("../p")


def letters_of_a_megabyte(count: int) -> list[dict[str, Any]]:
    """Dead letters, each a minute newer than the one before it."""
    rows = []
    for offset in range(count):
        place = {"pipeline": "p", "topic": "t", "partition": 0, "offset": offset}
        rows.append({**place, "value": os.urandom(1_000_000), "broker_at": AT + timedelta(minutes=offset)})
    return rows


def test_values_that_are_not_shown_are_not_read(hindcast: Hindcast) -> None:
    """Of many dead letters the newest are found by their times alone."""
    rows = letters_of_a_megabyte(12)
    for number in (7, 0, 11, 3, 9, 1, 10, 5, 2, 8, 6, 4):
        hindcast.tables.append(ControlTable.DEAD_LETTERS, [rows[number]])
    with arrow_memory() as memory:
        shown = hindcast.dead_letters("p", limit=2)
    assert [(row["offset"], row["value"]) for row in shown] == [
        (11, rows[11]["value"]),
        (10, rows[10]["value"]),
    ]
    assert memory.max_memory() < 10_000_000


def test_a_limit_holds_whatever_the_times_are(hindcast: Hindcast) -> None:
    """Rows of one instant, and rows without any, which come last."""
    times = [AT, None, AT, AT + timedelta(minutes=1), AT, None]
    rows = [{"pipeline": "p", "offset": number, "broker_at": at} for number, at in enumerate(times)]
    hindcast.tables.append(ControlTable.DEAD_LETTERS, rows)
    expected = [3, 0, 2, 4, 1, 5]
    for limit in range(8):
        found = hindcast.dead_letters("p", limit=limit)
        assert len(found) == min(limit, len(rows))
        assert [row["broker_at"] for row in found] == [times[number] for number in expected[:limit]]
    assert [row["offset"] for row in hindcast.dead_letters("p", since=AT, limit=1)] == [3]
    assert hindcast.dead_letters("q", limit=1) == []


def test_a_run_is_listed_in_its_newest_state(hindcast: Hindcast) -> None:
    """The table has a row for each state; a listing has the last one of each run."""
    for run_id, minute, state in [("r-1", 0, "planned"), ("r-2", 1, "planned"), ("r-1", 2, "succeeded")]:
        row = {"run_id": run_id, "pipeline": "p", "version": 1, "kind": "replay", "state": state}
        hindcast.run_table.append({**row, "started_at": AT + timedelta(minutes=minute)})
    found = {row["run_id"]: row["state"] for row in hindcast.runs("p")}
    assert found == {"r-1": "succeeded", "r-2": "planned"}
    assert len(hindcast.pipeline("p").runs(limit=1)) == 1


def test_a_read_is_tried_again_while_files_come_and_go(hindcast: Hindcast) -> None:
    """A vacuum may delete a file of the version that is read. Three attempts are made, and the last error has
    one form.
    """
    attempts: list[int] = []

    def read(failures: int, error: Exception) -> list[int]:
        attempts.append(1)
        if len(attempts) <= failures:
            raise error
        return [1, 2]

    gone = FileNotFoundError("part-0.parquet")
    assert hindcast._read(lambda: read(2, gone)) == [1, 2]
    attempts.clear()
    with pytest.raises(StoreUnavailableError, match="part-0"):
        hindcast._read(lambda: read(3, gone))
    assert len(attempts) == 3
    attempts.clear()
    away = StoreUnavailableError(table="t", action="opened", reason="it is away")
    with pytest.raises(StoreUnavailableError, match="it is away"):
        hindcast._read(lambda: read(3, away))
    assert len(attempts) == 3


def test_a_request_of_a_range_has_a_run_id(hindcast: Hindcast) -> None:
    """A retry under the same id asks the same, by whichever way it was asked first."""
    pipeline = hindcast.pipeline("p")
    request = pipeline.request(run_id="r-1", from_offsets={0: 1}, to_offsets={0: 5})
    assert request.describe() == 'p: offsets {"0": 1} to {"0": 5}'
    assert pipeline.request(everything=True).run_id.startswith("p-")
    assert hindcast.pipeline("p", 2).request(everything=True).version == 2
    with pytest.raises(BadRangeError, match="0 ranges"):
        pipeline.request()


def test_a_replay_of_nothing_starts_no_session(hindcast: Hindcast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row in the table of runs says why."""
    pipeline = hindcast.pipeline("p")

    def plan(*_: Any) -> Any:
        raise NothingToReplayError(pipeline="p", range="all", problem="the stream begins later")

    monkeypatch.setattr(run_replay, "plan_replay", plan)
    with pytest.raises(NothingToReplayError):
        pipeline.replay(run_id="r-1", everything=True)
    [row] = hindcast.runs()
    assert (row["run_id"], row["state"]) == ("r-1", "skipped")


@pytest.mark.parametrize(("records", "quick"), [(FEW_RECORDS, True), (FEW_RECORDS + 1, False)])
def test_a_replay_of_few_records_leaves_out_the_slow_compiler(
    hindcast: Hindcast, monkeypatch: pytest.MonkeyPatch, records: int, quick: bool
) -> None:
    """A JVM that ends within a minute does not pay for it."""
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr(Runs, "planned_records", lambda _, run_id: {"r-1": records}[run_id])
    monkeypatch.setattr(hindcast, "spark", lambda name, *, quick: asked.append((name, quick())))
    hindcast.pipeline("p")._session("r-1")
    assert asked == [("hindcast-replay", quick)]


def test_a_session_that_is_there_is_used_whatever_the_replay_reads(settings: Settings) -> None:
    """The table of runs is asked for the size of a replay only if a session is to be built."""
    session: Any = object()
    pipeline = Hindcast(settings, spark=session).pipeline("p")
    assert pipeline._session("a-run-that-is-not-in-the-table") is session


def test_a_verdict_needs_a_replay_that_succeeded(hindcast: Hindcast, settings: Settings) -> None:
    """A run that is unknown, or only planned, starts no Spark."""
    row = {"run_id": "r-1", "pipeline": "p", "version": 1, "kind": RunKind.REPLAY.value}
    ControlTables(settings).append(
        ControlTable.RUNS, [{**row, "state": RunState.PLANNED.value, "started_at": AT}]
    )
    for run_id in ("r-1", "r-2"):
        with pytest.raises(UnknownRunError, match=run_id):
            hindcast.judge(run_id)


@pytest.mark.parametrize(
    ("policy", "unexplained", "corrected"),
    [(None, 0, False), (Policy.CORRECT, 0, True), (Policy.CORRECT, 1, False)],
)
def test_a_verdict_corrects_if_the_policy_says_so(
    hindcast: Hindcast,
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy | None,
    unexplained: int,
    corrected: bool,
) -> None:
    """A stream with unexplained differences is never corrected."""
    row = {
        "failed": "[]",
        "ratios": '{"x": 1.5}',
        "bounds": "{}",
        "unexplained": unexplained,
        "passed": not unexplained,
    }
    monkeypatch.setattr("hindcast.verdict.judge.judge", lambda *_: row)
    monkeypatch.setattr("hindcast.verdict.expectations.import_meanwhile", lambda: None)
    pipeline = hindcast.pipeline("p")
    monkeypatch.setattr(pipeline, "correct", lambda run_id: {"run_id": run_id, "corrected": True})
    shown = pipeline.judge("r-1", policy=policy)
    assert shown["ratios"] == {"x": 1.5}
    assert shown["failed"] == []
    assert shown.get("corrected", False) is corrected


def test_a_run_of_another_pipeline_is_not_judged_for_this_one(hindcast: Hindcast) -> None:
    """A gate for one pipeline would pass by the verdict of another."""
    at = datetime.now(UTC)
    row = {"run_id": "r-1", "pipeline": "q", "version": 1, "kind": "replay", "started_at": at}
    hindcast.run_table.append({**row, "state": RunState.SUCCEEDED.value, "plan": "{}", "finished_at": at})
    with pytest.raises(BadInputError, match="r-1 is of the pipeline q, not of p"):
        hindcast.judge("r-1", of="p")


def test_pipelines_are_loaded_once(hindcast: Hindcast, settings: Settings) -> None:
    """A new object sees a new file."""
    assert list(hindcast.catalog) == ["p"]
    (settings.pipelines_dir / "q.py").write_text(MODULE.format(topic="t", name="q", version=1, shards=1))
    assert list(hindcast.catalog) == ["p"]
    assert list(Hindcast(settings).catalog) == list(catalog.load(settings.pipelines_dir)) == ["p", "q"]


def test_a_listing_of_versions_shows_those_that_were_declared_meanwhile(
    hindcast: Hindcast, settings: Settings
) -> None:
    """`hindcast versions --watch` lists again and again with one object."""
    assert [row["version"] for row in hindcast.versions("p")] == [1, 2]
    third = MODULE.format(topic="t", name="p", version=3, shards=1)
    (settings.pipelines_dir / "p_3.py").write_text(third.replace('Table("p"', 'Table("p_v3"'))
    assert [row["version"] for row in hindcast.versions("p")] == [1, 2, 3]


def test_a_declaration_and_the_object_import_no_heavy_library() -> None:
    """A pipeline's file loads no settings; the object loads neither Spark nor delta-rs nor pandas."""
    code = (
        "import sys, hindcast\n"
        "assert 'hindcast.settings' not in sys.modules\n"
        "from hindcast import Hindcast\n"
        "print([name for name in ('pyspark', 'deltalake', 'pyarrow', 'pandas', 'great_expectations') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
