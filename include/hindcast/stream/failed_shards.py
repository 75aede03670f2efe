"""What a worker does with a shard whose start or query has failed."""

from __future__ import annotations

from hindcast.clock import Clock
from hindcast.errors import HindcastError, JvmBrokenError, LeaseLostError
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.partitions import Offsets
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.shard_row import ReportedDetail
from hindcast.stream.query_backoff import QueryBackoff
from hindcast.stream.query_errors import cause, is_jvm_broken, is_refusal, is_state_lost
from hindcast.stream.shard_events import ShardEvents
from hindcast.stream.shard_topics import ShardTopics


class FailedShards:
    """Finds out why a shard failed, says so, and gives its lease back.

    The worker's main thread calls all methods.
    """

    def __init__(
        self, held: HeldLeases, events: ShardEvents, topics: ShardTopics, backoff: QueryBackoff, clock: Clock
    ) -> None:
        self._held = held
        self._events = events
        self._topics = topics
        self._backoff = backoff
        self._clock = clock

    def diagnose(self, key: LeaseKey, reached: Offsets, failure: BaseException) -> BaseException:
        """The cause behind a failed query, if it can be known: data that Kafka no longer has.

        :param reached: up to where the query has read the shard
        """
        if isinstance(failure, HindcastError):
            return failure
        try:
            self._topics.check_retained(key, reached)
        except HindcastError as error:
            return error
        return failure

    def give_back(self, lease: Lease, error: BaseException) -> None:
        """Say why the shard is given back, and give it back.

        :raises JvmBrokenError: if no shard can go on in this process
        """
        if isinstance(error, LeaseLostError):
            self._events.lost(lease)
        elif is_refusal(error):
            self._held.report(lease.key, lease.epoch, detail=ReportedDetail(refused=str(error)))
            self._events.refused(lease, error)
        else:
            seconds = self._backoff.failed(lease.key, self._clock.monotonic())
            self._events.query_failed(lease, error, cause(error), seconds)
            if is_state_lost(error):
                self._held.report(lease.key, lease.epoch, detail=ReportedDetail(damaged=cause(error)))
        # Last: once it is closed the next renewal frees the lease, and a refusal reported after that would be
        # lost.
        self._held.mark_closed(lease.key, lease.epoch)
        if is_jvm_broken(error):
            raise JvmBrokenError(reason=cause(error)) from error

    def recovered(self, key: LeaseKey) -> None:
        """The shard has committed a batch here: its next failure counts as the first."""
        self._backoff.succeeded(key)
