"""The protocol by which each batch of a shard's query reaches the sink exactly once.

The steps. A crash between any two of them leaves either nothing or a whole batch:

1. the worker still holds the lease, by its own monotonic clock;
2. the batch's data files are written into the table's folder; no commit names them yet, so no reader sees
   them;
3. on one handle of the table: what is recorded for this shard? A later epoch means that the lease is lost:
   stop;
4. one atomic commit of the files, the fence (epoch, batch), and where the batch begins and ends;
5. the ledger row and the lease's checkpoint are queued; the next renewal writes them (if the worker crashes
   before, the take-over repairs them);
6. Spark writes its own commit log.

Batches form a chain: batch N must begin at the offsets at which N - 1 left the sink. After a crash between 4
and 6 the sink already holds the batch: it runs again for Spark's state alone and writes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from pyspark.sql import DataFrame

from hindcast.clock import Clock
from hindcast.errors import CheckpointDamagedError, DoubledKeyError, HindcastError
from hindcast.partitions import Offsets
from hindcast.pipeline import Mode
from hindcast.processes.crash_points import reach
from hindcast.recovery.checkpoint import BatchPlans
from hindcast.recovery.takeover import ShardPosition
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.shard_row import ShardCheckpoint
from hindcast.spark import parquet_writer
from hindcast.stream.batch_cpu import CpuMeter
from hindcast.stream.shard_progress import ShardProgress
from hindcast.tables.excluded_records import Excluded, within
from hindcast.tables.fenced_sink import BatchCommit, Data, Fence, FencedTable, Upsert
from hindcast.tables.ledger import LedgerRow

#: A result of a batch of so few records, on so small a state, is collected and written by this process. For
#: executors to write it costs a Python task for each of its partitions: a fifth of a small batch's CPU.
_FEW_RECORDS, _SMALL_STATE_BYTES = 50_000, 32 * 1024 * 1024


class DrainedError(Exception):
    """A batch that was not begun because the shard is being given up."""


class BatchCommits:
    """Commits the batches of one query, in Spark's thread, one after the other."""

    def __init__(
        self,
        progress: ShardProgress,
        held: HeldLeases,
        sink: FencedTable,
        plans: BatchPlans,
        clock: Clock,
        meter: CpuMeter,
        *,
        excluded: Excluded,
        draining: threading.Event,
        give_way: Callable[[], object],
    ) -> None:
        """:param plans: of the query: its checkpoint, or what reads archives for it
        :param excluded: the records that the query leaves out
        :param draining: once it is set no batch begins any more
        :param give_way: called before each batch but the first of this owner; may wait
        """
        self._progress = progress
        self._held = held
        self._sink = sink
        self._plans = plans
        self._clock = clock
        self._meter = meter
        self._excluded = excluded
        self._cpu = meter.opened()  # its part of the process's CPU
        self._draining = draining
        self._give_way = give_way
        self.refusal: HindcastError | None = None  # why a batch was not committed

    def close(self) -> None:
        """The query has stopped."""
        self._meter.closed(self._cpu)

    def planned_next(self) -> tuple[Offsets, Offsets] | None:
        """From where to where the batch after the sink's last one reads; None if it is not planned yet."""
        position = self._progress.position
        try:
            planned = self._plans.planned(position.next_spark_batch)
        except CheckpointDamagedError:
            return None
        return position.end_offsets, planned.end_offsets

    def commit_batch(self, frame: DataFrame, spark_batch: int) -> None:
        """Carry out the protocol for one batch (``foreachBatch``).

        :param spark_batch: Spark's number of it: the first of a checkpoint is 0
        :raises DrainedError: if the shard is being given up; nothing was done
        :raises HindcastError: it is kept as :attr:`refusal`, since Spark wraps what a batch raises in text
        """
        if self._progress.progressed:
            self._give_way()
        if self._draining.is_set():
            raise DrainedError
        self._meter.began(self._cpu)
        try:
            self._commit(frame, spark_batch)
        except HindcastError as error:
            self.refusal = error
            raise
        finally:
            self._meter.ended(self._cpu)

    def _commit(self, frame: DataFrame, spark_batch: int) -> None:
        progress = self._progress
        lease = progress.lease
        position = progress.position
        incarnation = position.incarnation
        started = time.monotonic()
        started_at = self._clock.now()
        progress.complete_last()
        reach("sink.1")  # 1. still the owner?
        self._held.check(lease.key, lease.epoch)
        fence = Fence(lease.epoch, spark_batch + incarnation.base)
        plan = self._plans.planned(spark_batch)
        if fence.batch <= position.fence.batch:
            # The sink holds this batch, or the batch rebuilds the state: only Spark's state needs it.
            parquet_writer.run(frame)
            return
        start = self._start_of(spark_batch)
        position.check_follows(progress.pipeline, lease, fence.batch, start)
        # After a rebuild Spark's own watermark begins at 0 again.
        watermark_ms = max(plan.watermark_ms, position.watermark_ms)
        reach("sink.2")  # 2. data files, named by no commit
        records = sum(plan.end_offsets.values()) - sum(start.get(each, 0) for each in plan.end_offsets)
        written, output_rows = self._written(frame, fence, records)
        commit = BatchCommit(
            kind="batch",
            pipeline=progress.pipeline.name,
            version=progress.pipeline.version,
            shard=lease.status_value,
            epoch=lease.epoch,
            batch=fence.batch,
            worker=self._held.owner,
            start_offsets=start,
            end_offsets=plan.end_offsets,
            late_watermark_ms=position.watermark_ms,
            watermark_ms=watermark_ms,
            checkpoint=incarnation.checkpoint,
            base=incarnation.base,
            floors=incarnation.floors,
            output_rows=output_rows,
            excluded=within(self._excluded, start, plan.end_offsets),
        )
        self._held.check(lease.key, lease.epoch)
        # 3. and 4. what is recorded for this shard, and one atomic commit
        sink_version = self._sink.commit(fence, written, commit.as_metadata(), after=position.fence)
        reach("sink.5")  # 5. for the ledger and the lease, with the next renewal
        landed = replace(commit, sink_version=sink_version)
        row = self._ledger_row(landed, started_at, time.monotonic() - started)
        after = ShardPosition(fence, plan.end_offsets, watermark_ms, incarnation, commit.excluded)
        progress.committed(after, row)
        reach("sink.6")  # 6. Spark's commit log, once this returns

    def _start_of(self, spark_batch: int) -> Offsets:
        """The offsets at which Spark begins the batch: the end of the one before, or the lease's start."""
        if spark_batch:
            return self._plans.planned(spark_batch - 1).end_offsets
        return ShardCheckpoint.of(self._progress.lease).start_offsets

    def _written(self, frame: DataFrame, fence: Fence, records: int) -> tuple[Data, int]:
        """The batch's rows in the form that the sink takes, and how many there are.

        :param records: how many the batch reads
        :raises DoubledKeyError: if two rows of an upsert have the same key
        """
        pipeline = self._progress.pipeline
        if pipeline.sink.mode is Mode.APPEND:
            prefix = f"{self._progress.lease.status_value}-e{fence.epoch}-b{fence.batch}"
            sink = self._sink
            if self._is_small(records):
                files = parquet_writer.write_rows(frame.toArrow(), sink.url, sink.storage_options, prefix)
            else:
                files = parquet_writer.write_files(frame, sink.url, sink.storage_options, prefix)
            return files, sum(file.rows for file in files)
        rows = frame.toArrow()
        if not rows.num_rows:
            return [], 0
        keys = pipeline.sink.keys
        different = rows.group_by(keys).aggregate([])
        if different.num_rows < rows.num_rows:
            raise DoubledKeyError(pipeline=pipeline.name, keys=", ".join(keys), batch=fence.batch)
        return Upsert(rows, keys, pipeline.sink.deleted), rows.num_rows

    def _is_small(self, records: int) -> bool:
        """Whether the batch's result surely fits into this process.

        The result of a window comes from its state. So it is small if the state was small after the batch
        before, and the batch adds little to it. After a start nothing is known of the state.
        """
        pipeline = self._progress.pipeline
        if pipeline.window is None or records > _FEW_RECORDS:
            return False
        state_bytes = self._progress.state_bytes
        return state_bytes is not None and state_bytes <= _SMALL_STATE_BYTES

    def _ledger_row(self, commit: BatchCommit, started_at: datetime, seconds: float) -> LedgerRow:
        return replace(
            commit.as_ledger_row(self._progress.pipeline.source.name),
            batch_seconds=seconds,
            cpu_seconds=self._meter.taken(self._cpu),
            started_at=started_at,
            committed_at=self._clock.now(),
        )
