"""Take a shard over: from the moment its lease is ours to the moment its query may start.

1. The lease was taken by compare-and-swap, with epoch + 1 (:mod:`hindcast.shards.coordinator`).
2. *Seal* the sink: an empty commit of (our epoch, last batch), right after the shard's commits that were read
   before it. From here on no commit of an older epoch can land. So what was read is final, whatever a paused
   owner does on waking. A sink that lacks a batch of the ledger, be it of another shard, is refused and left
   as it is.
3. Repair the ledger: batches that the sink holds and the ledger lacks (their owner died between the two) are
   added from the metadata of the commits that were read.
4. Check that Spark's checkpoint belongs to this query and ends where the sink ends. A new generation has none
   yet; a damaged one, or one that an operator wants rebuilt, is as good as none: the state is rebuilt
   (:mod:`hindcast.recovery.rebuild_state`).
5. Start the query; its first batch must begin where the sink ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hindcast.errors import CheckpointRefusedError, FenceMovedError, OffsetGapError, SinkCommitsLostError
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets, ShardId
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.recovery.rebuild_state import CheckpointRef
from hindcast.shards.shard_row import ShardCheckpoint
from hindcast.tables.excluded_records import Excluded
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable
from hindcast.tables.ledger import Ledger, LedgerRow


@dataclass(frozen=True)
class ShardPosition:
    """Where a shard is.

    ``fence``: the last batch that its sink holds, 0 before the first, and the epoch; ``end_offsets``: up to
    where it was read; ``watermark_ms``: the watermark under which that batch emitted, in epoch milliseconds;
    ``incarnation``: the query that wrote it; ``excluded``: the records that it left out. Spark may run that
    batch once more, for its state.
    """

    fence: Fence
    end_offsets: Offsets
    watermark_ms: int
    incarnation: CheckpointRef
    excluded: Excluded = field(default_factory=dict)

    @property
    def spark_batch(self) -> int | None:
        """Spark's number of the last batch that the sink holds, or of the one that rebuilt the state; None if
        there is none yet.
        """
        number = self.fence.batch - self.incarnation.base
        return number if number >= 0 else None

    @property
    def next_spark_batch(self) -> int:
        """Spark's number of the batch after the last one that the sink holds."""
        if self.spark_batch is None:
            return 0
        return self.spark_batch + 1

    def check_follows(self, pipeline: Pipeline, lease: Lease, batch: int, start: Offsets) -> None:
        """:raises OffsetGapError: if a batch does not begin where the sink ends"""
        if batch == self.fence.batch + 1 and start == self.end_offsets:
            return
        recorded = f"batch {self.fence.batch}, offsets {self.end_offsets}"
        command = f"`hindcast rebuild {pipeline.name} --shard {lease.status_value}`"
        cure = f"{command} rebuilds its state from the topic."
        raise _gap(pipeline, lease, batch, start, recorded, cure)

    def floors(self) -> Offsets:
        """By partition, what is final: windows that end at or before it are in the sink."""
        floors = {}
        for partition in self.end_offsets:
            floors[partition] = max(self.watermark_ms, self.incarnation.floors.get(partition, 0))
        return floors


def known_batches(ledger: Ledger, sink: FencedTable, pipeline: Pipeline, lease: Lease) -> list[LedgerRow]:
    """What the ledger says of the shard's last batches, and of batches that the sink does not reach.

    The sink is read first: a batch comes into the ledger after it came into the sink.
    """
    recorded, sink_version = sink.reached()
    batch = 0
    if recorded is not None:
        batch = recorded.batch
    shard = lease.status_value
    return ledger.near(pipeline.name, ShardId.parse(shard).version, shard, batch, sink_version)


def seal(
    sink: FencedTable, pipeline: Pipeline, lease: Lease, worker: str, batches: Sequence[LedgerRow]
) -> tuple[ShardPosition, list[BatchCommit]]:
    """Step 2: fence off all older epochs.

    :param batches: what :func:`known_batches` has read before
    :returns: where the shard is, from now on for good, and its batches after the last one that the ledger
        has, the oldest first
    :raises LeaseLostError: if a newer epoch has sealed it already
    :raises OffsetGapError: if the ledger knows of batches that the sink does not hold: it was damaged,
        replaced or restored
    :raises SinkCommitsLostError: if it is another shard's batch that the sink does not hold
    """
    reach("takeover.2")
    known = [row for row in batches if row.shard == lease.status_value]
    filed = known[-1].batch if known else 0
    while True:
        recorded, version = sink.reached()
        last: BatchCommit | None = None
        missing: list[BatchCommit] = []
        if recorded is not None:
            last, missing = sink.since(recorded, version, known[-1] if known else None)
            _check_log(pipeline, lease, recorded, filed, last, missing)
        position = _position(lease, recorded, last)
        # A seal on top would stay when the lost commit is restored.
        _check_known(pipeline, lease, position, known, sink.url)
        # A seal would take the place of what was lost.
        _check_version(pipeline, lease, sink.url, version, batches)
        try:
            sink.commit(
                position.fence, [], _metadata(lease, pipeline, worker, position, last), after=recorded
            )
        except FenceMovedError:
            # An older owner committed after the reading. It was in time, so read again what it wrote.
            continue
        return position, missing


def _position(lease: Lease, recorded: Fence | None, last: BatchCommit | None) -> ShardPosition:
    """Where the shard is, in the epoch of its lease."""
    batch = recorded.batch if recorded else 0
    fence = Fence(lease.epoch, batch)
    if last is not None:
        query = CheckpointRef(last.checkpoint, last.base, last.floors)
        return ShardPosition(fence, last.end_offsets, last.watermark_ms, query, last.excluded)
    checkpoint = ShardCheckpoint.of(lease)
    query = CheckpointRef(lease.status_value, 1, checkpoint.floors)
    if lease.parent_shard_ids:
        # A shard of the first generation begins with nothing; a later one must rebuild its state.
        query = CheckpointRef("", 0, checkpoint.floors)
    return ShardPosition(fence, checkpoint.start_offsets, 0, query)


def _check_log(
    pipeline: Pipeline,
    lease: Lease,
    recorded: Fence,
    filed: int,
    last: BatchCommit | None,
    missing: Sequence[BatchCommit],
) -> None:
    """Check that ledger and log say where the shard is, and how it came there. If it has no batch yet, its
    lease says that.

    :param filed: the last batch that the ledger has
    :raises OffsetGapError: if the sink holds a batch that is neither in the ledger nor in the log
    """
    lost = last is None or [commit.batch for commit in missing] != list(range(filed + 1, recorded.batch + 1))
    if recorded.batch > filed and lost:
        cure = "Raise the pipeline's version, with a new sink table: it starts again from the topic."
        expired = "a commit whose log entry has expired"
        raise _gap(pipeline, lease, recorded.batch + 1, "an unknown place", expired, cure)


def _check_known(
    pipeline: Pipeline, lease: Lease, position: ShardPosition, known: Sequence[LedgerRow], url: str
) -> None:
    """:raises OffsetGapError: if the sink lacks a batch of the shard that the ledger has"""
    batch = position.fence.batch
    if known and known[-1].batch > batch:
        found = f"batch {batch}, offsets {position.end_offsets}"
        last = known[-1]
        raise _gap(pipeline, lease, last.batch + 1, last.end_offsets, found, _restore(url))


def _check_version(
    pipeline: Pipeline, lease: Lease, url: str, version: int, batches: Sequence[LedgerRow]
) -> None:
    """:raises SinkCommitsLostError: if the sink is at an older version than a batch of the ledger"""
    reached = max((row.sink_version for row in batches), default=0)
    if version < reached:
        raise SinkCommitsLostError(
            pipeline=pipeline.name,
            shard=lease.status_value,
            table=url,
            found=version,
            known=reached,
            cure=_restore(url),
        )


def _restore(url: str) -> str:
    return f"Restore the table {url}, or raise the pipeline's version, with a new sink table."


def _gap(
    pipeline: Pipeline, lease: Lease, batch: int, start: Offsets | str, recorded: str, cure: str
) -> OffsetGapError:
    return OffsetGapError(
        pipeline=pipeline.name,
        shard=lease.status_value,
        batch=batch,
        start=start,
        recorded=recorded,
        cure=cure,
    )


def _metadata(
    lease: Lease, pipeline: Pipeline, worker: str, position: ShardPosition, last: BatchCommit | None
) -> str:
    """What the seal says of itself: the position that it confirms."""
    commit = BatchCommit(
        kind="seal",
        pipeline=pipeline.name,
        version=ShardId.parse(lease.status_value).version,
        shard=lease.status_value,
        epoch=position.fence.epoch,
        batch=position.fence.batch,
        worker=worker,
        start_offsets=position.end_offsets,
        end_offsets=position.end_offsets,
        late_watermark_ms=last.late_watermark_ms if last else 0,
        watermark_ms=position.watermark_ms,
        checkpoint=position.incarnation.checkpoint,
        base=position.incarnation.base,
        floors=position.incarnation.floors,
    )
    return commit.as_metadata()


def repair_ledger(ledger: Ledger, pipeline: Pipeline, missing: Sequence[BatchCommit]) -> list[LedgerRow]:
    """Step 3: add what the ledger lacks, and return it."""
    reach("takeover.3")
    rows = [commit.as_ledger_row(pipeline.source.name) for commit in missing]
    ledger.append(rows)
    return rows


def check_query(pipeline: Pipeline, lease: Lease, fingerprint: str) -> None:
    """Step 4, the query.

    :raises CheckpointRefusedError: if another query made the checkpoint
    """
    reach("takeover.4")
    recorded = ShardCheckpoint.of(lease).fingerprint
    if recorded in (None, fingerprint):
        return
    raise CheckpointRefusedError(
        pipeline=pipeline.name,
        shard=lease.status_value,
        path=lease.status_value,
        problem="the query has changed since it was made, under the same version",
        cure=f"Undo the change of {pipeline.file}, or raise its version (with a new sink table). If the "
        "change leaves the results as they are (Spark was upgraded, say): "
        f"`hindcast rebuild {pipeline.name}`.",
    )
