"""Copy a topic into its archive, each record once.

The copy advances in steps of a bounded number of offsets. A crash between any two numbers leaves either nothing of a step or all of it:

1. from the archive's newest account and the topic's offsets follows the next step, [start, end) of each partition; it starts where the
   archive ends, so steps form a chain;
2. the step's records are written as data files into the archive's folder; no commit names them yet, so no reader sees them;
3. on one handle of the table: is the account still the one of 1? If not, another archiver was faster: its step stands, this one is
   forgotten, and the next one is decided anew;
4. one atomic commit of the files and of the new account, on that very version of the table;
5. on to the next step, until the archive ends where the topic ended when the copy began.

Offsets that the topic drops before they are archived are lost for good. The copy never passes over them by itself: it stops, names them,
and goes on where somebody accepts the gap, which the account then remembers.
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
from hindcast.kafka.offsets import TopicOffsets
from hindcast.processes.crash_points import reach
from hindcast.settings import Settings
from hindcast.spark.kafka_source import kafka_range
from hindcast.spark.parquet_writer import write_files
from hindcast.tables.archive_schema import ARCHIVE_SCHEMA, BOUNDED
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.ledger import Offsets

_log = structlog.get_logger(__name__)

#: Offsets of one step: a job of some seconds, of which a crash loses one.
STEP_OFFSETS = 1_000_000
#: The longest reason for a gap that is kept, in characters.
LONGEST_REASON = 500


def archive_topic(
    session: Callable[[], SparkSession], settings: Settings, topic: str, *, accept_gap: str = "", step_offsets: int = STEP_OFFSETS
) -> dict[str, Any]:
    """Archive what the topic holds and the archive does not; return what was done. ``session`` is called once there is something to copy.

    :param accept_gap: why offsets that are lost already may stay lost; "" refuses to pass over them
    :returns: {topic, rows, bytes, steps, outrun, ranges, gaps}: of this run the first four (``outrun``: steps that another archiver took),
        of the whole archive the others
    :raises ArchiveRefusedError: where offsets were lost before they were archived, or the topic was made anew; an event says so, too
    :raises ArchiveFailedError: where Spark failed; the next run goes on from the last step
    """
    if len(accept_gap) > LONGEST_REASON:
        raise BadInputError(problem="The reason for the gap is too long", cure=f"Say it in {LONGEST_REASON} characters.")
    events = EventLog(ControlTables(settings))
    try:
        with TopicOffsets(settings) as offsets:
            return _Copy(session, settings, topic, offsets, events).run(accept_gap.strip(), step_offsets)
    except BadInputError:
        raise
    except HindcastError as error:
        cure = str(error.fields.get("cure") or f"Run `hindcast archive run {topic}` again: it goes on from the last step.")
        events.record(EventKind.ARCHIVE_STOPPED, str(error), severity=Severity.ERROR, cure=cure, topic=topic)
        raise


class _Copy:
    """One run. ``end`` is where the topic ended when it began."""

    def __init__(
        self, session: Callable[[], SparkSession], settings: Settings, topic: str, offsets: TopicOffsets, events: EventLog
    ) -> None:
        self._session, self._settings, self._topic, self._offsets, self._events = session, settings, topic, offsets, events
        self._table = ArchiveTable(settings, topic)
        self._end = offsets.latest(topic)
        self._topic_id = offsets.identity(topic)
        self._table.create()
        self._rows = self._bytes = self._steps = self._outrun = 0

    @cached_property
    def _spark(self) -> SparkSession:
        return self._session()

    def run(self, accept_gap: str, step_offsets: int) -> dict[str, Any]:
        while True:
            reach("archive.1")  # 1. what comes next?
            account = self._table.account()
            self._check_topic(account)
            earliest = {partition: offset for partition, offset in self._offsets.earliest(self._topic).items() if partition in self._end}
            if lost := account.lost(earliest):
                self._accept(account, lost, accept_gap)
                continue
            start = account.starts(earliest)
            end = {partition: max(offset, start[partition]) for partition, offset in self._end.items()}
            if account.number and start == end:
                break
            self._step(account, start, next_step(start, end, step_offsets), end)
        done = {"rows": self._rows, "bytes": self._bytes, "steps": self._steps, "outrun": self._outrun}
        whole = account.as_row()
        return {"topic": self._topic, **done, "ranges": whole["ranges"], "gaps": whole["gaps"]}

    def _step(self, account: Manifest, start: Offsets, end: Offsets, target: Mapping[int, int]) -> None:
        reach("archive.2")  # 2. files that nobody sees yet
        try:
            files = self._write(account, start, end)
        except HindcastError:
            raise
        except Exception as error:
            gone = account.lost(self._offsets.earliest(self._topic))
            reason = f"the topic dropped offsets {_named(gone)} meanwhile" if gone else innermost(error)
            raise ArchiveFailedError(action="Archiving", topic=self._topic, reason=reason) from error
        rows, size = sum(file.rows for file in files), sum(file.size for file in files)
        newest_at = max((_newest_at(file) for file in files), default="")
        after = account.with_step(uuid.uuid4().hex, start, end, rows=rows, size=size, newest_at=newest_at, topic_id=self._topic_id)
        if not self._table.commit(account, after, files):  # 3. and 4.
            self._outrun += 1
            _log.info("Another archiver was faster; deciding anew.", topic=self._topic, start=start)
            return
        self._rows, self._bytes, self._steps = self._rows + rows, self._bytes + size, self._steps + 1
        left = sum(target[partition] - offset for partition, offset in end.items())
        _log.info("Archived a step.", topic=self._topic, rows=rows, bytes=size, end=end, offsets_left=left)
        reach("archive.5")  # 5. on to the next

    def _write(self, account: Manifest, start: Offsets, end: Offsets) -> list[DataFile]:
        begin = {partition: offset for partition, offset in start.items() if offset < end[partition]}
        if not begin:
            return []
        frame = _columns(kafka_range(self._spark, self._settings, self._topic, begin, end, headers=True))
        return write_files(frame, self._table.url, self._table.storage_options, f"c{account.number + 1}", bounded=BOUNDED)

    def _check_topic(self, account: Manifest) -> None:
        """:raises ArchiveRefusedError: where the archive is of another topic of the same name"""
        latest = self._offsets.latest(self._topic)
        behind = [partition for partition, end in account.ends.items() if latest.get(partition, 0) < end]
        other = account.topic_id and self._topic_id and account.topic_id != self._topic_id
        if behind or other:
            what = f"Kafka's id of the topic is {self._topic_id}, and the archive is of {account.topic_id}"
            if behind:
                ends = (latest.get(behind[0], 0), account.ends[behind[0]])
                what = f"partition {behind[0]} ends at {ends[0]}, and its archive at {ends[1]}"
            cure = f"Restore the topic, or move the archive {self._table.url} away, where no replay needs it any more, to begin a new one."
            raise ArchiveRefusedError(topic=self._topic, problem=f"{what}: the topic was made anew or has lost records", cure=cure)

    def _accept(self, account: Manifest, lost: Sequence[Gap], reason: str) -> None:
        """Go on behind the gaps.

        :raises ArchiveRefusedError: where no reason was given
        """
        if not reason:
            problem = f"the topic dropped offsets {_named(lost)} before they were archived"
            cure = f'Restore them in the topic, or go on without them: `hindcast archive run {self._topic} --accept-gap "why"`.'
            raise ArchiveRefusedError(topic=self._topic, problem=problem, cure=cure)
        gaps = [Gap(gap.partition, gap.start, gap.end, reason) for gap in lost]
        # The event comes first: a crash after it says so twice, and none goes unsaid.
        self._events.record(
            EventKind.ARCHIVE_GAP,
            f"The archive of {self._topic} goes on without offsets {_named(gaps)}: {reason}",
            severity=Severity.WARNING,
            cure="Replays that need them are refused. Archive more often than the topic's retention to have no further gap.",
            topic=self._topic,
        )
        self._table.commit(account, account.with_gaps(uuid.uuid4().hex, gaps), [])


def _columns(records: DataFrame) -> DataFrame:
    """Kafka's records as the archive keeps them."""
    return records.withColumnRenamed("timestampType", "timestamp_type").select(*ARCHIVE_SCHEMA.names)


def _newest_at(file: DataFile) -> str:
    return str(json.loads(file.stats).get("maxValues", {}).get("timestamp", ""))


def _named(gaps: Sequence[Gap]) -> str:
    return ", ".join(str(gap) for gap in gaps)
