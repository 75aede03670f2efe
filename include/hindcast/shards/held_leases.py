"""What this worker holds: which leases, until when, and what their consumers have reported.

A lease is valid until 80 % of its duration after the *start* of the last renewal that committed. So the owner
stops by itself before any observer can call the lease expired: an observer waits the whole duration, from a
later moment.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hindcast.clock import Clock
from hindcast.errors import LeaseLostError
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.shards.slot_row import SlotHolder

#: Share of the lease after which an owner without a renewal stops by itself.
SELF_FENCE = 0.8
#: Renewals in one lease: three may fail before the owner fences itself.
RENEWALS = 4
#: A worker that stood still for so long that it lost shards asks nobody for shards until this has passed. If
#: it stood still again and again, shards would be handed to it, and taken from it, each time. Free and
#: expired shards it takes at once.
SETTLE_SECONDS = 60.0


@dataclass
class HeldLease:
    """One lease that this worker owns, and what its consumer has said of itself."""

    epoch: int
    valid_until: float  # on this worker's monotonic clock
    checkpoint: Mapping[str, Any]
    detail: Mapping[str, Any]
    started: bool = False  # the consumer has started, or has failed to
    closing: bool = False  # the consumer was asked to close
    closed: bool = False  # the consumer has stopped, so the lease may be given away
    ended: bool = False  # the shard is consumed to its end, for good


class HeldLeases:
    """The leases of one worker. Its methods may be called from any thread.

    ``lock`` guards ``leases``, ``slot``, ``draining`` and the moment of the last loss. Every method takes it.
    The coordinator holds it while it decides and applies a renewal, and never while it waits for the store:
    so :meth:`holds` always answers at once. It is reentrant, as the coordinator calls these methods while it
    holds it.
    """

    def __init__(self, clock: Clock, *, owner: str, lease_seconds: float) -> None:
        self.owner = owner
        self.lease_seconds = lease_seconds
        self.lock = threading.RLock()
        self.leases: dict[LeaseKey, HeldLease] = {}
        self.slot: LeaseKey | None = None
        self.draining = False
        self._clock = clock
        self._lost_at = -SETTLE_SECONDS
        self._changed = threading.Event()

    @property
    def renewal_seconds(self) -> float:
        """How long to wait from one renewal to the next."""
        return self.lease_seconds / RENEWALS

    # -- what consumers ask and report -----------------------------------------------------------------------

    def holds(self, key: LeaseKey, epoch: int) -> bool:
        """Whether this worker may act as the owner in that epoch, by its own clock. It asks no store."""
        with self.lock:
            held = self._of_epoch(key, epoch)
            if held is None or held.closed:
                return False
            return self._clock.monotonic() < held.valid_until

    def check(self, key: LeaseKey, epoch: int) -> None:
        """:raises LeaseLostError: if :meth:`holds` is false"""
        if not self.holds(key, epoch):
            reason = "it was not renewed in time or has another owner"
            raise LeaseLostError(owner=self.owner, lease=key, epoch=epoch, reason=reason)

    def report(
        self,
        key: LeaseKey,
        epoch: int,
        *,
        checkpoint: Mapping[str, Any] | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Let the next renewal write these fields into the lease, which keeps its other fields.

        A report of a consumer of an earlier epoch comes too late and is dropped: others have owned the lease
        since, and are further.
        """
        with self.lock:
            held = self._of_epoch(key, epoch)
            if held is None:
                return
            if checkpoint is not None:
                held.checkpoint = {**held.checkpoint, **checkpoint}
            if detail is not None:
                held.detail = {**held.detail, **detail}

    def mark_ready(self) -> None:
        """This worker can consume from now on: the next renewal takes its share."""
        with self.lock:
            if self.slot is None:
                return
            slot = self.leases[self.slot]
            ready = replace(SlotHolder.from_json(slot.detail), starting=False)
            slot.detail = ready.to_json()
            self._changed.set()

    def mark_started(self, key: LeaseKey, epoch: int) -> None:
        """The consumer of this shard has started, or has failed to: there is room for another shard."""
        with self.lock:
            held = self._of_epoch(key, epoch)
            if held is not None:
                held.started = True

    def mark_closed(self, key: LeaseKey, epoch: int | None = None, *, ended: bool = False) -> None:
        """The consumer of this lease has stopped: the next renewal transfers or releases the lease.

        :param epoch: the consumer's. If the lease was lost and taken again since, it stays as it is. None if
            there was no consumer
        :param ended: the shard is consumed to its end: the next renewal ends it for good
        """
        with self.lock:
            held = self.leases.get(key)
            if held is None or epoch not in {None, held.epoch}:
                return
            held.closing = True
            held.closed = True
            held.ended = held.ended or ended
            self._changed.set()

    def wait_for_change(self, seconds: float) -> bool:
        """Wait so long, or until the next renewal has something to write.

        :returns: True if a consumer has closed or this worker is ready: a renewal now gives the lease away,
            or takes a share, without delay
        """
        changed = self._changed.wait(seconds)
        self._changed.clear()
        return changed

    # -- how a worker stops ----------------------------------------------------------------------------------

    def drain(self) -> list[LeaseKey]:
        """Take nothing more.

        :returns: the shards whose consumers must now close
        """
        with self.lock:
            self.draining = True
            shards = []
            for key, held in self.leases.items():
                if key.status_type == StatusType.SHARD and not held.closing:
                    held.closing = True
                    shards.append(key)
            return shards

    def close_all(self) -> None:
        """Take nothing more, and mark everything as closed: no consumer uses what is held any longer."""
        with self.lock:
            self.draining = True
            for key in self.leases:
                self.mark_closed(key)

    # -- what the coordinator asks and writes ----------------------------------------------------------------

    def owns(self, row: Lease) -> bool:
        """Whether the row is a lease that is held here, still in its epoch."""
        with self.lock:
            return row.lease_owner == self.owner and self._of_epoch(row.key, row.epoch) is not None

    def may_take(self) -> bool:
        """Whether this worker may take shards: it has a slot, is ready, and does not stop."""
        with self.lock:
            if self.draining or self.slot is None:
                return False
            return not SlotHolder.from_json(self.leases[self.slot].detail).starting

    def unstarted(self) -> int:
        """How many shards wait for the start of their consumers."""
        with self.lock:
            count = 0
            for key, held in self.leases.items():
                if key.status_type == StatusType.SHARD and not held.started and not held.closed:
                    count += 1
            return count

    def note_loss(self) -> None:
        """A lease was taken from this worker, which must have stood still."""
        with self.lock:
            self._lost_at = self._clock.monotonic()

    def settled(self) -> bool:
        """Whether the last loss is so long ago that this worker may ask others for shards."""
        with self.lock:
            return self._clock.monotonic() - self._lost_at >= SETTLE_SECONDS

    def gain(self, row: Lease, renewed_at: float) -> None:
        """Hold this lease from now on.

        :param renewed_at: when the renewal that took it began, on this worker's monotonic clock
        """
        with self.lock:
            valid_until = self._valid_until(renewed_at)
            self.leases[row.key] = HeldLease(row.epoch, valid_until, row.checkpoint, row.detail)

    def gain_slot(self, row: Lease, renewed_at: float) -> None:
        """Hold this lease as the worker's slot."""
        with self.lock:
            self.gain(row, renewed_at)
            self.slot = row.key

    def keep(self, written: Mapping[LeaseKey, Lease], renewed_at: float) -> list[LeaseKey]:
        """Hold on to those leases that a renewal has written as this worker's, and drop all others.

        :param renewed_at: when the renewal began, on this worker's monotonic clock
        :returns: the keys of leases that were lost
        """
        with self.lock:
            lost = []
            for key, held in list(self.leases.items()):
                row = written.get(key)
                if row is not None and self.owns(row):
                    held.valid_until = self._valid_until(renewed_at)
                    continue
                # A closed lease is not lost: its consumer had agreed that it is given away. If there is no
                # row, that was done by a commit of unknown outcome.
                if row is None and not held.closed:
                    lost.append(key)
                del self.leases[key]
                if key == self.slot:
                    self.slot = None
            return lost

    def _of_epoch(self, key: LeaseKey, epoch: int) -> HeldLease | None:
        """The lease, if it is held in that epoch."""
        held = self.leases.get(key)
        if held is None or held.epoch != epoch:
            return None
        return held

    def _valid_until(self, renewed_at: float) -> float:
        return renewed_at + self.lease_seconds * SELF_FENCE
