"""Which files a sink had at a version, so what its commits brought between two versions.

A sink's log is kept for hours. A replay therefore keeps the list of the files at the two versions between
which it judges, and the next one, which begins where it ended, needs no log from before its own range. Files
that both versions have hold the same rows. What remains are the files that batches added, those that a
compaction joined and those it replaced, and whatever else was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from hindcast.delta.files import filesystem
from hindcast.delta.older_log import open_version
from hindcast.delta.open_table import open_table
from hindcast.errors import BadInputError, StoreUnavailableError
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings

#: The folder of the kept lists, below the root of all tables: sink/table id/version.parquet.
FOLDER = "sink_files"
#: The key of the columns in the metadata of a list.
_SCHEMA = b"hindcast.columns"


#: Of a table of this version of the protocol the columns may have other names in its files.
_COLUMN_MAPPING = 2


class VersionGoneError(Exception):
    """The log has lost the version, and no list of its files was kept."""


@dataclass(frozen=True)
class FileList:
    """The files of a table at a version, as paths within it, and its columns in Delta's JSON."""

    schema: str
    paths: frozenset[str]

    def to_arrow(self) -> pa.Table:
        paths = pa.table({"path": sorted(self.paths)}, schema=pa.schema([("path", pa.string())]))
        return paths.replace_schema_metadata({_SCHEMA: self.schema})

    @classmethod
    def from_arrow(cls, kept: pa.Table) -> FileList:
        return cls(kept.schema.metadata[_SCHEMA].decode(), frozenset(kept["path"].to_pylist()))

    def without(self, other: FileList) -> list[str]:
        """The paths that the other list does not have, in order."""
        return sorted(self.paths - other.paths)


class SinkFiles:
    """The lists of the files of one sink."""

    def __init__(self, settings: Settings, pipeline: Pipeline) -> None:
        self.url = settings.sink(pipeline)
        self.storage_options = settings.storage_options
        self._sink = pipeline.sink.name
        self._root = settings.table(FOLDER)

    def at(self, version: int) -> FileList:
        """The files at a version of the table: from the log, or as they were kept.

        :raises VersionGoneError: if neither has them
        :raises StoreUnavailableError: if the store does not answer
        """
        newest = open_table(self.url, self.storage_options)
        kept = self._kept(newest, version)
        if kept is not None:
            return kept
        try:
            return files_of(open_version(self.url, self.storage_options, version))
        except (DeltaError, OSError, StoreUnavailableError) as error:
            raise VersionGoneError from error

    def keep(self, version: int) -> None:
        """Keep the list of a version, from now on as long as one that is new.

        :raises VersionGoneError: if the log has lost the version
        :raises StoreUnavailableError: if the store does not answer
        """
        found = self.at(version).to_arrow()
        newest = open_table(self.url, self.storage_options)
        try:
            if "://" not in self._root:
                Path(self._root).mkdir(parents=True, exist_ok=True)
            files = filesystem(self._root, self.storage_options)
            pq.write_table(found, self._name(newest, version), filesystem=files)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise StoreUnavailableError(table=self._root, action="written", reason=error) from error

    def lacking(self, paths: Sequence[str]) -> str | None:
        """The first of these files that a vacuum has deleted; None if all are there.

        :raises StoreUnavailableError: if the store does not answer
        """
        try:
            found = filesystem(self.url, self.storage_options).get_file_info(list(paths))
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=self.url, action="read", reason=error) from error
        return next((info.path for info in found if not info.is_file), None)

    def _name(self, table: DeltaTable, version: int) -> str:
        # A table that was deleted and made again counts its versions from 0, under another id.
        return f"{self._sink}/{table.metadata().id}/{version}.parquet"

    def _kept(self, table: DeltaTable, version: int) -> FileList | None:
        if "://" not in self._root and not Path(self._root).exists():
            return None
        try:
            files = filesystem(self._root, self.storage_options)
            return FileList.from_arrow(pq.read_table(self._name(table, version), filesystem=files))
        except FileNotFoundError:
            return None
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise StoreUnavailableError(table=self._root, action="read", reason=error) from error


def hides_rows(table: DeltaTable) -> str:
    """Because of what a table's files alone do not tell its rows, in words; empty if they do."""
    protocol = table.protocol()
    features = protocol.reader_features or []
    if "deletionVectors" in features:
        return "deletion vectors"
    if "columnMapping" in features or protocol.min_reader_version == _COLUMN_MAPPING:
        return "names of columns that differ from those in its files"
    if table.metadata().partition_columns:
        return "columns that only the names of its folders hold"
    return ""


def check_files_tell_rows(table: DeltaTable) -> None:
    """:raises BadInputError: if the files alone do not tell the rows"""
    hiding = hides_rows(table)
    if hiding:
        problem = f"The table {table.table_uri} has {hiding}: its files do not say which rows it has"
        cure = "Hindcast writes none of that: restore the table as it was before. "
        cure += "A stream that others run can be judged on such a table if it has a window."
        raise BadInputError(problem=problem, cure=cure)


def files_of(table: DeltaTable) -> FileList:
    """The files at the version of a handle.

    :raises BadInputError: if the files alone do not tell the rows
    """
    check_files_tell_rows(table)
    paths = pa.table(table.get_add_actions())["path"].to_pylist()
    return FileList(table.schema().to_json(), frozenset(paths))
