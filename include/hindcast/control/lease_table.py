"""The lease store on Delta, written by delta-rs. One small table, rewritten whole in each commit, so a read is one file."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from hindcast.control.leases import Lease
from hindcast.control.schema import SCHEMAS, ControlTable
from hindcast.control.store import Snapshot
from hindcast.control.tables import ControlTables
from hindcast.errors import CommitConflictError, CommitUnknownError, StoreUnavailableError
from hindcast.settings import Settings


class LeaseTable:
    """The ``leases`` table. Safe for threads; a handle is opened once and brought up to date by each read."""

    def __init__(self, settings: Settings) -> None:
        self._tables = ControlTables(settings)
        self._url = self._tables.url(ControlTable.LEASES)
        self._handle: DeltaTable | None = None
        self._lock = threading.Lock()

    def read(self) -> Snapshot:
        """See :meth:`hindcast.control.store.LeaseStore.read`. The token is the version that was read."""
        with self._lock:
            try:
                if self._handle is None:
                    self._handle = self._tables.open(ControlTable.LEASES)
                else:
                    self._handle.update_incremental()
                rows = self._handle.to_pyarrow_table().to_pylist()
                version = self._handle.version()
            except (DeltaError, OSError, pa.ArrowException) as error:
                self._handle = None
                raise StoreUnavailableError(table=self._url, action="read", reason=error) from error
        leases = [Lease.from_row(row, self._url) for row in rows]
        return Snapshot({lease.key: lease for lease in leases}, token=version)

    def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
        """See :meth:`hindcast.control.store.LeaseStore.commit`.

        delta-rs is told not to retry (``max_commit_retries=0``): its own retry would rebase our rows onto rows we never read.
        """
        merged = {**snapshot.leases, **{lease.key: lease for lease in changes}}
        data = pa.Table.from_pylist([lease.as_row() for _, lease in sorted(merged.items())], schema=SCHEMAS[ControlTable.LEASES])
        with self._lock:
            if self._handle is None or self._handle.version() != snapshot.token:
                raise CommitConflictError(table=self._url)  # this process has read (or written) a newer version since
            try:
                write_deltalake(self._handle, data, mode="overwrite", commit_properties=CommitProperties(max_commit_retries=0))
            except CommitFailedError as error:
                self._handle = None
                raise CommitConflictError(table=self._url) from error
            except (DeltaError, OSError, pa.ArrowException) as error:
                self._handle = None
                raise CommitUnknownError(table=self._url, reason=error) from error

    def leases(self) -> list[Lease]:
        """All leases, in the order of their keys."""
        return [lease for _, lease in sorted(self.read().leases.items())]
