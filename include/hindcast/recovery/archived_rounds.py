"""Plan what a shard reads from archives before it reads its topics: its *base*. Pure Python.

A shard is at offsets that a topic has dropped. It was paused for longer than the topic's retention, or it is
of a new version that begins in the past. If an archive goes on from there, the shard reads the archive until
its topics hold all that comes next. It reads in rounds of some batches each: what a round takes on disk is
bounded, and after each round it is asked again what the topics hold, since they may have dropped more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hindcast.archive.archive_or_live import HeldRecords, next_step
from hindcast.partitions import Offsets
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.recovery.rebuild_state import check_retained
from hindcast.replay.recorded_batches import BatchRange
from hindcast.tables.excluded_records import Excluded, within
from hindcast.tables.ledger import LedgerRow

#: A round has so many records at most, or one batch: they are on disk twice while it runs.
RECORDS_PER_ROUND = 2_000_000


@dataclass(frozen=True)
class Round:
    """Batches that are read together, in their order. ``seams``: by partition, up to where [``start``,
    ``end``) is read from the archive; None if nothing is.
    """

    batches: tuple[LedgerRow | BatchRange, ...]
    start: Offsets
    end: Offsets
    seams: Offsets | None


def base_end(held: HeldRecords, start: Mapping[int, int]) -> Offsets:
    """Where the base of a shard ends that is at ``start``: there, if the topics hold all that comes next.

    Otherwise it is as far as the archives go. A topic without an archive is read along, up to its end: if
    rows of one topic or partition came long before those of the others, their watermark would make the others
    late.
    """
    if not held.dropped(start):
        return dict(start)
    archived_topics = {partition // TOPIC_STRIDE for partition, ranges in held.archived.items() if ranges}
    ends: Offsets = {}
    for partition, offset in start.items():
        if partition // TOPIC_STRIDE in archived_topics:
            ends[partition] = held.archived_to(partition, offset)
        else:
            ends[partition] = max(held.latest[partition], offset)
    return ends


def rounds(
    pipeline: Pipeline,
    shard: str,
    start: Mapping[int, int],
    most_records: int,
    held: Callable[[], HeldRecords],
    excluded: Excluded | None = None,
) -> Iterator[Round]:
    """The rounds of a shard that is at ``start``; none if its topics hold all that comes next.

    :param most_records: of one batch
    :param held: asked before each round
    :param excluded: the records that are left out
    :raises OffsetsLostError: if neither a topic nor its archive holds what comes next
    """
    reached = dict(start)
    number = 0
    while True:
        found = held()
        end = base_end(found, reached)
        needed = {partition: max(stop, found.earliest[partition]) for partition, stop in end.items()}
        check_retained(pipeline, shard, reached, needed, found, need="the shard has not read them yet")
        if end == reached:
            return
        begin = reached
        batches: list[BatchRange] = []
        while reached != end and len(batches) < max(RECORDS_PER_ROUND // most_records, 1):
            stop = next_step(reached, end, most_records)
            left_out = within(excluded or {}, reached, stop)
            batches.append(BatchRange(shard, number, reached, stop, left_out))
            number += 1
            reached = stop
        yield Round(tuple(batches), begin, reached, found.seams(begin, reached))
