"""The rows that the commits of a sink brought between two of its versions, and those that they took away.

A row that a compaction moved is among both.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from hindcast.delta.files import filesystem
from hindcast.errors import VersionLostError
from hindcast.spark.delta_files import read_files
from hindcast.tables.sink_files import FileList, SinkFiles, VersionGoneError


@dataclass(frozen=True)
class SinkChange:
    """``added`` and ``removed`` are paths of files within the table at ``url``."""

    url: str
    schema: str
    added: Sequence[str]
    removed: Sequence[str]
    storage_options: dict[str, str]

    @classmethod
    def between(cls, files: SinkFiles, after: int, version: int) -> SinkChange:
        """What the versions after ``after`` up to and including ``version`` changed. From -1 on these are all
        rows of the version.

        :raises VersionLostError: if one of the versions, or one of the files, is gone
        :raises StoreUnavailableError: if the store does not answer
        """
        number = version
        try:
            last = files.at(version)
            first = FileList(last.schema, frozenset())
            if after >= 0:
                number = after
                first = files.at(after)
        except VersionGoneError as error:
            raise VersionLostError(table=files.url, version=number) from error
        change = cls(files.url, last.schema, last.without(first), first.without(last), files.storage_options)
        lacking = files.lacking([*change.added, *change.removed])
        if lacking is not None:
            raise VersionLostError(table=files.url, version=f"{after} to {version}: {lacking}")
        return change

    def added_rows(self, spark: SparkSession) -> DataFrame:
        return read_files(spark, self.url, self.schema, self.added)

    def removed_rows(self, spark: SparkSession) -> DataFrame:
        return read_files(spark, self.url, self.schema, self.removed)

    def new_pandas(self, columns: Sequence[str] | None) -> pd.DataFrame:
        """The added rows without those that were only moved.

        :param columns: these columns only, those of them that there are
        """
        fields = [field["name"] for field in json.loads(self.schema)["fields"]]
        names = [name for name in fields if columns is None or name in columns]
        added = self._pandas(self.added, names)
        moved = Counter(_texts(self._pandas(self.removed, names)))
        if not moved:
            return added
        is_new = []
        for text in _texts(added):
            is_new.append(moved[text] == 0)
            moved[text] = max(moved[text] - 1, 0)
        return added[is_new].reset_index(drop=True)

    def _pandas(self, paths: Sequence[str], names: list[str]) -> pd.DataFrame:
        """The rows of these files. A file from before a column was added has nulls in it."""
        store = filesystem(self.url, self.storage_options)
        # Each file by itself: one that another program has rewritten may have other Arrow types of text.
        pieces = []
        for path in paths:
            file = pq.ParquetFile(path, filesystem=store)
            held = [name for name in names if name in file.schema_arrow.names]
            pieces.append(file.read(columns=held).to_pandas().reindex(columns=names))
        if not pieces:
            return pd.DataFrame(columns=names)
        frame: pd.DataFrame = pd.concat(pieces, ignore_index=True)
        return frame


def _texts(rows: pd.DataFrame) -> list[str]:
    """Each row as a text that equal rows share. Lists and structures themselves cannot be counted."""
    return [repr(row) for row in rows.itertuples(index=False, name=None)]
