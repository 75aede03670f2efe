"""A simulated worker: the real coordinator, and around it what the worker's main thread and its queries' threads
do with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from simulation.history import Event, Kind, Op
from simulation.ports import BATCH, FaultyStore, Fence, FencedSink, Reached

from hindcast.errors import CommitUnknownError, FenceMovedError, HindcastError, LeaseLostError
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.leases.store import Snapshot
from hindcast.shards import resharding
from hindcast.shards.coordinator import LeaseCoordinator, Renewal
from hindcast.testing import FakeClock, Outcome

T = TypeVar("T")


#: Records of one partition that a batch takes at most.
MOST_RECORDS = 12
#: The watermark delay.
DELAY_MS = 3000


def event_ms(partition: int, offset: int) -> int:
    """When the record happened, by its own account. Partitions differ, so that one shard's watermark is ahead
    of another's.
    """
    return offset * 1000 + partition * 400


def first_place(lease: Lease) -> Reached:
    """Where a shard begins that has no batch yet."""
    start, floors = (lease.checkpoint.get(name, {}) for name in ("start_offsets", "floors"))
    return Reached(
        {int(p): offset for p, offset in start.items()}, 0, {int(p): floor for p, floor in floors.items()}
    )


def wanted(lease: Lease, snapshot: Snapshot) -> bool:
    return resharding.wanted(lease, snapshot, lambda *_: True)


@dataclass
class Consumer:
    """One shard's query. ``after`` is the place in the sink that it goes on from, and ``at`` how far that
    is.
    """

    key: LeaseKey
    epoch: int
    at: Reached
    next: Reached | None = None
    after: Fence | None = None
    in_hand: Fence | None = None
    unreported: int = 0
    draining: bool = False

    @property
    def batch(self) -> int:
        return self.after.batch if self.after else 0

    def checkpoint(self) -> dict[str, Any]:
        """How far the shard is, as the lease has it once it is renewed."""
        ends = {str(partition): end for partition, end in self.at.end_offsets.items()}
        return {BATCH: self.unreported, "end_offsets": ends, "watermark_ms": self.at.watermark_ms}

    def seal(self, sink: FencedSink) -> Fence | None:
        """Fence older epochs off and go on from what the sink holds, as
        :func:`hindcast.recovery.takeover.seal` does.

        :raises LeaseLostError: where a newer epoch has sealed it already
        """
        while True:
            recorded, reached = sink.recorded.get(self.key), sink.reached.get(self.key)
            if (meanwhile := sink.meanwhile) is not None:
                sink.meanwhile = None
                meanwhile()
            fence = Fence(self.epoch, recorded.batch if recorded else 0)
            try:
                self.put_seal(sink, fence, recorded)
            except FenceMovedError:
                continue
            self.at = reached or self.at
            return fence

    def put_seal(self, sink: FencedSink, fence: Fence, recorded: Fence | None) -> None:
        """Write the seal right after the commit that was read."""
        sink.commit(self.key, fence, recorded, seal=True)

    def read(self, topic_end: int) -> Reached:
        """How far a batch gets that begins now."""
        ends = {
            partition: max(end, min(end + MOST_RECORDS, topic_end))
            for partition, end in self.at.end_offsets.items()
        }
        newest_ms = max((event_ms(partition, end - 1) for partition, end in ends.items() if end), default=0)
        return Reached(ends, max(self.at.watermark_ms, newest_ms - DELAY_MS), self.at.floors)


class SimulatedWorker:
    """One process. ``step`` is its renewal thread, ``work`` its main thread; ``begin``, ``land`` and
    ``report`` are its queries'.
    """

    def __init__(
        self,
        name: str,
        clock: FakeClock,
        rate: float,
        coordinator: LeaseCoordinator,
        sink: FencedSink,
        record: Callable[[Event], None],
    ) -> None:
        """:param rate: seconds on this worker's clock in one true second"""
        self.name, self.clock, self.rate, self.coordinator = name, clock, rate, coordinator
        self._sink, self._record = sink, record
        self.consumers: dict[LeaseKey, Consumer] = {}
        self.superseded: set[LeaseKey] = set()
        self.renewals: list[Renewal] = []
        self.wakes_at = self.stuck_until = 0.0
        self.busy = False
        self.leaving = self.draining = self.left = self.ended = False

    def _note(
        self,
        op: Op,
        kind: Kind,
        consumer: Consumer | None = None,
        batch: int = 0,
        detail: tuple[str, ...] = (),
    ) -> None:
        shard, epoch = (str(consumer.key), consumer.epoch) if consumer else ("", 0)
        self._record(Event(0.0, self.name, op, kind, shard, epoch, batch, detail))

    # -- the renewal thread
    # --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Renew. What it changed waits for the main thread."""
        self._note(Op.STEP, Kind.INVOKE)
        try:
            self.renewals.append(self.coordinator.renew())
        except HindcastError as error:
            self._note(Op.STEP, Kind.UNKNOWN if isinstance(error, CommitUnknownError) else Kind.FAIL)
        else:
            self._note(Op.STEP, Kind.OK)

    # -- the main thread
    # -----------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Act on each step, look after each query, and stop where it was told to or where the slot is
        lost.
        """
        for renewal in self.renewals:
            self._act(renewal)
        self.renewals = []
        for consumer in list(self.consumers.values()):
            if not self.coordinator.held.holds(consumer.key, consumer.epoch):
                self._stop(consumer)
            elif consumer.draining and consumer.in_hand is None:
                self._stop(consumer, ended=consumer.key in self.superseded and not self.leaving)
        if self.leaving or self.coordinator.held.slot is None:
            self._leave()

    def _act(self, renewal: Renewal) -> None:
        self.superseded = resharding.superseded(renewal.leases.values())
        for key in renewal.lost:
            if key in self.consumers:
                self._stop(self.consumers[key])
        for key in renewal.close:
            self._close(key, renewal.leases[key].epoch)
        for lease in renewal.gained:
            if lease.key in self.consumers:
                self._stop(
                    self.consumers[lease.key]
                )  # of an earlier epoch: lost and taken again within one step
            if lease.status_type is StatusType.SHARD and not self.draining:
                self._start(lease)

    def _start(self, lease: Lease) -> None:
        consumer = Consumer(lease.key, lease.epoch, first_place(lease))
        self.coordinator.held.mark_started(lease.key, lease.epoch)
        self._note(Op.SEAL, Kind.INVOKE, consumer)
        try:
            consumer.after = consumer.seal(self._sink)
        except LeaseLostError:
            self._note(Op.SEAL, Kind.FAIL, consumer)
            self.coordinator.held.mark_closed(consumer.key, consumer.epoch)
        else:
            consumer.unreported = consumer.batch
            self._note(Op.SEAL, Kind.OK, consumer, consumer.batch)
            self.consumers[lease.key] = consumer

    def _close(self, key: LeaseKey, epoch: int | None = None) -> None:
        if (consumer := self.consumers.get(key)) is not None:
            consumer.draining = True
        else:
            self.coordinator.held.mark_closed(key, epoch)

    def _stop(self, consumer: Consumer, *, ended: bool = False) -> None:
        """Interrupt the batch in hand; a batch that has landed is reported first, since stopping waits for
        its thread.
        """
        self.report(consumer)
        self.consumers.pop(consumer.key, None)
        self.coordinator.held.mark_closed(consumer.key, consumer.epoch, ended=ended)

    def fail(self, key: LeaseKey) -> None:
        """The query ends by itself, so the lease is given back."""
        if (consumer := self.consumers.get(key)) is not None:
            self._stop(consumer)

    def _leave(self) -> None:
        if not self.draining:
            self.draining = True
            for key in self.coordinator.held.drain():
                self._close(key)
        if self.consumers:
            return
        if self.busy:  # the two halves of leaving: the second waits for the step that is under way
            self.left = True
            self.coordinator.held.close_all()
            return
        self._note(Op.LEAVE, Kind.INVOKE)
        self.ended = True
        try:
            (self.coordinator.renew if self.left else self.coordinator.leave)()
        except HindcastError as error:
            self._note(Op.LEAVE, Kind.UNKNOWN if isinstance(error, CommitUnknownError) else Kind.FAIL)
        else:
            self._note(Op.LEAVE, Kind.OK)

    # -- a query's thread
    # ----------------------------------------------------------------------------------------------------

    def begin(self, key: LeaseKey, topic_end: int = 0) -> None:
        """Begin a batch, if the lease is held by this worker's own clock.

        :param topic_end: the end of each partition of the topic
        """
        consumer = self.consumers.get(key)
        if consumer is None or consumer.draining or consumer.in_hand is not None:
            return
        self.report(consumer)
        try:
            self.coordinator.held.check(key, consumer.epoch)
        except LeaseLostError:
            return
        consumer.in_hand, consumer.next = Fence(consumer.epoch, consumer.batch + 1), consumer.read(topic_end)
        self._note(Op.BEGIN, Kind.OK, consumer, consumer.in_hand.batch)

    def land(self, key: LeaseKey, outcome: Outcome, *, at_once: bool) -> None:
        """Commit the batch in hand, however long ago the lease was last looked at. ``at_once``: and tell the
        coordinator.
        """
        consumer = self.consumers.get(key)
        if consumer is None or consumer.in_hand is None:
            return
        batch = consumer.in_hand.batch
        self._note(Op.BATCH, Kind.INVOKE, consumer, batch)
        if outcome in {Outcome.FAIL, Outcome.UNKNOWN_LOST}:
            self._note(Op.BATCH, Kind.FAIL if outcome is Outcome.FAIL else Kind.UNKNOWN, consumer, batch)
            return  # still in hand: it is tried again
        try:
            self._sink.commit(key, consumer.in_hand, consumer.after, start=consumer.at, reached=consumer.next)
        except (LeaseLostError, FenceMovedError):
            self._note(Op.BATCH, Kind.FAIL, consumer, batch)
            consumer.in_hand = None
            self.fail(key)
            return
        if outcome is Outcome.UNKNOWN_WRITTEN:
            self._note(Op.BATCH, Kind.UNKNOWN, consumer, batch)
            return
        self._note(Op.BATCH, Kind.OK, consumer, batch)
        assert consumer.next is not None
        consumer.after, consumer.in_hand, consumer.unreported, consumer.at = (
            consumer.in_hand,
            None,
            batch,
            consumer.next,
        )
        if at_once:
            self.report(consumer)

    def report(self, consumer: Consumer) -> None:
        """Tell the coordinator how far the shard is, for its next renewal."""
        if consumer.unreported:
            self.coordinator.held.report(consumer.key, consumer.epoch, checkpoint=consumer.checkpoint())
            consumer.unreported = 0

    def copied(
        self, store: FaultyStore, sink: FencedSink, record: Callable[[Event], None]
    ) -> SimulatedWorker:
        """The same process, apart from now on."""
        twin = _copied(self)
        twin.clock = _copied(self.clock)
        twin._sink, twin._record = sink, record
        twin.consumers = {key: _copied(consumer) for key, consumer in self.consumers.items()}
        twin.renewals = list(self.renewals)
        twin.coordinator = _coordinator_copied(self.coordinator, store, twin.clock)
        return twin


def _coordinator_copied(original: LeaseCoordinator, store: FaultyStore, clock: FakeClock) -> LeaseCoordinator:
    """A coordinator that has its slot, apart from now on."""
    twin = _copied(original)
    twin._store = store
    twin._clock = clock
    twin._observer = _copied(original._observer)
    twin._observer._clock = clock
    twin.held = _copied(original.held)
    twin.held._clock = clock
    twin.held.leases = {key: _copied(held) for key, held in original.held.leases.items()}
    twin._share = _copied(original._share)
    twin._share._held = twin.held
    twin._share._observer = twin._observer
    return twin


def _copied(original: T) -> T:
    """What copy.copy does, three times as fast."""
    twin = object.__new__(type(original))
    twin.__dict__.update(original.__dict__)
    return twin
