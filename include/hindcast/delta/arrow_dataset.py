"""A Delta table as Arrow reads it, without the files that cannot hold what is searched for.

deltalake's own ``to_pyarrow_dataset`` gives Arrow the statistics of each file as a promise about its rows. If
a file has the bounds of some columns only, it promises that all values of the others are at least null and at
most null. So a search by such a column finds no row of that file, although it has some. Delta allows the
statistics of some columns (PROTOCOL.md, "Per-file Statistics"; ``delta.dataSkippingNumIndexedCols`` is 32 by
default), and the joined files of the ledger have such. Here a file without bounds is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from deltalake.fs import DeltaStorageHandler
from pyarrow.dataset import Dataset, FileSystemDataset, ParquetFileFormat
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

#: Column, one of Parquet's operators (=, !=, <, <=, >, >=, in), value.
Condition = tuple[str, str, Any]

#: What Arrow does not read. A reader that left it out would find other rows.
_UNSUPPORTED = frozenset({"deletionVectors", "columnMapping"})
#: Delta's statistics are cut to whole milliseconds, so an instant may be a little later than the greatest.
_MILLISECOND = pa.scalar(1_000, pa.duration("us"))


def arrow_dataset(
    table: DeltaTable, wanted: Sequence[Sequence[Condition]] = (), *, folder: str = ""
) -> Dataset:
    """The files of a Delta table's version. Those on a local disk are read through Arrow's own file system.

    deltalake's file system is a Python object, which Arrow's threads release after a read has returned. A
    process that ends at that moment is aborted.

    :param wanted: files are left out that cannot have a row which meets all conditions of one of these
        groups; the rows of the others are not filtered. Without any group all files are there
    :param folder: of the table's files on a local disk, if it is not the handle's own
    :raises DeltaProtocolError: if Arrow cannot read the table's rows as they are
    """
    unsupported = sorted(_UNSUPPORTED.intersection(table.protocol().reader_features or []))
    if unsupported:
        raise DeltaProtocolError(f"{table.table_uri} has {', '.join(unsupported)}, which Arrow does not read")
    files = pa.table(table.get_add_actions(flatten=True))
    if wanted:
        files = files.filter(may_meet_all(files, wanted))
    form = ParquetFileFormat()
    store = _filesystem(table, folder)
    partitions = [name for name in files.column_names if name.startswith("partition.")]
    fragments = []
    for file in files.select(["path", *partitions]).to_pylist():
        of_partition = _of_partition(file, partitions)
        path = unquote(file["path"])
        fragments.append(form.make_fragment(path, filesystem=store, partition_expression=of_partition))
    return FileSystemDataset(fragments, pa.schema(table.schema().to_arrow()), form, store)


def _filesystem(table: DeltaTable, folder: str) -> FileSystem:
    if folder and "://" not in folder:
        return SubTreeFileSystem(folder, LocalFileSystem())
    own = urlsplit(table.table_uri)
    if own.scheme == "file":
        return SubTreeFileSystem(unquote(own.path), LocalFileSystem())
    # As deltalake's own dataset gets it: a handle tells its options to nobody else.
    options = table._storage_options  # noqa: SLF001
    return PyFileSystem(DeltaStorageHandler.from_table(table._table, options))  # noqa: SLF001


def _of_partition(file: dict[str, Any], partitions: Sequence[str]) -> pc.Expression:
    """What holds for all rows of a file. A partition's column is not in the file."""
    holds = pc.scalar(True)
    for name in partitions:
        column = pc.field(name.removeprefix("partition."))
        value = file[name]
        is_value = column.is_null() if value is None else column == pc.scalar(value)
        holds = holds & is_value
    return holds


def may_meet_all(files: pa.Table, wanted: Sequence[Sequence[Condition]]) -> pa.ChunkedArray | pa.Array:
    """For each file, whether it may have a row that meets all conditions of one of the groups.

    :param files: deltalake's flat list of them
    """
    any_group = _the_same(files, answer=False)
    for group in wanted:
        whole_group = _the_same(files, answer=True)
        for condition in group:
            whole_group = pc.and_(whole_group, _may_meet(files, condition))
        any_group = pc.or_(any_group, whole_group)
    return any_group


def _may_meet(files: pa.Table, condition: Condition) -> pa.ChunkedArray | pa.Array:
    """For each file, whether it may have a row that meets the condition. One without bounds may."""
    column, operator, value = condition
    lowest = f"min.{column}"
    highest = f"max.{column}"
    if lowest not in files.column_names or highest not in files.column_names:
        return _the_same(files, answer=True)
    least = files[lowest]
    greatest = files[highest]
    if pa.types.is_timestamp(greatest.type):
        greatest = pc.add(greatest.cast(pa.timestamp("us", tz=greatest.type.tz)), _MILLISECOND)
    return pc.fill_null(_may_be(least, greatest, operator, value), True)


def _may_be(
    least: pa.ChunkedArray, greatest: pa.ChunkedArray, operator: str, value: Any
) -> pa.ChunkedArray | pa.Array:
    """For each file, whether a value between its bounds may meet the condition; null if that is not known."""
    if operator == "=":
        return pc.and_(pc.less_equal(least, value), pc.greater_equal(greatest, value))
    if operator == "<":
        return pc.less(least, value)
    if operator == "<=":
        return pc.less_equal(least, value)
    if operator == ">":
        return pc.greater(greatest, value)
    if operator == ">=":
        return pc.greater_equal(greatest, value)
    if operator == "in" and len(value):
        return pc.and_(pc.less_equal(least, max(value)), pc.greater_equal(greatest, min(value)))
    return pa.nulls(len(least), pa.bool_())


def _the_same(files: pa.Table, *, answer: bool) -> pa.Array:
    """The same answer for each file."""
    return pa.repeat(pa.scalar(answer), files.num_rows)
