"""What an archive answers without Spark: which ranges it holds, and which offset a moment has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from hindcast.settings import Settings
from hindcast.tables.archive_schema import archived_topics
from hindcast.tables.ledger import Offsets


@dataclass(frozen=True)
class ArchiveSnapshot:
    """One version of an archive, by the topic's own partitions."""

    account: Manifest
    table: DeltaTable
    storage_options: dict[str, str]

    @property
    def ranges(self) -> Mapping[int, Ranges]:
        return self.account.ranges

    def is_of(self, topic_id: str) -> bool:
        """Whether it can be of the topic with this id of Kafka's: not where both are known and differ."""
        return not topic_id or self.account.topic_id in ("", topic_id)

    def at_time(self, at: datetime, below: Mapping[int, int]) -> Offsets:
        """By partition, the first archived offset before ``below`` whose broker timestamp is at or after ``at``; none where there is none.

        ``at`` is aware and counts to the millisecond, as Kafka's timestamps do.
        Files are looked at in the order of their offsets, until one answers: seldom more than one a partition.

        :raises StoreUnavailableError: where a file cannot be read
        """
        at = at.replace(microsecond=at.microsecond // 1000 * 1000)
        found: Offsets = {}
        for partition, end in below.items():
            for path, lowest in self._files(partition, at):
                if lowest >= found.get(partition, end):
                    break
                if (offset := self._first(path, partition, at)) is not None:
                    found[partition] = min(offset, found.get(partition, end))
        return {partition: offset for partition, offset in found.items() if offset < below[partition]}

    def _files(self, partition: int, at: datetime) -> Iterator[tuple[str, int]]:
        """(path, least offset) of the files that may hold such a record, in the order of those offsets."""
        files: list[dict[str, Any]] = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        mine = [file for file in files if file["min.partition"] <= partition <= file["max.partition"]]
        young = [file for file in mine if file["max.timestamp"] is None or file["max.timestamp"] >= at]
        return ((file["path"], file["min.offset"]) for file in sorted(young, key=lambda file: file["min.offset"]))

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
    """What the topic's archive holds; None where there is none.

    :raises ArchiveDamagedError: where it lacks records that it held, or has more
    """
    table = ArchiveTable(settings, topic)
    try:
        opened = table.open()
    except UnknownArchiveError:
        return None
    account = table.account_of(opened)
    rows = sum(pa.table(opened.get_add_actions())["num_records"].to_pylist())
    if rows != account.rows:
        raise ArchiveDamagedError(topic=topic, found=rows, known=account.rows, table=table.url)
    return ArchiveSnapshot(account, opened, settings.storage_options)


def listing(settings: Settings) -> list[dict[str, Any]]:
    """One row for each archive, as :meth:`~hindcast.archive.manifest.Manifest.as_row` gives it."""
    return [ArchiveTable(settings, topic).account().as_row() for topic in archived_topics(settings)]
