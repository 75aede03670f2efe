"""How a worker gets a slot of its fleet, before it takes anything else.

A fleet has as many slots as it may have workers. A slot is a lease like that of a shard: its owner renews it,
and it expires if the owner dies. So a second start of a complete fleet finds no slot, and ends before it
reads a byte.

All workers that share leases must agree on how long a lease lasts. If two durations were in use, the worker
with the shorter one would take what its owner still holds. So each slot says how long the leases of its
worker last:

1. if a live worker's leases last for another time, this worker is refused: a counter that moves shows that a
   worker lives;
2. if all such workers are dead by the longer of the two durations, what they hold on paper is freed in the
   commit that takes the slot: if one of them wakes, it finds that it has lost everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from hindcast.clock import Clock
from hindcast.errors import LeaseSecondsDifferError
from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.shards.held_leases import RENEWALS, HeldLeases
from hindcast.shards.slot_row import SlotHolder


class SlotAcquisition:
    """Takes a slot for one worker. For one thread, which has started no other thread that uses the leases."""

    def __init__(
        self,
        store: LeaseStore,
        clock: Clock,
        observer: Observer,
        held: HeldLeases,
        *,
        fleet: str,
        slots: int,
        worker: SlotHolder,
        sleep: Callable[[float], None] | None,
    ) -> None:
        """:param worker: what the slot will say of this worker
        :param sleep: waits between two attempts of a commit; None for real time
        """
        self._store = store
        self._clock = clock
        self._observer = observer
        self._held = held
        self._fleet = fleet
        self._slots = slots
        self._worker = replace(worker, lease_seconds=held.lease_seconds)
        self._sleep = sleep
        # Slots, not seen to be dead, of workers whose leases last for another time.
        self._differing: list[Lease] = []
        # The counters of such slots when they were first seen: if one has moved, its worker lives.
        self._first_counters: dict[LeaseKey, int] = {}

    def acquire(self, wait: Callable[[float], object]) -> bool:
        """Take a slot of the fleet; False if live workers hold all of them.

        It takes a whole lease to see that a slot's worker is dead. So this waits that long before it gives
        up, and calls ``wait(seconds)`` between its attempts. The time counts from the end of the first
        attempt, which may be slow on a busy machine.

        :raises LeaseSecondsDifferError: if live workers share these leases whose leases last for another time
        """
        deadline: float | None = None
        while True:
            began = self._clock.monotonic()
            if self._attempt(began):
                return True
            over = deadline is not None and began >= deadline
            if self._differing and (over or self._one_of_them_lives()):
                raise self._refusal()
            if over:
                return False
            if deadline is None:
                deadline = self._clock.monotonic() + self._patience_seconds()
            wait(self._held.renewal_seconds / 2)

    def _attempt(self, began: float) -> bool:
        for lease in swap(self._store, self._decide, sleep=self._sleep):
            if lease.lease_owner == self._held.owner:
                self._held.gain_slot(lease, began)
                return True
        return False

    def _decide(self, snapshot: Snapshot) -> list[Lease]:
        now = self._clock.now()
        self._observer.observe(snapshot.leases.values())
        slots = self._slots_of_the_fleet(snapshot)
        for slot in slots:
            if slot.lease_owner == self._held.owner:
                # An earlier commit of unknown outcome had landed.
                return [slot.renewed(updated_at=now)]
        missing = [slot for slot in slots if slot.key not in snapshot.leases]
        differing = self._slots_that_differ(snapshot)
        self._differing = [slot for slot in differing if not self._dead(slot)]
        if self._differing:
            return missing
        for slot in slots:
            if slot.free or self._observer.expired(slot):
                detail = self._worker.to_json()
                taken = slot.given_to(self._held.owner, detail=detail, updated_at=now)
                dead = {slot.lease_owner for slot in differing}
                changes = {row.key: row for row in (*missing, *self._freed(snapshot, dead))}
                changes[taken.key] = taken
                return list(changes.values())
        return missing

    def _slots_of_the_fleet(self, snapshot: Snapshot) -> list[Lease]:
        """One lease for each slot; a new one if the table has none."""
        slots = []
        for number in range(self._slots):
            key = LeaseKey(self._fleet, StatusType.SLOT, str(number))
            slot = snapshot.leases.get(key)
            if slot is None:
                slot = Lease(
                    stream_id=self._fleet, status_type=StatusType.SLOT, status_value=key.status_value
                )
            slots.append(slot)
        return slots

    def _slots_that_differ(self, snapshot: Snapshot) -> list[Lease]:
        """The slots, of all fleets, of workers whose leases last for another time."""
        differing = []
        for row in snapshot.leases.values():
            if row.status_type is not StatusType.SLOT or row.free:
                continue
            if self._seconds_of(row) != self._held.lease_seconds:
                differing.append(row)
                self._first_counters.setdefault(row.key, row.lease_counter)
        return differing

    def _freed(self, snapshot: Snapshot, dead: Collection[str]) -> list[Lease]:
        """What these dead workers hold on paper, as it is once nobody holds it."""
        now = self._clock.now()
        return [
            row.given_to("", updated_at=now) for row in snapshot.leases.values() if row.lease_owner in dead
        ]

    def _seconds_of(self, slot: Lease) -> float:
        """How long the leases of this slot's worker last.

        An older Hindcast did not write it into the slot. They then last as long as this worker's.
        """
        seconds = SlotHolder.of(slot).lease_seconds
        if seconds is None:
            return self._held.lease_seconds
        return seconds

    def _dead(self, slot: Lease) -> bool:
        longer = max(self._held.lease_seconds, self._seconds_of(slot))
        return self._observer.unchanged_seconds(slot) >= longer

    def _one_of_them_lives(self) -> bool:
        """Whether the counter of a worker with another duration has moved."""
        return any(slot.lease_counter != self._first_counters[slot.key] for slot in self._differing)

    def _patience_seconds(self) -> float:
        """How long to look for a slot: until every dead worker is seen as such, and one renewal more."""
        longest = max([self._held.lease_seconds, *map(self._seconds_of, self._differing)])
        return longest * (1 + 1 / RENEWALS)

    def _refusal(self) -> LeaseSecondsDifferError:
        found = self._differing[0]
        return LeaseSecondsDifferError(
            found=f"{self._seconds_of(found):g}",
            owner=found.lease_owner,
            fleet=found.stream_id,
            mine=f"{self._held.lease_seconds:g}",
        )
