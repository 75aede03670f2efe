"""Tables that are committed to all day keep themselves small.

Whoever commits a version that is a multiple of :data:`EVERY` tidies the table in a thread of its own, so no writer waits for it; the
others go on meanwhile. Two that do it at once are safe: what both would delete is gone, or one of them is refused and leaves it to
the next. Checkpoints are written by the commits themselves.

What no version within the retention needs is deleted. ``leases`` is only ever read at its newest version, for milliseconds, so it
keeps minutes; a reader that slept through them gets an error and reads again.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import PyFileSystem

from hindcast.delta.column_statistics import statistics
from hindcast.errors import StoreUnavailableError
from hindcast.tables.schema import APPENDED_RETENTION_HOURS, ControlTable

_log = structlog.get_logger(__name__)

#: Versions of a table between two times. Each append leaves a file, which costs a reader nearly 2 ms, and whoever takes a shard over
#: reads the ledger first.
EVERY = 50
#: Files of appended rows are joined up to this size. Larger ones are left alone, so that a long history is not rewritten for a few rows.
COMPACTED_BYTES = 8 * 1024 * 1024
#: Files that are joined in one commit: what has to be in memory at once.
GROUP_BYTES = 64 * 1024 * 1024
#: The application whose transactions a compaction of any table is.
COMPACTION = "hindcast/compaction"
#: How often a compaction or a vacuum is decided anew in one tidy.
ATTEMPTS = 5
_NO_RETRY = CommitProperties(max_commit_retries=0)


#: Opens one table at its newest version.
OpenTable = Callable[[], DeltaTable]
_T = TypeVar("_T")


def tidy_leases(open_table: OpenTable) -> int:
    """Drop the leases' log before the last checkpoint and the files that no recent version names; return how many files went.

    Files whose commit was refused are dropped, too. One whose commit is still under way is not lost: the vacuum first commits its
    start on the version it has read, which Delta refuses where the leases were written since; once that commit is there, no commit
    that was decided before it is accepted (the leases are committed without retries).
    """
    open_table().cleanup_metadata()
    return len(_decided_anew(open_table, lambda table: table.vacuum(dry_run=False, full=True, commit_properties=_NO_RETRY)))


def tidy_appended(open_table: OpenTable, storage_options: dict[str, str]) -> int:
    """Join the small files of a table that is appended to, and delete those that were replaced longer ago than the retention.

    Only files that the log says were replaced: an append whose files wait for their commit loses nothing. Appends checkpoint the
    table and drop its log as they go (delta-rs's hooks).
    """
    _decided_anew(open_table, lambda table: compact(table, storage_options))
    return len(open_table().vacuum(retention_hours=APPENDED_RETENTION_HOURS, dry_run=False, enforce_retention_duration=False))


def compact(table: DeltaTable, storage_options: dict[str, str], bounded: Sequence[str] = ()) -> None:
    """Join the small files of an unpartitioned table, beside whoever appends to it.

    :param bounded: columns of which each file keeps its bounds. Files are joined in the order of these, and only such as begin with the
        same value of the first.

    Not by delta-rs's optimize: it lets the second of two compactions land on top of the first, though it is told not to retry, and
    both keep the rows of the files that each has replaced (measured: a row 2,688 times). Ours are transactions of one application, of
    which Delta lets no two land beside each other.

    :raises CommitFailedError: somebody else compacted the table meanwhile; open it again
    """
    order = [f"min.{column}" for column in bounded]
    files = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes", *order]).to_pylist()
    small = [file for file in files if file["size_bytes"] < COMPACTED_BYTES and all(file[bound] is not None for bound in order)]
    small.sort(key=lambda file: (*(file[bound] for bound in order), file["path"]))
    for _, alike in groupby(small, key=lambda file: file[order[0]] if order else None):
        group, group_bytes = [], 0
        for file in alike:
            group.append(file["path"])
            group_bytes += file["size_bytes"]
            if group_bytes >= GROUP_BYTES:
                _join(table, group, storage_options, bounded)
                group, group_bytes = [], 0
        _join(table, group, storage_options, bounded)


def _join(table: DeltaTable, small: list[str], storage_options: dict[str, str], bounded: Sequence[str]) -> None:
    if len(small) < 2:  # noqa: PLR2004 -- one file is joined already
        return
    store = PyFileSystem(DeltaStorageHandler(table.table_uri, storage_options or None))
    rows = pa.concat_tables([pq.read_table(path, filesystem=store) for path in small], promote_options="default")
    joined = f"compacted-{uuid.uuid4().hex}.parquet"
    pq.write_table(rows, joined, filesystem=store, compression="zstd")
    now = int(time.time() * 1000)
    added = AddAction(joined, store.get_file_info(joined).size, {}, now, data_change=False, stats=json.dumps(statistics(rows, bounded)))
    removed = [RemoveAction(path, data_change=False, deletion_timestamp=now) for path in small]
    alone = CommitProperties(app_transactions=[Transaction(COMPACTION, table.version())])
    table.create_write_transaction([added, *removed], "append", table.schema(), commit_properties=alone)
    table.update_incremental()


def _decided_anew(open_table: OpenTable, work: Callable[[DeltaTable], _T]) -> _T:
    """Do it on the newest version, until no writer is faster. Writers leave tenths of a second between; a try takes hundredths."""
    for _ in range(ATTEMPTS - 1):
        try:
            return work(open_table())
        except CommitFailedError:
            continue
    return work(open_table())


class Compactor:
    """Tidies one table now and then, behind the back of those who write it."""

    def __init__(self, name: ControlTable, open_table: OpenTable, storage_options: dict[str, str]) -> None:
        self._name, self._open, self._options = name, open_table, storage_options
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def committed(self, version: int) -> None:
        """Say that this process has committed a version. Returns at once."""
        if version % EVERY:
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                # Not a daemon: Python ends by joining it. One that still ran in native code meanwhile would crash the process at its end.
                self._thread = threading.Thread(target=self.run, name=f"upkeep-{self._name}")
                self._thread.start()

    def run(self) -> dict[str, Any]:
        """Tidy now; what cannot be done now is left to the next time and never an error of the writer.

        :returns: {files_deleted, seconds, skipped}; ``skipped`` says why where it is not empty
        """
        started, deleted, skipped = time.monotonic(), 0, ""
        try:
            whole = self._name is ControlTable.LEASES
            deleted = tidy_leases(self._open) if whole else tidy_appended(self._open, self._options)
        except CommitFailedError as error:
            skipped = f"a writer was faster: {error}"
        except (DeltaError, OSError, pa.ArrowException, StoreUnavailableError) as error:
            skipped = str(error)
            _log.warning("A table could not be tidied; it is tried again later.", table=self._name.value, reason=skipped)
        seconds = round(time.monotonic() - started, 3)
        _log.debug("A table was tidied.", table=self._name.value, files_deleted=deleted, seconds=seconds, skipped=skipped)
        return {"files_deleted": deleted, "seconds": seconds, "skipped": skipped}

    def wait(self) -> None:
        """Until the tidying that is under way is done."""
        thread = self._thread
        if thread is not None:
            thread.join()
