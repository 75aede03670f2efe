"""One application's place in the log of a Delta table, and its next commit there.

delta-rs lists the log three times for a commit. An object store lists only what comes after a name, but a
local disk gives all entries: 2.4 us each, all in all. So on a local disk an application follows the log by
the names of its entries (:mod:`hindcast.delta.log_state`), and appends the next one itself, as Delta's
PROTOCOL.md has it ("Delta Log Entries", "Actions", "Requirements for Writers"). What that costs does not
depend on the log.

The entry of version V + 1 is appended in these steps, after :meth:`LocalLog.reached` has said that V is the
newest version:

1. the entry is written whole, under a name that no reader knows;
2. the log still has V. The oldest entries are deleted first, so V + 1 was not made and deleted;
3. a hard link gives the draft the entry's name. It fails if another writer has made V + 1;
4. the draft's first name is deleted.

A process may be stopped right before step 3, for longer than the log is kept. Then it writes into a gap that
nobody reads. So what was reached long ago is not believed: neither a commit that lands so late, nor that an
entry which is missing was never there.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import structlog
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from hindcast.delta.application_ids import applications
from hindcast.delta.commit import METADATA_KEY
from hindcast.delta.empty_commits import refuse_empty_commits
from hindcast.delta.files import DataFile
from hindcast.delta.log_state import LogState, entry_path, follow, is_in_log, read_state
from hindcast.delta.open_table import find_table
from hindcast.errors import StoreUnavailableError

_log = structlog.get_logger(__name__)

#: What was reached longer ago is read anew, and a commit that lands later than this is not believed. It is
#: less than half of the shortest time for which a log is kept to which applications commit.
BELIEVED_SECONDS = 120.0
#: Tables of this version of the protocol have no features that an append must respect, and are what delta-rs
#: makes by default.
PLAIN_WRITER = 2
#: Delta's own default of ``delta.checkpointInterval``.
_CHECKPOINT_EVERY = "100"


class Reached(NamedTuple):
    """The newest version of a table, and the number that its log has for the application; None before its
    first commit.
    """

    number: int | None
    version: int


class ApplicationLog:
    """The log of a table on any store, as delta-rs reads it. Not for threads."""

    def __init__(self, url: str, storage_options: dict[str, str], app: str) -> None:
        self.url = url
        self.app = app
        self.storage_options = storage_options
        self._handle: DeltaTable | None = None
        self._reached_at = 0.0  # monotonic

    def reached(self) -> Reached:
        """The application's place in the newest version of the table.

        :raises TableNotFoundError: if there is no table. That is no :class:`StoreUnavailableError`, because a
            retry would not help.
        :raises StoreUnavailableError: if the store does not answer
        """
        self._reached_at = time.monotonic()
        table = self._updated()
        return Reached(table.transaction_version(self.app), table.version())

    def columns(self) -> Sequence[str] | None:
        """The names of the table's columns; None if there is no table.

        :raises StoreUnavailableError: if the store does not answer
        """
        try:
            self.reached()
        except TableNotFoundError:
            return None
        return self._columns()

    def _columns(self) -> Sequence[str]:
        return [column.name for column in self._at_reached().schema().fields]

    def adopt(self, table: DeltaTable) -> None:
        """Begin with a handle that was opened just now."""
        self._reached_at = time.monotonic()
        self._handle = table

    def forget(self) -> None:
        """It is not known what the table holds: the next reading opens it again."""
        self._handle = None

    def append(self, files: Sequence[DataFile], number: int, metadata: str) -> None:
        """Commit files as the version after the one that was reached, with the application's next number.

        :param metadata: what the commit says of itself; empty for nothing
        :raises CommitFailedError: if another commit was faster; nothing was written
        :raises DeltaError or OSError: if it is not known whether it has landed
        """
        actions: list[AddAction | RemoveAction] = [file.as_action() for file in files]

        def write(table: DeltaTable, properties: CommitProperties, hooks: PostCommitHookProperties) -> None:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                commit_properties=properties,
                post_commithook_properties=hooks,
            )

        self.write(write, number, metadata)

    def write(
        self,
        write: Callable[[DeltaTable, CommitProperties, PostCommitHookProperties], None],
        number: int,
        metadata: str,
    ) -> bool:
        """Let delta-rs commit the version after the one that was reached; see :meth:`append`.

        :param write: makes the commit with these properties
        :returns: whether there is a commit: delta-rs makes none of a merge that changes no row
        """
        table = self._at_reached()
        reached = table.version()
        custom_metadata: dict[str, str] = {}
        if metadata:
            custom_metadata[METADATA_KEY] = metadata
        properties = CommitProperties(
            custom_metadata=custom_metadata,
            max_commit_retries=0,
            app_transactions=[Transaction(self.app, number)],
        )
        # delta-rs's default hook lists the whole log once more, to find entries that have expired. A sink
        # leaves that to the maintenance.
        cleanup = _deletes_old_log(table.metadata().configuration)
        hooks = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=cleanup)
        write(table, properties, hooks)
        self.refuse_late()
        return table.version() != reached

    def refuse_late(self) -> None:
        """Do not believe a commit that landed long after the place was reached.

        :raises CommitFailedError: if it did; the next attempt reads whether it is in the table
        """
        late = time.monotonic() - self._reached_at
        if late > BELIEVED_SECONDS:
            self.forget()
            raise CommitFailedError(f"it landed {late:.0f} s after it was decided")

    def _at_reached(self) -> DeltaTable:
        """The handle, at the version that was reached."""
        assert self._handle is not None
        return self._handle

    def _updated(self) -> DeltaTable:
        """The handle at the newest version."""
        if self._handle is None:
            self._handle = self._opened()
            return self._handle
        try:
            self._handle.update_incremental()
        except (DeltaError, OSError) as error:
            self._handle = None
            raise StoreUnavailableError(table=self.url, action="read", reason=error) from error
        return self._handle

    def _opened(self) -> DeltaTable:
        refuse_empty_commits(self.url)
        table = find_table(self.url, self.storage_options)
        if table is None:
            raise TableNotFoundError(f"there is no table {self.url}")
        return table


class LocalLog(ApplicationLog):
    """The log of a table on a local disk, followed and continued by the names of its entries."""

    def __init__(self, url: str, storage_options: dict[str, str], app: str) -> None:
        super().__init__(url, storage_options, app)
        self._folder = Path(url) / "_delta_log"
        self._state: LogState | None = None

    def reached(self) -> Reached:
        now = time.monotonic()
        state = None
        try:
            if self._state is not None and now - self._reached_at <= BELIEVED_SECONDS:
                state = follow(self._folder, self._state)
            if state is None:
                state = read_state(self._folder, [self.app])
        except (OSError, ValueError) as error:
            raise StoreUnavailableError(table=self.url, action="read", reason=error) from error
        if state is None:
            self._handle = self._opened()
            state = LogState.of_table(self._handle, [self.app])
        self._reached_at = now
        self._state = state
        return Reached(state.numbers.get(self.app), state.version)

    def _columns(self) -> Sequence[str]:
        return self._known().columns

    def adopt(self, table: DeltaTable) -> None:
        super().adopt(table)
        self._state = LogState.of_table(table, [self.app])

    def forget(self) -> None:
        super().forget()
        self._state = None

    def append(self, files: Sequence[DataFile], number: int, metadata: str) -> None:
        state = self._known()
        if state.writer_version > PLAIN_WRITER:
            super().append(files, number, metadata)
            return
        self._handle = None  # a handle keeps the table's list of files in memory
        version = state.version + 1
        self._put(version, _entry(files, self.app, number, metadata))
        self.refuse_late()
        every = int(state.configuration.get("delta.checkpointInterval", _CHECKPOINT_EVERY))
        if (version + 1) % every == 0:
            self._checkpoint(version)

    def _at_reached(self) -> DeltaTable:
        version = self._known().version
        if self._handle is None or self._handle.version() != version:
            table = self._updated()
            if table.version() != version:
                raise CommitFailedError(f"another writer has made version {version + 1}")
            return table
        return self._handle

    def _known(self) -> LogState:
        assert self._state is not None
        return self._state

    def _put(self, version: int, entry: bytes) -> None:
        """Make the entry of a version, whole, or not at all.

        :raises CommitFailedError: if there is one, or was one
        """
        draft = self._folder / f".{version:020d}.{uuid.uuid4().hex}.tmp"
        try:
            draft.write_bytes(entry)
            if not is_in_log(self._folder, version - 1):
                self.forget()
                raise CommitFailedError(f"the log has lost version {version - 1}")
            os.link(draft, entry_path(self._folder, version))
        except FileExistsError as error:
            raise CommitFailedError(f"another writer has made version {version}") from error
        finally:
            draft.unlink(missing_ok=True)

    def _checkpoint(self, version: int) -> None:
        """Write the checkpoint of the version that was appended. No other process writes the same. delta-rs
        also deletes what has expired of the log.

        A failure is no failure of the commit: the next checkpoint makes up for it.
        """
        try:
            DeltaTable(self.url, version=version).create_checkpoint()
        except (DeltaError, OSError) as error:
            message = "A table's checkpoint could not be written; a later commit tries again."
            _log.warning(message, table=self.url, version=version, reason=str(error))


def application_log(url: str, storage_options: dict[str, str], app: str) -> ApplicationLog:
    """The log of a table as an application sees it, by the store that has the table."""
    if "://" in url:
        return ApplicationLog(url, storage_options, app)
    return LocalLog(url, storage_options, app)


def log_end(url: str, storage_options: dict[str, str]) -> LogState | None:
    """What a table's log says now, of all applications; None if there is no table.

    :raises StoreUnavailableError: if the store does not answer
    """
    if "://" not in url:
        try:
            state = read_state(Path(url) / "_delta_log", None)
        except (OSError, ValueError) as error:
            raise StoreUnavailableError(table=url, action="read", reason=error) from error
        if state is not None:
            return state
    table = find_table(url, storage_options)
    if table is None:
        return None
    return LogState.of_table(table, applications(url, storage_options))


def _deletes_old_log(configuration: Mapping[str, str]) -> bool:
    """Whether the table's commits delete what has expired of its log. One whose log is minutes long asks for
    that.
    """
    return configuration.get("delta.enableExpiredLogCleanup") == "true"


def _entry(files: Sequence[DataFile], app: str, number: int, metadata: str) -> bytes:
    """The actions of one commit that appends files, a line each."""
    now_ms = int(time.time() * 1000)
    said: dict[str, Any] = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": "[]"},
        "isBlindAppend": True,
        "engineInfo": "hindcast",
    }
    if metadata:
        said[METADATA_KEY] = metadata
    actions: list[dict[str, Any]] = [{"commitInfo": said}]
    for file in files:
        added = {
            "path": quote(file.path, safe="/="),
            "partitionValues": file.partition,
            "size": file.size,
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": file.stats,
        }
        actions.append({"add": added})
    actions.append({"txn": {"appId": app, "version": number, "lastUpdated": now_ms}})
    return "\n".join(json.dumps(action) for action in actions).encode()
