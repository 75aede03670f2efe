"""The commits of a Delta table: read with their true versions, and tried until one lands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hindcast.errors import SchemaVersionError, StoreUnavailableError

#: The key of our part of a commit's metadata (Delta's commitInfo).
METADATA_KEY = "hindcast"
#: The configuration of a table whose commits say what must never be forgotten.
KEEP_THE_LOG = {"delta.logRetentionDuration": "interval 36500 days", "delta.enableExpiredLogCleanup": "false"}
#: Commits that are read at first; each further reading asks for so many times as many.
_FIRST, _GROWTH = 32, 4
_READINGS = 50
_ATTEMPTS = 40

_Result = TypeVar("_Result")


def newest_commits(table: DeltaTable, limit: int | None = None) -> list[dict[str, Any]]:
    """What the table's log says of its newest commits, newest first, each with its ``version``. Moves the handle to the newest version.

    delta-rs reads the log from its newest commit on and counts down from the version of the handle: where a commit has landed since the
    handle was read, each entry gets the number of the one before it. So this asks again until no commit came in between.

    :raises StoreUnavailableError: where others commit faster than the log can be read
    """
    for _ in range(_READINGS):
        table.update_incremental()
        version = table.version()
        entries = table.history(limit)
        table.update_incremental()
        if table.version() == version:
            return entries
    raise StoreUnavailableError(table=table.table_uri, action="read", reason="its log grows faster than it can be read")


def commits_down(table: DeltaTable, newest: int | None = None) -> Iterator[dict[str, Any]]:
    """The table's commits from a version down, the newest one by default; no more of the log is read than is asked for.

    Each comes once: what lands while they are read is not among them. Moves the handle: never one that a commit is to land on.
    """
    limit = _FIRST
    below = None if newest is None else newest + 1
    while True:
        entries = newest_commits(table, limit)
        for entry in entries:
            if below is None or entry["version"] < below:
                below = entry["version"]
                yield entry
        if len(entries) < limit:
            return
        limit *= _GROWTH


def create_table(
    url: str,
    schema: pa.Schema,
    storage_options: dict[str, str],
    cure: str,
    name: str | None = None,
    configuration: Mapping[str, str] | None = None,
) -> DeltaTable:
    """Open the table, or make it where there is none, beside others who may make it at the same moment.

    :param cure: what to do about a table with other columns
    :raises SchemaVersionError: where there is one with other columns
    :raises StoreUnavailableError: where the store does not answer
    """
    options = storage_options or None
    try:
        try:
            table = DeltaTable(url, storage_options=options)
        except TableNotFoundError:
            with suppress(CommitFailedError):  # somebody else made it at the same moment
                DeltaTable.create(url, schema, mode="ignore", name=name, configuration=configuration, storage_options=options)
            table = DeltaTable(url, storage_options=options)
        found = [field.name for field in table.schema().fields]
    except (DeltaError, OSError) as error:
        raise StoreUnavailableError(table=url, action="created", reason=error) from error
    if found != schema.names:
        raise SchemaVersionError(table=url, found=f"with the columns {', '.join(found)}", supported=", ".join(schema.names), cure=cure)
    return table


def until_it_lands(url: str, attempt: Callable[[], _Result], *failures: type[Exception]) -> _Result:
    """Try a commit until it lands: each attempt reads the table and decides again.

    :param failures: what is tried again beside a conflict with another commit
    :raises StoreUnavailableError: where none landed
    """
    retrying = Retrying(
        retry=retry_if_exception_type((CommitFailedError, *failures)),
        wait=wait_random_exponential(multiplier=0.01, max=0.5),
        stop=stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    try:
        return retrying(attempt)
    except CommitFailedError as error:
        raise StoreUnavailableError(table=url, action="written", reason=error) from error
