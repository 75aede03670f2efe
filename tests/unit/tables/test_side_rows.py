"""What late rows and dead letters hold expires; the rows stay."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from hindcast.settings import Settings
from hindcast.tables import compaction, expiry, rewritten_rows
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.expiry import expire
from hindcast.tables.schema import ORDERED_BY
from hindcast.tables.side_rows import CONTENTS, expire_contents
from hindcast.tables.table_names import ControlTable

NOW = datetime.now(UTC)
BOTH = sorted(CONTENTS)


def row(offset: int, days: float, **more: Any) -> dict[str, Any]:
    """A late row or dead letter that came so many days ago."""
    return {
        "pipeline": "p",
        "version": 1,
        "topic": "t",
        "partition": 0,
        "offset": offset,
        "broker_at": NOW - timedelta(days=days),
        "key": b"k",
        "value": b"v",
        "reason": "no value",
        "traceback": "KeyError: v",
        **more,
    }


def rows(tables: ControlTables, name: ControlTable) -> list[dict[str, Any]]:
    return sorted(tables.rows(name), key=lambda found: found["offset"])


@pytest.mark.parametrize("name", BOTH)
def test_contents_expire_and_rows_stay(settings: Settings, name: ControlTable) -> None:
    """Only the named columns of old rows change, and the setting says how old that is."""
    tables = ControlTables(settings)
    tables.append(name, [row(0, 400), row(1, 367), row(2, 300), row(3, 0), row(4, 0, broker_at=None)])
    before = rows(tables, name)
    expire(settings, tables)
    gone: dict[str, Any] = dict.fromkeys(CONTENTS[name])
    if name is ControlTable.DEAD_LETTERS:
        gone["reason"] = "expired"
    after = [{**found, **gone} for found in before[:2]] + before[2:]
    assert rows(tables, name) == after
    version = tables.open(name).version()
    expire(settings, tables)
    assert tables.open(name).version() == version, "nothing is left to expire"
    expire(settings.model_copy(update={"letter_days": 30.0}), tables)
    assert [found["value"] for found in rows(tables, name)] == [None, None, None, b"v", b"v"]


@pytest.mark.parametrize("name", BOTH)
def test_one_of_the_columns_is_enough_to_expire(settings: Settings, name: ControlTable) -> None:
    """A letter without a value may have a key, and the other way round."""
    tables = ControlTables(settings)
    alone = []
    for offset, column in enumerate(CONTENTS[name]):
        others = dict.fromkeys(CONTENTS[name])
        alone.append(row(offset, 400, **{**others, column: row(0, 0)[column]}))
    tables.append(name, alone)
    assert expire_contents(tables, name, NOW, {}) == len(alone)
    assert expire_contents(tables, name, NOW, {}) == 0


def test_files_of_newer_rows_are_not_read(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their bounds, which joined files have."""
    tables = ControlTables(settings)
    name = ControlTable.LATE_ROWS
    for offset in range(2):
        tables.append(name, [row(offset, 1)])
    compaction.compact(tables.open(name), {}, ordered_by=ORDERED_BY[name])
    opened = []
    open_ = rewritten_rows._opened

    def note(*arguments: Any) -> Any:
        opened.append(arguments)
        return open_(*arguments)

    monkeypatch.setattr(rewritten_rows, "_opened", note)
    assert expire_contents(tables, name, NOW - timedelta(days=2), {}) == 0
    assert opened == []
    assert expire_contents(tables, name, NOW, {}) == 2
    assert opened
    (file,) = pa.table(tables.open(name).get_add_actions(flatten=True)).to_pylist()
    assert (file["num_records"], file["min.offset"], file["max.offset"]) == (2, 0, 1), "bounds are kept"


def limit_of_today() -> datetime:
    """The midnight before this time a year ago."""
    return datetime.combine((datetime.now(UTC) - timedelta(365)).date(), time.min, UTC)


def test_contents_expire_by_the_day(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a file is rewritten once a day at most."""
    asked = []
    monkeypatch.setattr(expiry, "expire_contents", lambda *given: asked.append(given[2]) or 0)
    first = limit_of_today()
    expire(settings, ControlTables(settings))
    assert len(asked) == 2
    # Midnight may pass in between.
    assert {*asked} <= {first, limit_of_today()}


def test_a_table_that_cannot_be_read_is_left_to_the_next_time(settings: Settings) -> None:
    """The others are tidied all the same."""
    tables = ControlTables(settings)
    for name in BOTH:
        tables.append(name, [row(0, 400)])
    (broken,) = tables.open(ControlTable.DEAD_LETTERS).file_uris()
    Path(broken).write_bytes(b"torn")
    with capture_logs() as logs:
        expire(settings, tables)
    assert [log["table"] for log in logs if log["log_level"] == "warning"] == ["dead_letters"]
    assert rows(tables, ControlTable.LATE_ROWS)[0]["value"] is None


def test_where_nothing_is_nothing_expires(settings: Settings) -> None:
    """No table is made."""
    assert expire_contents(ControlTables(settings), ControlTable.LATE_ROWS, NOW, {}) == 0
    assert not settings.home.exists()
