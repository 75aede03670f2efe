"""The commits of a Delta table with their true versions."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable

from hindcast.errors import StoreUnavailableError

_ATTEMPTS = 50


def newest_commits(table: DeltaTable, limit: int | None = None) -> list[dict[str, Any]]:
    """What the table's log says of its newest commits, newest first, each with its ``version``. Moves the handle to the newest version.

    delta-rs reads the log from its newest commit on and counts down from the version of the handle: where a commit has landed since the
    handle was read, each entry gets the number of the one before it. So this asks again until no commit came in between.

    :raises StoreUnavailableError: where others commit faster than the log can be read
    """
    for _ in range(_ATTEMPTS):
        table.update_incremental()
        version = table.version()
        entries = table.history(limit)
        table.update_incremental()
        if table.version() == version:
            return entries
    raise StoreUnavailableError(table=table.table_uri, action="read", reason="its log grows faster than it can be read")
