"""Taking a shard over: from the moment its lease is ours to the moment its query may start.

1. The lease was taken by compare-and-swap, with epoch + 1 (:mod:`hindcast.shards.coordinator`).
2. *Seal* the sink: an empty commit of (our epoch, last batch), right after the shard's commits that were read
   before it. From here on no commit of an older epoch can land, so what was read is final, whatever a paused
   owner does on waking. A sink that lacks a batch of the ledger, be it of another shard, is refused and left
   as it is.
3. Repair the ledger: batches that the sink holds and the ledger lacks (their owner died between the two) are
   added from the metadata of the commits that were read.
4. Check that Spark's checkpoint belongs to this query and stands where the sink stands. A new generation has
   none yet; a damaged one, or one that an operator wants rebuilt, is as good as none: the state is made anew
   by rewinding (:mod:`hindcast.recovery.rebuild_state`).
5. Start the query; its first batch must begin where the sink ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hindcast.errors import CheckpointRefusedError, FenceMovedError, OffsetGapError, SinkCommitsLostError
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets, ShardId
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.recovery.rebuild_state import CheckpointRef
from hindcast.shards.shard_row import ShardCheckpoint
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable
from hindcast.tables.ledger import Ledger, LedgerRow


@dataclass(frozen=True)
class ShardPosition:
    """Where a shard stands: the last batch its sink holds (0 before the first), the offsets up to which it
    was read, the watermark under which that batch emitted, and the query that wrote it.
    """

    fence: Fence
    end_offsets: Offsets
    watermark_ms: int
    incarnation: CheckpointRef

    @property
    def spark_batch(self) -> int | None:
        """Spark's number of the last batch that the sink holds, or of the one that rewound; None where it has
        none yet.
        """
        number = self.fence.batch - self.incarnation.base
        return number if number >= 0 else None

    def check_follows(self, pipeline: Pipeline, lease: Lease, batch: int, start: Offsets) -> None:
        """:raises OffsetGapError: where a batch does not begin where the sink ends"""
        if batch != self.fence.batch + 1 or start != self.end_offsets:
            raise OffsetGapError(
                pipeline=pipeline.name,
                shard=lease.status_value,
                batch=batch,
                start=start,
                recorded=f"batch {self.fence.batch}, offsets {self.end_offsets}",
                cure=f"`hindcast rebuild {pipeline.name} --shard {lease.status_value}` makes its state anew from the topic.",
            )

    def floors(self) -> Offsets:
        """By partition, what is final: windows that end at or before it are in the sink."""
        return {
            partition: max(self.watermark_ms, self.incarnation.floors.get(partition, 0))
            for partition in self.end_offsets
        }


def seal(
    sink: FencedTable, pipeline: Pipeline, lease: Lease, worker: str, batches: Sequence[LedgerRow]
) -> tuple[ShardPosition, list[BatchCommit]]:
    """Step 2: fence all older epochs off and return where the shard stands from now on for good, and its
    batches after the last one that the ledger has, the oldest first.

    :param batches: the ledger's last row of each shard of the version, read before: a batch comes into the
        ledger after it came into the sink
    :raises LeaseLostError: where a newer epoch has sealed it already
    :raises OffsetGapError: where the ledger knows of batches that the sink does not hold: it was damaged,
        replaced or restored
    :raises SinkCommitsLostError: where it is another shard's batch that the sink does not hold
    """
    reach("takeover.2")
    known = [row for row in batches if row.shard == lease.status_value]
    filed = known[-1].batch if known else 0
    reached = max((row.sink_version for row in batches), default=-1)
    restore = f"Restore the table {sink.url}, or raise the pipeline's version, with a new sink table."
    while True:
        recorded = sink.recorded()
        commits = list(sink.commits(stop_after=filed)) if recorded is not None else []
        last = commits[0] if commits else None
        if recorded is not None and last is None:
            cure = "Raise the pipeline's version, with a new sink table: it starts anew from the topic."
            raise OffsetGapError(
                pipeline=pipeline.name,
                shard=lease.status_value,
                batch=recorded.batch + 1,
                start="an unknown place",
                recorded="a commit whose log entry has expired",
                cure=cure,
            )
        start = last.end_offsets if last else ShardCheckpoint.of(lease).start_offsets
        life = CheckpointRef(last.checkpoint, last.base, last.floors) if last else _first_incarnation(lease)
        batch = recorded.batch if recorded else 0
        if filed > batch:  # a seal on top would stay when the lost commit is restored
            raise OffsetGapError(
                pipeline=pipeline.name,
                shard=lease.status_value,
                batch=filed + 1,
                start=known[-1].end_offsets,
                recorded=f"batch {batch}, offsets {start}",
                cure=restore,
            )
        if (version := sink.version()) < reached:  # a seal would take the place of what was lost
            raise SinkCommitsLostError(
                pipeline=pipeline.name,
                shard=lease.status_value,
                table=sink.url,
                found=version,
                known=reached,
                cure=restore,
            )
        watermark = last.watermark_ms if last else 0
        fence = Fence(lease.epoch, batch)
        metadata = BatchCommit(
            kind="seal",
            pipeline=pipeline.name,
            version=ShardId.parse(lease.status_value).version,
            shard=lease.status_value,
            epoch=lease.epoch,
            batch=batch,
            worker=worker,
            start_offsets=start,
            end_offsets=start,
            late_watermark_ms=last.late_watermark_ms if last else 0,
            watermark_ms=watermark,
            checkpoint=life.checkpoint,
            base=life.base,
            floors=life.floors,
        )
        try:
            sink.commit(fence, [], metadata.as_metadata(), after=recorded)
        except FenceMovedError:
            # An older owner committed while we were reading: it was in time, so read again what it wrote.
            continue
        missing = [commit for commit in reversed(commits) if commit.kind == "batch" and commit.batch > filed]
        return ShardPosition(fence, start, watermark, life), missing


def _first_incarnation(lease: Lease) -> CheckpointRef:
    """Before the first batch: a shard of the first generation begins with nothing, a later one must
    rewind.
    """
    floors = ShardCheckpoint.of(lease).floors
    return (
        CheckpointRef("", 0, floors)
        if lease.parent_shard_ids
        else CheckpointRef(lease.status_value, 1, floors)
    )


def repair_ledger(ledger: Ledger, pipeline: Pipeline, missing: Sequence[BatchCommit]) -> list[LedgerRow]:
    """Step 3: add what the ledger lacks, and return it."""
    reach("takeover.3")
    rows = [commit.as_ledger_row(pipeline.source.name) for commit in missing]
    ledger.append(rows)
    return rows


def check_query(pipeline: Pipeline, lease: Lease, fingerprint: str) -> None:
    """Step 4, the query.

    :raises CheckpointRefusedError: where the checkpoint was made by another one
    """
    reach("takeover.4")
    recorded = ShardCheckpoint.of(lease).fingerprint
    if recorded not in (None, fingerprint):
        raise CheckpointRefusedError(
            pipeline=pipeline.name,
            shard=lease.status_value,
            path=lease.status_value,
            problem="the query has changed since it was made, under the same version",
            cure=f"Undo the change of {pipeline.file}, or raise its version (with a new sink table). Where the change leaves the "
            f"results as they are (Spark was upgraded, say): `hindcast rebuild {pipeline.name}`.",
        )
