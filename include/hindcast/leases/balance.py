"""Which leases a worker takes, and which it asks others for. Pure functions of what was read, so that tests
can try every case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import TAKEABLE, Lease
from hindcast.leases.store import shuffled


def target(leases: int, workers: int) -> int:
    """The most leases that one of these workers may hold: ceil(leases / live workers)."""
    return -(-leases // workers)


def loads(leases: Collection[Lease], live: Collection[str], observer: Observer) -> Counter[str]:
    """How many leases each live worker has.

    A lease that is promised to a live worker counts as that worker's: no worker asks for it again, and its
    owner is not asked for more than it can spare. An expired lease is nobody's: its owner will not keep the
    promise.
    """
    load: Counter[str] = Counter(dict.fromkeys(live, 0))
    for lease in leases:
        if not observer.alive(lease):
            continue
        if lease.lease_stealer in load:
            load[lease.lease_stealer] += 1
        elif lease.lease_owner in load:
            load[lease.lease_owner] += 1
    return load


def to_take(leases: Collection[Lease], me: str, live: Collection[str], observer: Observer) -> list[Lease]:
    """The free and expired leases that bring this worker up to its target.

    :param live: the live workers; ``me`` is one of them
    """
    shared = _shared(leases)
    # The coordinator renews a lease under this worker's own name, even if it has expired meanwhile.
    loose = [lease for lease in shared if lease.lease_owner != me and not observer.alive(lease)]
    if not loose:  # as in nearly every poll
        return []
    room = target(len(shared), len(live)) - loads(shared, live, observer)[me]
    return shuffled(loose, me)[: max(room, 0)]


def to_steal(leases: Collection[Lease], me: str, live: Collection[str], observer: Observer) -> list[Lease]:
    """The leases that this worker asks others for, all in one step.

    A worker with less than its share, floor(leases / live workers), asks for as many as it lacks. It asks
    those that have more than the share, the richest first. Once all have their share, a worker that may hold
    one more asks for a single lease of a worker above the target.

    So each hand-over goes from a worker to one that has at least two leases less, and no worker is brought
    above the target or below the share. A difference of one is balance: to even it out would pass the odd
    lease round for ever.

    :param live: the live workers; ``me`` is one of them
    """
    shared = _shared(leases)
    load = loads(shared, live, observer)
    share = len(shared) // len(load)
    most = target(len(shared), len(load))
    offers = _offers(shared, me, load, observer)
    asked: list[Lease] = []
    while load[me] < share:
        owner = _richest(offers, load, above=share)
        if owner is None:
            break
        asked.append(offers[owner].pop())
        load[owner] -= 1
        load[me] += 1
    if not asked and load[me] < most and min(load.values()) >= share:
        owner = _richest(offers, load, above=most)
        if owner is not None:
            asked.append(offers[owner].pop())
    return asked


def _shared(leases: Collection[Lease]) -> list[Lease]:
    """The leases that the live workers share among them: each of these may have an owner."""
    return [lease for lease in leases if lease.state in TAKEABLE]


def _offers(
    shared: Sequence[Lease], me: str, live: Collection[str], observer: Observer
) -> dict[str, list[Lease]]:
    """By owner, the leases that this worker may ask for, in an order that differs between workers."""
    offers: dict[str, list[Lease]] = {owner: [] for owner in sorted(live) if owner != me}
    for lease in shuffled(shared, me):
        if lease.lease_owner in offers and not lease.lease_stealer and observer.alive(lease):
            offers[lease.lease_owner].append(lease)
    return offers


def _richest(offers: Mapping[str, Sequence[Lease]], load: Mapping[str, int], above: int) -> str | None:
    """Of the owners that offer a lease and have more than ``above``, the one with the greatest load.

    :returns: the first of several; None if there is no such owner
    """
    richest = None
    greatest = above
    for owner, offered in offers.items():
        if offered and load[owner] > greatest:
            richest = owner
            greatest = load[owner]
    return richest
