"""A worker's side of the leases: keep what it holds, take what is free, hand over what is asked for, and know when it must stop.

One step of the protocol, all in ONE commit (design: the taker and renewer of KCL, with Tablestore's cooperative steal):

1. read all leases and note which counters moved, on this process's monotonic clock;
2. every lease held: renew (counter + 1, with its checkpoint), or learn that it was lost (another owner or epoch);
3. a lease that was asked for (``lease_stealer``) or must be given up is closed by its consumer first, then transferred
   (owner = stealer, epoch + 1) or released (no owner);
4. open the shards whose parents have ended (:mod:`hindcast.shards.resharding`); take free and expired leases up to the target
   (epoch + 1); if there is none, ask the richest workers for what it lacks. A step takes and asks for no more shards than this worker
   can start soon: a shard that waits for its start stands still, and another worker could have it;
5. commit on the snapshot that was read; on a conflict or an unknown outcome begin again at 1.

A lease is valid until 80 % of its duration after the *start* of the last step that committed: the owner stops itself before any
observer, who waits the whole duration from a later moment, can call it expired.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hindcast.clock import Clock
from hindcast.errors import LeaseLostError, LeaseSecondsDifferError
from hindcast.leases import balance
from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import Lease, LeaseKey, ShardState, StatusType
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.shards import resharding

#: In a slot's detail: its worker cannot consume yet, so it takes no shard, and the others deal as if it were not there.
STARTING = "starting"
#: In a slot's detail: after how many seconds without a renewal its worker's leases have expired. All that share leases have the same: who
#: waits for less would take what its owner still holds.
LEASE_SECONDS = "lease_seconds"
#: Share of the lease after which an owner without a renewal stops by itself.
SELF_FENCE = 0.8
#: Renewals in one lease: three may fail before the owner fences itself.
RENEWALS = 4
#: A worker that stood still for so long that it lost shards asks nobody for any until this has passed. One that stands still again and
#: again would have them handed to it, and taken from it, each time. What is free or expired it takes at once.
SETTLE_SECONDS = 60.0
#: A worker that has not renewed its slot for so many leases may have died (a renewal is due each quarter), and its shards may still be
#: on their way to others (they expire after one).
SUSPECTED = (0.35, 1.35)
#: Looks in one lease, at least. A death, a wish or a hand-over is seen at most one look late; a look writes nothing, and reads no file
#: where nothing was committed. What it costs is the waking of a thread.
LOOKS = 32


@dataclass
class Held:
    """A lease this worker owns. ``begun`` is set once its consumer has started or failed to; ``closed`` once that has stopped, so that
    the lease may be given away; ``ended`` if it is consumed to its end for good.
    """

    epoch: int
    valid_until: float
    checkpoint: Mapping[str, Any]
    detail: Mapping[str, Any]
    begun: bool = False
    closing: bool = False
    closed: bool = False
    ended: bool = False


@dataclass(frozen=True)
class Step:
    """What one step changed: leases gained, keys lost, keys whose consumers must now close, and all leases as they were read."""

    gained: list[Lease] = field(default_factory=list)
    lost: list[LeaseKey] = field(default_factory=list)
    close: list[LeaseKey] = field(default_factory=list)
    leases: dict[LeaseKey, Lease] = field(default_factory=dict)


class LeaseCoordinator:
    """Holds a slot of the fleet and a fair share of the shards. Its methods may be called from any thread."""

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
        identity: dict[str, Any] | None = None,
        at_once: Callable[[], int] = lambda: sys.maxsize,
        wanted_again: Callable[[float], float] = lambda _: math.inf,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        """:param wanted: whether a shard is to be consumed at all, e.g. that its pipeline is running
        :param identity: what the slot's ``detail`` says about this worker (pid, host, log)
        :param at_once: how many shards may wait for their start here; their consumers say :meth:`begun`
        :param wanted_again: the first moment after this one, on this clock, at which ``wanted`` may answer otherwise by itself
        """
        self.owner = owner
        self.lease_seconds = lease_seconds
        self._store, self._clock, self._fleet, self._slots, self._wanted = store, clock, fleet, slots, wanted
        self._identity = {**(identity or {}), LEASE_SECONDS: lease_seconds}
        self._at_once, self._wanted_again = at_once, wanted_again
        self._sleep = sleep
        self._observer = Observer(clock, lease_seconds)
        self._held: dict[LeaseKey, Held] = {}
        self._slot: LeaseKey | None = None
        self._differing: list[Lease] = []  # slots, not seen to be dead, of workers whose leases last for another time
        self._first_seen: dict[LeaseKey, int] = {}  # their counters: one that moves is a live worker's
        self._draining = False
        self._lost_at = -SETTLE_SECONDS
        self._idle: tuple[Any, float] = None, 0.0  # of this version a look said that nothing is to be done, and when that ends
        self._closed = threading.Event()
        self._stepping = threading.Lock()  # one step at a time
        self._lock = threading.RLock()  # what is held; never kept while the store is asked, so that holds() answers at once

    @property
    def renewal_seconds(self) -> float:
        return self.lease_seconds / RENEWALS

    @property
    def look_seconds(self) -> float:
        """How long to wait for the next look: no longer than until something that was seen expires."""
        with self._lock:
            left = self._idle[1] - self._clock.monotonic()
        often = self.lease_seconds / LOOKS
        return min(often, left) if left > 0 else often

    @property
    def slot(self) -> LeaseKey | None:
        return self._slot

    # -- slots -------------------------------------------------------------------------------------------------------------

    def acquire_slot(self, wait: Callable[[float], object]) -> bool:
        """Take a slot of the fleet; False where all are held by live workers.

        Slots that a dead worker left need a whole lease to be seen as expired, so this waits that long, calling ``wait(seconds)``
        between looks, before it gives up. The time counts from the end of the first look, which may be slow on a busy machine.

        :raises LeaseSecondsDifferError: if live workers share these leases whose leases last for another time
        """
        deadline: float | None = None
        while True:
            started = self._clock.monotonic()
            for lease in swap(self._store, self._decide_slot, sleep=self._sleep):
                if lease.lease_owner == self.owner:
                    self._gain(lease, started)
                    self._slot = lease.key
            if self._slot is not None:
                return True
            over = deadline is not None and started >= deadline
            if self._differing and (over or any(row.lease_counter != self._first_seen[row.key] for row in self._differing)):
                raise self._refusal()
            if over:
                return False
            if deadline is None:
                longest = max([self.lease_seconds, *map(self._seconds_of, self._differing)])
                deadline = self._clock.monotonic() + longest * (1 + 1 / RENEWALS)
            wait(self.renewal_seconds / 2)

    def _refusal(self) -> LeaseSecondsDifferError:
        found = self._differing[0]
        return LeaseSecondsDifferError(
            found=f"{self._seconds_of(found):g}", owner=found.lease_owner, fleet=found.stream_id, mine=f"{self.lease_seconds:g}"
        )

    def _seconds_of(self, slot: Lease) -> float:
        """How long the leases of this slot's worker last; as long as this worker's if an older Hindcast wrote the slot."""
        return float(slot.detail.get(LEASE_SECONDS, self.lease_seconds))

    def _decide_slot(self, snapshot: Snapshot) -> list[Lease]:
        keys = [LeaseKey(self._fleet, StatusType.SLOT, str(number)) for number in range(self._slots)]
        slots = [
            snapshot.leases.get(key) or Lease(stream_id=key.stream_id, status_type=StatusType.SLOT, status_value=key.status_value)
            for key in keys
        ]
        self._observer.observe(snapshot.leases.values())
        if mine := [slot for slot in slots if slot.lease_owner == self.owner]:
            return [mine[0].renewed(updated_at=self._clock.now())]  # an earlier commit of unknown outcome had landed
        missing = [slot for slot in slots if slot.key not in snapshot.leases]
        others = [row for row in snapshot.leases.values() if row.status_type is StatusType.SLOT and not row.free]
        differing = [row for row in others if self._seconds_of(row) != self.lease_seconds]
        for row in differing:
            self._first_seen.setdefault(row.key, row.lease_counter)
        self._differing = [row for row in differing if not self._dead(row)]
        if self._differing:
            return missing
        freed = self._freed(snapshot, {row.lease_owner for row in differing})
        for slot in slots:
            if slot.free or self._observer.expired(slot):
                taken = slot.given_to(self.owner, detail=self._identity, updated_at=self._clock.now())
                changes = {row.key: row for row in (*missing, *freed)} | {taken.key: taken}
                return list(changes.values())
        return missing

    def _dead(self, slot: Lease) -> bool:
        return self._observer.unchanged_seconds(slot) >= max(self.lease_seconds, self._seconds_of(slot))

    def _freed(self, snapshot: Snapshot, dead: Collection[str]) -> list[Lease]:
        """What workers with other lease times hold on paper. One that wakes finds that it has lost all, and does not renew it."""
        now = self._clock.now()
        return [row.given_to("", updated_at=now) for row in snapshot.leases.values() if row.lease_owner in dead]

    # -- the look ----------------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Note which counters moved; True where the next renewal should not be waited for: something is to be taken, opened, closed,
        or was lost.

        If nothing was written, nothing expired, no shard was started here and none may be tried again, the answer is that of the last look.

        :raises StoreUnavailableError: the store does not answer
        """
        snapshot = self._store.read()
        with self._lock:
            version, until = self._idle
            now = self._clock.monotonic()  # before what follows: what expires meanwhile ends it
            if snapshot.token == version and now < until:
                return False
            due = self._look_at(snapshot)
            until = min(self._observer.next_expiry(now), self._wanted_again(now))
            self._idle = (None, 0.0) if due else (snapshot.token, until)
            return due

    def _look_at(self, snapshot: Snapshot) -> bool:
        self._observer.observe(snapshot.leases.values())
        superseded = resharding.superseded(snapshot.leases.values())
        for key, held in self._held.items():
            row = snapshot.leases.get(key)
            if row is None or not self._owns(row, held):
                return True
            if not held.closing and self._must_close(row, snapshot, superseded):
                return True
        if self._draining or self._slot not in self._held or self._held[self._slot].detail.get(STARTING):
            return False
        wanted = [row for row in snapshot.leases.values() if self._is_wanted_shard(row, snapshot)]
        given = any(row.lease_owner == self.owner and row.key not in self._held for row in wanted)
        takes = self._room() > 0 and balance.to_take(wanted, self.owner, self._live_workers(snapshot), self._observer)
        return given or bool(takes) or bool(resharding.opened(snapshot.leases))

    def _room(self) -> int:
        """How many shards more may wait for their start."""
        waiting = sum(key.status_type == StatusType.SHARD and not (held.begun or held.closed) for key, held in self._held.items())
        return max(self._at_once() - waiting, 0)

    def suspects(self) -> bool:
        """Whether another worker of the fleet may have died of late, and its shards are about to be taken over."""
        with self._lock:
            still = self._observer.still_seconds(self._fleet, StatusType.SLOT)
        least, most = (leases * self.lease_seconds for leases in SUSPECTED)
        return any(least < seconds < most for owner, seconds in still.items() if owner != self.owner)

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until a consumer has closed: True where one has, so that its lease is given away at once."""
        closed = self._closed.wait(seconds)
        self._closed.clear()
        return closed

    # -- the step ----------------------------------------------------------------------------------------------------------

    def step(self) -> Step:
        """Renew, hand over, take and steal in one commit.

        :raises CommitConflictError: other writers were faster for a long time; nothing was renewed
        :raises StoreUnavailableError: the store does not answer; nothing was renewed
        """
        seen: list[Snapshot] = []

        def decide(snapshot: Snapshot) -> list[Lease]:
            seen.append(snapshot)
            with self._lock:
                self._observer.observe(snapshot.leases.values())
                return self._decide(snapshot)

        with self._stepping:
            began = self._clock.monotonic()  # before the first attempt: earlier than the commit, so never too generous
            changes = swap(self._store, decide, sleep=self._sleep)
            with self._lock:
                return self._apply(seen[-1], changes, began)

    def _decide(self, snapshot: Snapshot) -> list[Lease]:
        live = self._live_workers(snapshot)
        now = self._clock.now()
        changes: dict[LeaseKey, Lease] = {}
        for key, held in self._held.items():
            row = snapshot.leases.get(key)
            if row is not None and self._owns(row, held):
                changes[key] = self._kept(row, held, live).evolve(updated_at=now)
            elif not held.closed:
                self._lost_at = self._clock.monotonic()
        if self._draining:
            mine = (row for row in snapshot.leases.values() if self.owner in {row.lease_owner, row.lease_stealer})
            changes |= {row.key: self._declined(row) for row in mine if row.key not in changes}
        if self._draining or self._slot not in changes or self._held[self._slot].detail.get(STARTING):
            return list(changes.values())
        changes |= {lease.key: lease for lease in resharding.opened({**snapshot.leases, **changes})}
        rows = [changes.get(key, row) for key, row in snapshot.leases.items()]
        wanted = [row for row in rows if self._is_wanted_shard(row, snapshot)]  # as this step leaves them: a refusal counts at once
        for row in rows:
            if row.status_type is StatusType.SHARD and row.lease_owner == self.owner and row.key not in self._held:
                # Given to this worker by the one it asked. If it was paused in between, it would keep an owner that never consumes it.
                changes[row.key] = row.renewed(updated_at=now) if self._is_wanted_shard(row, snapshot) else self._declined(row)
        room = self._room()
        takes = balance.to_take(wanted, self.owner, live, self._observer)
        for row in takes[:room]:
            changes[row.key] = row.given_to(self.owner, state=ShardState.OPEN, updated_at=now)
        settled = self._clock.monotonic() - self._lost_at >= SETTLE_SECONDS
        asked = sum(row.lease_stealer == self.owner for row in wanted)
        if settled and not takes and asked < room:
            for row in balance.to_steal(wanted, self.owner, live, self._observer)[: room - asked]:
                changes[row.key] = row.evolve(lease_stealer=self.owner)  # the counter stays: only the owner may prove the owner's life
        return list(changes.values())

    def _kept(self, row: Lease, held: Held, live: Iterable[str]) -> Lease:
        """Step 2 and 3 for one lease that is held: renewed, transferred or released."""
        row = row.evolve(checkpoint=held.checkpoint, detail=held.detail)
        if row.lease_stealer and row.lease_stealer not in live:
            row = row.evolve(lease_stealer="")
        if not held.closed:
            state = ShardState.CLOSING if held.closing and row.status_type is StatusType.SHARD else row.state
            return row.renewed(state=state)
        if held.ended:
            return row.renewed(lease_owner="", lease_stealer="", state=ShardState.TERMINATED)
        if row.lease_stealer:
            return row.given_to(row.lease_stealer, state=ShardState.OPEN)
        return row.renewed(lease_owner="", state=ShardState.CLOSED if row.status_type is StatusType.SHARD else row.state)

    def _declined(self, row: Lease) -> Lease:
        """What comes too late (this worker stops, or it is not wanted any more): a wish is withdrawn, what was given is free at once."""
        if row.lease_owner == self.owner:
            return row.renewed(lease_owner="", lease_stealer="")
        return row.evolve(lease_stealer="")

    def _apply(self, snapshot: Snapshot, changes: list[Lease], began: float) -> Step:
        written = {lease.key: lease for lease in changes}
        superseded = resharding.superseded(snapshot.leases.values())
        self._idle = None, 0.0
        gained, lost, close = [], [], []
        for key, held in list(self._held.items()):
            row = written.get(key)
            if row is None:  # it was not ours any more when it was read: lost, or given away by a commit of unknown outcome
                lost += [] if held.closed else [key]
                del self._held[key]
            elif not self._owns(row, held):  # given away, as its consumer had agreed, and perhaps taken again in the same commit
                del self._held[key]
            else:
                held.valid_until = began + self.lease_seconds * SELF_FENCE
                if not held.closing and self._must_close(row, snapshot, superseded):
                    held.closing = True
                    close.append(key)
        for key, row in written.items():
            if row.lease_owner == self.owner and key not in self._held:
                self._gain(row, began)
                if self._draining:  # told to stop while the store was asked: nobody will consume it, so the next step frees it
                    self.closed(key)
                else:
                    gained.append(row)
        if self._slot in lost:
            self._slot = None
        return Step(gained, lost, close, {**snapshot.leases, **written})

    def _must_close(self, row: Lease, snapshot: Snapshot, superseded: Collection[LeaseKey]) -> bool:
        if row.status_type is not StatusType.SHARD:
            return False
        return row.key in superseded or bool(row.lease_stealer) or not self._wanted(row, snapshot)

    def _gain(self, row: Lease, began: float) -> None:
        self._held[row.key] = Held(row.epoch, began + self.lease_seconds * SELF_FENCE, row.checkpoint, row.detail)

    def _owns(self, row: Lease, held: Held) -> bool:
        return row.lease_owner == self.owner and row.epoch == held.epoch

    def _is_wanted_shard(self, row: Lease, snapshot: Snapshot) -> bool:
        return row.status_type is StatusType.SHARD and self._wanted(row, snapshot)

    def _live_workers(self, snapshot: Snapshot) -> set[str]:
        slots = (row for row in snapshot.leases.values() if row.status_type is StatusType.SLOT and row.stream_id == self._fleet)
        return {row.lease_owner for row in slots if self._observer.alive(row) and not row.detail.get(STARTING)} | {self.owner}

    # -- what consumers ask and say ------------------------------------------------------------------------------------------

    def holds(self, key: LeaseKey, epoch: int) -> bool:
        """Whether this worker may act as the owner in that epoch, by its own clock, without asking the store."""
        with self._lock:
            held = self._held.get(key)
            return held is not None and held.epoch == epoch and not held.closed and self._clock.monotonic() < held.valid_until

    def check(self, key: LeaseKey, epoch: int) -> None:
        """:raises LeaseLostError: where :meth:`holds` is false"""
        if not self.holds(key, epoch):
            raise LeaseLostError(owner=self.owner, lease=key, epoch=epoch, reason="it was not renewed in time or has another owner")

    def report(
        self, key: LeaseKey, epoch: int, *, checkpoint: Mapping[str, Any] | None = None, detail: Mapping[str, Any] | None = None
    ) -> None:
        """What the next renewal writes into the lease; given fields are merged into those it has.

        What a consumer of an earlier epoch says comes too late: others have owned the lease since, and are further.
        """
        with self._lock:
            if (held := self._held.get(key)) is not None and held.epoch == epoch:
                held.checkpoint = {**held.checkpoint, **(checkpoint or {})}
                held.detail = {**held.detail, **(detail or {})}

    def ready(self) -> None:
        """This worker can consume from now on: the next step takes its share."""
        with self._lock:
            if self._slot is not None and (held := self._held.get(self._slot)) is not None:
                held.detail = {**held.detail, STARTING: False}
                self._closed.set()

    def begun(self, key: LeaseKey, epoch: int) -> None:
        """The consumer of this shard has started, or has failed to: the next look may take another shard."""
        with self._lock:
            if (held := self._held.get(key)) is not None and held.epoch == epoch:
                held.begun = True
                self._idle = None, 0.0

    def closed(self, key: LeaseKey, epoch: int | None = None, *, ended: bool = False) -> None:
        """The consumer of this lease has stopped: the next step transfers or releases it, or ends it for good.

        :param epoch: the consumer's, if it had one: the lease may have been lost and taken again since, and then stays
        """
        with self._lock:
            if (held := self._held.get(key)) is not None and epoch in {None, held.epoch}:
                held.closing = held.closed = True
                held.ended = held.ended or ended
                self._closed.set()

    def drain(self) -> list[LeaseKey]:
        """Take nothing more; return the shards whose consumers must now close."""
        with self._lock:
            self._draining = True
            shards = [key for key, held in self._held.items() if key.status_type == StatusType.SHARD and not held.closing]
            for key in shards:
                self._held[key].closing = True
            return shards

    def close_all(self) -> None:
        """Take nothing more; no consumer uses what is held any longer."""
        with self._lock:
            self._draining = True
            for key in self._held:
                self.closed(key)

    def leave(self) -> None:
        """Give the slot up: the last step of a worker that stops cleanly. Nobody needs to wait for its leases to expire."""
        self.close_all()
        self.step()  # also where nothing is held: something may just have been given to it
