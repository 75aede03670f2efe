"""Rebuild a shard's state from the topic, or its archive, and the ledger: state is a cache.

A shard is at offsets C with watermark W. To resume exactly it needs the rows of the windows that are still
open. So its new query

1. begins at R <= C, the first offsets that may hold a row of a window that ends after W (the ledger's
   event-time ranges say which);
2. reads exactly [R, C) in its first batch, which is written into Spark's own plan beforehand. Spark's
   watermark is 0 in it, so no row of it is late, whatever order it is read in, and no window is emitted: the
   batch rebuilds the state and does nothing else;
3. drops each pair of (row, window) whose window ends at or before the partition's *floor*: what was final
   when it began. That filter stays for the life of the query, since Spark itself would count late rows of the
   first batches again;
4. resumes at C with the number after the sink's last batch: a batch's number is ``base`` + Spark's own, which
   begins at 0 again.

The watermark after the first batch is the one that the old query would have had, because the row with the
newest event time is in [R, C). So the windows close in the same batches as they would have, and the results
are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from hindcast.archive.archive_or_live import HeldRecords
from hindcast.errors import OffsetsLostError, ReshardRefusedError
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets
from hindcast.pipeline import TOPIC_STRIDE, Mode, Pipeline
from hindcast.shards.resharding import newest_generation
from hindcast.shards.shard_row import ShardCheckpoint
from hindcast.tables.ledger_history import History


@dataclass(frozen=True)
class CheckpointRef:
    """One life of a shard's query.

    ``checkpoint``: the folder of its Spark checkpoint, "" before it has one; ``base``: what to add to Spark's
    batch numbers to get the sink's; ``floors``: by partition, in epoch milliseconds.
    """

    checkpoint: str
    base: int
    floors: Offsets


def start_of(
    pipeline: Pipeline, history: History, end: Mapping[int, int], floors: Mapping[int, int]
) -> Offsets:
    """R: where to begin reading to have, at ``end``, all rows of windows that end after the floors.

    Running results, and state that depends on which rows came together, need all rows.
    """
    start: Offsets = {}
    if pipeline.sink.mode is Mode.UPSERT or pipeline.re_execute:
        for partition, offset in end.items():
            start[partition] = min(history.first.get(partition, offset), offset)
        return start
    if pipeline.window is None:
        return dict(end)
    length_ms = pipeline.window.length // timedelta(milliseconds=1)
    needed_from_ms = {}
    for partition in end:
        # A window that ends after the floor begins after floor - length; windows begin and end on whole
        # milliseconds.
        needed_from_ms[partition] = floors.get(partition, 0) - length_ms + 1
    return history.first_needed(end, needed_from_ms)


def check_retained(
    pipeline: Pipeline,
    shard: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
    held: HeldRecords,
    need: str = "windows that are still open need them",
) -> None:
    """:param need: why they are needed, in words
    :raises OffsetsLostError: if neither the topic nor its archive holds all of [start, end)
    """
    for partition, offset in start.items():
        gaps = held.missing(partition, offset, end[partition])
        if not gaps:
            continue
        first, last = gaps[0]
        lacking = "the topic no longer holds them"
        if held.archived.get(partition):
            lacking = "neither the topic nor its archive holds them"
        raise OffsetsLostError(
            topic=pipeline.topics[partition // TOPIC_STRIDE].name,
            partition=partition % TOPIC_STRIDE,
            pipeline=pipeline.name,
            shard=shard,
            start=first,
            end=last - 1,
            problem=f"{lacking}, and {need}",
        )


def check_reshard(pipeline: Pipeline, history: History, leases: Iterable[Lease], held: HeldRecords) -> None:
    """Check that a new generation could rebuild its state from the topic and its archive as they are now.

    :raises ReshardRefusedError: if the state does not depend on the rows alone
    :raises OffsetsLostError: if neither holds them any more
    """
    if pipeline.re_execute:
        raise ReshardRefusedError(pipeline=pipeline.name)
    for lease in newest_generation(leases):
        checkpoint = ShardCheckpoint.of(lease)
        end = checkpoint.read_to
        floors = {partition: checkpoint.final_ms(partition) for partition in end}
        start = start_of(pipeline, history, end, floors)
        check_retained(pipeline, lease.status_value, start, end, held)
