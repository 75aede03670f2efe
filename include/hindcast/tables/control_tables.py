"""Open, append to and read the control tables. Only delta-rs writes them: it alone keeps commits apart on
any store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow.parquet import filters_to_expression

from hindcast.clock import Clock, SystemClock
from hindcast.delta.arrow_dataset import Condition, arrow_dataset
from hindcast.delta.commit import until_it_lands
from hindcast.delta.empty_commits import refuse_empty_commits
from hindcast.delta.open_table import find_table, open_or_create, open_table
from hindcast.errors import SchemaVersionError, StoreUnavailableError
from hindcast.settings import Settings
from hindcast.tables.compaction import Compactor
from hindcast.tables.schema import APPENDED_LOG_RETENTION_SECONDS, LATER, SCHEMAS, configuration
from hindcast.tables.table_names import SCHEMA_VERSION, ControlTable

#: An append that lands later than this after its start is repeated: see :meth:`ControlTables.append`. It is
#: half of the time for which the log is kept, so that clocks may differ by the other half.
_BELIEVED_SECONDS = APPENDED_LOG_RETENTION_SECONDS / 2

#: One row: column -> value.
Row = dict[str, Any]

#: delta-rs must not retry: its own retry would replace rows that were never read.
_NO_RETRY = CommitProperties(max_commit_retries=0)


class ControlTables:
    """The control tables below ``settings.tables_url``/control. Rows are dictionaries. Safe for threads.

    The first append creates a table. Appends share one handle of a table, and each read opens it again.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._appended: dict[ControlTable, DeltaTable] = {}
        self.upkeep: dict[ControlTable, Compactor] = {}
        for name in tuple(ControlTable):
            self.upkeep[name] = Compactor(name, partial(self.open, name), settings.storage_options)

    def url(self, name: ControlTable) -> str:
        return self._settings.table("control", name)

    def open(self, name: ControlTable) -> DeltaTable:
        """The table at its newest version, created on first use.

        :raises SchemaVersionError: if the table's columns are not the ones that this Hindcast writes
        :raises StoreUnavailableError: if the store does not answer
        """
        table = self.find(name)
        if table is None:
            url = self.url(name)
            options = self._settings.storage_options
            table = open_or_create(url, SCHEMAS[name], options, name, configuration(name))
            _check_columns(url, table, SCHEMAS[name])
        return table

    def find(self, name: ControlTable) -> DeltaTable | None:
        """The table at its newest version; None if there is none. A reader creates no table and no folder.

        :raises SchemaVersionError: if the table's columns are not the ones that this Hindcast writes
        :raises StoreUnavailableError: if the store does not answer
        """
        url = self.url(name)
        refuse_empty_commits(url)
        table = find_table(url, self._settings.storage_options)
        if table is None:
            return None
        missing = _missing_later_columns(name, table)
        if missing:
            table = self._add_columns(name, table, missing)
        _check_columns(url, table, SCHEMAS[name])
        return table

    def _add_columns(self, name: ControlTable, table: DeltaTable, columns: frozenset[str]) -> DeltaTable:
        """The table with columns that an older Hindcast did not have. Another process may add them first."""
        fields = [field for field in Schema.from_arrow(SCHEMAS[name]).fields if field.name in columns]
        url = self.url(name)
        try:
            table.alter.add_columns(fields)
        except (DeltaError, OSError) as error:
            newest = open_table(url, self._settings.storage_options)
            if _missing_later_columns(name, newest):
                raise StoreUnavailableError(
                    table=url, action="given its new columns", reason=error
                ) from error
            return newest
        return table

    def append(self, name: ControlTable, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append the rows in one commit; missing columns become null. Appends never conflict with each other.

        A process may sleep in the middle of an append, until the log after the version that it has read is
        deleted. It then commits into the gap, which nobody reads. So an append that landed late is repeated:
        its rows are there at least once, and twice if there was no gap.

        :raises StoreUnavailableError: if the rows could not be written
        """
        if not rows:
            return
        # A key that is no column of the table is dropped, so each row may get the stamp.
        stamped = [{"schema_version": SCHEMA_VERSION, **row} for row in rows]
        data = pa.Table.from_pylist(stamped, schema=SCHEMAS[name])
        url = self.url(name)
        try:
            version = until_it_lands(url, lambda: self._append(name, data))
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=url, action="written", reason=error) from error
        self.upkeep[name].committed(version)

    def _append(self, name: ControlTable, data: pa.Table) -> int:
        """Append once; return the version.

        :raises CommitFailedError: if it must be repeated
        """
        with self._lock:
            began = self._clock.monotonic()
            kept = self._appended.pop(name, None)  # put back after success
            if kept is None:
                table = self.open(name)
                write_deltalake(table, data, mode="append")
            else:
                table = kept
                _append_to_kept(table, data)
            late = self._clock.monotonic() - began
            if late > _BELIEVED_SECONDS:
                raise CommitFailedError(f"it landed {late:.0f} s after it was begun")
            self._appended[name] = table
            return table.version()

    def replace(
        self, name: ControlTable, equal: Mapping[str, str | int], decide: Callable[[list[Row]], list[Row]]
    ) -> None:
        """Replace the rows that have these values by what is decided from them, in one commit.

        If another process commits in between, the rows are read and decided again. The table must be one of
        :data:`hindcast.tables.schema.REPLACED`.

        :raises StoreUnavailableError: if the rows could not be written
        """
        url = self.url(name)
        try:
            version = until_it_lands(url, lambda: self._replace(name, equal, decide))
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=url, action="written", reason=error) from error
        self.upkeep[name].committed(version)

    def _replace(
        self, name: ControlTable, equal: Mapping[str, str | int], decide: Callable[[list[Row]], list[Row]]
    ) -> int:
        """Replace once; return the version.

        :raises CommitFailedError: if it must be repeated
        """
        began = self._clock.monotonic()
        table = self.open(name)
        where = [(column, "=", value) for column, value in equal.items()]
        before = TableVersion(name, self.url(name), table)
        decided = decide(before.read(where, SCHEMAS[name].names).to_pylist())
        stamped = [{**row, "schema_version": SCHEMA_VERSION} for row in decided]
        data = pa.Table.from_pylist(stamped, schema=SCHEMAS[name])
        predicate = " AND ".join(f"{column} = {_literal(value)}" for column, value in equal.items())
        write_deltalake(table, data, mode="overwrite", predicate=predicate, commit_properties=_NO_RETRY)
        late = self._clock.monotonic() - began
        if late > _BELIEVED_SECONDS:
            raise CommitFailedError(f"it landed {late:.0f} s after it was begun")
        return table.version()

    def rows(self, name: ControlTable, where: Iterable[Condition] = ()) -> list[dict[str, Any]]:
        """All rows that meet every condition, in no order; none if there is no table."""
        return list(self.read(name, where).to_pylist())

    def read(
        self,
        name: ControlTable,
        where: Iterable[Condition] = (),
        columns: list[str] | None = None,
        *,
        any_of: Sequence[Sequence[Condition]] = (),
    ) -> pa.Table:
        """The same rows as an Arrow table; see :meth:`TableVersion.read`.

        :raises StoreUnavailableError: if the store does not answer, or a file of the table is gone or torn
        """
        return self.newest_version(name).read(where, columns, any_of=any_of)

    def newest_version(self, name: ControlTable) -> TableVersion:
        """The table as it is now, to be read several times.

        :raises StoreUnavailableError: if the store does not answer
        """
        return TableVersion(name, self.url(name), self.find(name))

    def newest(self, name: ControlTable, by: str, limit: int, where: Iterable[Condition] = ()) -> pa.Table:
        """The newest ``limit`` of the rows that meet every condition, the newest first.

        :param by: the column of the instant; rows without it are the oldest
        :raises StoreUnavailableError: if the store does not answer, or a file of the table is gone or torn
        """
        version = self.newest_version(name)
        conditions = list(where)
        # The instants say which rows are wanted, so that the wide columns of all others are never read.
        instants = version.read(conditions, [by])[by].sort("descending")
        if 0 < limit < len(instants):
            oldest = instants[limit - 1].as_py()
            if oldest is not None:
                conditions.append((by, ">=", oldest))
        rows = version.read(conditions, SCHEMAS[name].names)
        return rows.sort_by([(by, "descending")]).slice(0, limit)


@dataclass(frozen=True)
class TableVersion:
    """One version of a control table: whatever is committed meanwhile, each reading sees the same rows.

    ``table``: None if there is no table, so that there are no rows.
    """

    name: ControlTable
    url: str
    table: DeltaTable | None

    def read(
        self,
        where: Iterable[Condition] = (),
        columns: list[str] | None = None,
        *,
        any_of: Sequence[Sequence[Condition]] = (),
    ) -> pa.Table:
        """The rows that meet every condition, in no order.

        :param columns: these columns only
        :param any_of: of these groups of conditions a row must also meet all of one; none by default
        :raises StoreUnavailableError: if the store does not answer, or a file of the table is gone or torn
        """
        if self.table is None:
            schema = SCHEMAS[self.name]
            return schema.empty_table().select(columns or schema.names)
        groups = groups_of(where, any_of)
        expression = expression_of(groups)
        try:
            return arrow_dataset(self.table, groups).to_table(columns=columns, filter=expression)
        except (DeltaError, OSError, pa.ArrowInvalid) as error:
            raise StoreUnavailableError(table=self.url, action="read", reason=error) from error


def groups_of(where: Iterable[Condition], any_of: Sequence[Sequence[Condition]]) -> list[list[Condition]]:
    """Groups of conditions, of one of which a row must meet all. See :meth:`TableVersion.read`."""
    conditions = list(where)
    return [[*conditions, *group] for group in any_of or [()]]


def expression_of(groups: list[list[Condition]]) -> pa.dataset.Expression | None:
    """What a row must meet; None if there is no condition."""
    if not any(groups):
        return None
    return filters_to_expression(groups)


def _literal(value: str | int) -> str:
    """The value in an SQL predicate."""
    if isinstance(value, int):
        return str(int(value))
    doubled = value.replace("'", "''")
    return f"'{doubled}'"


def _append_to_kept(table: DeltaTable, data: pa.Table) -> None:
    """Append through a handle that an earlier append has opened.

    :raises CommitFailedError: if it failed. The handle may be the cause: while the process slept, the log
        that the handle reads next may have been deleted. So the table must be opened again.
    """
    try:
        table.update_incremental()
        write_deltalake(table, data, mode="append")
    except (DeltaError, OSError) as error:
        raise CommitFailedError(str(error)) from error


def _missing_later_columns(name: ControlTable, table: DeltaTable) -> frozenset[str]:
    """The columns that the table lacks because an older Hindcast created it."""
    found = {field.name for field in table.schema().fields}
    return LATER.get(name, frozenset()) - found


def _check_columns(url: str, table: DeltaTable, expected: pa.Schema) -> None:
    found = {field.name for field in table.schema().fields}
    missing = [name for name in expected.names if name not in found]
    if missing:
        raise SchemaVersionError(
            table=url,
            found=f"without {', '.join(missing)}",
            supported=SCHEMA_VERSION,
            cure="It was not written by this Hindcast: choose another HINDCAST_TABLES_URL.",
        )
