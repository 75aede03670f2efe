"""How a command prints what it found: a table for people, or JSON for programs. One class, so that every listing looks alike."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from hindcast.cli.table import Columns, lay_out

#: Columns of the control tables whose text is JSON.
JSON_COLUMNS = frozenset({"checkpoint", "detail", "start_offsets", "end_offsets", "plan", "versions", "ratios", "keys"})
#: Columns whose text is a JSON list; an empty one is nothing to a person.
_LISTS = frozenset({"failed"})
#: Bytes that are no text stand in a column of this ending; then the column itself is null.
BASE64 = "_base64"
#: Clears a terminal and puts the cursor into its first line.
_CLEAR = "\x1b[2J\x1b[H"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class Format(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


class Output:
    """Prints rows to stdout in one format.

    JSON is one array of objects: instants in ISO 8601 with an offset, JSON columns decoded. Bytes that are UTF-8 stand as text in their
    column ``x``, all others in ``x_base64``; one of the two is null.

    A table on a terminal is fitted to it; elsewhere, and as ``wide``, no cell is cut. ``wide`` has every column.

    :param wide: a table with every column, uncut: as the format ``wide``
    :param watch: whether a listing is printed again and again, until Ctrl-C
    :param every: seconds from one look to the next
    """

    def __init__(self, form: Format, *, wide: bool = False, watch: bool = False, every: float = 2.0) -> None:
        self._form = form
        if wide and form is Format.TABLE:
            self._form = Format.WIDE
        self._watch = watch
        self._every = every

    def listing(
        self, read: Callable[[], Sequence[Mapping[str, Any]]], columns: Columns | None = None, empty: str = "Nothing yet.", notice: str = ""
    ) -> None:
        """Print what ``read`` returns; while watching again and again. Ctrl-C ends that, and the command ends well.

        :param empty: what is said on stderr if there are no rows
        :param notice: what is said on stderr whatever the rows are
        """
        if not self._watch:
            self.rows(read(), columns, empty, notice)
            return
        with suppress(KeyboardInterrupt):
            while True:
                rows = read()
                if self._form is not Format.JSON and sys.stdout.isatty():
                    print(f"{_CLEAR}{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}, every {self._every:g} s until Ctrl-C")
                self.rows(rows, columns, empty, notice)
                sys.stdout.flush()
                time.sleep(self._every)

    def rows(
        self, rows: Sequence[Mapping[str, Any]], columns: Columns | None = None, empty: str = "Nothing yet.", notice: str = ""
    ) -> None:
        """Print the rows.

        :param columns: those of a table; JSON always has all
        :param empty: what is said on stderr if there are no rows
        """
        if self._form is Format.JSON:
            plain = [_plain(row) for row in rows]
            if self._watch:
                print(json.dumps(plain, default=str))  # a line for each look
            else:
                print(json.dumps(plain, indent=2, default=str))
        elif rows:
            self._table(rows, columns or Columns(list(rows[0])))
        elif empty:
            print(empty, file=sys.stderr)
        if notice:
            print(notice, file=sys.stderr)

    def row(self, row: Mapping[str, Any]) -> None:
        """Print one object: as JSON an object, as a table a line for each of its fields."""
        if self._form is Format.JSON:
            print(json.dumps(_plain(row), default=str))
            return
        fields = [{"field": name, "value": value} for name, value in _legible(row, whole=True).items()]
        self._table(fields, Columns(["field", "value"], prose=frozenset({"value"})))

    def _table(self, rows: Sequence[Mapping[str, Any]], columns: Columns) -> None:
        wide = self._form is Format.WIDE
        legible = [_legible(row, whole=wide) for row in rows]
        width = None
        if sys.stdout.isatty() and not wide:
            width = shutil.get_terminal_size().columns
        if wide:
            columns = columns.every(legible)
        table = lay_out(legible, columns, width)
        header, *lines = table.lines
        if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
            header = f"{_BOLD}{header}{_PLAIN}"
        print("\n".join([header, *lines]))
        if table.left_out:
            print(f"Left out at {width} columns: {', '.join(table.left_out)}. `--wide` shows all.", file=sys.stderr)


def missing_home(home: Path, tables_url: str) -> str:
    """What to say if nothing was ever kept here: there is no home, and the tables would be in it. Empty if there is one."""
    if tables_url or home.exists():
        return ""
    return "no Hindcast home here yet: run `hindcast up` or set HINDCAST_HOME"


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row in JSON's types, without loss."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, bytes):
            text = _text(value)
            plain[name] = text
            plain[name + BASE64] = None
            if text is None:
                plain[name + BASE64] = base64.b64encode(value).decode("ascii")
        else:
            plain[name] = _decoded(name, value)
    return plain


def _text(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _decoded(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if name in JSON_COLUMNS and isinstance(value, str) and value:
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _legible(row: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
    r"""The row for people: bytes as text in which what is not UTF-8 stands as ``\xNN``, instants to the second unless ``whole``."""
    legible: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, bytes):
            legible[name] = value.decode("utf-8", "backslashreplace")
        elif isinstance(value, datetime) and not whole:
            legible[name] = f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        elif name in _LISTS and value == "[]":
            legible[name] = None
        else:
            legible[name] = _decoded(name, value)
    return legible
