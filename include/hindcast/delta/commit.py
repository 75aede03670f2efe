"""The commits of a Delta table: read with their true versions, and retried until one lands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from deltalake.exceptions import CommitFailedError
from pyarrow import NativeFile
from pyarrow.fs import FileSystem
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hindcast.delta.empty_commits import empty_commit_error
from hindcast.delta.files import filesystem
from hindcast.delta.older_log import entry_of
from hindcast.errors import StoreUnavailableError

#: The key of Hindcast's part of a commit's metadata (Delta's commitInfo).
METADATA_KEY = "hindcast"
#: The configuration of a table whose commits hold what must never be forgotten.
KEEP_THE_LOG = {"delta.logRetentionDuration": "interval 36500 days", "delta.enableExpiredLogCleanup": "false"}
#: So often a commit is attempted. The waits in between take 9 s in the mean and 17 s at most.
_ATTEMPTS = 40

_Result = TypeVar("_Result")


def read_commit(url: str, storage_options: dict[str, str], version: int) -> dict[str, Any] | None:
    """What a commit of the table says of itself (Delta's commitInfo), with its ``version``; None if the log
    does not have it.

    The file is read by its name, so the version is the true one, and the price does not depend on the log.

    :raises StoreUnavailableError: if the store does not answer, or the file is torn or empty
    """
    return _read(filesystem(url, storage_options), url, version)


def read_actions(url: str, storage_options: dict[str, str], version: int) -> list[dict[str, Any]] | None:
    """The actions of a commit, as Delta's log has them; None if the log does not have it.

    :raises StoreUnavailableError: if the store does not answer, or the file is torn or empty
    """
    lines = _lines(filesystem(url, storage_options), url, version)
    if lines is None:
        return None
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise StoreUnavailableError(table=url, action="read", reason=error) from error


def commits_down(url: str, storage_options: dict[str, str], newest: int) -> Iterator[dict[str, Any]]:
    """The table's commits from a version down, as far as its log has them; see :func:`read_commit`. No more
    of the log is read than the caller asks for.
    """
    store = filesystem(url, storage_options)
    for version in range(newest, -1, -1):
        entry = _read(store, url, version)
        if entry is None:
            return
        yield entry


def commits_up(url: str, storage_options: dict[str, str], first: int) -> Iterator[dict[str, Any]]:
    """The table's commits from a version up to the newest; see :func:`read_commit`. None if the log does not
    have the first.
    """
    store = filesystem(url, storage_options)
    version = first
    while (entry := _read(store, url, version)) is not None:
        yield entry
        version += 1


def _read(store: FileSystem, url: str, version: int) -> dict[str, Any] | None:
    lines = _lines(store, url, version)
    if lines is None:
        return None
    try:
        for line in lines:
            if '"commitInfo"' not in line:
                continue
            said = json.loads(line).get("commitInfo")
            if said is not None:
                return {**said, "version": version}
    except ValueError as error:
        raise StoreUnavailableError(table=url, action="read", reason=error) from error
    return {"version": version}


def _lines(store: FileSystem, url: str, version: int) -> list[str] | None:
    """The lines of a commit's entry; None if the log does not have it."""
    try:
        with _open(store, url, version) as file:
            entry: str = file.read().decode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreUnavailableError(table=url, action="read", reason=error) from error
    if not entry:
        raise empty_commit_error(url, f"{version:020d}.json")
    return entry.splitlines()


def _open(store: FileSystem, url: str, version: int) -> NativeFile:
    if "://" in url:
        return store.open_input_stream(f"_delta_log/{version:020d}.json")
    return store.open_input_stream(str(entry_of(url, version).relative_to(url)))


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
