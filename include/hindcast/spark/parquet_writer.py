"""Write a frame as Parquet files into a Delta table's folder, on the executors.

The files count only once a commit names them.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row

from hindcast.delta.column_statistics import statistics
from hindcast.delta.files import DataFile, filesystem

_SCHEMA = "path string, size long, rows long, stats string, partition string"
#: A task begins a new file after so many rows, or so many bytes in memory, so that neither a file nor a task
#: grows without bound.
ROWS_PER_FILE, BYTES_PER_FILE = 2_000_000, 128 * 1024 * 1024


def write_files(
    frame: DataFrame,
    url: str,
    storage_options: dict[str, str],
    prefix: str,
    *,
    by: str = "",
    bounded: Sequence[str] = (),
) -> list[DataFile]:
    """Run the frame and write its rows below ``url``; an empty partition writes nothing.

    :param prefix: the beginning of each file's name, for people who look into the folder
    :param by: a text column by whose values the table is partitioned; the files have it in their partition
        alone
    :param bounded: see :func:`hindcast.delta.column_statistics.statistics`
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = list(_write_partition(batches, url, storage_options, prefix, by, bounded))
        rows = [{**vars(file), "partition": json.dumps(file.partition)} for file in files]
        if rows:
            yield pa.RecordBatch.from_pylist(rows)

    return [_data_file(row) for row in frame.mapInArrow(write, _SCHEMA).collect()]


def write_rows(rows: pa.Table, url: str, storage_options: dict[str, str], prefix: str) -> list[DataFile]:
    """Write rows that are in this process; without any, nothing. See :func:`write_files`."""
    return list(_write_partition(rows.to_batches(), url, storage_options, prefix, "", ()))


def _data_file(row: Row) -> DataFile:
    return DataFile(row.path, row.size, row.rows, row.stats, json.loads(row.partition))


def run(frame: DataFrame) -> None:
    """Run the frame for its effects on the state store alone."""
    frame.write.format("noop").mode("overwrite").save()


def _write_partition(
    batches: Iterable[pa.RecordBatch],
    url: str,
    storage_options: dict[str, str],
    prefix: str,
    by: str,
    bounded: Sequence[str],
) -> Iterator[DataFile]:
    """Write the rows of one task; a full file of a value is written at once, the rest at the end."""
    pending: dict[str, list[pa.RecordBatch]] = defaultdict(list)
    rows = Counter[str]()
    size_bytes = Counter[str]()

    def written(value: str) -> DataFile:
        parts = pending.pop(value)
        del rows[value]
        del size_bytes[value]
        partition = {}
        if by:
            partition[by] = value
        return _write_file(pa.Table.from_batches(parts), url, storage_options, prefix, bounded, partition)

    for batch in batches:
        for value, part in _parts(batch, by):
            pending[value].append(part)
            rows[value] += part.num_rows
            size_bytes[value] += part.nbytes
            if rows[value] >= ROWS_PER_FILE or size_bytes[value] >= BYTES_PER_FILE:
                yield written(value)
    for value in list(pending):
        yield written(value)


def _parts(batch: pa.RecordBatch, by: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each value of the column, without the column."""
    if not by:
        if batch.num_rows:
            yield "", batch
        return
    column = batch.column(by)
    rest = batch.drop_columns([by])
    for value in pc.unique(column).to_pylist():
        yield value, rest.filter(pc.equal(column, value))


def _write_file(
    table: pa.Table,
    url: str,
    storage_options: dict[str, str],
    prefix: str,
    bounded: Sequence[str] = (),
    partition: dict[str, str] | None = None,
) -> DataFile:
    path = f"{prefix}-{uuid.uuid4().hex}.parquet"
    files = filesystem(url, storage_options)
    pq.write_table(table, path, filesystem=files, compression="zstd")
    size = files.get_file_info(path).size
    stats = json.dumps(statistics(table, bounded))
    return DataFile(path, size, table.num_rows, stats, partition or {})
