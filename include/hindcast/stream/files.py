"""Write a frame as Parquet files into a Delta table's folder, on the executors. The files count only once a commit names them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem, PyFileSystem
from pyspark.sql import DataFrame

from hindcast.control.statistics import statistics

_SCHEMA = "path string, size long, rows long, stats string"
#: A task begins a new file after so many rows, so that one file never grows without bound.
ROWS_PER_FILE = 2_000_000


@dataclass(frozen=True)
class DataFile:
    """One written file: its path within the table, bytes, rows, and Delta's statistics as JSON."""

    path: str
    size: int
    rows: int
    stats: str

    def as_action(self) -> AddAction:
        return AddAction(self.path, self.size, {}, int(time.time() * 1000), True, self.stats)


def filesystem(url: str, storage_options: dict[str, str]) -> FileSystem:
    """The folder of a table as a pyarrow file system, through the store that deltalake itself uses."""
    return PyFileSystem(DeltaStorageHandler(url, storage_options or None))


def write_files(frame: DataFrame, url: str, storage_options: dict[str, str], prefix: str) -> list[DataFile]:
    """Run the frame and write its rows below ``url``; an empty partition writes nothing.

    :param prefix: the beginning of each file's name, for people who look into the folder
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = list(_write_partition(batches, url, storage_options, prefix))
        if files:
            yield pa.RecordBatch.from_pylist([vars(file) for file in files])

    return [DataFile(row.path, row.size, row.rows, row.stats) for row in frame.mapInArrow(write, _SCHEMA).collect()]


def run(frame: DataFrame) -> None:
    """Run the frame for its effects on the state store alone."""
    frame.write.format("noop").mode("overwrite").save()


def _write_partition(batches: Iterable[pa.RecordBatch], url: str, storage_options: dict[str, str], prefix: str) -> Iterator[DataFile]:
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows:
            pending.append(batch)
            rows += batch.num_rows
        if rows >= ROWS_PER_FILE:
            yield _write_file(pa.Table.from_batches(pending), url, storage_options, prefix)
            pending, rows = [], 0
    if pending:
        yield _write_file(pa.Table.from_batches(pending), url, storage_options, prefix)


def _write_file(table: pa.Table, url: str, storage_options: dict[str, str], prefix: str) -> DataFile:
    path = f"{prefix}-{uuid.uuid4().hex}.parquet"
    files = filesystem(url, storage_options)
    pq.write_table(table, path, filesystem=files, compression="zstd")
    return DataFile(path, files.get_file_info(path).size, table.num_rows, json.dumps(statistics(table)))
