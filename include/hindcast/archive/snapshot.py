"""What an archive answers without Spark: which ranges it holds, and which offset an instant has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from hindcast.archive.archive_or_live import Ranges
from hindcast.archive.manifest import Manifest
from hindcast.archive.table import ArchiveTable
from hindcast.delta.files import filesystem
from hindcast.errors import ArchiveDamagedError, StoreUnavailableError, UnknownArchiveError
from hindcast.partitions import Offsets
from hindcast.settings import Settings
from hindcast.tables.archive_schema import archived_topics

#: (path, least offset) of a file.
_File = tuple[str, int]
#: What of a file's statistics its place among the others depends on.
_BOUNDS = ["path", "min.partition", "max.partition", "min.offset"]


@dataclass(frozen=True)
class ArchiveSnapshot:
    """One version of an archive, by the topic's own partitions."""

    manifest: Manifest
    table: DeltaTable
    storage_options: dict[str, str]

    @property
    def ranges(self) -> Mapping[int, Ranges]:
        return self.manifest.ranges

    def is_of(self, topic_id: str) -> bool:
        """Whether it can be of the topic with this id of Kafka's: not if both ids are known and differ."""
        return not topic_id or self.manifest.topic_id in ("", topic_id)

    def at_time(self, at: datetime, below: Mapping[int, int]) -> Offsets:
        """By partition, the first archived offset before ``below`` whose broker timestamp is ``at`` or later.
        A partition without such a record is left out.

        ``at`` is aware and counts to the millisecond, as Kafka's timestamps do. Files are read in the order
        of their offsets, until one answers: seldom more than one a partition.

        :raises StoreUnavailableError: if a file cannot be read
        """
        at = at.replace(microsecond=at.microsecond // 1000 * 1000)
        files = self._files(below, at)
        found: Offsets = {}
        for partition, end in below.items():
            first = self._first_before(end, partition, at, files[partition])
            if first < end:
                found[partition] = first
        return found

    def _first_before(self, end: int, partition: int, at: datetime, files: Sequence[_File]) -> int:
        """The first such offset before ``end``, else ``end``.

        :param files: in the order of their least offsets
        """
        first = end
        for path, lowest in files:
            if lowest >= first:
                break
            offset = self._first(path, partition, at)
            if offset is not None:
                first = min(offset, first)
        return first

    def _files(self, partitions: Iterable[int], at: datetime) -> dict[int, list[_File]]:
        """By partition the files that may hold such a record, in the order of their least offsets.

        The table is listed once, and only these files become Python objects.
        """
        listed = pa.table(self.table.get_add_actions(flatten=True))
        newest_at = listed["max.timestamp"]
        maybe = listed.filter(pc.or_kleene(pc.is_null(newest_at), pc.greater_equal(newest_at, at)))
        found: dict[int, list[_File]] = {partition: [] for partition in partitions}
        for file in maybe.select(_BOUNDS).to_pylist():
            for partition in range(file["min.partition"], file["max.partition"] + 1):
                if partition in found:
                    found[partition].append((file["path"], file["min.offset"]))
        for files in found.values():
            files.sort(key=lambda file: file[1])
        return found

    def _first(self, path: str, partition: int, at: datetime) -> int | None:
        try:
            rows = pq.read_table(
                path,
                filesystem=filesystem(self.table.table_uri, self.storage_options),
                columns=["offset"],
                filters=[("partition", "=", partition), ("timestamp", ">=", at)],
            )
        except (OSError, pa.ArrowException) as error:
            raise StoreUnavailableError(table=self.table.table_uri, action="read", reason=error) from error
        least: int | None = pc.min(rows["offset"]).as_py()
        return least


def read_snapshot(settings: Settings, topic: str) -> ArchiveSnapshot | None:
    """What the topic's archive holds; None if there is none.

    :raises ArchiveDamagedError: if it lacks records that it held, or has more
    """
    table = ArchiveTable(settings, topic)
    try:
        opened = table.open()
    except UnknownArchiveError:
        return None
    manifest = table.manifest_of(opened)
    rows = sum(pa.table(opened.get_add_actions())["num_records"].to_pylist())
    if rows != manifest.rows:
        raise ArchiveDamagedError(topic=topic, found=rows, known=manifest.rows, table=table.url)
    return ArchiveSnapshot(manifest, opened, settings.storage_options)


def listing(settings: Settings) -> list[dict[str, Any]]:
    """One row for each archive, as :meth:`~hindcast.archive.manifest.Manifest.as_row` gives it."""
    return [ArchiveTable(settings, topic).manifest().as_row() for topic in archived_topics(settings)]
