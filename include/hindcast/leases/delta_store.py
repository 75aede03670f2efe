"""The lease store on Delta, written by delta-rs. One small table, rewritten whole in each commit, so that a
read is one file.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow.fs import PyFileSystem

from hindcast.clock import Clock, SystemClock
from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.errors import CommitConflictError, CommitUnknownError, StoreUnavailableError
from hindcast.leases.delta_log import folder_of, newer, newest
from hindcast.leases.delta_rows import LeaseRows
from hindcast.leases.lease import Lease
from hindcast.leases.store import Snapshot, after
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.schema import LEASES_RETENTION_SECONDS, SCHEMAS
from hindcast.tables.table_names import ControlTable

#: A commit that lands later than this after its read is not believed. The log of a version is deleted after
#: the retention, so a process that slept that long may have written a version that others had already had and
#: deleted. Half of the retention, so that clocks may differ by the other half.
BELIEVED_SECONDS = LEASES_RETENTION_SECONDS / 2

#: delta-rs must not retry: its own retry would rebase our rows onto rows that we never read.
_NO_RETRY = CommitProperties(max_commit_retries=0)
#: The commit that makes a version also writes its checkpoint: if two processes write the same checkpoint at
#: once, a reader of it finds neither the old one nor the new one. The upkeep deletes old logs, so that no
#: renewal waits for that.
_CHECKPOINT = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
_SCHEMA = SCHEMAS[ControlTable.LEASES]
_DELTA_SCHEMA = Schema.from_arrow(_SCHEMA)
#: The version of a client that does not know what the table holds.
_UNKNOWN = -1


class LeaseTable:
    """The ``leases`` table. Safe for threads. A handle is opened once and brought up to date before each
    commit.

    The rows are kept as they were last read or written: a read of a version that this process has written
    reads no file. Also of a version that is not the newest any more they say which rows are the same.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._tables = ControlTables(settings)
        self._url = self._tables.url(ControlTable.LEASES)
        self._options = settings.storage_options or None
        self._clock = clock or SystemClock()
        self._handle: DeltaTable | None = None
        self._folder = folder_of(self._url, settings.storage_options)
        self._rows = LeaseRows()
        self._rows_version = _UNKNOWN
        self._read_at = 0.0  # monotonic
        self._lock = threading.Lock()
        self.upkeep = self._tables.upkeep[ControlTable.LEASES]

    def read(self) -> Snapshot:
        """See :meth:`hindcast.leases.store.LeaseStore.read`. The token is the version that was read."""
        with self._lock:
            now = self._clock.monotonic()
            try:
                if not self._follow_log(now):
                    self._read_by_delta()
            except (DeltaError, OSError, pa.ArrowException) as error:
                self._forget()
                raise StoreUnavailableError(table=self._url, action="read", reason=error) from error
            self._read_at = now
            return Snapshot(self._rows.leases, token=self._rows_version)

    def _follow_log(self, now: float) -> bool:
        """Read what the log has after the version that is known.

        :returns: False if only Delta's own reader can tell
        """
        if self._rows_version == _UNKNOWN or now - self._read_at > BELIEVED_SECONDS:
            end = newest(self._folder)
        else:
            end = newer(self._folder, self._rows_version)
        if end is None:
            return False
        if end.file:
            try:
                with self._folder.open(end.file) as content, pq.ParquetFile(content) as file:
                    # It is small: to start threads would take longer than to read it.
                    data = file.read(use_threads=False)
            except (OSError, pa.ArrowException):
                return False
            if data.schema.names != _SCHEMA.names:
                return False
            self._rows = self._rows.read(data, self._url)
        self._rows_version = end.version
        return True

    def _read_by_delta(self) -> None:
        """Read the table's newest version as Delta's own reader finds it."""
        if self._handle is None:
            self._handle = self._tables.open(ControlTable.LEASES)
        else:
            self._handle.update_incremental()
        version = self._handle.version()
        if version != self._rows_version:
            self._rows = self._rows.read(arrow_dataset(self._handle).to_table(), self._url)
            self._rows_version = version

    def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
        """See :meth:`hindcast.leases.store.LeaseStore.commit`."""
        merged = after(snapshot.leases, changes)
        version = snapshot.token + 1
        with self._lock:
            if self._rows_version != snapshot.token:
                # This process has read or written a newer version since.
                raise CommitConflictError(table=self._url)
            handle = self._handle_at(snapshot.token)
            data, rows = self._rows.write(merged)
            try:
                self._replace(handle, data)
            except CommitFailedError as error:
                self._forget()
                raise CommitConflictError(table=self._url) from error
            except (DeltaError, OSError, pa.ArrowException) as error:
                self._forget()
                raise CommitUnknownError(table=self._url, reason=error) from error
            late_seconds = self._clock.monotonic() - self._read_at
            if late_seconds > BELIEVED_SECONDS:
                self._forget()
                reason = f"it landed {late_seconds:.0f} s after it was decided"
                raise CommitUnknownError(table=self._url, reason=reason)
            self._rows = rows
            self._rows_version = version
        self.upkeep.committed(version)

    def _replace(self, handle: DeltaTable, data: pa.Table) -> None:
        """Commit the next version: these rows and no others. Not by ``write_deltalake``, which takes half as
        long again.

        The handle stays at its version: with several workers the next commit finds it behind anyway.
        """
        path = f"{uuid.uuid4().hex}.parquet"
        with PyFileSystem(DeltaStorageHandler(self._url, self._options)).open_output_stream(path) as file:
            # The file is small and always read whole, so neither statistics nor dictionaries pay.
            pq.write_table(data, file, compression="lz4", use_dictionary=False, write_statistics=False)
            size = file.tell()
        added = AddAction(
            path=path,
            size=size,
            partition_values={},
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=json.dumps({"numRecords": data.num_rows}),
        )
        handle.create_write_transaction(
            [added],
            "overwrite",
            _DELTA_SCHEMA,
            commit_properties=_NO_RETRY,
            post_commithook_properties=_CHECKPOINT,
        )

    def _handle_at(self, version: int) -> DeltaTable:
        """The handle, brought up to the version that is committed on. It lags behind while the log is
        followed. The first commit opens it.

        :raises CommitConflictError: if there is a newer version
        :raises StoreUnavailableError: if the store does not answer; nothing is written
        """
        try:
            if self._handle is None:
                self._handle = self._tables.open(ControlTable.LEASES)
            elif self._handle.version() != version:
                self._handle.update_incremental()
        except (DeltaError, OSError) as error:
            self._forget()
            raise StoreUnavailableError(table=self._url, action="read", reason=error) from error
        if self._handle.version() != version:
            # A client that slept may know a version after which the entries are deleted: the log would say
            # that nothing is newer.
            self._rows_version = _UNKNOWN
            raise CommitConflictError(table=self._url)
        return self._handle

    def leases(self) -> list[Lease]:
        """All leases, in the order of their keys."""
        leases = self.read().leases
        return [leases[key] for key in sorted(leases)]

    def leases_if_any(self) -> list[Lease]:
        """As :meth:`leases`; none if nothing was ever leased. It makes no table, as a reader should not.

        :raises StoreUnavailableError: if the store does not answer
        """
        if self.exists():
            return self.leases()
        with self._lock:
            self._forget()
        return []

    def exists(self) -> bool:
        """Whether anything was ever leased.

        :raises StoreUnavailableError: if the store does not answer
        """
        try:
            return DeltaTable.is_deltatable(self._url, storage_options=self._options)
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=self._url, action="read", reason=error) from error

    def _forget(self) -> None:
        """The next read opens the table again: it is not known what the table holds."""
        self._handle = None
        self._rows_version = _UNKNOWN
