"""How a command prints what it found: a table for people, or JSON for programs. One class, so that every
listing has the same form.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from time import sleep
from typing import Any

from hindcast.cli.text_table import Columns, lay_out

#: Columns of the control tables whose text is JSON.
JSON_COLUMNS = frozenset(
    {"checkpoint", "detail", "start_offsets", "end_offsets", "plan", "versions", "ratios", "bounds", "keys"}
)
#: Columns whose text is a JSON list; a table shows an empty list as an empty cell.
_LISTS = frozenset({"failed"})
#: Bytes that are not UTF-8 are in a column with this ending; the column without it is then null.
BASE64 = "_base64"
#: Clears a terminal and puts the cursor into its first line.
_CLEAR = "\x1b[2J\x1b[H"
_BOLD = "\x1b[1m"
_PLAIN = "\x1b[0m"
_INSTANT = "%Y-%m-%dT%H:%M:%SZ"

Row = Mapping[str, Any]


class Format(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


class Output:
    """Prints rows to stdout in one format.

    JSON is one array of objects: instants in ISO 8601 with an offset, JSON columns decoded. Bytes that are
    UTF-8 are text in their column ``x``, all others are in ``x_base64``; one of the two is null.

    A table is fitted to the terminal. If stdout is no terminal, or with ``wide``, no cell is cut. ``wide``
    has every column.

    :param wide: a table with every column, uncut: as the format ``wide``
    :param watch: whether a listing is printed again and again, until Ctrl-C
    :param every: seconds from one listing to the next
    """

    def __init__(self, form: Format, *, wide: bool = False, watch: bool = False, every: float = 2.0) -> None:
        self._form = form
        if wide and form is Format.TABLE:
            self._form = Format.WIDE
        self._watch = watch
        self._every = every

    def listing(
        self,
        read: Callable[[], Sequence[Row]],
        columns: Columns | None = None,
        empty: str = "Nothing yet.",
        notice: str = "",
    ) -> None:
        """Print the rows that ``read`` returns; while watching, again and again. Ctrl-C ends that, and the
        command exits 0.

        :param empty: printed on stderr if there are no rows
        :param notice: printed on stderr after the rows
        """
        if not self._watch:
            self.rows(read(), columns, empty, notice)
            return
        with suppress(KeyboardInterrupt):
            while True:
                rows = read()
                self._clear_terminal()
                self.rows(rows, columns, empty, notice)
                sys.stdout.flush()
                sleep(self._every)

    def rows(
        self,
        rows: Sequence[Row],
        columns: Columns | None = None,
        empty: str = "Nothing yet.",
        notice: str = "",
    ) -> None:
        """Print the rows.

        :param columns: those of a table; JSON always has all
        :param empty: printed on stderr if there are no rows
        :param notice: printed on stderr after the rows
        """
        if self._form is Format.JSON:
            self._print_json(rows)
        elif rows:
            self._print_table(rows, columns or Columns(list(rows[0])))
        elif empty:
            print(empty, file=sys.stderr)
        if notice:
            print(notice, file=sys.stderr)

    def row(self, row: Row) -> None:
        """Print one object: as JSON an object, as a table a line for each of its fields."""
        if self._form is Format.JSON:
            print(json.dumps(_plain(row), default=str))
            return
        fields = []
        for name, value in _legible(row, whole=True).items():
            fields.append({"field": name, "value": value})
        self._print_table(fields, Columns(["field", "value"], prose=frozenset({"value"})))

    def _clear_terminal(self) -> None:
        if self._form is Format.JSON or not sys.stdout.isatty():
            return
        print(f"{_CLEAR}{datetime.now(UTC):{_INSTANT}}, every {self._every:g} s until Ctrl-C")

    def _print_json(self, rows: Sequence[Row]) -> None:
        plain = [_plain(row) for row in rows]
        indent: int | None = 2
        if self._watch:
            indent = None  # a line for each listing
        print(json.dumps(plain, indent=indent, default=str))

    def _print_table(self, rows: Sequence[Row], columns: Columns) -> None:
        wide = self._form is Format.WIDE
        legible = [_legible(row, whole=wide) for row in rows]
        width = None
        if wide:
            columns = columns.every(legible)
        elif sys.stdout.isatty():
            width = shutil.get_terminal_size().columns
        table = lay_out(legible, columns, width)
        header, *lines = table.lines
        if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
            header = f"{_BOLD}{header}{_PLAIN}"
        print("\n".join([header, *lines]))
        if table.left_out:
            names = ", ".join(table.left_out)
            print(f"Left out at {width} columns: {names}. `--wide` shows all.", file=sys.stderr)


def missing_home(home: Path, tables_url: str) -> str:
    """The message for a folder without a Hindcast home, if the tables would be in that home; else empty."""
    if tables_url or home.exists():
        return ""
    return "no Hindcast home here yet: run `hindcast up` or set HINDCAST_HOME"


def _plain(row: Row) -> dict[str, Any]:
    """The row in JSON's types, without loss."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, bytes):
            plain[name] = _decoded(name, value)
            continue
        text = _text(value)
        plain[name] = text
        plain[name + BASE64] = None
        if text is None:
            plain[name + BASE64] = base64.b64encode(value).decode("ascii")
    return plain


def _text(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _decoded(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if name not in JSON_COLUMNS or not isinstance(value, str) or not value:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _legible(row: Row, *, whole: bool) -> dict[str, Any]:
    r"""The row for people: bytes as text, in which ``\xNN`` is a byte that is not UTF-8; instants to the
    second, unless ``whole``.
    """
    legible: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, bytes):
            legible[name] = value.decode("utf-8", "backslashreplace")
        elif isinstance(value, datetime) and not whole:
            legible[name] = f"{value.astimezone(UTC):{_INSTANT}}"
        elif name in _LISTS and value == "[]":
            legible[name] = None
        else:
            legible[name] = _decoded(name, value)
    return legible
