"""The control tables, in memory: what :class:`hindcast.tables.control_tables.ControlTables` does, with the
same filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from protocols.scheduler import Scheduler
from pyarrow.parquet import filters_to_expression

from hindcast.delta.arrow_dataset import Condition
from hindcast.errors import StoreUnavailableError
from hindcast.tables.control_tables import expression_of, groups_of
from hindcast.tables.schema import SCHEMAS
from hindcast.tables.table_names import SCHEMA_VERSION, ControlTable

Row = dict[str, Any]


class MemoryTables:
    """Tables that are appended to, replaced in and read, each in one step."""

    def __init__(self, scheduler: Scheduler, url: Callable[[ControlTable], str]) -> None:
        """:param url: of a table that is on disk: those that are fenced"""
        self._scheduler = scheduler
        self.url = url
        self.tables: dict[ControlTable, pa.Table] = {}

    def open(self, _name: ControlTable) -> None:
        """The tables on disk are made with the world."""

    def append(self, name: ControlTable, rows: Sequence[Mapping[str, Any]]) -> None:
        if not rows:
            return
        data = _table(name, rows)

        def appended() -> None:
            # Reading a table of hundreds of chunks takes ten times as long.
            self.tables[name] = pa.concat_tables([self._of(name), data]).combine_chunks()

        self._call(f"append to {name}", appended)

    def replace(
        self, name: ControlTable, equal: Mapping[str, str | int], decide: Callable[[list[Row]], list[Row]]
    ) -> None:
        """Read, decide, and swap: another commit in between makes it begin again."""
        while True:
            before = self._of(name)
            met = filters_to_expression([(column, "=", value) for column, value in equal.items()])
            decided = decide(before.filter(met).to_pylist())
            self._scheduler.pause(f"replace in {name}")
            if self._of(name) is not before:
                continue
            after = pa.concat_tables([before.filter(~met), _table(name, decided)])

            def replaced(after: pa.Table = after) -> None:
                self.tables[name] = after

            replaced()
            return

    def rows(self, name: ControlTable, where: Iterable[Condition] = ()) -> list[Row]:
        found: list[Row] = self.read(name, where).to_pylist()
        return found

    def read(
        self,
        name: ControlTable,
        where: Iterable[Condition] = (),
        columns: list[str] | None = None,
        *,
        any_of: Sequence[Sequence[Condition]] = (),
    ) -> pa.Table:
        return self.newest_version(name).read(where, columns, any_of=any_of)

    def newest_version(self, name: ControlTable) -> MemoryVersion:
        return MemoryVersion(self._call(f"read {name}", lambda: self._of(name)))

    def _of(self, name: ControlTable) -> pa.Table:
        return self.tables.setdefault(name, SCHEMAS[name].empty_table())

    def _call(self, place: str, effect: Callable[[], Any]) -> Any:
        def failed(reason: str) -> Exception:
            return StoreUnavailableError(table="memory", action="used", reason=reason)

        return self._scheduler.call(place, effect, failed)


@dataclass(frozen=True)
class MemoryVersion:
    """One version of a table, which is read without a step."""

    table: pa.Table

    def read(
        self,
        where: Iterable[Condition] = (),
        columns: list[str] | None = None,
        *,
        any_of: Sequence[Sequence[Condition]] = (),
    ) -> pa.Table:
        found = self.table
        expression = expression_of(groups_of(where, any_of))
        if expression is not None:
            found = found.filter(expression)
        return found.select(columns or found.column_names)


def _table(name: ControlTable, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    stamped = [{"schema_version": SCHEMA_VERSION, **row} for row in rows]
    return pa.Table.from_pylist(stamped, schema=SCHEMAS[name])
