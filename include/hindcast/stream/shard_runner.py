"""One shard's streaming query and the protocol by which each of its batches reaches the sink exactly once.

The commit protocol. A crash between any two steps leaves either nothing or a whole batch:

1. the worker still holds the lease, by its own monotonic clock;
2. the batch's data files are written into the table's folder; no commit names them yet, so no reader sees them;
3. on one handle of the table: what is recorded for this shard? A later epoch means that the lease is lost: stop;
4. one atomic commit of the files, the fence (epoch, batch), and where the batch begins and ends;
5. the ledger row and the lease's checkpoint are queued; the next renewal writes them (a crash before it is repaired on take-over);
6. Spark writes its own commit log.

Batches form a chain: batch N must begin at the offsets at which the sink was left by N - 1. A batch that the sink already holds
(a crash between 4 and 6) is run again for Spark's state alone and writes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from hindcast.clock import Clock
from hindcast.errors import CheckpointDamagedError, DoubledKeyError, HindcastError, StoreUnavailableError
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.lease import Lease
from hindcast.pipeline import Mode, Pipeline, Topic
from hindcast.processes.crash_points import reach
from hindcast.recovery import rebuild_state, takeover
from hindcast.recovery.checkpoint import SparkCheckpoint
from hindcast.recovery.rebuild_from_batches import RebuildFromBatches
from hindcast.settings import Settings
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.shard_names import app_id, shard_version
from hindcast.spark import batch_metrics, kafka_source, parquet_writer, query_signature, session
from hindcast.stream.batch_cpu import CpuMeter, CpuShare
from hindcast.tables.fenced_sink import BatchCommit, Data, Fence, FencedTable, Upsert
from hindcast.tables.ledger import Ledger, LedgerRow, Offsets, by_partition
from hindcast.tables.ledger_history import History

_log = structlog.get_logger(__name__)


class ShardRunner:
    """Consumes one shard from take-over to hand-over. ``start`` blocks until the query runs; the query runs in Spark's threads."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        pipeline: Pipeline,
        lease: Lease,
        keeper: LeaseCoordinator,
        ledger: Ledger,
        clock: Clock,
        meter: CpuMeter,
    ) -> None:
        self.pipeline, self.lease = pipeline, lease
        self._spark, self._settings, self._keeper, self._ledger, self._clock = spark, settings, keeper, ledger, clock
        self._meter = meter
        self._account: CpuShare | None = None  # its part of the process's CPU, once its query runs
        self.app = app_id(pipeline.name, lease.status_value)
        self.sink = FencedTable(settings.table("sinks", pipeline.sink.name), settings.storage_options, self.app)
        self._wal: SparkCheckpoint | None = None
        self._query: StreamingQuery | None = None
        self._position: takeover.ShardPosition | None = None
        self._start: Offsets = {}
        self._prepared: tuple[tuple[Offsets, Offsets], DataFrame] | None = None  # for a start and floors, the query's frame
        self._rerun: RebuildFromBatches | None = None  # while it runs there is no query
        self._refusal: Exception | None = None
        self._draining = threading.Event()
        self._rows: list[LedgerRow] = []  # committed, not yet in the ledger; the last may still lack what Spark measured
        self._committed = 0
        self._lock, self._flushing = threading.Lock(), threading.Lock()  # the audit may stop a shard while the main thread flushes all
        self._history: list[LedgerRow] = []  # each batch in the ledger after this one:
        self._history_after = 0
        self.most_records = 0  # of one batch and topic; 0 for the bound of all streams
        self.give_way: Callable[[], object] = lambda: None  # before each batch but the first; may wait

    # -- life --------------------------------------------------------------------------------------------------------------

    def seal(self) -> str:
        """Take the shard over, steps 2 and 3 of :mod:`hindcast.recovery.takeover`; return the query's fingerprint.

        :raises HindcastError: where the sink is not this shard's any more
        """
        shape = query_signature.signature_of(self._spark, self.pipeline)
        self.sink.create(shape.schema)
        batches = self._ledger.newest(self.pipeline.name, shard_version(self.lease.status_value))
        self._position, missing = takeover.seal(self.sink, self.pipeline, self.lease, self._keeper.owner, batches)
        self._history = [row for row in batches if row.shard == self.lease.status_value]
        self._history += takeover.repair_ledger(self._ledger, self.pipeline, missing)
        if self._history:
            self._history_after = self._history[0].batch - 1
        if self._position.fence.batch:
            self._report(self._history[-1].sink_version)
        return shape.fingerprint

    def prepare(self) -> None:
        """Make the query's frame as it is where a checkpoint is gone on with. It needs nothing of the sink: another thread may make it
        while that is sealed.
        """
        place = by_partition(self.lease.checkpoint["start_offsets"]), by_partition(self.lease.checkpoint.get("floors", {}))
        self._prepared = place, self._frame(*place)

    def start(self, rebuild: str = "", *, allowed: Callable[[], object] = lambda: None) -> str:
        """Take the shard over and start its query (the steps are in :mod:`hindcast.recovery.takeover`).

        :param rebuild: why its state is to be made anew; empty where its checkpoint is to be gone on with
        :param allowed: called once the sink is sealed; waits for what is done beside, and raises where nothing must be read
        :returns: why its state was made anew, empty where it was not
        :raises HindcastError: where it cannot go on exactly where the sink stands; nothing was read
        """
        fingerprint = self.seal()
        allowed()
        assert self._position is not None
        if not rebuild:
            takeover.check_query(self.pipeline, self.lease, fingerprint)
            rebuild = self._damage()
        self._start = self._rewind() if rebuild else by_partition(self.lease.checkpoint["start_offsets"])
        self._keeper.report(self.lease.key, self.lease.epoch, checkpoint={"fingerprint": fingerprint})
        if self._rerun is None:
            self._begin()
        return rebuild

    def go_on(self) -> None:
        """Step 5 for a shard whose state had to be made first, once it is there. What goes wrong is a :attr:`failure`."""
        if self._rerun is None or self._query is not None or not self._rerun.ended or self.failure or self._draining.is_set():
            return
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            self._refusal = error

    def _begin(self) -> None:
        assert self._wal is not None and self._position is not None
        self._account = self._meter.opened()
        place = self._start, self._position.incarnation.floors
        frame = self._prepared[1] if self._prepared is not None and self._prepared[0] == place else self._frame(*place)
        session.keep_state_for(self._spark, self.pipeline)
        reach("takeover.5")
        self._query = (
            frame.writeStream.queryName(f"{self.pipeline.name}.{self.lease.status_value}")
            .foreachBatch(self._commit_batch)
            .outputMode(kafka_source.output_mode(self.pipeline))
            .option("checkpointLocation", self._wal.url)
            .trigger(processingTime=f"{self._settings.trigger_seconds} seconds")
            .start()
        )

    def _damage(self) -> str:
        """Why Spark could not go on with the shard's checkpoint; empty where it can."""
        assert self._position is not None
        life = self._position.incarnation
        if not life.checkpoint:
            return "a new generation of shards has begun"
        self._wal = self._checkpoint(life.checkpoint)
        try:
            self._wal.check(self._position.spark_batch)
        except CheckpointDamagedError as error:
            return str(error)
        return ""

    def _rewind(self) -> Offsets:
        """Make a checkpoint from which the state comes anew (the steps are in :mod:`hindcast.recovery.rebuild_state`, or in
        :mod:`hindcast.recovery.rebuild_from_batches`); return where it reads from.

        :raises OffsetsLostError: where the topic no longer holds what that needs; nothing was changed
        """
        assert self._position is not None
        position, shard = self._position, self.lease.status_value
        floors, ends = position.floors(), position.end_offsets
        start = rebuild_state.start_of(
            self.pipeline, History.of(self._ledger.batches(self.pipeline.name, self.pipeline.version)), ends, floors
        )
        with TopicOffsets(self._settings) as offsets:
            rebuild_state.check_retained(self.pipeline, shard, start, ends, across(self.pipeline, offsets.earliest))
        folder = f"{shard}.r{position.fence.batch}.e{self.lease.epoch}"
        self._wal = self._checkpoint(folder)
        if self.pipeline.re_execute:
            life = rebuild_state.CheckpointRef(folder, 1, {})
            self._wal.remove()
            if history := self._ledger.batches(self.pipeline.name, self.pipeline.version, shard):
                self._rerun = RebuildFromBatches(self._spark, self._settings, self.pipeline, self._wal, history)
        else:
            life = rebuild_state.CheckpointRef(folder, position.fence.batch, floors)
            self._wal.begin(self._spark, ends)
        self._position = replace(position, incarnation=life)
        return start

    def _checkpoint(self, folder: str) -> SparkCheckpoint:
        url = self._settings.checkpoint(self.pipeline.name, folder)
        return SparkCheckpoint(self._spark, url, pipeline=self.pipeline, shard=self.lease.status_value)

    def _frame(self, start: Offsets, floors: Offsets) -> DataFrame:
        parsed = [self._observed(index, topic, start) for index, topic in enumerate(self.pipeline.topics)]
        return kafka_source.result(parsed, self.pipeline, floors)

    def _observed(self, index: int, topic: Topic, start: Offsets) -> DataFrame:
        raw = kafka_source.stream(self._spark, self._settings, self.pipeline, topic, start, self.most_records)
        return batch_metrics.observed(kafka_source.parse(raw, self.pipeline, topic), index)

    def drain(self) -> None:
        """Let the batch in hand end and begin no other."""
        self._draining.set()

    @property
    def drained(self) -> bool:
        """Whether nothing is in hand any more after :meth:`drain`; then :meth:`stop` interrupts nothing."""
        return self._query is None or not self._query.isActive or (self._draining.is_set() and not self._query.status["isTriggerActive"])

    def stop(self) -> None:
        """Stop the query. A batch in hand is interrupted, and will be run again by whoever owns the shard next."""
        if self._rerun is not None:
            self._rerun.stop()
        if self._query is not None:
            self._query.stop()
        if self._account is not None:
            self._meter.closed(self._account)
        try:
            self.flush()
        except StoreUnavailableError as error:
            _log.warning("The last ledger rows could not be written; the next owner repairs them.", shard=self.app, reason=str(error))

    @property
    def failure(self) -> BaseException | None:
        """What ended the query, if it has ended without being asked to."""
        if self._refusal is not None:
            return self._refusal
        if self._rerun is not None and self._rerun.ended and self._rerun.failure is not None:
            return self._rerun.failure
        if self._query is None or self._query.isActive or self._draining.is_set():
            return None
        return self._query.exception() or RuntimeError("the query ended by itself")

    @property
    def end_offsets(self) -> Offsets:
        """Up to where the sink holds the shard's records."""
        assert self._position is not None
        return self._position.end_offsets

    @property
    def batch(self) -> int:
        """The last batch that the sink holds; 0 before the first."""
        assert self._position is not None
        return self._position.fence.batch

    @property
    def progressed(self) -> bool:
        """Whether this owner has committed a batch."""
        return self._committed > 0

    @property
    def lag_records(self) -> int | None:
        """How many records the topic's end was ahead when the last batch was planned; None before it."""
        progress = self._query.lastProgress if self._query is not None else None
        return batch_metrics.lag_records(progress) if progress is not None else None

    # -- a batch -------------------------------------------------------------------------------------------------------------

    def _commit_batch(self, frame: DataFrame, spark_batch: int) -> None:
        if self.progressed:
            self.give_way()
        if self._draining.is_set():
            raise _DrainedError
        assert self._account is not None
        self._meter.began(self._account)
        try:
            self._commit(frame, spark_batch)
        except HindcastError as error:  # Spark wraps what a batch raises in text: keep the error itself
            self._refusal = error
            raise
        finally:
            self._meter.ended(self._account)

    def _commit(self, frame: DataFrame, spark_batch: int) -> None:
        assert self._position is not None and self._wal is not None
        position = self._position
        started, started_at = time.monotonic(), self._clock.now()
        self._complete_last_row()
        key, epoch = self.lease.key, self.lease.epoch
        reach("sink.1")  # 1. still the owner?
        self._keeper.check(key, epoch)
        fence = Fence(epoch, spark_batch + position.incarnation.base)
        plan = self._wal.planned(spark_batch)
        if fence.batch <= position.fence.batch:
            parquet_writer.run(frame)  # the sink holds this batch, or it is the one that rewinds: only Spark's state needs it
            return
        start = self._wal.planned(spark_batch - 1).end_offsets if spark_batch else by_partition(self.lease.checkpoint["start_offsets"])
        position.check_follows(self.pipeline, self.lease, fence.batch, start)
        watermark_ms = max(plan.watermark_ms, position.watermark_ms)  # after a rewinding Spark's own begins at 0 again
        reach("sink.2")  # 2. data files, named by no commit
        written, output_rows = self._written(frame, fence)
        commit = BatchCommit(
            kind="batch",
            pipeline=self.pipeline.name,
            version=self.pipeline.version,
            shard=self.lease.status_value,
            epoch=epoch,
            batch=fence.batch,
            worker=self._keeper.owner,
            start_offsets=start,
            end_offsets=plan.end_offsets,
            late_watermark_ms=position.watermark_ms,
            watermark_ms=watermark_ms,
            checkpoint=position.incarnation.checkpoint,
            base=position.incarnation.base,
            floors=position.incarnation.floors,
            output_rows=output_rows,
        )
        self._keeper.check(key, epoch)
        version = self.sink.commit(fence, written, commit.as_metadata(), after=position.fence)  # steps 3 and 4
        if version < 0:
            version = next(self.sink.commits()).sink_version
        reach("sink.5")  # 5. for the ledger and the lease, with the next renewal
        self._position = takeover.ShardPosition(fence, plan.end_offsets, watermark_ms, position.incarnation)
        self._note(commit, version, started_at, time.monotonic() - started)
        reach("sink.6")  # 6. Spark's commit log, once this returns

    def _written(self, frame: DataFrame, fence: Fence) -> tuple[Data, int]:
        """The batch's rows as the sink takes them, and how many there are."""
        if self.pipeline.sink.mode is Mode.APPEND:
            name = f"{self.lease.status_value}-e{fence.epoch}-b{fence.batch}"
            written = parquet_writer.write_files(frame, self.sink.url, self.sink.storage_options, name)
            return written, sum(file.rows for file in written)
        rows = frame.toArrow()
        if not rows.num_rows:
            return [], 0
        keys = self.pipeline.sink.keys
        if rows.group_by(keys).aggregate([]).num_rows < rows.num_rows:
            raise DoubledKeyError(pipeline=self.pipeline.name, keys=", ".join(keys), batch=fence.batch)
        return Upsert(rows, keys), rows.num_rows

    # -- what the ledger and the lease learn -----------------------------------------------------------------------------------

    def _note(self, commit: BatchCommit, version: int, started_at: datetime, seconds: float) -> None:
        assert self._account is not None
        row = replace(
            replace(commit, sink_version=version).as_ledger_row(self.pipeline.source.name),
            batch_seconds=seconds,
            cpu_seconds=self._meter.taken(self._account),
            started_at=started_at,
            committed_at=self._clock.now(),
        )
        self._committed += 1
        with self._lock:
            self._rows.append(row)
        self._report(version, lag_records=self.lag_records)

    def _report(self, sink_version: int, **detail: Any) -> None:
        assert self._position is not None
        checkpoint = {
            "batch": self._position.fence.batch,
            "end_offsets": {str(p): offset for p, offset in self._position.end_offsets.items()},
            "watermark_ms": self._position.watermark_ms,
            "sink_version": sink_version,
        }
        self._keeper.report(self.lease.key, self.lease.epoch, checkpoint=checkpoint, detail=detail)

    def _complete_last_row(self) -> None:
        """Add what Spark measured of the last batch, once it has reported it: that is after the batch, before the next one."""
        progress = self._query.lastProgress if self._query is not None else None
        with self._lock:
            if progress is None or not self._rows or self._position is None or self._rows[-1].input_rows is not None:
                return
            if progress["batchId"] + self._position.incarnation.base == self._rows[-1].batch:
                self._rows[-1] = batch_metrics.completed(self._rows[-1], progress, len(self.pipeline.topics))

    def flush(self) -> None:
        """Write the queued ledger rows. The newest waits for Spark's measurements while its query runs.

        :raises StoreUnavailableError: the rows stay queued
        """
        with self._flushing:
            self._complete_last_row()
            with self._lock:
                active = self._query is not None and self._query.isActive
                ready = [row for row in self._rows if row.input_rows is not None or not active or row is not self._rows[-1]]
            if ready:
                self._ledger.append(ready)
                self._history += ready
                with self._lock:
                    self._rows = [row for row in self._rows if row not in ready]

    def unfiled(self, filed: int) -> list[LedgerRow]:
        """The shard's batches in the ledger after one whose late and poison rows are filed, as are those before it: these are forgotten.

        :raises StoreUnavailableError: where earlier owners' batches could not be read
        """
        with self._flushing:
            if filed < self._history_after:
                self._history = self._ledger.batches(self.pipeline.name, self.pipeline.version, self.lease.status_value, after=filed)
            else:
                self._history = [row for row in self._history if row.batch > filed]
            self._history_after = filed
            return list(self._history)


class _DrainedError(Exception):
    """A batch that was not begun because the shard is being given up."""
