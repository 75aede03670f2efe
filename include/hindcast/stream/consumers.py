"""The shards that one worker consumes: start, watch and stop their queries, and tell the keeper when a lease may go.

All methods but :meth:`Consumers.audit` are called from the worker's main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import psutil
import structlog
from pyspark.sql import SparkSession

from hindcast.clock import Clock
from hindcast.control.desired import DRAINED, REFUSED
from hindcast.control.events import EventKind, EventLog, Severity
from hindcast.control.keeper import Keeper
from hindcast.control.leases import Lease, LeaseKey
from hindcast.control.ledger import Ledger, Offsets
from hindcast.control.tables import ControlTables
from hindcast.errors import (
    BrokerUnavailableError,
    CommitConflictError,
    CommitUnknownError,
    FenceMovedError,
    HindcastError,
    LeaseLostError,
    OffsetsLostError,
    StoreUnavailableError,
)
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.stream.audit import Audit
from hindcast.stream.consumer import ShardConsumer
from hindcast.topics.offsets import TopicOffsets

_log = structlog.get_logger(__name__)

#: Faults of the moment: the shard is given back and taken again after a while. Every other HindcastError waits for an operator.
_PASSING = (LeaseLostError, StoreUnavailableError, BrokerUnavailableError, CommitConflictError, CommitUnknownError, FenceMovedError)
#: A query that failed is started again by this worker after 1, 2, 4 ... seconds, at most this.
MAX_BACKOFF_SECONDS = 60.0


@dataclass
class _Running:
    consumer: ShardConsumer
    audit: Audit
    draining: bool = False
    drain_to: Offsets | None = None


@dataclass
class Backoff:
    """When a shard that failed here may be tried here again."""

    failures: dict[LeaseKey, int] = field(default_factory=dict)
    until: dict[LeaseKey, float] = field(default_factory=dict)

    def failed(self, key: LeaseKey, now: float) -> float:
        """Note a failure; return the seconds to wait."""
        self.failures[key] = self.failures.get(key, 0) + 1
        seconds = min(2.0 ** (self.failures[key] - 1), MAX_BACKOFF_SECONDS)
        self.until[key] = now + seconds
        return seconds

    def succeeded(self, key: LeaseKey) -> None:
        self.failures.pop(key, None)

    def over(self, key: LeaseKey, now: float) -> bool:
        return now >= self.until.get(key, 0.0)


class Consumers:
    """One query for each shard held."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        pipelines: Mapping[str, Pipeline],
        keeper: Keeper,
        events: EventLog,
        clock: Clock,
        backoff: Backoff,
    ) -> None:
        self._spark, self._settings, self._pipelines = spark, settings, pipelines
        self._keeper, self._events, self._clock, self._backoff = keeper, events, clock, backoff
        self._ledger = Ledger(ControlTables(settings))
        self._running: dict[LeaseKey, _Running] = {}
        self._settling: list[_Running] = []  # given up, with late and poison rows still to be filed
        self._auditing = threading.Lock()

    @property
    def any(self) -> bool:
        return bool(self._running)

    def start(self, lease: Lease) -> None:
        """Take the shard over and start its query; where that fails, say why and give the lease back."""
        pipeline = self._pipelines[lease.stream_id]
        consumer = ShardConsumer(self._spark, self._settings, pipeline, lease, self._keeper, self._ledger, self._clock, cpu_seconds)
        # A pool for each query: Spark's fair scheduler then shares the cores between the shards of this worker.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", consumer.app)
        try:
            _check_retained(self._settings, pipeline, lease)
            consumer.start()
        except Exception as error:  # noqa: BLE001 - whatever Spark or a user's transformation raises
            consumer.stop()
            self._failed(lease, error)
            return
        self._running[lease.key] = _Running(consumer, Audit(self._spark, self._settings, pipeline, consumer.app, lease.epoch))
        message = f"{self._keeper.owner} consumes {lease.key} in epoch {lease.epoch}."
        self._events.record(EventKind.SHARD_TAKEN, message, pipeline=lease.stream_id, shard=lease.status_value, epoch=lease.epoch)

    def close(self, key: LeaseKey) -> None:
        """Let the batch in hand end; :meth:`tick` then gives the lease away."""
        running = self._running.get(key)
        if running is None:
            self._keeper.closed(key)
            return
        running.draining = True
        running.consumer.drain()

    def drain_to_end(self, key: LeaseKey, *, wanted: bool) -> None:
        """Where it is wanted, consume to the topic's end of the moment it was first asked for, then mark the shard as drained."""
        running = self._running.get(key)
        if running is None:
            return
        if not wanted:
            running.drain_to = None
        elif running.drain_to is None:
            topic = self._pipelines[key.stream_id].source.name
            try:
                with TopicOffsets(self._settings) as offsets:
                    latest = offsets.latest(topic)
            except HindcastError as error:
                _log.warning("The topic's end is not known yet; asking again.", shard=str(key), reason=str(error))
                return
            running.drain_to = {partition: latest[partition] for partition in running.consumer.end_offsets}

    def lose(self, key: LeaseKey) -> None:
        """Stop at once: somebody else owns the shard."""
        if (running := self._running.pop(key, None)) is not None:
            running.consumer.stop()
            self._lost(running.consumer.lease)

    def tick(self) -> None:
        """Look after every query: fence off what is no longer ours, report what failed, give away what has drained."""
        for key, running in list(self._running.items()):
            consumer, lease = running.consumer, running.consumer.lease
            failure = consumer.failure
            if not self._keeper.holds(key, lease.epoch):
                del self._running[key]
                consumer.stop()
                self._keeper.closed(key)
                self._lost(lease)
            elif failure is not None:
                del self._running[key]
                consumer.stop()
                self._failed(lease, self._diagnosed(lease, failure))
            elif running.draining and consumer.drained:
                del self._running[key]
                consumer.stop()
                self._keeper.closed(key)
                self._settling.append(running)
                message = f"{self._keeper.owner} has given {lease.key} up after the batch in hand."
                self._events.record(
                    EventKind.SHARD_RELEASED, message, pipeline=lease.stream_id, shard=lease.status_value, epoch=lease.epoch
                )
            elif running.drain_to is not None and all(
                consumer.end_offsets[partition] >= end for partition, end in running.drain_to.items()
            ):
                self._keeper.report(key, detail={DRAINED: True})

    def flush(self) -> None:
        """Write the queued ledger rows of all shards; a store that is away keeps them queued."""
        for running in self._running.values():
            try:
                running.consumer.flush()
            except StoreUnavailableError as error:
                _log.warning("The ledger could not be written; its rows are kept.", reason=str(error))
            if running.consumer.progressed:
                self._backoff.succeeded(running.consumer.lease.key)

    def audit(self) -> None:
        """File late and poison rows of every shard held, and of those just given up (from the audit's own thread).

        A shard that was given up is finished here, since nobody may take it for long. Whoever does take it seals these tables with its
        first pass, and ours is then refused.
        """
        with self._auditing:
            for running in list(self._running.values()):
                self._audit(running)
            while self._settling:
                self._audit(self._settling[0], to_the_end=True)
                self._settling.pop(0)

    def _audit(self, running: _Running, *, to_the_end: bool = False) -> None:
        lease, batches = running.consumer.lease, list(running.consumer.history)
        try:
            done = running.audit.run(batches)
            while to_the_end and batches and done < batches[-1].batch:
                before, done = done, running.audit.run(batches)
                if done <= before:
                    return  # somebody else files them now
        except _PASSING as error:
            _log.warning("Late and poison rows could not be filed; the next pass will.", shard=str(lease.key), reason=str(error))
        except Exception as error:  # noqa: BLE001 - a pass that fails is tried again; it must never end the stream
            if self._running.get(lease.key) is running:
                message = f"Late and poison rows of {lease.key} could not be filed: {_first_line(error)}"
                self._events.record(
                    EventKind.AUDIT_FAILED,
                    message,
                    severity=Severity.WARNING,
                    cure="The next pass tries again. If it goes on: the worker's log has the whole error.",
                    pipeline=lease.stream_id,
                    shard=lease.status_value,
                )

    def _diagnosed(self, lease: Lease, failure: BaseException) -> BaseException:
        """The cause behind a failed query, where it can be known: data that Kafka no longer has."""
        if isinstance(failure, HindcastError):
            return failure
        try:
            _check_retained(self._settings, self._pipelines[lease.stream_id], lease)
        except HindcastError as error:
            return error
        return failure

    def _lost(self, lease: Lease) -> None:
        message = f"{self._keeper.owner} has lost {lease.key} (epoch {lease.epoch}) and has stopped consuming it."
        self._events.record(
            EventKind.LEASE_LOST,
            message,
            severity=Severity.WARNING,
            cure="The next owner goes on. If it happens often: give the worker more CPU, or raise HINDCAST_LEASE_SECONDS.",
            pipeline=lease.stream_id,
            shard=lease.status_value,
            epoch=lease.epoch,
        )

    def _failed(self, lease: Lease, error: BaseException) -> None:
        record = partial(
            self._events.record, severity=Severity.ERROR, pipeline=lease.stream_id, shard=lease.status_value, epoch=lease.epoch
        )
        if isinstance(error, LeaseLostError):
            self._lost(lease)
        elif isinstance(error, HindcastError) and not isinstance(error, _PASSING):
            kind = EventKind.OFFSETS_LOST if isinstance(error, OffsetsLostError) else EventKind.SHARD_REFUSED
            self._keeper.report(lease.key, detail={REFUSED: str(error)})
            cure = f"When it is mended: hindcast resume {lease.stream_id}"
            record(kind, str(error), cure=cure)
        else:
            seconds = self._backoff.failed(lease.key, self._clock.monotonic())
            message = f"The query of {lease.key} failed and is started again in {seconds:.0f} s at the earliest: {_first_line(error)}"
            cure = "If it goes on: the worker's log has the whole error; `hindcast pause` stops the tries."
            _log.error(message, error=str(error))
            record(EventKind.QUERY_FAILED, message, cure=cure)
        # Last: once it is closed the next renewal frees the lease, and a refusal reported after that would be lost.
        self._keeper.closed(lease.key)


def _check_retained(settings: Settings, pipeline: Pipeline, lease: Lease) -> None:
    """:raises OffsetsLostError: where the topic no longer holds, or does not reach, the offset at which the shard must go on"""
    recorded = lease.checkpoint.get("end_offsets") or lease.checkpoint["start_offsets"]
    topic = pipeline.source.name
    with TopicOffsets(settings) as offsets:
        earliest, latest = offsets.earliest(topic), offsets.latest(topic)
    for partition, offset in ((int(p), int(o)) for p, o in recorded.items()):
        lost = {"topic": topic, "partition": partition, "pipeline": pipeline.name, "shard": lease.status_value, "start": offset}
        if partition not in latest:
            raise OffsetsLostError(
                **lost, end="its end", problem="the topic no longer has that partition: it was deleted and created again"
            )
        if offset < earliest[partition]:
            raise OffsetsLostError(**lost, end=earliest[partition] - 1, problem="the topic no longer holds them (retention or a deletion)")
        if offset > latest[partition]:
            raise OffsetsLostError(**lost, end="later", problem=f"the topic ends at {latest[partition]}: it was deleted and created again")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def cpu_seconds() -> float:
    """CPU time of this process and all below it (the JVM, the Python workers), in seconds since they began."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
