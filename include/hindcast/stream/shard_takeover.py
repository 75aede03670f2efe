"""Take one shard over and start its query. The steps are in :mod:`hindcast.recovery.takeover`."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from hindcast.archive.archive_or_live import HeldRecords
from hindcast.archive.held_records import held_records
from hindcast.clock import Clock
from hindcast.errors import CheckpointDamagedError
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets, app_id
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.recovery import rebuild_state, takeover
from hindcast.recovery.archived_rounds import rounds
from hindcast.recovery.checkpoint import BatchPlans, SparkCheckpoint
from hindcast.recovery.copied_checkpoint import copy_before
from hindcast.recovery.rebuild_from_batches import RebuildFromBatches
from hindcast.recovery.takeover import ShardPosition
from hindcast.replay.inputs import read_ledger
from hindcast.replay.recorded_batches import BatchRange
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.shard_row import ShardCheckpoint
from hindcast.spark import kafka_source, query_signature, session, transformation
from hindcast.stream.archived_batches import ArchivedBatches
from hindcast.stream.batch_commits import BatchCommits
from hindcast.stream.batch_cpu import CpuMeter
from hindcast.stream.query_frame import QueryFrame
from hindcast.stream.shard_progress import ShardProgress
from hindcast.stream.shard_runner import RunningQuery, ShardRunner
from hindcast.tables.excluded_records import Excluded, together, within
from hindcast.tables.fenced_sink import FencedTable
from hindcast.tables.ledger import LedgerRow


@dataclass(frozen=True)
class _Resumption:
    """Where a query is to begin.

    :param start: the offsets of its first batch
    :param excluded: the records that it leaves out
    :param rebuild: the batches from files that run into the checkpoint first; None if none have to
    :param reason: why the state is rebuilt; empty if the query resumes
    """

    checkpoint: SparkCheckpoint
    start: Offsets
    excluded: Excluded
    rebuild: RebuildFromBatches | None = None
    reason: str = ""


class ShardTakeover:
    """Takes over one shard whose lease this worker has gained."""

    def __init__(
        self,
        spark: SparkSession,
        installation: Installation,
        pipeline: Pipeline,
        lease: Lease,
        held: HeldLeases,
        clock: Clock,
        meter: CpuMeter,
        *,
        excluded: Excluded | None = None,
        give_way: Callable[[], object] = lambda: None,
    ) -> None:
        """:param excluded: records on which the function raises: the next batches leave them out
        :param give_way: called before each batch but the first of this owner; may wait
        """
        self.app = app_id(pipeline.name, lease.status_value)
        self._spark = spark
        self._installation = installation
        self._settings = installation.settings
        self._pipeline = pipeline
        self._lease = lease
        self._held = held
        self._ledger = installation.ledger
        self._clock = clock
        self._meter = meter
        self._give_way = give_way
        self._excluded = excluded or {}
        self._draining = threading.Event()
        # The log of a table that stands in a lake of its own is kept by whoever keeps that.
        log_hours = None if pipeline.sink.url else self._settings.sink_log_hours
        sink_url = self._settings.sink(pipeline)
        self._sink = FencedTable(sink_url, self._settings.storage_options, self.app, log_hours)
        self._frame = QueryFrame(spark, self._settings, pipeline)

    def prepare(self) -> None:
        """Make the query's frame for the case that the query resumes from its checkpoint.

        It needs nothing of the sink: another thread may make it while the sink is sealed.
        """
        checkpoint = ShardCheckpoint.of(self._lease)
        self._frame.prepare(checkpoint.start_offsets, checkpoint.floors)

    def seal(self) -> ShardRunner:
        """Steps 2 and 3, for a shard that is only to be ended: it gets no query.

        :raises HindcastError: if the sink is not this shard's any more
        """
        _, progress = self._seal()
        return ShardRunner(progress)

    def start(self, rebuild: str = "", *, held: Callable[[], HeldRecords] | None = None) -> ShardRunner:
        """Steps 2 to 5. It returns once the query runs, or once batches run from files into its state.

        :param rebuild: why its state is to be rebuilt; empty if the query is to resume from its checkpoint
        :param held: called once the sink is sealed; waits for what is done meanwhile, says what can be read
            of the topics, and raises if nothing must be read. By default the broker is asked
        :raises HindcastError: if it cannot resume exactly where the sink stands; nothing was read
        """
        fingerprint, progress = self._seal()
        ends = progress.end_offsets
        found = held() if held is not None else self._held_records(ends)
        resumption = self._resumption(progress, fingerprint, rebuild, behind=found.dropped(ends))

        def begin() -> RunningQuery:
            return self._begin(progress, resumption)

        runner = ShardRunner(
            progress,
            begin=begin,
            draining=self._draining,
            rebuild=resumption.rebuild,
            rebuilt=resumption.reason,
        )
        try:
            progress.report_query(fingerprint)
            if resumption.rebuild is None:
                runner.begin()
        except BaseException:
            runner.stop()
            raise
        return runner

    def _seal(self) -> tuple[str, ShardProgress]:
        """Steps 2 and 3: seal the sink, and add to the ledger what it lacks.

        :returns: the query's fingerprint, and how far the shard is
        """
        pipeline = self._pipeline
        shard = self._lease.status_value
        signature = query_signature.signature_of(self._spark, pipeline)
        self._sink.create(signature.schema)
        batches = takeover.known_batches(self._ledger, self._sink, pipeline, self._lease)
        position, missing = takeover.seal(self._sink, pipeline, self._lease, self._held.owner, batches)
        history = [row for row in batches if row.shard == shard]
        history += takeover.repair_ledger(self._ledger, pipeline, missing)
        progress = ShardProgress(pipeline, self._lease, self._held, self._ledger, position, history)
        return signature.fingerprint, progress

    def _held_records(self, needed: Offsets) -> HeldRecords:
        """What can be read now. Archives are asked only if a topic has dropped one of these offsets."""
        with TopicOffsets(self._settings) as topics:
            return held_records(self._settings, self._pipeline, topics, needed)

    def _resumption(
        self, progress: ShardProgress, fingerprint: str, reason: str, *, behind: bool
    ) -> _Resumption:
        """Step 4: where the query begins, and whether its state is rebuilt.

        :param behind: whether a topic has dropped what comes next
        :raises CheckpointRefusedError: if another query made the checkpoint
        :raises OffsetsLostError: if the topic no longer holds the rows for a rebuild; nothing was changed
        """
        if not reason:
            takeover.check_query(self._pipeline, self._lease, fingerprint)
            if behind:
                reason = "a topic has dropped what comes next, and its archive holds it"
            else:
                reason = self._damage(progress)
        if reason:
            return self._rebuild(progress, reason)
        if self._excluded:
            self._go_back(progress)
        checkpoint = self._checkpoint_in(progress.position.incarnation.checkpoint)
        excluded = together([progress.position.excluded, self._excluded])
        return _Resumption(checkpoint, ShardCheckpoint.of(self._lease).start_offsets, excluded)

    def _go_back(self, progress: ShardProgress) -> None:
        """Go on in a copy of the checkpoint, as it was before the batch that failed."""
        position = progress.position
        incarnation = position.incarnation
        name = self._new_folder("x", position)
        root = self._settings.checkpoint(self._pipeline.name)
        reach("exclude.3")
        copy_before(self._spark, root, incarnation.checkpoint, position.next_spark_batch, name)
        reach("exclude.4")
        progress.position = replace(position, incarnation=replace(incarnation, checkpoint=name))

    def _damage(self, progress: ShardProgress) -> str:
        """Why Spark could not resume from the shard's checkpoint; empty if it can."""
        folder = progress.position.incarnation.checkpoint
        if not folder:
            return "a new generation of shards has begun"
        try:
            self._checkpoint_in(folder).check(progress.position.spark_batch)
        except CheckpointDamagedError as error:
            return str(error)
        return ""

    def _rebuild(self, progress: ShardProgress, reason: str) -> _Resumption:
        """Make a checkpoint from which the state is rebuilt.

        The steps are in :mod:`hindcast.recovery.rebuild_state`, or in
        :mod:`hindcast.recovery.rebuild_from_batches`.

        :raises OffsetsLostError: if neither the topic nor its archive holds the rows for that; nothing was
            changed
        """
        pipeline = self._pipeline
        shard = self._lease.status_value
        position = progress.position
        floors = position.floors()
        ends = position.end_offsets
        ledger = read_ledger(self._installation, pipeline)
        excluded = together([*[row.excluded for row in ledger.excluding()], self._excluded])
        start = ledger.answer(lambda history: rebuild_state.start_of(pipeline, history, ends, floors))
        held = self._held_records(start)
        rebuild_state.check_retained(pipeline, shard, start, ends, held)
        folder = self._new_folder("r", position)
        checkpoint = self._checkpoint_in(folder)
        incarnation = rebuild_state.CheckpointRef(folder, position.fence.batch, floors)
        rows: list[LedgerRow | BatchRange] = []
        if pipeline.re_execute:
            incarnation = rebuild_state.CheckpointRef(folder, 1, {})
            rows += self._ledger.batches(pipeline.name, pipeline.version, shard)
        elif held.dropped(start):
            rows.append(BatchRange(shard, position.fence.batch, start, ends, within(excluded, start, ends)))
        progress.position = replace(position, incarnation=incarnation)
        behind = held.dropped(ends)
        if rows or behind:
            checkpoint.remove()
            further = self._archived(progress, checkpoint, len(rows)) if behind else None
            rebuild = RebuildFromBatches(
                self._spark,
                self._settings,
                pipeline,
                checkpoint,
                shard,
                rows,
                seams=held.seams(start, ends),
                floors=incarnation.floors,
                further=further,
            )
            return _Resumption(checkpoint, start, excluded, rebuild, reason)
        if pipeline.re_execute:
            checkpoint.remove()
        else:
            checkpoint.begin(self._spark, ends)
        return _Resumption(checkpoint, start, excluded, None, reason)

    def _archived(self, progress: ShardProgress, checkpoint: SparkCheckpoint, first: int) -> ArchivedBatches:
        """The batches that the shard reads from archives before its topics.

        :param first: Spark's number of the first of them
        """
        pipeline = self._pipeline
        start = progress.end_offsets
        most = kafka_source.most_records(pipeline, len(start))

        def held() -> HeldRecords:
            return self._held_records(progress.end_offsets)

        found = rounds(pipeline, self._lease.status_value, start, most, held, self._excluded)

        def commits(plans: BatchPlans) -> BatchCommits:
            return self._commits(progress, plans, self._excluded)

        return ArchivedBatches(found, checkpoint, progress, first, commits)

    def _commits(self, progress: ShardProgress, plans: BatchPlans, excluded: Excluded) -> BatchCommits:
        return BatchCommits(
            progress,
            self._held,
            self._sink,
            plans,
            self._clock,
            self._meter,
            excluded=excluded,
            draining=self._draining,
            give_way=self._give_way,
        )

    def _begin(self, progress: ShardProgress, resumption: _Resumption) -> RunningQuery:
        """Step 5: start the query."""
        pipeline = self._pipeline
        checkpoint = resumption.checkpoint
        commits = self._commits(progress, checkpoint, resumption.excluded)
        try:
            floors = progress.position.incarnation.floors
            frame = self._frame.at(resumption.start, floors, resumption.excluded)
            session.keep_state_for(self._spark, pipeline)
            reach("takeover.5")
            query = (
                frame.writeStream.queryName(f"{pipeline.name}.{self._lease.status_value}")
                .foreachBatch(commits.commit_batch)
                .outputMode(transformation.output_mode(pipeline))
                .option("checkpointLocation", checkpoint.url)
                .trigger(processingTime=f"{self._settings.trigger_seconds} seconds")
                .start()
            )
        except BaseException:
            commits.close()
            raise
        progress.follow(query)
        return RunningQuery(query, commits)

    def _new_folder(self, kind: str, position: ShardPosition) -> str:
        """The name of a new checkpoint.

        An earlier try of this owner may still write into its own folder, with records that this one leaves
        out.
        """
        name = f"{self._lease.status_value}.{kind}{position.fence.batch}.e{self._lease.epoch}"
        if self._excluded:
            name += f".{uuid.uuid4().hex[:8]}"
        return name

    def _checkpoint_in(self, folder: str) -> SparkCheckpoint:
        url = self._settings.checkpoint(self._pipeline.name, folder)
        shard = self._lease.status_value
        return SparkCheckpoint(self._spark, url, pipeline=self._pipeline, shard=shard)
