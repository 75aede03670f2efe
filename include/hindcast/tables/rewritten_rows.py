"""Change some rows of a Delta table, file by file, while others append to it and join its files.

delta-rs's ``update`` would do, but it refuses to land on top of any append: a table that gets rows each
second would never be updated. Here each file is replaced in a commit of its own, which no append hinders.

A join of files must not land on top of it, nor it on top of a join. So both replace files by the same commit
(:func:`hindcast.tables.compaction.replace_files`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow.fs import FileSystem

from hindcast.delta.arrow_dataset import Condition, may_meet_all
from hindcast.delta.column_statistics import statistics
from hindcast.delta.commit import until_it_lands
from hindcast.delta.files import filesystem
from hindcast.errors import StoreUnavailableError
from hindcast.processes.crash_points import reach
from hindcast.tables.compaction import replace_files

#: Rows in memory at a time, of those that are searched. A part (Parquet's row group) of a file that is
#: replaced is in memory whole.
_SEARCHED_ROWS = 65_536

#: For each row of some, whether it is meant.
Mask: TypeAlias = pa.Array | pa.ChunkedArray


@dataclass(frozen=True)
class RowChange:
    """Which rows are changed, and how.

    ``reads``: the columns by which a row is found; a file may lack some of them. ``find``: for these columns
    of some rows, a mask of those that are changed. ``change``: all columns of some rows and their mask, to
    the rows with the same columns in the same order. A changed row must not be found again.
    """

    reads: tuple[str, ...]
    find: Callable[[pa.Table], Mask]
    change: Callable[[pa.Table, Mask], pa.Table]


def searched(
    table: DeltaTable, columns: Sequence[str], storage_options: dict[str, str]
) -> Iterator[pa.Table]:
    """These columns of all rows of this version of the table, a part at a time. A file may lack some of them.

    :raises StoreUnavailableError: if a file cannot be read
    """
    store = filesystem(table.table_uri, storage_options)
    try:
        for path in _paths(table):
            yield from _searched_file(store, path, columns)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise StoreUnavailableError(table=table.table_uri, action="read", reason=error) from error


def count_rows(table: DeltaTable, change: RowChange, storage_options: dict[str, str]) -> int:
    """How many rows of this version of the table would be changed.

    :raises StoreUnavailableError: if a file cannot be read
    """
    return _found_among(searched(table, change.reads, storage_options), change)


def rewrite_rows(
    open_table: Callable[[], DeltaTable],
    change: RowChange,
    storage_options: dict[str, str],
    bounded: Sequence[str] = (),
    *,
    may_have: Sequence[Condition] = (),
) -> int:
    """Change all such rows of an unpartitioned table; return how many were changed.

    Rows that are appended meanwhile are changed, too, up to the moment at which every file of the newest
    version has been looked at. If it is killed, some files are replaced and some are not: do it again.

    The replaced files stay on disk, as those of a join do, until the table's vacuum.

    :param open_table: opens the table at its newest version
    :param bounded: the columns of which each file keeps its bounds
    :param may_have: files whose bounds say that no row meets all of these conditions are left out
    :raises StoreUnavailableError: if the store does not answer, or others joined files again and again
    """
    looked_at: set[str] = set()
    url = open_table().table_uri
    changed = 0

    def look_at_the_rest() -> None:
        nonlocal changed
        while True:
            table = open_table()
            fresh = [path for path in _paths(table, may_have) if path not in looked_at]
            if not fresh:
                return
            store = filesystem(url, storage_options)
            for path in fresh:
                found = _found_among(_searched_file(store, path, change.reads), change)
                if found:
                    _replace(table, store, path, change, bounded)
                changed += found
                looked_at.add(path)

    try:
        until_it_lands(url, look_at_the_rest)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise StoreUnavailableError(table=url, action="rewritten", reason=error) from error
    return changed


def with_values(rows: pa.Table, mask: Mask, values: Mapping[str, Any]) -> pa.Table:
    """The rows with these values in the columns of those that the mask names. Columns that they lack are left
    out.
    """
    for name, value in values.items():
        if name not in rows.column_names:
            continue
        field = rows.schema.field(name)
        changed = pc.if_else(mask, pa.scalar(value, field.type), rows[name])
        rows = rows.set_column(rows.schema.get_field_index(name), field, changed)
    return rows


def _paths(table: DeltaTable, may_have: Sequence[Condition] = ()) -> list[str]:
    """The files of the table that may have a row which meets all these conditions, as its log names them."""
    files = pa.table(table.get_add_actions(flatten=True))
    if may_have:
        files = files.filter(may_meet_all(files, [may_have]))
    return sorted(files["path"].to_pylist())


def _searched_file(store: FileSystem, path: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    with _opened(store, path) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(_SEARCHED_ROWS, columns=there):
            yield pa.Table.from_batches([batch])


def _found_among(parts: Iterable[pa.Table], change: RowChange) -> int:
    """How many rows of these are to be changed."""
    found = 0
    for rows in parts:
        found += pc.sum(change.find(rows)).as_py() or 0
    return found


def _replace(
    table: DeltaTable, store: FileSystem, path: str, change: RowChange, bounded: Sequence[str]
) -> None:
    """Replace one file, in one commit.

    :raises CommitFailedError: if the file was replaced meanwhile
    """
    written = f"rewritten-{uuid.uuid4().hex}.parquet"
    with _opened(store, path) as file:
        schema = file.schema_arrow
        with pq.ParquetWriter(written, schema, filesystem=store, compression="zstd") as writer:
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number)
                there = [name for name in change.reads if name in schema.names]
                mask = change.find(rows.select(there))
                writer.write_table(change.change(rows, mask))
    kept = pq.read_table(written, filesystem=store, columns=[*bounded] or [schema.names[0]])
    stats = json.dumps(statistics(kept, bounded))
    size = store.get_file_info(written).size
    reach("rewrite.1")  # the new file is written, and no commit names it
    try:
        replace_files(table, [path], written, size, stats, data_change=True)
    except CommitFailedError:
        store.delete_file(written)
        raise
    reach("rewrite.2")  # this file is replaced


def _opened(store: FileSystem, path: str) -> pq.ParquetFile:
    return pq.ParquetFile(unquote(path), filesystem=store)
