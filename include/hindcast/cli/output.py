"""How a command prints what it found: a table for people, or JSON for programs. One class, so that every listing looks alike."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

#: Columns of the control tables whose text is JSON.
JSON_COLUMNS = frozenset({"checkpoint", "detail", "start_offsets", "end_offsets", "plan", "versions", "ratios", "keys"})
_LARGE = 1000  # from here on a table leaves fractions out
_PIPED_WIDTH = 240  # where there is no terminal, lines are not cut to 80


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


class Output:
    r"""Prints rows to stdout in one format.

    JSON is one array of objects: instants in ISO 8601 with an offset, JSON columns decoded, bytes as text in which what is not
    UTF-8 stands as ``\xNN``.
    """

    def __init__(self, form: Format) -> None:
        self._form = form

    def rows(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None, empty: str = "Nothing yet.") -> None:
        """Print the rows.

        :param columns: those of a table, in order; JSON always has all
        :param empty: what a table says where there are no rows
        """
        plain = [{name: self._plain(name, value) for name, value in row.items()} for row in rows]
        if self._form is Format.JSON:
            json.dump(plain, sys.stdout, indent=2)
            sys.stdout.write("\n")
        elif plain:
            self._table(plain, columns or list(plain[0]))
        else:
            print(empty)

    def row(self, row: Mapping[str, Any]) -> None:
        """Print one object: as JSON an object, as a table a line for each of its fields."""
        plain = {name: self._plain(name, value) for name, value in row.items()}
        if self._form is Format.JSON:
            print(json.dumps(plain))
        else:
            self._table([{"field": name, "value": value} for name, value in plain.items()], ["field", "value"])

    @staticmethod
    def _plain(name: str, value: Any) -> Any:
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat()
        if isinstance(value, bytes):
            return value.decode("utf-8", "backslashreplace")
        if name in JSON_COLUMNS and isinstance(value, str) and value:
            try:
                return json.loads(value)
            except ValueError:
                return value
        return value

    @staticmethod
    def _table(rows: list[dict[str, Any]], columns: Sequence[str]) -> None:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        numeric = {name for name in columns if all(isinstance(row.get(name), int | float | None) for row in rows)}
        for name in columns:
            table.add_column(name, justify="right" if name in numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*[Text(_cell(row.get(name))) for name in columns])  # Text: data is never read as markup
        console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < _LARGE else f"{value:,.0f}"
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value)
