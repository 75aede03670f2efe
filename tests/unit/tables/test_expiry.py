"""What is there for people is deleted once it is old; nothing else is."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError
from structlog.testing import capture_logs

from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.expiry import expire
from hindcast.tables.table_names import ControlTable

NOW = datetime.now(UTC)
COLUMNS = {ControlTable.EVENTS: "at", ControlTable.DIFFERENCES: "found_at", ControlTable.RUNS: "finished_at"}


def ages(tables: ControlTables, name: ControlTable) -> list[int]:
    """How many days old the rows are."""
    return sorted((NOW - row[COLUMNS[name]]).days for row in tables.rows(name))


def file(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    at = time.time() - days * 86_400
    os.utime(path, (at, at))
    return path


def test_old_rows_are_deleted(settings: Settings) -> None:
    """Of events and samples of differences; those of runs are read by plans. The setting says how old."""
    tables = ControlTables(settings)
    for name, column in COLUMNS.items():
        for days in (0, 89, 91, 400):
            tables.append(name, [{column: NOW - timedelta(days=days)}])
    expire(settings, tables)
    assert ages(tables, ControlTable.EVENTS) == ages(tables, ControlTable.DIFFERENCES) == [0, 89]
    assert ages(tables, ControlTable.RUNS) == [0, 89, 91, 400]
    version = tables.open(ControlTable.EVENTS).version()
    expire(settings, tables)
    assert tables.open(ControlTable.EVENTS).version() == version
    expire(settings.model_copy(update={"history_days": 30.0}), tables)
    assert ages(tables, ControlTable.EVENTS) == [0]


def test_nothing_is_made_where_nothing_is(settings: Settings) -> None:
    """A home that was never used stays empty."""
    expire(settings, ControlTables(settings))
    assert not settings.home.exists()


def test_old_pages_are_deleted(settings: Settings) -> None:
    """With the results that they show and the folders that are empty then. What the pages share stays."""
    home = settings.home
    old = [
        file(home / "gx/results/p/sink/run/at/p.json", 91),
        file(home / "data_docs/validations/p/run/p.html", 91),
    ]
    kept = [
        file(home / "gx/results/p/sink/newer/at/p.json", 89),
        file(home / "data_docs/validations/p/newer/p.html", 89),
        file(home / "data_docs/static/logo.png", 400),
        file(home / "data_docs/index.html", 400),
        file(home / "gx/results/.ge_store_backend_id", 400),
    ]
    expire(settings, ControlTables(settings))
    assert [path.exists() for path in old] == [False, False]
    assert all(path.exists() for path in kept)
    assert not (home / "gx/results/p/sink/run").exists()
    assert not (home / "data_docs/validations/p/run").exists()


def test_a_table_that_is_away_keeps_nothing_else(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is told, and left to the next time."""
    tables = ControlTables(settings)
    for name in (ControlTable.EVENTS, ControlTable.DIFFERENCES):
        tables.append(name, [{COLUMNS[name]: NOW - timedelta(days=100)}])
    read = ControlTables.read

    def away(self: ControlTables, name: ControlTable, *arguments: object, **options: object) -> object:
        if name is ControlTable.EVENTS:
            raise DeltaError("it is away")
        return read(self, name, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as while_away, capture_logs() as logs:
        while_away.setattr(ControlTables, "read", away)
        expire(settings, tables)
    assert [(entry["table"], entry["log_level"]) for entry in logs] == [
        ("events", "warning"),
        ("differences", "info"),
    ]
    assert ages(tables, ControlTable.EVENTS) == [100]
    assert ages(tables, ControlTable.DIFFERENCES) == []


def test_what_was_deleted_is_logged(settings: Settings) -> None:
    """With how much, for each table, and for all files together."""
    tables = ControlTables(settings)
    for name in (ControlTable.EVENTS, ControlTable.DIFFERENCES):
        tables.append(name, [{COLUMNS[name]: NOW - timedelta(days=100)}] * 2)
    tables.append(ControlTable.LATE_ROWS, [{"broker_at": NOW - timedelta(days=400), "value": b"v"}] * 3)
    for number in range(2):
        file(settings.home / f"gx/results/p/sink/run/{number}.json", 91)
        file(settings.home / f"data_docs/validations/p/{number}.html", 91)
    with capture_logs() as logs:
        expire(settings, tables)
    assert [{**log, "log_level": log["log_level"]} for log in logs] == [
        {"event": "Contents of old rows were erased.", "table": "late_rows", "rows": 3, "log_level": "info"},
        {"event": "Old rows of a table were deleted.", "table": "events", "rows": 2, "log_level": "info"},
        {
            "event": "Old rows of a table were deleted.",
            "table": "differences",
            "rows": 2,
            "log_level": "info",
        },
        {"event": "Old results and pages of expectations were deleted.", "files": 4, "log_level": "info"},
    ]


def test_tables_that_cannot_be_read_are_named_and_the_others_tidied(settings: Settings) -> None:
    """Each with the reason, be it the first or not."""
    tables = ControlTables(settings)
    old = {"at": NOW - timedelta(days=100), "found_at": NOW - timedelta(days=100)}
    tables.append(ControlTable.EVENTS, [{"at": old["at"]}])
    tables.append(ControlTable.DIFFERENCES, [{"found_at": old["found_at"]}])
    for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
        tables.append(name, [{"broker_at": NOW - timedelta(days=400), "value": b"v"}])
    torn = {}
    for name in (ControlTable.EVENTS, ControlTable.LATE_ROWS):
        (path,) = tables.open(name).file_uris()
        Path(path).write_bytes(b"torn")
        torn[name.value] = Path(path).name
    with capture_logs() as logs:
        expire(settings, tables)
    warned = {log["table"]: log for log in logs if log["log_level"] == "warning"}
    assert warned["events"]["event"] == "Old rows of a table were not deleted."
    assert warned["late_rows"]["event"] == "Contents of old rows were not erased."
    assert all(torn[name] in log["reason"] or "Parquet" in log["reason"] for name, log in warned.items())
    done = {log["table"] for log in logs if log["log_level"] == "info"}
    assert (warned.keys(), done) == (torn.keys(), {"differences", "dead_letters"})
