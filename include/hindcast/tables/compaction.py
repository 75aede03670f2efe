"""Tables that get commits all day keep themselves small.

A writer that commits a version that is a multiple of :data:`EVERY` tidies the table in a thread of its own.
So no writer waits, and the others continue meanwhile. Two processes may tidy at the same time: what both
would delete is deleted once, or one of them is refused and leaves the work to the next time. The commits
themselves write the checkpoints.

Files that no version within the retention needs are deleted. Readers read ``leases`` only at its newest
version, for milliseconds, so its retention is minutes. A reader that slept longer gets an error and reads
again.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from hindcast.delta.column_statistics import statistics
from hindcast.delta.files import filesystem
from hindcast.errors import StoreUnavailableError
from hindcast.tables.schema import APPENDED_RETENTION_HOURS, ORDERED_BY, REPLACED
from hindcast.tables.table_names import ControlTable

_log = structlog.get_logger(__name__)

#: Versions of a table between two tidyings. Each append leaves a file, which costs a reader nearly 2 ms, and
#: a worker that takes over a shard reads the ledger first.
EVERY = 50
#: Files of appended rows are joined up to this size. Larger ones stay as they are, so that a long history is
#: not rewritten for a few rows.
COMPACTED_BYTES = 8 * 1024 * 1024
#: And, if they are rows of ranges, up to so many rows: a reader of a few of them first reads what the file
#: says of all its parts.
COMPACTED_ROWS = 100_000
#: Files that are joined in one commit: what has to be in memory at the same time.
GROUP_BYTES = 64 * 1024 * 1024
#: Rows of a part of a joined file (Parquet's row group). Readers skip parts by their bounds.
_PART_ROWS = 10_000
#: The application whose transactions a compaction of any table is.
COMPACTION = "hindcast/compaction"
#: So often one tidying attempts a compaction or a vacuum.
ATTEMPTS = 5
_NO_RETRY = CommitProperties(max_commit_retries=0)

#: Opens one table at its newest version.
OpenTable = Callable[[], DeltaTable]
_Result = TypeVar("_Result")


def tidy_leases(open_table: OpenTable) -> int:
    """Delete the leases' log before the last checkpoint, and the files that no recent version names; return
    the number of deleted files.

    Files of refused commits are deleted, too. The files of a commit that is still in progress are safe: the
    vacuum first commits its start on the version that it has read. Delta refuses that start if the leases
    were written since. Once it is committed, no commit that was decided before it is accepted (the leases are
    committed without retries).
    """
    open_table().cleanup_metadata()
    deleted = _on_newest_version(open_table, _vacuum_leases)
    return len(deleted)


def _vacuum_leases(table: DeltaTable) -> list[str]:
    return table.vacuum(dry_run=False, full=True, commit_properties=_NO_RETRY)


def tidy_appended(
    open_table: OpenTable, storage_options: dict[str, str], ordered_by: Sequence[str] = ()
) -> int:
    """Join the small files of a table that is appended to. Delete the files that were replaced longer ago
    than the retention; return their number.

    Only files that the log names as replaced are deleted: an append whose files wait for their commit loses
    nothing. The appends themselves checkpoint the table and delete its old log (delta-rs's hooks).

    :param ordered_by: see :func:`compact`
    """
    _on_newest_version(open_table, lambda table: compact(table, storage_options, ordered_by=ordered_by))
    return tidy_replaced(open_table)


def tidy_replaced(open_table: OpenTable) -> int:
    """Delete the files that were replaced longer ago than the retention; return their number."""
    deleted = open_table().vacuum(
        retention_hours=APPENDED_RETENTION_HOURS, dry_run=False, enforce_retention_duration=False
    )
    return len(deleted)


def compact(
    table: DeltaTable,
    storage_options: dict[str, str],
    bounded: Sequence[str] = (),
    *,
    ordered_by: Sequence[str] = (),
) -> None:
    """Join the small files of an unpartitioned table, while others append to it.

    This does not use delta-rs's optimize. That lets the second of two compactions land on top of the first,
    although it is set not to retry. Both then keep the rows of the files that each has replaced (measured: a
    row 2,688 times). These compactions are transactions of one application, and Delta accepts only one of two
    that began on the same version.

    :param bounded: the columns of which each file keeps its bounds. Files are joined in the order of these,
        and only with files that begin with the same value of the first.
    :param ordered_by: instead of that, join the small files, sort their rows by these columns, and keep their
        bounds, of each file and of each part of it: a reader of a range reads little else. A file waits while
        it is larger than all smaller ones together
    :raises CommitFailedError: if another process compacted the table meanwhile; open it again
    """
    if ordered_by:
        for group in _groups(_worth_joining(_all_small_files(table))):
            _join(table, group, storage_options, ordered_by, sort=True)
        return
    for alike in _small_files(table, bounded):
        for group in _groups(alike):
            _join(table, group, storage_options, bounded)


@dataclass(frozen=True, order=True)
class _SmallFile:
    """A file that is small enough to be joined with others."""

    lowest: tuple[Any, ...]  # its lowest value of each bounded column, or when it was written
    path: str
    size: int  # bytes
    rows: int = 0  # 0 if it does not matter how many there are


def _small_files(table: DeltaTable, bounded: Sequence[str]) -> Iterator[list[_SmallFile]]:
    """The small files in the order of their lowest values; those with the same first value come together. A
    file without bounds is left out.
    """
    bounds = [f"min.{column}" for column in bounded]
    actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes", *bounds])
    small = []
    for action in actions.to_pylist():
        lowest = tuple(action[bound] for bound in bounds)
        if action["size_bytes"] < COMPACTED_BYTES and None not in lowest:
            small.append(_SmallFile(lowest, action["path"], action["size_bytes"]))
    for _, alike in groupby(sorted(small), key=lambda file: file.lowest[:1]):
        yield list(alike)


def _all_small_files(table: DeltaTable) -> list[_SmallFile]:
    """The small files, those that were written first come first."""
    actions = pa.table(table.get_add_actions(flatten=True)).select(
        ["path", "size_bytes", "modification_time", "num_records"]
    )
    small = []
    for action in actions.to_pylist():
        rows = action["num_records"] or 0
        if action["size_bytes"] < COMPACTED_BYTES and rows < COMPACTED_ROWS:
            written = (action["modification_time"],)
            small.append(_SmallFile(written, action["path"], action["size_bytes"], rows))
    return sorted(small)


def _worth_joining(files: Sequence[_SmallFile]) -> list[_SmallFile]:
    """The files without those that are larger than all smaller ones together.

    So a row is rewritten only as often as the file that it is in can double, and not with every joining.
    """
    by_size = sorted(files, key=lambda file: file.size)
    smaller = sum(file.size for file in by_size)
    while by_size:
        smaller -= by_size[-1].size
        if by_size[-1].size <= smaller:
            break
        by_size.pop()
    return sorted(by_size)


def _groups(files: Sequence[_SmallFile]) -> Iterator[list[str]]:
    """The paths of files that are joined in one commit: each group ends with the file that fills it."""
    group: list[str] = []
    group_bytes = 0
    group_rows = 0
    for file in files:
        group.append(file.path)
        group_bytes += file.size
        group_rows += file.rows
        if group_bytes >= GROUP_BYTES or group_rows >= COMPACTED_ROWS:
            yield group
            group = []
            group_bytes = 0
            group_rows = 0
    yield group


def _join(
    table: DeltaTable,
    paths: Sequence[str],
    storage_options: dict[str, str],
    bounded: Sequence[str],
    *,
    sort: bool = False,
) -> None:
    if len(paths) < 2:  # noqa: PLR2004 -- a single file needs no join
        return
    store = filesystem(table.table_uri, storage_options)
    pieces = [pq.read_table(path, filesystem=store) for path in paths]
    rows = pa.concat_tables(_of_one_schema(pieces, table), promote_options="default")
    if sort:
        rows = rows.sort_by([(name, "ascending") for name in bounded])
    joined = f"compacted-{uuid.uuid4().hex}.parquet"
    pq.write_table(rows, joined, filesystem=store, compression="zstd", row_group_size=_PART_ROWS)
    stats = json.dumps(statistics(rows, bounded))
    replace_files(table, paths, joined, store.get_file_info(joined).size, stats, data_change=False)


def replace_files(
    table: DeltaTable, paths: Sequence[str], written: str, size: int, stats: str, *, data_change: bool
) -> None:
    """Replace files of the handle's version by one that is written already, in one commit.

    Of two replacements that began on the same version Delta accepts one: else both would keep the rows of the
    files that each has replaced.

    :param size: of the written file, in bytes
    :param stats: its statistics, as Delta's log has them
    :raises CommitFailedError: if another process replaced files meanwhile
    """
    now_ms = int(time.time() * 1000)
    added = AddAction(written, size, {}, now_ms, data_change=data_change, stats=stats)
    removed = [RemoveAction(path, data_change=data_change, deletion_timestamp=now_ms) for path in paths]
    only_one_lands = CommitProperties(app_transactions=[Transaction(COMPACTION, table.version())])
    table.create_write_transaction(
        [added, *removed], "append", table.schema(), commit_properties=only_one_lands
    )
    table.update_incremental()


def _of_one_schema(pieces: Sequence[pa.Table], table: DeltaTable) -> list[pa.Table]:
    """The pieces with the table's own types, if they differ: a delete or an update by delta-rs writes text as
    another Arrow type.
    """
    if all(piece.schema.equals(pieces[0].schema) for piece in pieces):
        return list(pieces)
    columns = pa.schema(table.schema().to_arrow())
    cast = []
    for piece in pieces:
        fields = [columns.field(name) for name in piece.column_names]
        cast.append(piece.cast(pa.schema(fields)))
    return cast


def _on_newest_version(open_table: OpenTable, work: Callable[[DeltaTable], _Result]) -> _Result:
    """Do the work on the newest version; retry if a writer is faster. Writers leave tenths of a second
    between their commits, and an attempt takes hundredths.

    This is not :func:`hindcast.delta.commit.until_it_lands`: a tidying need not land, so it neither waits nor
    insists.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return work(open_table())
        except CommitFailedError:
            continue
    return work(open_table())


class Compactor:
    """Tidies one table now and then, in a thread of its own."""

    def __init__(self, name: ControlTable, open_table: OpenTable, storage_options: dict[str, str]) -> None:
        self._name = name
        self._open = open_table
        self._options = storage_options
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def committed(self, version: int) -> None:
        """Note that this process has committed a version. Returns at once."""
        if version % EVERY:
            return
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            # Not a daemon: Python joins it at exit. A thread that was still in native code then would crash
            # the process.
            self._thread = threading.Thread(target=self.run, name=f"upkeep-{self._name}")
            self._thread.start()

    def run(self) -> dict[str, Any]:
        """Tidy the table now. What fails is left to the next time and is never an error of the writer.

        :returns: {files_deleted, seconds, skipped}; ``skipped`` is the reason if the table was not tidied
        """
        started = time.monotonic()
        deleted = 0
        skipped = ""
        try:
            deleted = self._tidy()
        except CommitFailedError as error:
            skipped = f"a writer was faster: {error}"
        except (DeltaError, OSError, pa.ArrowException, StoreUnavailableError) as error:
            skipped = str(error)
            message = "A table could not be tidied; it is tried again later."
            _log.warning(message, table=self._name.value, reason=skipped)
        seconds = round(time.monotonic() - started, 3)
        done = {"files_deleted": deleted, "seconds": seconds, "skipped": skipped}
        _log.debug("A table was tidied.", table=self._name.value, **done)
        return done

    def _tidy(self) -> int:
        if self._name is ControlTable.LEASES:
            return tidy_leases(self._open)
        if self._name in REPLACED:
            return tidy_replaced(self._open)
        return tidy_appended(self._open, self._options, ORDERED_BY.get(self._name, ()))

    def wait(self) -> None:
        """Wait until the tidying that is in progress ends."""
        thread = self._thread
        if thread is not None:
            thread.join()
