"""Open, append to and read the control tables. Only delta-rs writes them: it alone keeps commits apart on any store."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyarrow.dataset import Dataset
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyarrow.parquet import filters_to_expression
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hindcast.clock import Clock, SystemClock
from hindcast.errors import SchemaVersionError, StoreUnavailableError
from hindcast.settings import Settings
from hindcast.tables.compaction import Compactor
from hindcast.tables.schema import APPENDED_LOG_RETENTION_SECONDS, LATER, SCHEMA_VERSION, SCHEMAS, ControlTable, configuration

#: One condition of a read: (column, one of = != < <= > >= in, value); conditions are joined by AND. Values are never put into SQL.
Condition = tuple[str, str, Any]

#: An append that lands later than this after it was begun is made again: see :meth:`ControlTables.append`. Half of the time for which the
#: log is kept, so that clocks may differ by the other half.
_BELIEVED_SECONDS = APPENDED_LOG_RETENTION_SECONDS / 2

#: Arrow's file system of a folder on this machine.
_below = partial(SubTreeFileSystem, base_fs=LocalFileSystem())

_retry_conflicts = retry(
    retry=retry_if_exception_type(CommitFailedError),
    wait=wait_random_exponential(multiplier=0.02, max=1.0),
    stop=stop_after_attempt(20),
    reraise=True,
)


class ControlTables:
    """The control tables below ``settings.tables_url``/control. Rows go in and come out as dictionaries. Safe for threads.

    A table is made by its first append. It is opened once to be appended to, and anew for each read.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._appended: dict[ControlTable, DeltaTable] = {}
        self.upkeep = {name: Compactor(name, partial(self.open, name), settings.storage_options) for name in tuple(ControlTable)}

    def url(self, name: ControlTable) -> str:
        return self._settings.table("control", name)

    def open(self, name: ControlTable) -> DeltaTable:
        """The table at its newest version, made on first use.

        :raises SchemaVersionError: where the table's columns are not the ones this Hindcast writes
        :raises StoreUnavailableError: where the store does not answer
        """
        table = self.find(name)
        if table is None:
            table = self._create(name)
            _check_columns(self.url(name), table, SCHEMAS[name])
        return table

    def find(self, name: ControlTable) -> DeltaTable | None:
        """The table at its newest version, None if nobody has made it. Whoever only reads makes no table and no folder.

        :raises SchemaVersionError: where the table's columns are not the ones this Hindcast writes
        :raises StoreUnavailableError: where the store does not answer
        """
        url = self.url(name)
        refuse_empty_commits(url, newest_only=True)
        try:
            table = self._newest(url)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=url, action="opened", reason=error) from error
        if later := LATER.get(name, frozenset()) - {field.name for field in table.schema().fields}:
            table = self._add(name, table, later)
        _check_columns(url, table, SCHEMAS[name])
        return table

    def _add(self, name: ControlTable, table: DeltaTable, columns: frozenset[str]) -> DeltaTable:
        """The table with columns that an older Hindcast did not have; whoever is slower finds them there."""
        fields = [field for field in Schema.from_arrow(SCHEMAS[name]).fields if field.name in columns]
        try:
            table.alter.add_columns(fields)
        except (DeltaError, OSError) as error:
            found = self._newest(self.url(name))
            if columns - {field.name for field in found.schema().fields}:
                raise StoreUnavailableError(table=self.url(name), action="given its new columns", reason=error) from error
            return found
        return table

    def _create(self, name: ControlTable) -> DeltaTable:
        url = self.url(name)
        try:
            return DeltaTable.create(
                url,
                SCHEMAS[name],
                mode="ignore",
                name=name,
                configuration=configuration(name),
                storage_options=self._settings.storage_options or None,
            )
        except CommitFailedError:  # somebody else made it between our look and our commit
            return self._newest(url)
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=url, action="created", reason=error) from error

    def _newest(self, url: str) -> DeltaTable:
        return DeltaTable(url, storage_options=self._settings.storage_options or None)

    def append(self, name: ControlTable, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append the rows in one commit; missing columns become null. Appends never conflict with each other.

        A process that slept in the middle may wake when the log after the version it has read is deleted, and then commits into the gap,
        where nobody reads. So what landed late is appended again: at least once, and twice where the first was no gap.
        """
        if not rows:
            return
        # What is no column of the table is left out, so the stamp need not be asked for.
        data = pa.Table.from_pylist([{"schema_version": SCHEMA_VERSION, **row} for row in rows], schema=SCHEMAS[name])
        try:
            self._append(name, data)
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=self.url(name), action="written", reason=error) from error

    @_retry_conflicts
    def _append(self, name: ControlTable, data: pa.Table) -> None:
        with self._lock:
            began = self._clock.monotonic()
            kept = self._appended.pop(name, None)  # put back once it has served
            table = self.open(name) if kept is None else kept
            try:
                if kept is not None:
                    table.update_incremental()
                write_deltalake(table, data, mode="append")
            except (DeltaError, OSError) as error:
                if kept is None:
                    raise
                # It may be the handle's fault: while a process slept, the log may have been deleted that its handle reads next.
                raise CommitFailedError(str(error)) from error
            if (late := self._clock.monotonic() - began) > _BELIEVED_SECONDS:
                raise CommitFailedError(f"it landed {late:.0f} s after it was begun")
            self._appended[name], version = table, table.version()
        self.upkeep[name].committed(version)

    def rows(self, name: ControlTable, where: Iterable[Condition] = ()) -> list[dict[str, Any]]:
        """All rows that meet every condition, in no order; none if the table is not there."""
        return list(self.read(name, where).to_pylist())

    def read(self, name: ControlTable, where: Iterable[Condition] = (), columns: list[str] | None = None) -> pa.Table:
        """The same rows as a table, for whoever needs few of many.

        :raises StoreUnavailableError: where the store does not answer, or a file of the table is gone or torn
        """
        table, conditions = self.find(name), list(where)
        if table is None:
            return SCHEMAS[name].empty_table().select(columns or SCHEMAS[name].names)
        try:
            return arrow_dataset(table).to_table(columns=columns, filter=filters_to_expression(conditions) if conditions else None)
        except (DeltaError, OSError, pa.ArrowInvalid) as error:
            raise StoreUnavailableError(table=self.url(name), action="read", reason=error) from error


def arrow_dataset(table: DeltaTable) -> Dataset:
    """What any Delta table of ours is read by: the files of its version, on a local disk through Arrow's own file system.

    deltalake's is a Python object, which Arrow's threads let go of after a read has returned: a process that ends then is aborted.
    """
    folder = urlsplit(table.table_uri)
    files = _below(unquote(folder.path)) if folder.scheme == "file" else None
    return table.to_pyarrow_dataset(filesystem=files)


def refuse_empty_commits(url: str, *, newest_only: bool = False) -> None:
    """Refuse a table on a local disk whose log has an empty commit file, as a machine that lost its power may leave one.

    delta-rs takes such a file for a commit that did nothing: what it held would be skipped in silence.

    :param newest_only: whether nobody reads a version before the last checkpoint, so that the commits before it need no look
    :raises StoreUnavailableError: naming the file
    """
    if "://" in url:
        return  # an object store never shows a part of an object
    with suppress(FileNotFoundError), os.scandir(Path(url) / "_delta_log") as log:
        entries = list(log)
        # Names begin with their version in twenty digits, so they are in the order of the versions.
        first = max((entry.name for entry in entries if ".checkpoint." in entry.name), default="") if newest_only else ""
        for entry in entries:
            if entry.name > first and entry.name.endswith(".json") and entry.stat().st_size == 0:
                reason = f"the commit {entry.name} of its log is empty, and skipping it would lose rows: restore that file"
                raise StoreUnavailableError(table=url, action="read", reason=reason)


def _check_columns(url: str, table: DeltaTable, expected: pa.Schema) -> None:
    found = {field.name for field in table.schema().fields}
    if missing := [name for name in expected.names if name not in found]:
        cure = "It was not written by this Hindcast: choose another HINDCAST_TABLES_URL."
        raise SchemaVersionError(table=url, found=f"without {', '.join(missing)}", supported=SCHEMA_VERSION, cure=cure)


def utc_from_ms(milliseconds: int) -> datetime:
    """Epoch milliseconds as an aware instant."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
