"""Which leases a worker should reach for. Pure functions of what is seen, so that they can be searched exhaustively."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from hindcast.control.leases import TAKEABLE, Lease
from hindcast.control.observer import Observer
from hindcast.control.store import shuffled

#: A worker is robbed only where it holds at least this many leases more than the thief: a difference of one is balance, and
#: stealing at one would pass the odd lease round for ever.
STEAL_DIFFERENCE = 2


def target(leases: int, workers: int) -> int:
    """The most leases a worker takes: ceil(leases / live workers)."""
    return -(-leases // max(workers, 1))


def takeable(leases: Collection[Lease], observer: Observer) -> list[Lease]:
    """The leases that nobody holds: free, or expired in the eyes of this observer."""
    return [lease for lease in leases if lease.state in TAKEABLE and (lease.free or observer.expired(lease))]


def to_take(leases: Collection[Lease], me: str, live: Collection[str], observer: Observer) -> list[Lease]:
    """The free and expired leases that bring this worker up to its target."""
    mine = sum(lease.lease_owner == me for lease in leases)
    room = target(len(leases), len(live)) - mine
    # A lease that this worker holds on paper but lost in truth (it slept through it) is taken again like any other.
    return shuffled((lease for lease in takeable(leases, observer) if lease.lease_owner != me), me)[: max(room, 0)]


def to_steal(leases: Collection[Lease], me: str, live: Collection[str], observer: Observer) -> Lease | None:
    """One lease of the most loaded worker, if this worker is below its target and the difference is worth a hand-over.

    Leases that are already promised count as the taker's, so that two thieves do not empty one owner.
    """
    load: Counter[str] = Counter(dict.fromkeys(live, 0))
    for lease in leases:
        holder = lease.lease_stealer or lease.lease_owner
        if holder in live:
            load[holder] += 1
    richest = max(sorted(load), key=lambda worker: load[worker], default=me)
    if richest == me or load[richest] - load[me] < STEAL_DIFFERENCE:
        return None
    candidates: Sequence[Lease] = [
        lease for lease in leases if lease.lease_owner == richest and not lease.lease_stealer and observer.alive(lease)
    ]
    return shuffled(candidates, me)[0] if candidates else None
