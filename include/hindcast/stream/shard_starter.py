"""What a worker needs to start its shards: Spark, the broker, and threads that work while a sink is sealed.

How one shard is taken over is in :mod:`hindcast.stream.shard_takeover`.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from pyspark.sql import SparkSession

from hindcast.archive.archive_or_live import HeldRecords
from hindcast.clock import Clock
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets
from hindcast.leases.lease import Lease
from hindcast.recovery.halving import Place
from hindcast.recovery.raising_records import FailedBatch, RaisingRecords
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.shard_row import ShardCheckpoint
from hindcast.stream.batch_cpu import CpuMeter
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.stream.shard_runner import ShardRunner
from hindcast.stream.shard_takeover import ShardTakeover
from hindcast.stream.shard_topics import ShardTopics
from hindcast.stream.takeover_priority import TakeoverPriority
from hindcast.tables.excluded_records import Excluded


class ShardStarter:
    """Prepares the take-over of a shard, starts its query, and makes its audit.

    The worker's main thread calls all methods. While it seals the sink, two threads of a pool ask the broker
    and make the query.
    """

    def __init__(
        self,
        spark: SparkSession,
        installation: Installation,
        deployed: LoadedPipelines,
        held: HeldLeases,
        topics: ShardTopics,
        clock: Clock,
        priority: TakeoverPriority,
    ) -> None:
        """:param priority: the other batches, and the filing of rows, give way to a shard from its take-over
        on
        """
        self._spark = spark
        self._installation = installation
        self._deployed = deployed
        self._held = held
        self._topics = topics
        self._clock = clock
        self._priority = priority
        self._meter = CpuMeter(clock)
        # The passes of all audits run one after the other, so one connection serves them.
        self._audited_topics = TopicOffsets(installation.settings)
        self._meanwhile = ThreadPoolExecutor(2, "take-over")

    def prepare(self, lease: Lease, *, excluded: Excluded) -> ShardTakeover:
        """What takes the shard over. From now on all gives way to it.

        :param excluded: the records that are to be left out
        :raises UnknownPipelineError, UnknownVersionError: if it is not deployed
        """
        self._priority.begin(lease.key)
        takeover = ShardTakeover(
            self._spark,
            self._installation,
            self._deployed.of_shard(lease.key),
            lease,
            self._held,
            self._clock,
            self._meter,
            excluded=excluded,
            give_way=self._priority.give_way,
        )
        # A pool for each query: Spark's fair scheduler then shares the cores between this worker's shards.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", takeover.app)
        return takeover

    def start(self, takeover: ShardTakeover, lease: Lease, rebuild: str) -> ShardRunner:
        """Take the shard over and start its query.

        The worker asks the broker and makes the query while the sink is sealed: the shard stands still until
        all is done.

        :param rebuild: why its state is to be rebuilt; empty if the query is to resume from its checkpoint
        """
        reached = ShardCheckpoint.of(lease).read_to
        retained = self._meanwhile.submit(self._topics.check_retained, lease.key, reached)
        prepared = self._meanwhile.submit(takeover.prepare)

        def held() -> HeldRecords:
            prepared.result()
            return retained.result()

        try:
            return takeover.start(rebuild, held=held)
        finally:
            wait([retained])
            wait([prepared])

    def search(self, runner: ShardRunner, error: BaseException, excluded: Excluded) -> RaisingRecords | None:
        """The search for the records on which the function raises; None if no batch was planned that failed.

        :param error: why the runner's query ended
        :param excluded: the records that it left out
        """
        if not self._installation.settings.raising_records_per_hour:
            return None
        planned = runner.planned_next()
        if planned is None:
            return None
        start, end = planned
        lease = runner.lease
        batch = FailedBatch(lease.status_value, start, end, runner.floors, error, excluded)
        pipeline = self._deployed.of_shard(lease.key)
        return RaisingRecords(self._spark, self._installation, pipeline, batch, self._clock)

    def audit_of(self, lease: Lease, app: str, tracebacks: Mapping[Place, str]) -> Audit:
        """What files the late and poison rows of a shard that was taken over.

        :param app: the take-over's application id
        :param tracebacks: what the function raised, by the places of the records that are left out
        """
        pipeline = self._deployed.of_shard(lease.key)
        audit = Audit(
            self._spark, self._installation, pipeline, app, lease.epoch, self._audited_topics, tracebacks
        )
        audit.give_way = self._priority.give_way
        return audit
