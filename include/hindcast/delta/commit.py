"""The commits of a Delta table: read with their true versions, and retried until one lands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hindcast.errors import StoreUnavailableError

#: The key of Hindcast's part of a commit's metadata (Delta's commitInfo).
METADATA_KEY = "hindcast"
#: The configuration of a table whose commits hold what must never be forgotten.
KEEP_THE_LOG = {"delta.logRetentionDuration": "interval 36500 days", "delta.enableExpiredLogCleanup": "false"}
#: So many commits are read at first.
_FIRST = 32
#: Each further reading asks for this many times as many commits as the one before.
_GROWTH = 4
#: So often the log is read again because a commit landed in between.
_READINGS = 50
#: So often a commit is attempted. The waits in between take 9 s in the mean and 17 s at most.
_ATTEMPTS = 40

_Result = TypeVar("_Result")


def newest_commits(table: DeltaTable, limit: int | None = None) -> list[dict[str, Any]]:
    """The newest commits of the table's log, newest first, each with its ``version``. This moves the handle
    to the newest version.

    delta-rs reads the log from its newest commit on and counts down from the version of the handle. If a
    commit has landed since the handle was read, each entry gets the number of the one before it. So this
    function reads again until no commit lands in between.

    :raises StoreUnavailableError: if others commit faster than the log can be read
    """
    for _ in range(_READINGS):
        table.update_incremental()
        version = table.version()
        entries = table.history(limit)
        table.update_incremental()
        if table.version() == version:
            return entries
    reason = "its log grows faster than it can be read"
    raise StoreUnavailableError(table=table.table_uri, action="read", reason=reason)


def commits_down(table: DeltaTable, newest: int | None = None) -> Iterator[dict[str, Any]]:
    """The table's commits from a version down, by default from the newest one. No more of the log is read
    than the caller asks for.

    Each commit comes once. A commit that lands during the reading is not among them. This moves the handle:
    never give it one that a commit is to land on.
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


def until_it_lands(url: str, attempt: Callable[[], _Result], *failures: type[Exception]) -> _Result:
    """Attempt a commit until it lands. Each attempt reads the table and decides again.

    This is the one policy of retries for commits that must land.

    :param failures: what is retried in addition to a conflict with another commit
    :raises StoreUnavailableError: if no attempt landed
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
