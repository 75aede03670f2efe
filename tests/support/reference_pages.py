"""`make reference`: write the pages of docs/reference from the code that they describe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from support import python_reference, settings_reference

from hindcast import errors
from hindcast.tables.event_log import EventKind
from hindcast.tables.schema import DESCRIBED, Described

FOLDER = Path(__file__).resolve().parents[2] / "docs/reference"

_TABLES = """# Tables

`make reference` writes this page from `include/hindcast/tables/schema.py`.

The control tables are Delta tables in the folder of their name, below the root of all tables. Any engine may read them; none but the
platform may write them. Instants are in UTC, and a column named `*_ms` is epoch milliseconds of event time. `hindcast events`,
`hindcast runs`, `hindcast verdicts` and others list them, with `--output json` for programs.
"""

_EVENTS = """# Events

`make reference` writes this page from `include/hindcast/tables/event_log.py`.

The table [`events`](tables.md#events) has a row for each; `hindcast events` lists them, and `--output json` has all of their
columns. A row's `cure` says what to do; [how to operate](../how-to/operate.md) says more of those that ask for something.

| kind | what has happened |
|---|---|
"""

_ERRORS = """# Errors

`make reference` writes this page from `include/hindcast/errors.py`.

All are subclasses of `HindcastError`. A command prints the message and ends with the exit code: 0 if there was nothing to do, 2 if
what was asked for must be changed, 3 if what was judged does not hold, 75 if it may succeed later, and 1 if it failed. Words in
braces are filled in.

| error | exit code | message |
|---|---:|---|
"""

#: Arrow's type to the name of it that SQL has.
_SQL = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.list_(pa.string()): "array<string>",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def tables() -> str:
    """The page of the control tables."""
    return "\n".join([_TABLES, *(line for name, table in DESCRIBED.items() for line in _table(name, table))])


def _table(name: str, table: Described) -> Iterator[str]:
    yield from (f"## {name}", "", table.row, "", "| column | type | meaning |", "|---|---|---|")
    for column, described in table.columns.items():
        yield f"| `{column}` | `{_SQL[described.type]}` | {described.meaning} |"
    yield ""


def events() -> str:
    """The page of the events."""
    return _EVENTS + "".join(f"| `{kind}` | {kind.meaning} |\n" for kind in EventKind)


def error_list() -> str:
    """The page of the errors, in the order of their module."""
    found = [
        described
        for described in vars(errors).values()
        if isinstance(described, type) and issubclass(described, errors.HindcastError)
    ]
    return _ERRORS + "".join(f"{_error(described)}\n" for described in found)


def _error(described: type[errors.HindcastError]) -> str:
    message = " ".join((inspect.getdoc(described) or "").split()).replace("|", r"\|")
    return f"| `{described.__name__}` | {described.exit_code} | {message} |"


#: The file of each page, and what makes it.
PAGES: dict[str, Callable[[], str]] = {
    "pipelines.md": python_reference.declarations,
    "python.md": python_reference.reference,
    "settings.md": settings_reference.reference,
    "tables.md": tables,
    "events.md": events,
    "errors.md": error_list,
}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, page in PAGES.items():
        (FOLDER / file).write_text(page())
