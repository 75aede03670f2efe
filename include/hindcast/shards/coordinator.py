"""A worker's side of the leases: keep what it holds, take what is free, hand over what others ask for.

The steps of one renewal. All that it writes is ONE commit (design: the taker and renewer of KCL, with
Tablestore's cooperative steal):

1. read all leases and note which counters moved, on this process's monotonic clock;
2. renew every lease that is held (counter + 1, with its checkpoint), or learn that it was lost (another owner
   or epoch);
3. a lease that another worker asked for (``lease_stealer``), or that must be given up, is closed by its
   consumer first. Then it is transferred (owner = stealer, epoch + 1) or released (no owner);
4. open the shards whose parents have ended (:mod:`hindcast.shards.resharding`). Take free and expired leases
   up to the target (epoch + 1). If there are none, ask the richest workers for what is lacking. A renewal
   takes and asks for no more shards than this worker can start soon: a shard that waits for its start stands
   still, and another worker could have it;
5. commit on the snapshot that was read. After a conflict or an unknown outcome begin again at 1.

A poll only reads. It finds out, between two renewals, whether one is due at once.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hindcast.clock import Clock
from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import Lease, LeaseKey, ShardState, StatusType
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.shards import resharding
from hindcast.shards.fair_share import FairShare
from hindcast.shards.fleet_slots import SlotAcquisition
from hindcast.shards.held_leases import HeldLease, HeldLeases
from hindcast.shards.slot_row import SlotHolder

#: A worker that has not renewed its slot for so many leases may have died: a renewal is due each quarter. Its
#: shards may still be on their way to others: they expire after one lease.
SUSPECTED = (0.35, 1.35)
#: Polls in one lease, at least. A death, a request or a hand-over is seen at most one poll late. A poll
#: writes nothing, and reads no file if nothing was committed. Its cost is that a thread wakes.
POLLS = 32


@dataclass(frozen=True)
class Renewal:
    """What one renewal changed."""

    gained: list[Lease] = field(default_factory=list)
    lost: list[LeaseKey] = field(default_factory=list)
    close: list[LeaseKey] = field(default_factory=list)  # their consumers must now close
    leases: dict[LeaseKey, Lease] = field(default_factory=dict)  # all leases, as the renewal left them


@dataclass(frozen=True)
class _NothingDue:
    """A poll found nothing to do. The next one finds the same, as long as these three hold."""

    token: Any  # of the snapshot: no lease has changed
    room: int  # as many shards may wait for their start as before
    until: float  # on this clock: nothing has expired, and no shard may be tried again


class LeaseCoordinator:
    """Takes a slot of the fleet and a fair share of the shards, and renews what it holds (:attr:`held`).

    Its methods may be called from any thread once :meth:`acquire_slot` has returned. Two locks guard it:

    - its own lets one renewal run at a time, from the first read to the result;
    - ``held.lock`` also guards the observer, the fair share and what the last poll found. It is never kept
      while the store is asked.
    """

    def __init__(
        self,
        store: LeaseStore,
        clock: Clock,
        *,
        owner: str,
        fleet: str,
        slots: int,
        lease_seconds: float,
        wanted: Callable[[Lease, Snapshot], bool],
        wanted_changes_at: Callable[[float], float] = lambda _: math.inf,
        start_limit: Callable[[], int] = lambda: sys.maxsize,
        worker: SlotHolder | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        """:param owner: this worker's id
        :param slots: how many workers the fleet may have
        :param wanted: whether a shard is to be consumed at all, e.g. because its pipeline is running
        :param wanted_changes_at: the first instant after this one, on this clock, at which ``wanted`` may
            change its answer though no lease has changed; infinity if there is none
        :param start_limit: how many shards may wait here for the start of their consumers
        :param worker: what its slot will say of this worker
        :param sleep: waits between two attempts of a commit; None for real time
        """
        self.held = HeldLeases(clock, owner=owner, lease_seconds=lease_seconds)
        self._store = store
        self._clock = clock
        self._fleet = fleet
        self._wanted_changes_at = wanted_changes_at
        self._sleep = sleep
        self._observer = Observer(clock, lease_seconds)
        self._share = FairShare(
            self.held, self._observer, fleet=fleet, wanted=wanted, start_limit=start_limit
        )
        self._acquisition = SlotAcquisition(
            store,
            clock,
            self._observer,
            self.held,
            fleet=fleet,
            slots=slots,
            worker=worker or SlotHolder(),
            sleep=sleep,
        )
        self._nothing_due: _NothingDue | None = None
        self._renewing = threading.Lock()

    def acquire_slot(self, wait: Callable[[float], object]) -> bool:
        """See :meth:`hindcast.shards.fleet_slots.SlotAcquisition.acquire`."""
        return self._acquisition.acquire(wait)

    def leave(self) -> None:
        """Give everything up: the last renewal of a worker that stops cleanly.

        Nobody has to wait until its leases expire.
        """
        self.held.close_all()
        self.renew()  # also if nothing is held: something may just have been given to this worker

    # -- polls -----------------------------------------------------------------------------------------------

    @property
    def poll_seconds(self) -> float:
        """How long to wait for the next poll: no longer than until something that was seen expires."""
        often = self.held.lease_seconds / POLLS
        with self.held.lock:
            if self._nothing_due is None:
                return often
            left = self._nothing_due.until - self._clock.monotonic()
        if left <= 0:
            return often
        return min(often, left)

    def poll(self) -> bool:
        """Note which counters moved.

        :returns: True if a renewal is due now: there is something to take, to open or to close, or something
            was lost
        :raises StoreUnavailableError: if the store does not answer
        """
        snapshot = self._store.read()
        with self.held.lock:
            now = self._clock.monotonic()  # before what follows: the next poll sees what expires meanwhile
            room = self._share.room()
            last = self._nothing_due
            if last is not None and (last.token, last.room) == (snapshot.token, room) and now < last.until:
                return False
            self._nothing_due = None
            self._observer.observe(snapshot.leases.values())
            if self._is_due(snapshot, room):
                return True
            until = min(self._observer.next_expiry(now), self._wanted_changes_at(now))
            self._nothing_due = _NothingDue(snapshot.token, room, until)
            return False

    def _is_due(self, snapshot: Snapshot, room: int) -> bool:
        superseded = resharding.superseded(snapshot.leases.values())
        for key, held in self.held.leases.items():
            row = snapshot.leases.get(key)
            if row is None or not self.held.owns(row):
                return True
            if not held.closing and self._share.must_close(row, snapshot, superseded):
                return True
        if not self.held.may_take():
            return False
        if resharding.opened(snapshot.leases):
            return True
        return self._share.is_due(snapshot, room)

    def suspects(self) -> bool:
        """Whether another worker of the fleet may have died of late: its shards will soon be taken over."""
        with self.held.lock:
            still = self._observer.still_seconds(self._fleet, StatusType.SLOT)
        least, most = SUSPECTED
        others = [seconds for owner, seconds in still.items() if owner != self.held.owner]
        return any(least < seconds / self.held.lease_seconds < most for seconds in others)

    # -- renewals --------------------------------------------------------------------------------------------

    def renew(self) -> Renewal:
        """Renew, hand over, take and steal in one commit.

        :raises CommitConflictError: if other writers were faster for a long time; nothing was renewed
        :raises StoreUnavailableError: if the store does not answer; nothing was renewed
        """
        seen: list[Snapshot] = []

        def decide(snapshot: Snapshot) -> list[Lease]:
            seen.append(snapshot)
            with self.held.lock:
                self._observer.observe(snapshot.leases.values())  # step 1
                return self._decide(snapshot)

        with self._renewing:
            # Before the first attempt, and so before the commit: the leases are never believed for too long.
            began = self._clock.monotonic()
            changes = swap(self._store, decide, sleep=self._sleep)  # step 5
            with self.held.lock:
                return self._apply(seen[-1], changes, began)

    def _decide(self, snapshot: Snapshot) -> list[Lease]:
        """Steps 2 to 4: all rows that the renewal writes."""
        now = self._clock.now()
        live = self._share.live_workers(snapshot)
        changes = self._kept(snapshot, live, now)
        if self.held.draining:
            for row in snapshot.leases.values():
                if row.key not in changes and self.held.owner in {row.lease_owner, row.lease_stealer}:
                    changes[row.key] = self._share.declined(row)
        if not self.held.may_take() or self.held.slot not in changes:
            return list(changes.values())
        for child in resharding.opened({**snapshot.leases, **changes}):
            changes[child.key] = child
        # As this renewal leaves them: if it writes that a shard is refused, that counts at once.
        rows = {key: changes.get(key, row) for key, row in snapshot.leases.items()}
        for row in self._share.adopted(rows, snapshot, now):
            changes[row.key] = row
        for row in self._share.taken(rows, snapshot, live, now):
            changes[row.key] = row
        return list(changes.values())

    def _kept(self, snapshot: Snapshot, live: Collection[str], now: datetime) -> dict[LeaseKey, Lease]:
        """Steps 2 and 3: what becomes of each lease that is held and was not lost."""
        changes = {}
        for key, held in self.held.leases.items():
            row = snapshot.leases.get(key)
            if row is not None and self.held.owns(row):
                changes[key] = self._continued(row, held, live).evolve(updated_at=now)
            elif not held.closed:
                self.held.note_loss()
        return changes

    def _continued(self, row: Lease, held: HeldLease, live: Collection[str]) -> Lease:
        """Steps 2 and 3 for one lease: renewed, transferred or released."""
        stealer = row.lease_stealer
        if stealer not in live:
            stealer = ""
        row = row.evolve(checkpoint=held.checkpoint, detail=held.detail, lease_stealer=stealer)
        is_shard = row.status_type is StatusType.SHARD
        if not held.closed:
            if held.closing and is_shard:
                return row.renewed(state=ShardState.CLOSING)
            return row.renewed()
        if held.ended:
            return row.renewed(lease_owner="", lease_stealer="", state=ShardState.TERMINATED)
        if stealer:
            return row.given_to(stealer, state=ShardState.OPEN)
        if is_shard:
            return row.renewed(lease_owner="", state=ShardState.CLOSED)
        return row.renewed(lease_owner="")

    def _apply(self, snapshot: Snapshot, changes: list[Lease], began: float) -> Renewal:
        """Note what was committed.

        :param snapshot: what the changes were decided on
        :param began: when the renewal began, on this clock
        """
        written = {row.key: row for row in changes}
        lost = self.held.keep(written, began)
        close = self._asked_to_close(written, snapshot)
        gained = []
        for key, row in written.items():
            if row.lease_owner != self.held.owner or key in self.held.leases:
                continue
            self.held.gain(row, began)
            if self.held.draining:
                # The worker was asked to stop while the store was asked. Nobody will consume this shard: the
                # next renewal frees it.
                self.held.mark_closed(key)
            else:
                gained.append(row)
        return Renewal(gained, lost, close, {**snapshot.leases, **written})

    def _asked_to_close(self, written: Mapping[LeaseKey, Lease], snapshot: Snapshot) -> list[LeaseKey]:
        """The held shards whose consumers must close and do not know it yet."""
        superseded = resharding.superseded(snapshot.leases.values())
        close = []
        for key, held in self.held.leases.items():
            if not held.closing and self._share.must_close(written[key], snapshot, superseded):
                held.closing = True
                close.append(key)
        return close
