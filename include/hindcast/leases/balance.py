"""Which leases a worker should reach for. Pure functions of what is seen, so that they can be searched exhaustively."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import TAKEABLE, Lease
from hindcast.leases.store import shuffled


def target(leases: int, workers: int) -> int:
    """The most leases a worker takes: ceil(leases / live workers)."""
    return -(-leases // max(workers, 1))


def takeable(leases: Collection[Lease], observer: Observer) -> list[Lease]:
    """The leases that nobody holds: free, or expired in the eyes of this observer."""
    return [lease for lease in leases if lease.state in TAKEABLE and (lease.free or observer.expired(lease))]


def loads(leases: Collection[Lease], live: Collection[str], observer: Observer) -> Counter[str]:
    """How many leases each live worker has. One that is promised counts as the taker's, so that nobody asks or is asked twice for it.

    An expired lease is nobody's: its owner will not keep the promise.
    """
    load: Counter[str] = Counter(dict.fromkeys(live, 0))
    for lease in filter(observer.alive, leases):
        holder = lease.lease_stealer if lease.lease_stealer in load else lease.lease_owner
        if holder in load:
            load[holder] += 1
    return load


def to_take(leases: Collection[Lease], me: str, live: Collection[str], observer: Observer) -> list[Lease]:
    """The free and expired leases that bring this worker up to its target."""
    shared = [lease for lease in leases if lease.state in TAKEABLE]
    # A lease that this worker holds on paper but lost in truth (it slept through it) is taken again like any other.
    loose = [lease for lease in takeable(shared, observer) if lease.lease_owner != me]
    if not loose:  # as in nearly every look
        return []
    room = target(len(shared), len(live)) - loads(shared, live, observer)[me]
    return shuffled(loose, me)[: max(room, 0)]


def to_steal(leases: Collection[Lease], me: str, live: Collection[str], observer: Observer) -> list[Lease]:
    """The leases that this worker asks others for: all at once that it is short of.

    A worker with less than its share, floor(leases / live workers), asks those that have more than it for as many as it lacks, the
    richest first. Once all have their share, one that may hold more asks for a single lease of a worker above the target. So each
    hand-over goes from a worker to one that has at least two leases less, nobody is brought above the target or below the share, and
    a difference of one is balance: taking it would pass the odd lease round for ever.
    """
    shared = [lease for lease in leases if lease.state in TAKEABLE]
    load = loads(shared, live, observer)
    share, most = len(shared) // max(len(load), 1), target(len(shared), len(load))
    offered: dict[str, list[Lease]] = {owner: [] for owner in sorted(load) if owner != me}
    for lease in shuffled(shared, me):
        if lease.lease_owner in offered and not lease.lease_stealer and observer.alive(lease):
            offered[lease.lease_owner].append(lease)
    asked: list[Lease] = []
    while load[me] < share and (owner := _richest(offered, load, above=share)) is not None:
        asked.append(offered[owner].pop())
        load.update({owner: -1, me: 1})
    if not asked and share <= load[me] < most and min(load.values()) >= share:
        owner = _richest(offered, load, above=most)
        if owner is not None:
            asked.append(offered[owner].pop())
    return asked


def _richest(offered: Mapping[str, Sequence[Lease]], load: Mapping[str, int], above: int) -> str | None:
    return max((owner for owner, leases in offered.items() if leases and load[owner] > above), key=lambda owner: load[owner], default=None)
