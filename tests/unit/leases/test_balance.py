"""Balance: from any state the leases settle in a bounded time, with few hand-overs, and then stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.leased_shards import add_shards

from hindcast.leases import balance
from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import Lease, StatusType
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.held_leases import RENEWALS
from hindcast.testing import FakeClock, MemoryStore

LEASE_SECONDS = 10.0
PERIOD = LEASE_SECONDS / RENEWALS
#: Renewal periods in which a fleet settles after any history, for any number of leases. The leases of dead
#: workers expire (RENEWALS, and one until that is seen) and are taken (one). Then uneven loads are asked for,
#: closed and handed over (three), at most twice: for workers below their share, and then for those that may
#: hold one more.
SETTLING_PERIODS = RENEWALS + 2 + 3 * 2


@dataclass
class Fleet:
    """Workers that renew once a period, one after another, and close at once what they are asked for."""

    leases: int
    clock: FakeClock = field(default_factory=FakeClock)
    store: MemoryStore = field(default_factory=MemoryStore)
    workers: dict[str, LeaseCoordinator] = field(default_factory=dict)
    born: int = 0

    def __post_init__(self) -> None:
        add_shards(self.store, self.leases)

    def join(self) -> str:
        name = f"w{self.born}"
        self.born += 1
        coordinator = LeaseCoordinator(
            self.store,
            self.clock,
            owner=name,
            fleet="f",
            slots=12,
            lease_seconds=LEASE_SECONDS,
            wanted=lambda *_: True,
            sleep=lambda _: None,
        )
        assert coordinator.acquire_slot(lambda _: None)
        self.workers[name] = coordinator
        return name

    def leave(self, name: str) -> None:
        self.workers.pop(name).leave()

    def die(self, name: str) -> None:
        del self.workers[name]

    def period(self) -> None:
        for coordinator in list(self.workers.values()):
            self.clock.advance(PERIOD / len(self.workers))
            for key in coordinator.renew().close:
                coordinator.held.mark_closed(key)

    @property
    def rows(self) -> list[Lease]:
        return [row for row in self.store.read().leases.values() if row.status_type is StatusType.SHARD]

    @property
    def epochs(self) -> dict[str, int]:
        return {row.status_value: row.epoch for row in self.rows}

    @property
    def moving(self) -> bool:
        """Whether a lease is promised or being given up.

        A worker that has closed a consumer for another, which left before the hand-over, opens it again, in
        another epoch.
        """
        moving = [bool(row.lease_stealer) for row in self.rows]
        for coordinator in self.workers.values():
            moving.extend(held.closing for held in coordinator.held.leases.values())
        return any(moving)

    @property
    def balanced(self) -> bool:
        """All leases have live owners, none of them has two more than another, and no lease is moving."""
        load = Counter(dict.fromkeys(self.workers, 0))
        load.update(row.lease_owner for row in self.rows)
        if set(load) != set(self.workers) or self.moving:
            return False
        return max(load.values()) - min(load.values()) <= 1


events = st.tuples(st.sampled_from(["join", "leave", "die", "period"]), st.integers(0, 11))


@given(leases=st.integers(1, 24), begun=st.integers(1, 6), story=st.lists(events, max_size=14))
@example(
    leases=4,
    begun=1,
    story=[("join", 3), ("join", 3), ("period", 3), ("join", 3), ("period", 3), ("period", 3), ("leave", 3)],
)
@settings(max_examples=60)
def test_any_state_settles_and_then_nothing_is_handed_over(
    leases: int, begun: int, story: list[tuple[str, int]]
) -> None:
    """After any joins, leaves and deaths the loads differ by one at most within 12 renewal periods, for any
    number of leases. From then on no lease changes hands: a difference of one is left alone.
    """
    fleet = Fleet(leases)
    for _ in range(begun):
        fleet.join()
    for what, pick in story:
        if what == "period":
            fleet.period()
        elif what == "join" and len(fleet.workers) < 6:
            fleet.join()
        elif what in {"leave", "die"} and len(fleet.workers) > 1:
            getattr(fleet, what)(sorted(fleet.workers)[pick % len(fleet.workers)])
    periods = 0
    while not fleet.balanced:
        fleet.period()
        periods += 1
        assert periods <= SETTLING_PERIODS, Counter(row.lease_owner for row in fleet.rows)
    settled = fleet.epochs
    for _ in range(2 * RENEWALS):
        fleet.period()
    assert fleet.epochs == settled


def _settled(leases: int, workers: int) -> Fleet:
    fleet = Fleet(leases)
    for _ in range(workers):
        fleet.join()
    while not fleet.balanced:
        fleet.period()
    return fleet


def test_a_newcomer_among_three_has_its_quarter_of_100_leases_in_two_periods() -> None:
    """Two periods after its first renewal it has 25 leases, by 25 hand-overs and no more."""
    fleet = _settled(100, 3)
    before = fleet.epochs
    newcomer = fleet.join()
    fleet.workers[newcomer].renew()
    for _ in range(2):
        fleet.period()
    assert Counter(row.lease_owner for row in fleet.rows) == dict.fromkeys(fleet.workers, 25)
    assert sum(fleet.epochs.values()) - sum(before.values()) == 25
    assert (
        len([key for key in fleet.workers[newcomer].held.leases if key.status_type == StatusType.SHARD]) == 25
    )


def test_two_newcomers_at_once_do_not_empty_one_owner() -> None:
    """Each gets its share, the owner keeps its own, and every lease changes hands once at most."""
    fleet = _settled(9, 1)
    before = fleet.epochs
    thieves = [fleet.join(), fleet.join()]
    for thief in thieves:
        fleet.workers[thief].renew()
    for _ in range(2):
        fleet.period()
    assert Counter(row.lease_owner for row in fleet.rows) == dict.fromkeys(fleet.workers, 3)
    assert max(fleet.epochs[name] - before[name] for name in before) == 1


def test_a_leaver_is_replaced_without_waiting_for_expiry() -> None:
    """The others take what a worker frees within one period."""
    fleet = _settled(100, 5)
    fleet.leave("w0")
    fleet.period()
    assert {row.lease_owner for row in fleet.rows} == {"w1", "w2", "w3", "w4"}


def _leases(load: Mapping[str, int]) -> list[Lease]:
    leases: list[Lease] = []
    for owner in Counter(load).elements():
        name = f"v1-g0.s{len(leases)}"
        leases.append(
            Lease(stream_id="p", status_type=StatusType.SHARD, status_value=name, lease_owner=owner)
        )
    return leases


def _observer(leases: Sequence[Lease]) -> Observer:
    observer = Observer(FakeClock(), LEASE_SECONDS)
    observer.observe(leases)
    return observer


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_a_worker_asks_the_richest_for_what_it_lacks_and_for_no_more(workers: int) -> None:
    """Tried for all loads of up to five leases a worker. A worker below its share asks for all that it lacks.
    Once all have their share, one that may hold more asks for one. A worker that is asked keeps its share,
    and had as many as any other.
    """
    names = ["a", "b", "c", "d"][:workers]
    for counts in product(range(6), repeat=workers):
        load = dict(zip(names, counts, strict=True))
        share = sum(counts) // workers
        most = -(-sum(counts) // workers)
        leases = _leases(load)
        for me in names:
            stolen = balance.to_steal(leases, me, names, _observer(leases))
            asked = Counter(lease.lease_owner for lease in stolen)
            lacks = share - load[me]
            if lacks <= 0 and load[me] < most and min(counts) >= share:
                lacks = int(max(counts) > most)
            assert asked.total() == max(lacks, 0), (load, me)
            left = {name: load[name] - asked[name] for name in names if name != me}
            for name in asked:
                assert left[name] >= share, (load, me)
                assert left[name] + 1 >= max(left.values()), (load, me)


def test_an_expired_lease_is_nobodys_load() -> None:
    """Its owner lives, as its slot shows, and has lost it all the same. A promise of it does not
    count.
    """
    leases = _leases({"a": 2, "b": 1})
    promised = leases[0].evolve(lease_stealer="b")
    clock = FakeClock()
    observer = Observer(clock, LEASE_SECONDS)
    observer.observe([promised, *leases[1:]])
    assert balance.loads([promised, *leases[1:]], "ab", observer) == {"a": 1, "b": 2}
    clock.advance(LEASE_SECONDS)
    renewed = leases[1].renewed()
    observer.observe([promised, renewed, leases[2]])
    assert balance.loads([promised, renewed, leases[2]], "ab", observer) == {"a": 1, "b": 0}


def test_a_promised_lease_is_already_the_takers() -> None:
    """Both in the loads and for a worker that finds nothing to ask for: all that one owner could spare is
    promised, and the other has its share.
    """
    leases = _leases({"a": 6})
    for index in range(4):
        leases[index] = leases[index].evolve(lease_stealer="b")
    observer = _observer(leases)
    assert balance.loads(leases, "abc", observer) == {"a": 2, "b": 4, "c": 0}
    assert balance.to_steal(leases, "c", "abc", observer) == []


@pytest.mark.parametrize(
    ("decide", "owner", "live"),
    [(balance.to_take, "", ["a", "b", "c", "d"]), (balance.to_steal, "rich", ["a", "b", "c", "rich"])],
)
def test_two_workers_choose_different_leases_and_each_always_the_same(
    decide: Callable[[list[Lease], str, list[str], Observer], list[Lease]], owner: str, live: list[str]
) -> None:
    """Two workers that take or ask at the same time do not all want the same lease. A second attempt decides
    as the first did.
    """
    leases = _leases({owner: 40})
    observer = _observer(leases)
    first = decide(leases, "a", live, observer)
    other = decide(leases, "b", live, observer)
    assert decide(leases, "a", live, observer) == first
    assert len(first) == len(other) == 10
    assert {lease.key for lease in first} != {lease.key for lease in other}
