"""A data file of a Delta table, and the file system that holds it. It counts only once a commit names it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem, PyFileSystem


@dataclass(frozen=True)
class DataFile:
    """One written file: its path within the table, its size in bytes, its number of rows, Delta's statistics
    as JSON, and its partition.
    """

    path: str
    size: int
    rows: int
    stats: str
    partition: dict[str, str] = field(default_factory=dict)

    def as_action(self) -> AddAction:
        now_ms = int(time.time() * 1000)
        data_change = True
        return AddAction(self.path, self.size, dict(self.partition), now_ms, data_change, self.stats)


def filesystem(url: str, storage_options: dict[str, str]) -> FileSystem:
    """The folder of a table as a pyarrow file system, through the store that deltalake itself uses."""
    return PyFileSystem(DeltaStorageHandler(url, storage_options or None))
