"""One shard's streaming query and the protocol by which each of its batches reaches the sink exactly once.

The commit protocol. A crash between any two steps leaves either nothing or a whole batch:

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

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from hindcast.clock import Clock
from hindcast.errors import CheckpointDamagedError, DoubledKeyError, HindcastError, StoreUnavailableError
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets, ShardId, app_id, as_json_object
from hindcast.pipeline import Mode, Pipeline, Topic
from hindcast.processes.crash_points import reach
from hindcast.recovery import rebuild_state, takeover
from hindcast.recovery.checkpoint import SparkCheckpoint
from hindcast.recovery.rebuild_from_batches import RebuildFromBatches
from hindcast.settings import Settings
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.shard_row import ReportedCheckpoint, ReportedDetail, ShardCheckpoint
from hindcast.spark import batch_metrics, kafka_source, parquet_writer, query_signature, session
from hindcast.stream.batch_cpu import CpuMeter, CpuShare
from hindcast.stream.ledger_queue import LedgerQueue
from hindcast.tables.fenced_sink import BatchCommit, Data, Fence, FencedTable, Upsert
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.ledger_history import History

_log = structlog.get_logger(__name__)


class ShardRunner:
    """Consumes one shard from take-over to hand-over.

    ``start`` blocks until the query runs; the query runs in Spark's threads.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        pipeline: Pipeline,
        lease: Lease,
        held: HeldLeases,
        ledger: Ledger,
        clock: Clock,
        meter: CpuMeter,
    ) -> None:
        self.pipeline = pipeline
        self.lease = lease
        self._shard = lease.status_value
        self._spark = spark
        self._settings = settings
        self._held = held
        self._ledger = ledger
        self._clock = clock
        self._meter = meter
        self._account: CpuShare | None = None  # its part of the process's CPU, once its query runs
        self.app = app_id(pipeline.name, self._shard)
        sink_url = settings.table("sinks", pipeline.sink.name)
        self.sink = FencedTable(sink_url, settings.storage_options, self.app)
        self._checkpoint: SparkCheckpoint | None = None
        self._query: StreamingQuery | None = None
        self._position: takeover.ShardPosition | None = None
        self._start: Offsets = {}
        # A start, floors, and the query's frame that was made for them.
        self._prepared: tuple[tuple[Offsets, Offsets], DataFrame] | None = None
        self._rerun: RebuildFromBatches | None = None  # while it runs there is no query
        self._refusal: Exception | None = None
        self._draining = threading.Event()
        self._queue = LedgerQueue(ledger, pipeline, self._shard)
        self._committed = 0
        self.most_records = 0  # of one batch and topic; 0 for the bound of all streams
        self.give_way: Callable[[], object] = lambda: None  # before each batch but the first; may wait

    # -- life ------------------------------------------------------------------------------------------------

    def seal(self) -> str:
        """Take the shard over, steps 2 and 3 of :mod:`hindcast.recovery.takeover`.

        :returns: the query's fingerprint
        :raises HindcastError: if the sink is not this shard's any more
        """
        signature = query_signature.signature_of(self._spark, self.pipeline)
        self.sink.create(signature.schema)
        batches = self._ledger.newest(self.pipeline.name, ShardId.parse(self._shard).version)
        self._position, missing = takeover.seal(
            self.sink, self.pipeline, self.lease, self._held.owner, batches
        )
        history = [row for row in batches if row.shard == self._shard]
        history += takeover.repair_ledger(self._ledger, self.pipeline, missing)
        self._queue.begin(history)
        if self._position.fence.batch:
            self._report(history[-1].sink_version, ReportedDetail())
        return signature.fingerprint

    def prepare(self) -> None:
        """Make the query's frame for the case that the query resumes from its checkpoint.

        It needs nothing of the sink: another thread may make it while the sink is sealed.
        """
        checkpoint = ShardCheckpoint.of(self.lease)
        start, floors = checkpoint.start_offsets, checkpoint.floors
        self._prepared = (start, floors), self._frame(start, floors)

    def start(self, rebuild: str = "", *, allowed: Callable[[], object] = lambda: None) -> str:
        """Take the shard over and start its query (the steps are in :mod:`hindcast.recovery.takeover`).

        :param rebuild: why its state is to be rebuilt; empty if the query is to resume from its checkpoint
        :param allowed: called once the sink is sealed; waits for what is done meanwhile, and raises if
            nothing must be read
        :returns: why its state was rebuilt, empty if it was not
        :raises HindcastError: if it cannot resume exactly where the sink stands; nothing was read
        """
        fingerprint = self.seal()
        allowed()
        assert self._position is not None
        if not rebuild:
            takeover.check_query(self.pipeline, self.lease, fingerprint)
            rebuild = self._damage()
        if rebuild:
            self._start = self._rebuild()
        else:
            self._start = ShardCheckpoint.of(self.lease).start_offsets
        self._held.report(
            self.lease.key, self.lease.epoch, checkpoint=ReportedCheckpoint(fingerprint=fingerprint)
        )
        if self._rerun is None:
            self._begin()
        return rebuild

    def go_on(self) -> None:
        """Step 5 for a shard whose state is rebuilt from recorded batches, once the state is there.

        An error becomes a :attr:`failure`.
        """
        if self._rerun is None or self._query is not None:
            return
        if not self._rerun.ended or self.failure or self._draining.is_set():
            return
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            self._refusal = error

    def _begin(self) -> None:
        assert self._checkpoint is not None and self._position is not None
        self._account = self._meter.opened()
        frame = self._query_frame(self._start, self._position.incarnation.floors)
        session.keep_state_for(self._spark, self.pipeline)
        reach("takeover.5")
        self._query = (
            frame.writeStream.queryName(f"{self.pipeline.name}.{self._shard}")
            .foreachBatch(self._commit_batch)
            .outputMode(kafka_source.output_mode(self.pipeline))
            .option("checkpointLocation", self._checkpoint.url)
            .trigger(processingTime=f"{self._settings.trigger_seconds} seconds")
            .start()
        )

    def _damage(self) -> str:
        """Why Spark could not resume from the shard's checkpoint; empty if it can."""
        assert self._position is not None
        folder = self._position.incarnation.checkpoint
        if not folder:
            return "a new generation of shards has begun"
        self._checkpoint = self._checkpoint_in(folder)
        try:
            self._checkpoint.check(self._position.spark_batch)
        except CheckpointDamagedError as error:
            return str(error)
        return ""

    def _rebuild(self) -> Offsets:
        """Make a checkpoint from which the state is rebuilt; return where it reads from.

        The steps are in :mod:`hindcast.recovery.rebuild_state`, or in
        :mod:`hindcast.recovery.rebuild_from_batches`.

        :raises OffsetsLostError: if the topic no longer holds the rows for that; nothing was changed
        """
        assert self._position is not None
        position = self._position
        name, version = self.pipeline.name, self.pipeline.version
        floors = position.floors()
        ends = position.end_offsets
        history = History.of(self._ledger.batches(name, version))
        start = rebuild_state.start_of(self.pipeline, history, ends, floors)
        with TopicOffsets(self._settings) as offsets:
            earliest = across(self.pipeline, offsets.earliest)
            rebuild_state.check_retained(self.pipeline, self._shard, start, ends, earliest)
        folder = f"{self._shard}.r{position.fence.batch}.e{self.lease.epoch}"
        self._checkpoint = self._checkpoint_in(folder)
        if self.pipeline.re_execute:
            incarnation = rebuild_state.CheckpointRef(folder, 1, {})
            self._checkpoint.remove()
            recorded = self._ledger.batches(name, version, self._shard)
            if recorded:
                self._rerun = RebuildFromBatches(
                    self._spark, self._settings, self.pipeline, self._checkpoint, recorded
                )
        else:
            incarnation = rebuild_state.CheckpointRef(folder, position.fence.batch, floors)
            self._checkpoint.begin(self._spark, ends)
        self._position = replace(position, incarnation=incarnation)
        return start

    def _checkpoint_in(self, folder: str) -> SparkCheckpoint:
        url = self._settings.checkpoint(self.pipeline.name, folder)
        return SparkCheckpoint(self._spark, url, pipeline=self.pipeline, shard=self._shard)

    def _query_frame(self, start: Offsets, floors: Offsets) -> DataFrame:
        """The frame that was prepared, if it was made for this start and these floors; else a new one."""
        if self._prepared is not None:
            place, frame = self._prepared
            if place == (start, floors):
                return frame
        return self._frame(start, floors)

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
        """Whether no batch is in hand any more after :meth:`drain`; then :meth:`stop` interrupts nothing."""
        if self._query is None or not self._query.isActive:
            return True
        return self._draining.is_set() and not self._query.status["isTriggerActive"]

    def stop(self) -> None:
        """Stop the query. A batch in hand is interrupted, and the shard's next owner runs it again."""
        if self._rerun is not None:
            self._rerun.stop()
        if self._query is not None:
            self._query.stop()
        if self._account is not None:
            self._meter.closed(self._account)
        try:
            self.flush()
        except StoreUnavailableError as error:
            message = "The last ledger rows could not be written; the next owner repairs them."
            _log.warning(message, shard=self.app, reason=str(error))

    @property
    def failure(self) -> BaseException | None:
        """Why the query ended, if nobody asked it to end."""
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
        if self._query is None:
            return None
        progress = self._query.lastProgress
        if progress is None:
            return None
        return batch_metrics.lag_records(progress)

    # -- a batch ---------------------------------------------------------------------------------------------

    def _commit_batch(self, frame: DataFrame, spark_batch: int) -> None:
        if self.progressed:
            self.give_way()
        if self._draining.is_set():
            raise _DrainedError
        assert self._account is not None
        self._meter.began(self._account)
        try:
            self._commit(frame, spark_batch)
        except HindcastError as error:  # Spark wraps an error of a batch in text: keep the error itself
            self._refusal = error
            raise
        finally:
            self._meter.ended(self._account)

    def _commit(self, frame: DataFrame, spark_batch: int) -> None:
        assert self._position is not None and self._checkpoint is not None
        position = self._position
        incarnation = position.incarnation
        started = time.monotonic()
        started_at = self._clock.now()
        self._queue.complete_last(self._query, incarnation.base)
        key, epoch = self.lease.key, self.lease.epoch
        reach("sink.1")  # 1. still the owner?
        self._held.check(key, epoch)
        fence = Fence(epoch, spark_batch + incarnation.base)
        plan = self._checkpoint.planned(spark_batch)
        if fence.batch <= position.fence.batch:
            # The sink holds this batch, or the batch rebuilds the state: only Spark's state needs it.
            parquet_writer.run(frame)
            return
        start = self._start_of(spark_batch)
        position.check_follows(self.pipeline, self.lease, fence.batch, start)
        # After a rebuild Spark's own watermark begins at 0 again.
        watermark_ms = max(plan.watermark_ms, position.watermark_ms)
        reach("sink.2")  # 2. data files, named by no commit
        written, output_rows = self._written(frame, fence)
        commit = BatchCommit(
            kind="batch",
            pipeline=self.pipeline.name,
            version=self.pipeline.version,
            shard=self._shard,
            epoch=epoch,
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
        )
        self._held.check(key, epoch)
        # 3. and 4. what is recorded for this shard, and one atomic commit
        metadata = commit.as_metadata()
        sink_version = self.sink.commit(fence, written, metadata, after=position.fence)
        if sink_version < 0:
            sink_version = next(self.sink.commits()).sink_version
        reach("sink.5")  # 5. for the ledger and the lease, with the next renewal
        self._position = takeover.ShardPosition(fence, plan.end_offsets, watermark_ms, incarnation)
        self._note(commit, sink_version, started_at, time.monotonic() - started)
        reach("sink.6")  # 6. Spark's commit log, once this returns

    def _start_of(self, spark_batch: int) -> Offsets:
        """The offsets at which Spark begins the batch: the end of the one before, or the lease's start."""
        assert self._checkpoint is not None
        if spark_batch:
            return self._checkpoint.planned(spark_batch - 1).end_offsets
        return ShardCheckpoint.of(self.lease).start_offsets

    def _written(self, frame: DataFrame, fence: Fence) -> tuple[Data, int]:
        """The batch's rows in the form that the sink takes, and how many there are."""
        if self.pipeline.sink.mode is Mode.APPEND:
            prefix = f"{self._shard}-e{fence.epoch}-b{fence.batch}"
            files = parquet_writer.write_files(frame, self.sink.url, self.sink.storage_options, prefix)
            return files, sum(file.rows for file in files)
        rows = frame.toArrow()
        if not rows.num_rows:
            return [], 0
        keys = self.pipeline.sink.keys
        different = rows.group_by(keys).aggregate([])
        if different.num_rows < rows.num_rows:
            raise DoubledKeyError(pipeline=self.pipeline.name, keys=", ".join(keys), batch=fence.batch)
        return Upsert(rows, keys), rows.num_rows

    # -- for the ledger and the lease ------------------------------------------------------------------------

    def _note(self, commit: BatchCommit, sink_version: int, started_at: datetime, seconds: float) -> None:
        assert self._account is not None
        committed = replace(commit, sink_version=sink_version).as_ledger_row(self.pipeline.source.name)
        row = replace(
            committed,
            batch_seconds=seconds,
            cpu_seconds=self._meter.taken(self._account),
            started_at=started_at,
            committed_at=self._clock.now(),
        )
        self._committed += 1
        self._queue.add(row)
        self._report(sink_version, ReportedDetail(lag_records=self.lag_records))

    def _report(self, sink_version: int, detail: ReportedDetail) -> None:
        assert self._position is not None
        checkpoint = ReportedCheckpoint(
            batch=self._position.fence.batch,
            end_offsets=as_json_object(self._position.end_offsets),
            watermark_ms=self._position.watermark_ms,
            sink_version=sink_version,
        )
        self._held.report(self.lease.key, self.lease.epoch, checkpoint=checkpoint, detail=detail)

    def flush(self) -> None:
        """Write the queued ledger rows. The newest waits for Spark's measurements while its query runs.

        :raises StoreUnavailableError: the rows stay queued
        """
        base = 0
        if self._position is not None:
            base = self._position.incarnation.base
        self._queue.flush(self._query, base)

    def unfiled(self, filed: int) -> list[LedgerRow]:
        """The shard's batches in the ledger after one whose late and poison rows are filed.

        The batches before that one are filed, too, and are forgotten.

        :raises StoreUnavailableError: if earlier owners' batches could not be read
        """
        return self._queue.unfiled(filed)


class _DrainedError(Exception):
    """A batch that was not begun because the shard is being given up."""
