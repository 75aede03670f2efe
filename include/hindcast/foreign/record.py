"""Bring the batches of a stream that others run into the ledger.

1. Read which batches the query's checkpoint calls finished. Spark calls a batch finished after its commit to
   the table.
2. Read the table's log from the last recorded version on: Delta's sink says of each commit which query and
   which batch it is (``STREAMING UPDATE``, ``queryId``, ``epochId``).
3. Append a row for each batch that the ledger lacks, in order.

A recorder may die between any two of them, and two may work at once: a batch that is recorded twice is read
once. The first row says what came before the first batch that was seen (:attr:`LedgerRow.is_beginning`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from hindcast.clock import utc_from_ms
from hindcast.delta.commit import commits_down, commits_up
from hindcast.delta.open_table import find_table
from hindcast.errors import ForeignStreamError
from hindcast.foreign.checkpoint import FinishedBatch, ForeignCheckpoint
from hindcast.foreign.fence import last_batch
from hindcast.installation import Installation
from hindcast.partitions import Offsets, ShardId
from hindcast.pipeline import Pipeline
from hindcast.tables.ledger import BEGINNING_EPOCH, LedgerRow

#: A commit whose clock is so much behind that of the query's driver is still found.
_CLOCKS_DIFFER_MS = 3_600_000
#: Whoever runs the query, it is one stream that nobody takes over.
EPOCH = 1


def shard_of(pipeline: Pipeline) -> str:
    """The one shard that stands for the query."""
    return str(ShardId(pipeline.version, 0, 0))


@dataclass(frozen=True)
class Recorded:
    """What a pass has found.

    ``batches``: how many it has added. ``last``: the newest recorded one; None if the query has finished none
    yet.
    """

    batches: int
    last: LedgerRow | None


def record(installation: Installation, pipeline: Pipeline) -> Recorded:
    """Add all batches to the ledger that the query has finished since the last pass.

    Of a query that is fenced off only the batches up to its last one in the table are recorded: it may run
    on, and then its table takes none.

    :raises ForeignStreamError: if its checkpoint or its table are not what the declaration says, or if Spark
        has deleted batches that were not recorded
    :raises StoreUnavailableError: if a store does not answer
    """
    options = installation.settings.storage_options
    checkpoint = ForeignCheckpoint(pipeline, pipeline.foreign_checkpoint, options)
    query = checkpoint.query_id()
    finished = checkpoint.finished()
    # After the numbers: what was finished before the fence is in the table.
    last = last_batch(pipeline.sink.url, options, query)
    if last is not None:
        finished = [number for number in finished if number < last] + [last]
    return _record(installation, pipeline, checkpoint, query, finished)


def _record(
    installation: Installation,
    pipeline: Pipeline,
    checkpoint: ForeignCheckpoint,
    query: str,
    finished: Sequence[int],
) -> Recorded:
    known = installation.ledger.reached(pipeline.name, pipeline.version).get(shard_of(pipeline))
    if known is not None and known.worker != query:
        problem = f"{checkpoint.url} is of the query {query}, and what is recorded is of {known.worker}"
        cure = "It began again: raise the version of the declaration, so that its record begins again, too."
        raise _refused(pipeline, problem, cure)
    if not finished or (known is not None and _number(known) >= finished[-1]):
        return Recorded(0, known)
    last = known or _beginning(pipeline, checkpoint, query, finished)
    numbers = range(_number(last) + 1, finished[-1] + 1)
    batches = [_finished(pipeline, checkpoint, last, number) for number in numbers]
    commits = _Commits.of(installation, pipeline, query, last, batches)
    rows: list[LedgerRow] = []
    if known is None:
        last = replace(last, sink_version=commits.before)
        rows.append(last)
    for batch in batches:
        last = commits.place(_row(pipeline, query, last, batch), last)
        rows.append(last)
    installation.ledger.append(rows)
    return Recorded(len(batches), last)


def _number(row: LedgerRow) -> int:
    """Spark's number of a recorded batch: the ledger's begin at 1."""
    return row.batch - 1


def _finished(
    pipeline: Pipeline, checkpoint: ForeignCheckpoint, last: LedgerRow, number: int
) -> FinishedBatch:
    """:raises ForeignStreamError: if Spark has deleted it"""
    batch = checkpoint.batch(number)
    if batch is not None:
        return batch
    cure = (
        "Raise the version of the declaration, so that its record begins again with what is left, and set "
        "spark.sql.streaming.minBatchesToRetain of the query to more batches than it makes between two "
        f"verdicts, or leave `hindcast record {pipeline.name} --watch --every 30` running."
    )
    recorded = f"and {_number(last)} is the last recorded"
    problem = f"Spark has deleted batch {number} from {checkpoint.url}, {recorded}"
    raise _refused(pipeline, problem, cure)


def _beginning(
    pipeline: Pipeline, checkpoint: ForeignCheckpoint, query: str, finished: Sequence[int]
) -> LedgerRow:
    """A row for all that came before the first batch that is recorded.

    The checkpoint of a young query still has its first batch, and nothing came before it. Else the record
    begins after the oldest batch that is left. Windows that rows before it may have fallen into are none of
    the record's: all that begin at or before the latest event time so far, which Spark keeps as the
    watermark.
    """
    oldest = finished[0]
    if oldest == 0:
        start = checkpoint.first_offsets()
        if start is not None:
            return _row_of_beginning(pipeline, query, -1, start, 0, 0, utc_from_ms(0))
    batch = checkpoint.batch(oldest)
    if batch is None:
        problem = f"Spark has deleted batch {oldest} from {checkpoint.url} just now"
        raise _refused(pipeline, problem, "Try again.")
    final_ms = batch.watermark_ms
    latest = _latest_event_ms(pipeline, batch)
    if pipeline.window is not None and latest is not None:
        final_ms = latest + _milliseconds(pipeline.window.length)
    return _row_of_beginning(
        pipeline,
        query,
        oldest,
        batch.end_offsets,
        batch.watermark_ms,
        final_ms,
        utc_from_ms(batch.planned_ms),
    )


def _row_of_beginning(
    pipeline: Pipeline,
    query: str,
    number: int,
    offsets: Offsets,
    late_watermark_ms: int,
    final_ms: int,
    at: datetime,
) -> LedgerRow:
    return LedgerRow.unmeasured(
        pipeline=pipeline.name,
        version=pipeline.version,
        shard=shard_of(pipeline),
        epoch=BEGINNING_EPOCH,
        batch=number + 1,
        worker=query,
        topic=pipeline.source.name,
        start_offsets=offsets,
        end_offsets=offsets,
        late_watermark_ms=late_watermark_ms,
        watermark_ms=final_ms,
        output_rows=0,
        sink_version=-1,
        committed_at=at,
    )


def _row(pipeline: Pipeline, query: str, last: LedgerRow, batch: FinishedBatch) -> LedgerRow:
    """The row of the batch after ``last``. What Spark measured of it is not known, but bounds are."""
    # A partition that was added is read from its first record.
    start = {partition: last.end_offsets.get(partition, 0) for partition in batch.end_offsets}
    unmeasured = LedgerRow.unmeasured(
        pipeline=pipeline.name,
        version=pipeline.version,
        shard=last.shard,
        epoch=EPOCH,
        batch=batch.number + 1,
        worker=query,
        topic=pipeline.source.name,
        start_offsets=start,
        end_offsets=batch.end_offsets,
        late_watermark_ms=_emitted_ms(last),
        watermark_ms=batch.watermark_ms,
        output_rows=0,
        sink_version=-1,
        committed_at=utc_from_ms(batch.planned_ms),
    )
    return replace(unmeasured, max_event_ms=_latest_event_ms(pipeline, batch))


def _emitted_ms(last: LedgerRow) -> int:
    """The watermark under which a batch emitted; a row is late in the next one for windows up to it."""
    if last.is_beginning:
        return last.late_watermark_ms
    return last.watermark_ms


def _latest_event_ms(pipeline: Pipeline, batch: FinishedBatch) -> int | None:
    """No record up to the end of the batch has a later event time; None if that is not known, or if none
    had any.
    """
    if not batch.next_watermark_ms:
        return None
    return batch.next_watermark_ms + _milliseconds(pipeline.watermark_delay)


def _milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


@dataclass(frozen=True)
class _Commits:
    """Which version of the table is which batch.

    ``before``: the version before the first batch that is recorded, -1 if there is none. ``newest``: that of
    the table.
    """

    versions: Mapping[int, tuple[int, datetime]]
    before: int
    newest: int

    @classmethod
    def of(
        cls,
        installation: Installation,
        pipeline: Pipeline,
        query: str,
        last: LedgerRow,
        batches: list[FinishedBatch],
    ) -> _Commits:
        """:raises ForeignStreamError: if there is no table, or its log does not tell batches apart"""
        options = installation.settings.storage_options
        url = pipeline.sink.url
        table = find_table(url, options)
        if table is None:
            problem = f"there is no Delta table {url}"
            raise _refused(pipeline, problem, "Name the table that the query writes.")
        newest = table.version()
        first = _number(last) + 1
        if last.is_beginning:
            entries = _young(commits_down(url, options, newest), _oldest_ms(last, batches))
        else:
            entries = commits_up(url, options, last.sink_version + 1)
        versions = {}
        earlier = []
        for entry in entries:
            number = _batch_of(entry, query)
            if number is None:
                continue
            if number >= first:
                versions[number] = (int(entry["version"]), utc_from_ms(entry["timestamp"]))
            else:
                earlier.append(int(entry["version"]))
                break
        if not earlier:
            earlier.append(min((version for version, _ in versions.values()), default=newest + 1) - 1)
        if pipeline.row_by_row and batches and not versions:
            wanted = f"a batch of the query {query} after {first - 1}"
            problem = f"no commit in the log of {url} is {wanted}"
            cure = "Without a window, only what Delta's own streaming sink has written can be judged."
            raise _refused(pipeline, problem, cure)
        return cls(versions, earlier[0], newest)

    def place(self, row: LedgerRow, last: LedgerRow) -> LedgerRow:
        """The row with the version of its commit.

        If the table names no batch, because something else than Delta's sink writes it, each is in the newest
        version. One that is not named among others has changed nothing since ``last``.
        """
        known = self.versions.get(_number(row))
        if known is not None:
            version, at = known
            return replace(row, sink_version=version, committed_at=at)
        if self.versions:
            return replace(row, sink_version=last.sink_version)
        return replace(row, sink_version=self.newest)


def _oldest_ms(beginning: LedgerRow, batches: Sequence[FinishedBatch]) -> int:
    """No commit of the beginning's last batch, or of one after it, is older than this."""
    planned = [batch.planned_ms for batch in batches]
    if _number(beginning) >= 0:
        planned.append(int(beginning.committed_at.timestamp() * 1000))
    return min(planned, default=0) - _CLOCKS_DIFFER_MS


def _young(entries: Iterable[dict[str, Any]], oldest_ms: int) -> Iterator[dict[str, Any]]:
    """The first of these commits, which become older, up to one that is older than this. A log may have a
    million.
    """
    for entry in entries:
        yield entry
        if entry.get("timestamp", oldest_ms) < oldest_ms:
            return


def _batch_of(entry: Mapping[str, Any], query: str) -> int | None:
    """The query's number of the batch that a commit is; None if it is none of the query's."""
    said = entry.get("operationParameters") or {}
    if said.get("queryId") != query:
        return None
    return int(said["epochId"])


def _refused(pipeline: Pipeline, problem: str, cure: str) -> ForeignStreamError:
    return ForeignStreamError(pipeline=pipeline.name, problem=problem, cure=cure)
