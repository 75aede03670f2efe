"""The lease store on Delta, written by delta-rs. One small table, rewritten whole in each commit, so a read is one file."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow.fs import PyFileSystem

from hindcast.clock import Clock, SystemClock
from hindcast.errors import CommitConflictError, CommitUnknownError, StoreUnavailableError
from hindcast.leases.delta_log import newer, newest
from hindcast.leases.delta_rows import LeaseRows
from hindcast.leases.lease import Lease
from hindcast.leases.store import Snapshot, after
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables, arrow_dataset
from hindcast.tables.schema import LEASES_RETENTION_SECONDS, SCHEMAS, ControlTable

#: A commit that lands later than this after its read is not believed: the log of a version is deleted after the retention, and a
#: process that slept that long may have written where a version had been. Half of it, so that clocks may differ by the other half.
BELIEVED_SECONDS = LEASES_RETENTION_SECONDS / 2

#: delta-rs is told not to retry: its own retry would rebase our rows onto rows we never read.
_NO_RETRY = CommitProperties(max_commit_retries=0)
#: A version is checkpointed by the commit that made it: a reader of a checkpoint that two write at once finds neither the old nor the
#: new. The deletion of old logs is the upkeep's, off the path of a renewal.
_CHECKPOINT = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
_SCHEMA = Schema.from_arrow(SCHEMAS[ControlTable.LEASES])


class LeaseTable:
    """The ``leases`` table. Safe for threads; a handle is opened once and brought up to date before each commit.

    The rows are kept as they were last read or written, so that a read of a version that this process wrote itself reads no file.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._tables = ControlTables(settings)
        self._url = self._tables.url(ControlTable.LEASES)
        self._options = settings.storage_options or None
        self._clock = clock or SystemClock()
        self._handle: DeltaTable | None = None
        self._folder = None if "://" in self._url else Path(self._url)
        self._rows = LeaseRows()
        self._rows_version = -1
        self._read_at = 0.0
        self._lock = threading.Lock()
        self.upkeep = self._tables.upkeep[ControlTable.LEASES]

    def read(self) -> Snapshot:
        """See :meth:`hindcast.leases.store.LeaseStore.read`. The token is the version that was read."""
        with self._lock:
            now = self._clock.monotonic()
            try:
                if not self._follow(now):
                    self._read()
            except (DeltaError, OSError, pa.ArrowException) as error:
                self._forget()
                raise StoreUnavailableError(table=self._url, action="read", reason=error) from error
            self._read_at = now
            return Snapshot(self._rows.leases, token=self._rows_version)

    def _follow(self, now: float) -> bool:
        """Read what the log has after the version whose rows are known; False where that does not tell what the leases are."""
        if self._folder is None:
            return False
        known = self._rows_version >= 0 and now - self._read_at <= BELIEVED_SECONDS
        found = newer(self._folder, self._rows_version) if known else newest(self._folder)
        if found is None:
            return False
        version, file = found
        if file is not None:
            try:
                data = pq.ParquetFile(pa.BufferReader(file.read_bytes()), pre_buffer=False).read(use_threads=False)
            except (OSError, pa.ArrowException):
                return False
            if data.schema.names != SCHEMAS[ControlTable.LEASES].names:
                return False
            self._rows = self._rows.read(data, self._url)
        self._rows_version = version
        return True

    def _read(self) -> None:
        """Read the table's newest version as Delta's own reader finds it."""
        if self._handle is None:
            self._handle = self._tables.open(ControlTable.LEASES)
        else:
            self._handle.update_incremental()
        if (version := self._handle.version()) != self._rows_version:
            self._rows = self._rows.read(arrow_dataset(self._handle).to_table(), self._url)
            self._rows_version = version

    def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
        """See :meth:`hindcast.leases.store.LeaseStore.commit`."""
        merged = after(snapshot.leases, changes)
        with self._lock:
            if self._rows_version != snapshot.token:
                raise CommitConflictError(table=self._url)  # this process has read (or written) a newer version since
            handle = self._catch_up(snapshot.token)
            data, rows = self._rows.write(merged)
            try:
                self._replace(handle, data)
            except CommitFailedError as error:
                self._forget()
                raise CommitConflictError(table=self._url) from error
            except (DeltaError, OSError, pa.ArrowException) as error:
                self._forget()
                raise CommitUnknownError(table=self._url, reason=error) from error
            if (late := self._clock.monotonic() - self._read_at) > BELIEVED_SECONDS:
                self._forget()
                raise CommitUnknownError(table=self._url, reason=f"it landed {late:.0f} s after it was decided")
            self._rows, self._rows_version = rows, snapshot.token + 1
        self.upkeep.committed(snapshot.token + 1)

    def _replace(self, handle: DeltaTable, data: pa.Table) -> None:
        """Commit the next version: these rows and no others. Not by ``write_deltalake``, which takes half as much again.

        The handle stays where it was: with several workers the next commit finds it behind anyway.
        """
        path = f"{uuid.uuid4().hex}.parquet"
        with PyFileSystem(DeltaStorageHandler(self._url, self._options)).open_output_stream(path) as file:
            # One file that is always read whole: neither statistics nor dictionaries pay.
            pq.write_table(data, file, compression="lz4", use_dictionary=False, write_statistics=False)
            size = file.tell()
        added = AddAction(path, size, {}, int(time.time() * 1000), True, f'{{"numRecords":{data.num_rows}}}')
        handle.create_write_transaction([added], "overwrite", _SCHEMA, commit_properties=_NO_RETRY, post_commithook_properties=_CHECKPOINT)

    def _catch_up(self, version: int) -> DeltaTable:
        """Bring the handle, which lags behind while the log is followed, to the version that is committed on; a first one is opened.

        :raises CommitConflictError: where a newer one is there
        :raises StoreUnavailableError: nothing is written
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
            self._rows_version = -1  # who slept may find no entry after the version that he knows, as that is deleted
            raise CommitConflictError(table=self._url)
        return self._handle

    def leases(self) -> list[Lease]:
        """All leases, in the order of their keys."""
        return [lease for _, lease in sorted(self.read().leases.items())]

    def exists(self) -> bool:
        """Whether anything was ever leased.

        :raises StoreUnavailableError: the store does not answer
        """
        try:
            return DeltaTable.is_deltatable(self._url, storage_options=self._options)
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=self._url, action="read", reason=error) from error

    def _forget(self) -> None:
        """Begin again with a cold open: what the table holds is not known."""
        self._handle = None
        self._rows, self._rows_version = LeaseRows(), -1


def read_leases(settings: Settings) -> list[Lease]:
    """All leases, in the order of their keys; none where nothing was ever leased. Whoever only reads makes no table."""
    table = LeaseTable(settings)
    return table.leases() if table.exists() else []
