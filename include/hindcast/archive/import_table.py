"""Bring older records into a topic's archive from a Delta table that somebody else has filled.

Many teams keep a topic's records in a table of their own, with their partition, offset and timestamp. What
that table has from before the archive's beginning becomes part of the archive, so streams, replays and
rebuilds find it there. The table itself is only read.

The archive grows downwards, in steps of a bounded number of offsets, and each step touches the one before. So
a run that is killed at any moment leaves an archive without a hole, and the next run goes on below it:

1. Decide the next step, [start, end) of each partition: it ends where the archive begins. An empty archive
   begins where the table ends.
2. Write the step's records as data files into the archive's folder. No commit names them yet.
3. and 4. Commit them with the new manifest, on the version that it was decided on
   (:meth:`hindcast.archive.table.ArchiveTable.commit`).
5. Take the next step, until the archive begins where the table does.

Nothing tells a record that was lost from an offset that never had one: transactions and compaction leave
such. A person who knows the table accepts them by a reason, which an event keeps.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import structlog
from deltalake import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.archive.archive_or_live import next_step
from hindcast.archive.copy_topic import check_reason, newest_at
from hindcast.archive.manifest import Manifest
from hindcast.archive.table import ArchiveTable
from hindcast.delta.files import DataFile
from hindcast.delta.open_table import find_table
from hindcast.errors import ArchiveFailedError, BadInputError, UnknownArchiveError, innermost
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets
from hindcast.partitions import Offsets
from hindcast.processes.crash_points import reach
from hindcast.spark.kafka_source import in_ranges
from hindcast.spark.parquet_writer import write_files
from hindcast.tables.archive_schema import BOUNDED
from hindcast.tables.event_log import EventKind

_log = structlog.get_logger(__name__)

#: What a table of records must have.
NEEDED = ("partition", "offset", "timestamp", "key", "value")
_FORM = (
    "Give a table with the columns that Spark's Kafka source has: partition, offset, timestamp, key, value; "
    "and if it has them topic, timestampType, headers."
)
#: Spark's types of the archive's columns.
_TYPES = {
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_type": "int",
    "headers": "array<struct<key: string, value: binary>>",
    "key": "binary",
    "value": "binary",
}
#: How Spark's Kafka source calls a column that the archive calls otherwise.
_SPARKS_NAMES = {"timestamp_type": "timestampType"}


@dataclass(frozen=True)
class _Found:
    """What the table has of one partition: offsets from ``first`` to before ``end``."""

    first: int
    end: int


def import_table(
    session: Callable[[], SparkSession],
    installation: Installation,
    topic: str,
    table_url: str,
    *,
    accept_holes: str = "",
    step_offsets: int,
) -> dict[str, Any]:
    """Archive what the table has of the topic from before the archive's beginning; return what was done.

    :param table_url: a Delta table of the topic's records, or of several topics' with a column ``topic``
    :param accept_holes: why offsets without a record may count as archived; "" refuses them
    :returns: {topic, table, rows, bytes, steps, ranges}. ``rows`` to ``steps`` are of this run, ``ranges`` of
        the whole archive.
    :raises BadInputError: if there is no such table, it lacks a column, has a record twice, has offsets that
        the topic does not, or lacks some that are not accepted; nothing was archived
    :raises ArchiveFailedError: if Spark failed; the next run goes on after the last step
    """
    check_reason(accept_holes)
    run = _Import(session, installation, topic, table_url)
    try:
        return run.run(accept_holes.strip(), step_offsets)
    except (PySparkException, Py4JError) as error:
        raise ArchiveFailedError(action="Importing", topic=topic, reason=innermost(error)) from error


class _Import:
    """One run."""

    def __init__(
        self, session: Callable[[], SparkSession], installation: Installation, topic: str, table_url: str
    ) -> None:
        self._session = session
        self._settings = installation.settings
        self._events = installation.event_log
        self._topic = topic
        self._url = table_url
        self._archive = ArchiveTable(self._settings, topic)

    @cached_property
    def _spark(self) -> SparkSession:
        return self._session()

    @cached_property
    def _records(self) -> DataFrame:
        """The topic's records in the table, as the archive has them.

        :raises BadInputError: if there is no such table, or it lacks a column
        """
        table = find_table(self._url, self._settings.storage_options)
        if table is None:
            raise BadInputError(problem=f"There is no Delta table {self._url}", cure=_FORM)
        self._check_columns(table)
        rows = self._spark.read.format("delta").load(self._url)
        if "topic" in rows.columns:
            rows = rows.where(F.col("topic") == self._topic)
        columns = []
        for name, kind in _TYPES.items():
            column = F.lit(None)
            there = _SPARKS_NAMES.get(name, name)
            if there in rows.columns:
                column = F.col(there)
            columns.append(column.cast(kind).alias(name))
        return rows.select(*columns).fillna(0, ["timestamp_type"])

    def _check_columns(self, table: DeltaTable) -> None:
        there = {field.name for field in table.schema().fields}
        lacking = [name for name in NEEDED if name not in there]
        if lacking:
            raise BadInputError(problem=f"{self._url} has no column {', '.join(lacking)}", cure=_FORM)

    def run(self, accept_holes: str, step_offsets: int) -> dict[str, Any]:
        found = self._found()
        self._check_topic(found)
        rows = size = steps = 0
        checked = False
        while True:
            reach("import.1")  # 1. what comes next, downwards?
            manifest = self._manifest()
            ends = self._begins(manifest, found)
            lows = {partition: min(one.first, ends[partition]) for partition, one in found.items()}
            if lows == ends:
                break
            if not checked:
                self._check_records(lows, ends, accept_holes)
                checked = True
                self._archive.create()
            start = _step_down(lows, ends, step_offsets)
            reach("import.2")  # 2. files that no reader sees yet
            files = self._write(manifest, start, ends)
            of_step = sum(file.rows for file in files)
            bytes_of_step = sum(file.size for file in files)
            after = manifest.with_older(
                uuid.uuid4().hex, start, ends, rows=of_step, size=bytes_of_step, newest_at=newest_at(files)
            )
            if not self._archive.commit(manifest, after, files):  # 3. and 4.
                continue
            rows += of_step
            size += bytes_of_step
            steps += 1
            left = sum(start[partition] - low for partition, low in lows.items())
            _log.info("Imported a step.", topic=self._topic, rows=of_step, start=start, offsets_left=left)
            reach("import.5")  # 5. the next step
        if steps:
            self._record(rows, accept_holes)
        return self._report(manifest, rows, size, steps)

    def _record(self, rows: int, accept_holes: str) -> None:
        message = f"The archive of {self._topic} took {rows} older records from {self._url}."
        if accept_holes:
            message += f" Offsets without a record count as archived: {accept_holes}"
        self._events.record(EventKind.ARCHIVE_IMPORTED, message, topic=self._topic, table=self._url)

    def _found(self) -> dict[int, _Found]:
        """What the table has, by partition.

        :raises BadInputError: if it has nothing of the topic
        """
        grouped = self._records.groupBy("partition").agg(
            F.min("offset").alias("first"), F.max("offset").alias("last")
        )
        found = {row["partition"]: _Found(row["first"], row["last"] + 1) for row in grouped.collect()}
        if not found:
            raise BadInputError(problem=f"{self._url} has no record of {self._topic}", cure=_FORM)
        return found

    def _manifest(self) -> Manifest:
        """What the archive holds now; nothing if there is none."""
        try:
            return self._archive.manifest()
        except UnknownArchiveError:
            return Manifest(topic=self._topic)

    def _check_topic(self, found: Mapping[int, _Found]) -> None:
        """:raises BadInputError: if the table has offsets that the topic has never given"""
        with TopicOffsets(self._settings) as offsets:
            latest = offsets.latest(self._topic)
        for partition, one in found.items():
            if one.end > latest.get(partition, 0):
                problem = f"{self._url} has offset {one.end - 1} of partition {partition}"
                problem += f", and {self._topic} ends at {latest.get(partition, 0)}"
                raise BadInputError(problem=problem, cure="Give a table of this very topic's records.")

    def _begins(self, manifest: Manifest, found: Mapping[int, _Found]) -> Offsets:
        """Where the archive begins, or will begin: nothing of a partition is imported from there on."""
        begins: Offsets = {}
        for partition, one in found.items():
            first = manifest.first(partition)
            begins[partition] = one.end
            if first is not None:
                begins[partition] = first
        return begins

    def _check_records(self, lows: Offsets, ends: Offsets, accept_holes: str) -> None:
        """:raises BadInputError: if the table has a record of the range twice, or lacks some"""
        counted = (
            self._records.where(in_ranges(lows, ends))
            .groupBy("partition")
            .agg(F.count("*").alias("rows"), F.count_distinct("offset").alias("distinct"))
        )
        distinct: dict[int, int] = {}
        for row in counted.collect():
            distinct[row["partition"]] = row["distinct"]
            again = row["rows"] - row["distinct"]
            if again:
                raise BadInputError(
                    problem=f"{self._url} has {again} records of partition {row['partition']} more than once",
                    cure="Give a table with each record once: dropDuplicates by partition and offset.",
                )
        holes = sum(ends[partition] - low - distinct.get(partition, 0) for partition, low in lows.items())
        if not holes or accept_holes:
            return
        command = f'`hindcast archive import {self._topic} --table {self._url} --accept-holes "why"`'
        raise BadInputError(
            problem=f"{self._url} has no record at {holes} of the offsets that the archive lacks",
            cure=(
                "Transactions and compaction leave such offsets, and so does a job that loses records. "
                f"If nothing is lost, or may stay lost, say why: {command}."
            ),
        )

    def _write(self, manifest: Manifest, start: Offsets, end: Offsets) -> list[DataFile]:
        begin = {partition: offset for partition, offset in start.items() if offset < end[partition]}
        step = self._records.where(in_ranges(begin, end))
        # So a file holds one partition, in the order of its offsets.
        ordered = step.repartitionByRange(len(begin), "partition").sortWithinPartitions("partition", "offset")
        prefix = f"i{manifest.number + 1}"
        return write_files(ordered, self._archive.url, self._archive.storage_options, prefix, bounded=BOUNDED)

    def _report(self, manifest: Manifest, rows: int, size: int, steps: int) -> dict[str, Any]:
        return {
            "topic": self._topic,
            "table": self._url,
            "rows": rows,
            "bytes": size,
            "steps": steps,
            "ranges": manifest.as_row()["ranges"],
        }


def _step_down(lows: Mapping[int, int], ends: Mapping[int, int], most: int) -> Offsets:
    """By partition, the start of a step of about ``most`` offsets that ends at ``ends``."""
    mirrored_ends = {partition: -end for partition, end in ends.items()}
    mirrored_lows = {partition: -low for partition, low in lows.items()}
    return {partition: -offset for partition, offset in next_step(mirrored_ends, mirrored_lows, most).items()}
