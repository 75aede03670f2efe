"""Copy a topic into its archive, each record once.

The copy advances in steps of a bounded number of offsets. A crash between any two numbers leaves either
nothing of a step or all of it:

1. Decide the next step, [start, end) of each partition, from the archive's newest manifest and the topic's
   offsets. It starts where the archive ends, so steps form a chain.
2. Write the step's records as data files into the archive's folder. No commit names them yet, so no reader
   sees them.
3. On one handle of the table, check that the manifest is still the one of 1. If it is not, another archiver
   was faster: its step stands, this one is forgotten, and the next one is decided again.
4. Commit the files and the new manifest atomically, on that very version of the table.
5. Take the next step, until the archive ends where the topic ended when the copy began.

Offsets that the topic drops before they are archived are lost for good. The copy never passes over them by
itself: it stops and names them. It continues if a person accepts the gap, and the manifest then remembers the
gap.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import structlog
from pyspark.sql import DataFrame, SparkSession

from hindcast.archive.archive_or_live import next_step
from hindcast.archive.manifest import Gap, Manifest
from hindcast.archive.table import ArchiveTable
from hindcast.delta.files import DataFile
from hindcast.errors import ArchiveFailedError, ArchiveRefusedError, BadInputError, HindcastError, innermost
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets
from hindcast.partitions import Offsets
from hindcast.processes.crash_points import reach
from hindcast.spark.kafka_source import kafka_range
from hindcast.spark.parquet_writer import write_files
from hindcast.tables.archive_schema import ARCHIVE_SCHEMA, BOUNDED
from hindcast.tables.event_log import EventKind, Severity

_log = structlog.get_logger(__name__)

#: Offsets of one step: a job of some seconds, of which a crash loses one.
STEP_OFFSETS = 1_000_000
#: The longest reason for a gap that is kept, in characters.
LONGEST_REASON = 500


def archive_topic(
    session: Callable[[], SparkSession],
    installation: Installation,
    topic: str,
    *,
    accept_gap: str = "",
    step_offsets: int = STEP_OFFSETS,
) -> dict[str, Any]:
    """Archive what the topic holds and the archive does not; return what was done. ``session`` is called once
    there is something to copy.

    :param accept_gap: why offsets that are lost already may stay lost; "" refuses to pass over them
    :returns: {topic, rows, bytes, steps, outrun, ranges, gaps}. ``rows`` to ``outrun`` are of this run, and
        ``outrun`` counts the steps that another archiver took. ``ranges`` and ``gaps`` are of the whole
        archive.
    :raises ArchiveRefusedError: if offsets were lost before they were archived, or the topic was deleted and
        created again; an event says so, too
    :raises ArchiveFailedError: if Spark failed; the next run resumes after the last step
    """
    check_reason(accept_gap)
    events = installation.event_log
    try:
        with TopicOffsets(installation.settings) as offsets:
            copy = _Copy(session, installation, topic, offsets)
            return copy.run(accept_gap.strip(), step_offsets)
    except BadInputError:
        raise
    except HindcastError as error:
        again = f"Run `hindcast archive run {topic}` again: it goes on from the last step."
        cure = str(error.fields.get("cure") or again)
        events.record(EventKind.ARCHIVE_STOPPED, str(error), severity=Severity.ERROR, cure=cure, topic=topic)
        raise


def check_reason(reason: str) -> None:
    """:raises BadInputError: if it is too long to be kept"""
    if len(reason) > LONGEST_REASON:
        cure = f"Say it in {LONGEST_REASON} characters."
        raise BadInputError(problem="The reason is too long", cure=cure)


class _Copy:
    """One run. ``_end`` is where the topic ended when it began."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        installation: Installation,
        topic: str,
        offsets: TopicOffsets,
    ) -> None:
        self._session = session
        self._settings = installation.settings
        self._topic = topic
        self._offsets = offsets
        self._events = installation.event_log
        self._table = ArchiveTable(self._settings, topic)
        self._end = offsets.latest(topic)
        self._topic_id = offsets.identity(topic)
        self._table.create()
        self._rows = 0
        self._bytes = 0
        self._steps = 0
        self._outrun = 0

    @cached_property
    def _spark(self) -> SparkSession:
        return self._session()

    def run(self, accept_gap: str, step_offsets: int) -> dict[str, Any]:
        while True:
            reach("archive.1")  # 1. what comes next?
            manifest = self._table.manifest()
            self._check_topic(manifest)
            earliest = self._earliest()
            lost = manifest.lost(earliest)
            if lost:
                self._accept(manifest, lost, accept_gap)
                continue
            start = manifest.starts(earliest)
            target = {partition: max(offset, start[partition]) for partition, offset in self._end.items()}
            if manifest.number and start == target:
                return self._report(manifest)
            self._step(manifest, start, next_step(start, target, step_offsets), target)

    def _earliest(self) -> Offsets:
        """The topic's first offsets, without partitions that were added after this run began."""
        earliest = self._offsets.earliest(self._topic)
        return {partition: offset for partition, offset in earliest.items() if partition in self._end}

    def _report(self, manifest: Manifest) -> dict[str, Any]:
        whole = manifest.as_row()
        return {
            "topic": self._topic,
            "rows": self._rows,
            "bytes": self._bytes,
            "steps": self._steps,
            "outrun": self._outrun,
            "ranges": whole["ranges"],
            "gaps": whole["gaps"],
        }

    def _step(self, manifest: Manifest, start: Offsets, end: Offsets, target: Mapping[int, int]) -> None:
        reach("archive.2")  # 2. files that no reader sees yet
        try:
            files = self._write(manifest, start, end)
        except HindcastError:
            raise
        except Exception as error:
            reason = self._why_it_failed(manifest, error)
            raise ArchiveFailedError(action="Archiving", topic=self._topic, reason=reason) from error
        rows = sum(file.rows for file in files)
        size = sum(file.size for file in files)
        after = manifest.with_step(
            uuid.uuid4().hex,
            start,
            end,
            rows=rows,
            size=size,
            newest_at=newest_at(files),
            topic_id=self._topic_id,
        )
        if not self._table.commit(manifest, after, files):  # 3. and 4.
            self._outrun += 1
            _log.info("Another archiver was faster; deciding again.", topic=self._topic, start=start)
            return
        self._rows += rows
        self._bytes += size
        self._steps += 1
        left = sum(target[partition] - offset for partition, offset in end.items())
        _log.info("Archived a step.", topic=self._topic, rows=rows, bytes=size, end=end, offsets_left=left)
        reach("archive.5")  # 5. the next step

    def _write(self, manifest: Manifest, start: Offsets, end: Offsets) -> list[DataFile]:
        begin = {partition: offset for partition, offset in start.items() if offset < end[partition]}
        if not begin:
            return []
        records = kafka_range(self._spark, self._settings, self._topic, begin, end, headers=True)
        prefix = f"c{manifest.number + 1}"
        return write_files(
            _columns(records), self._table.url, self._table.storage_options, prefix, bounded=BOUNDED
        )

    def _why_it_failed(self, manifest: Manifest, error: Exception) -> str:
        gone = manifest.lost(self._offsets.earliest(self._topic))
        if gone:
            return f"the topic dropped offsets {_named(gone)} meanwhile"
        return innermost(error)

    def _check_topic(self, manifest: Manifest) -> None:
        """:raises ArchiveRefusedError: if the archive is of another topic of the same name"""
        latest = self._offsets.latest(self._topic)
        what = ""
        if manifest.topic_id and self._topic_id and manifest.topic_id != self._topic_id:
            what = f"Kafka's id of the topic is {self._topic_id}, and the archive is of {manifest.topic_id}"
        for partition, archived in manifest.ends.items():
            held = latest.get(partition, 0)
            if held < archived:
                what = f"partition {partition} ends at {held}, and its archive at {archived}"
                break
        if not what:
            return
        raise ArchiveRefusedError(
            topic=self._topic,
            problem=f"{what}: the topic was created again or has lost records",
            cure=(
                f"Restore the topic, or move the archive {self._table.url} away, where no replay needs it "
                "any more, to begin a new one."
            ),
        )

    def _accept(self, manifest: Manifest, lost: Sequence[Gap], reason: str) -> None:
        """Continue behind the gaps.

        :raises ArchiveRefusedError: if no reason was given
        """
        if not reason:
            command = f'`hindcast archive run {self._topic} --accept-gap "why"`'
            raise ArchiveRefusedError(
                topic=self._topic,
                problem=f"the topic dropped offsets {_named(lost)} before they were archived",
                cure=f"Restore them in the topic, or go on without them: {command}.",
            )
        gaps = [Gap(gap.partition, gap.start, gap.end, reason) for gap in lost]
        # The event comes first: a crash after it records it twice, and no gap goes unrecorded.
        self._events.record(
            EventKind.ARCHIVE_GAP,
            f"The archive of {self._topic} goes on without offsets {_named(gaps)}: {reason}",
            severity=Severity.WARNING,
            cure=(
                "Replays that need them are refused. Archive more often than the topic's retention "
                "to have no further gap."
            ),
            topic=self._topic,
        )
        self._table.commit(manifest, manifest.with_gaps(uuid.uuid4().hex, gaps), [])


def _columns(records: DataFrame) -> DataFrame:
    """Kafka's records as the archive keeps them."""
    return records.withColumnRenamed("timestampType", "timestamp_type").select(*ARCHIVE_SCHEMA.names)


def newest_at(files: Sequence[DataFile]) -> str:
    """The greatest broker timestamp of the written files, ISO 8601 in UTC; "" if they have none."""
    newest = ""
    for file in files:
        greatest = json.loads(file.stats).get("maxValues", {})
        newest = max(newest, str(greatest.get("timestamp", "")))
    return newest


def _named(gaps: Sequence[Gap]) -> str:
    return ", ".join(str(gap) for gap in gaps)
