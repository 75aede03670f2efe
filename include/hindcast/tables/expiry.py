"""Delete what is there for people once it is old: events, samples of differences, results and pages of
expectations, and what late rows and dead letters hold of records. No verdict, no replay and no stream reads
these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import structlog
from deltalake.exceptions import DeltaError

from hindcast.delta.commit import until_it_lands
from hindcast.errors import SchemaVersionError, StoreUnavailableError
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.side_rows import CONTENTS, expire_contents
from hindcast.tables.table_names import ControlTable

_log = structlog.get_logger(__name__)

#: The tables, and the column that says how old a row is.
_ROWS = {ControlTable.EVENTS: "at", ControlTable.DIFFERENCES: "found_at"}
#: The folders of Great Expectations below the home: its results, and the pages that show them.
_FOLDERS = ("gx/results", "data_docs/validations")
#: What the upkeep of one table may raise.
_FAILURES = (DeltaError, OSError, pa.ArrowException, StoreUnavailableError, SchemaVersionError)


def expire(settings: Settings, tables: ControlTables) -> None:
    """Delete what is older than ``settings.history_days``, and contents of late rows and dead letters older
    than ``settings.letter_days``. What fails is left to the next time.
    """
    _expire_contents(settings, tables)
    oldest = datetime.now(UTC) - timedelta(days=settings.history_days)
    for name, column in _ROWS.items():
        try:
            rows = _delete_rows(tables, name, column, oldest)
        except _FAILURES as error:
            _log.warning("Old rows of a table were not deleted.", table=name.value, reason=str(error))
            continue
        if rows:
            _log.info("Old rows of a table were deleted.", table=name.value, rows=rows)
    files = 0
    for folder in _FOLDERS:
        files += _delete_files(settings.home / folder, oldest.timestamp())
    if files:
        _log.info("Old results and pages of expectations were deleted.", files=files)


def _expire_contents(settings: Settings, tables: ControlTables) -> None:
    """Contents expire by the day, so that a file is rewritten once a day at most."""
    limit = datetime.now(UTC) - timedelta(days=settings.letter_days)
    before = limit.replace(hour=0, minute=0, second=0, microsecond=0)
    for name in CONTENTS:
        try:
            rows = expire_contents(tables, name, before, settings.storage_options)
        except _FAILURES as error:
            _log.warning("Contents of old rows were not erased.", table=name.value, reason=str(error))
            continue
        if rows:
            _log.info("Contents of old rows were erased.", table=name.value, rows=rows)


def _delete_rows(tables: ControlTables, name: ControlTable, column: str, oldest: datetime) -> int:
    """Delete the rows from before that time; return how many there were."""
    found: int = tables.read(name, [(column, "<", oldest)], [column]).num_rows
    if found:
        before = f"{column} < '{oldest.isoformat()}'"
        until_it_lands(tables.url(name), lambda: tables.open(name).delete(before))
    return found


def _delete_files(folder: Path, oldest: float) -> int:
    """Delete the files that were written before that time, and the folders that are empty then."""
    deleted = 0
    for path in _deepest_first(folder):
        with suppress(OSError):  # a folder that is not empty, or what another host has deleted
            if path.is_dir():
                path.rmdir()
            elif path.stat().st_mtime < oldest and not path.name.startswith("."):
                path.unlink()
                deleted += 1
    return deleted


def _deepest_first(folder: Path) -> Iterator[Path]:
    """All that is below the folder; a folder comes after what it holds."""
    yield from sorted(folder.rglob("*"), reverse=True)
