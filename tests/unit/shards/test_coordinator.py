"""A coordinator renews, takes, hands over and fences itself, on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from support.leased_shards import add_shards, owners, row

from hindcast.errors import LeaseLostError, StoreUnavailableError
from hindcast.leases.lease import Lease, LeaseKey, ShardState, StatusType
from hindcast.leases.store import Snapshot, swap
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.testing import FakeClock, MemoryStore, Outcome

LEASE = 10.0
Make = Callable[..., LeaseCoordinator]


def test_one_worker_takes_all_free_shards_in_a_new_epoch(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """A lone worker takes everything, and each taken shard is in its first epoch."""
    keys = add_shards(store, 3)
    gained = coordinator_factory("a").renew().gained
    assert {lease.key for lease in gained} == set(keys)
    assert {lease.epoch for lease in gained} == {1}


def test_renewing_raises_every_counter_in_one_commit(store: MemoryStore, coordinator_factory: Make) -> None:
    """A renewal of a worker that holds five leases is one commit. It raises every counter and changes no
    state.
    """
    keys = add_shards(store, 4)
    a = coordinator_factory("a")
    a.renew()
    before, commits = {key: row(store, key).lease_counter for key in keys}, store.commits
    a.renew()
    assert store.commits == commits + 1
    assert all(row(store, key).lease_counter == before[key] + 1 for key in keys)
    assert {row(store, key).state for key in (*keys, a.held.slot)} == {ShardState.OPEN}


def test_a_worker_of_another_fleet_has_no_share(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """It consumes other pipelines from the same table of leases, so this fleet leaves it no shard."""
    other = LeaseCoordinator(
        store, clock, owner="z", fleet="g", slots=1, lease_seconds=LEASE, wanted=lambda *_: False
    )
    assert other.acquire_slot(clock.advance)
    add_shards(store, 4)
    assert len(coordinator_factory("a").renew().gained) == 4


def test_a_renewal_notes_its_moment_in_all_that_it_writes(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """A person can read when a lease was taken, when it was given, and when it was renewed last."""
    key, given = add_shards(store, 2)
    a = coordinator_factory("a")
    store.commit(store.read(), [row(store, given).given_to("a")])
    for _ in ("taken and given", "renewed"):
        clock.advance(1)
        a.renew()
        assert [row(store, one).updated_at for one in (key, given, a.held.slot)] == [clock.now()] * 3


def test_a_renewal_waits_between_two_attempts_as_it_was_configured(clock: FakeClock) -> None:
    """A simulation lets no real time pass, neither for the slot nor for a renewal."""
    outcomes = [Outcome.CONFLICT, Outcome.OK]
    store = MemoryStore(lambda: outcomes.pop(0) if outcomes else Outcome.OK)
    slept: list[float] = []
    one = LeaseCoordinator(
        store,
        clock,
        owner="a",
        fleet="f",
        slots=1,
        lease_seconds=LEASE,
        wanted=lambda *_: True,
        sleep=slept.append,
    )
    assert one.acquire_slot(clock.advance)
    assert len(slept) == 1
    outcomes[:] = [Outcome.CONFLICT]
    one.renew()
    assert len(slept) == 2


def test_a_second_worker_asks_and_is_given_its_half(store: MemoryStore, coordinator_factory: Make) -> None:
    """A newcomer writes its request and leaves the counter alone. The owner closes and transfers, and the
    epoch rises.
    """
    add_shards(store, 2)
    a = coordinator_factory("a")
    a.renew()
    b = coordinator_factory("b")
    counters = {key: lease.lease_counter for key, lease in store.read().leases.items()}
    b.renew()
    asked = [lease for lease in store.read().leases.values() if lease.lease_stealer]
    assert [(lease.lease_stealer, lease.lease_counter) for lease in asked] == [("b", counters[asked[0].key])]
    (closing,) = a.renew().close
    assert a.held.holds(closing, 1)
    a.renew()
    assert row(store, closing).state == ShardState.CLOSING
    a.held.mark_closed(closing)
    a.renew()
    assert not a.held.holds(closing, 1)
    (gained,) = b.renew().gained
    assert (gained.key, gained.epoch, gained.state) == (closing, 2, ShardState.OPEN)
    assert sorted(owners(store).values()) == ["a", "b"]


def test_nobody_steals_for_a_difference_of_one(store: MemoryStore, coordinator_factory: Make) -> None:
    """Three shards on two workers stay as 2 and 1 for good."""
    add_shards(store, 3)
    a, b = coordinator_factory("a"), coordinator_factory("b")
    for _ in range(8):
        for worker in (a, b):
            for key in worker.renew().close:
                worker.held.mark_closed(key)
    settled, before = owners(store), store.read().leases
    for _ in range(20):
        assert not a.renew().close
        assert not b.renew().close
    assert owners(store) == settled
    assert sorted(list(settled.values()).count(name) for name in "ab") == [1, 2]
    assert {lease.epoch for lease in before.values()} == {
        lease.epoch for lease in store.read().leases.values()
    }


def test_a_dead_owner_is_replaced_after_a_whole_lease_and_not_before(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """A lease is taken from a silent owner once its counter has not moved for the whole duration, on the
    taker's clock.
    """
    (key,) = add_shards(store, 1)
    coordinator_factory("a").renew()
    b = coordinator_factory("b")
    b.renew()
    clock.advance(LEASE - 0.01)
    assert b.renew().gained == []
    clock.advance(0.02)
    assert [(lease.key, lease.epoch) for lease in b.renew().gained] == [(key, 2)]


def test_an_owner_fences_itself_before_anybody_may_take(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """At 80 % of the lease without a renewal the owner holds nothing. No observer calls the lease expired
    yet.
    """
    (key,) = add_shards(store, 1)
    a = coordinator_factory("a")
    a.renew()
    clock.advance(LEASE * 0.8 - 0.25)
    assert a.held.holds(key, 1)
    a.held.check(key, 1)
    clock.advance(0.25)
    assert not a.held.holds(key, 1)
    with pytest.raises(LeaseLostError) as lost:
        a.held.check(key, 1)
    assert (lost.value.fields["owner"], lost.value.fields["lease"], lost.value.fields["epoch"]) == (
        "a",
        key,
        1,
    )
    assert "not renewed in time" in str(lost.value)


class SlowStore(MemoryStore):
    """The answer to each commit takes its time, after the commit has landed."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
        super().commit(snapshot, changes)
        self.clock.advance(self.seconds)


def test_a_slow_answer_makes_no_lease_longer(clock: FakeClock, coordinator_factory: Make) -> None:
    """Observers count from the commit. The owner counts from before it, for its shards and its slot, however
    late the answer is.
    """
    store = SlowStore(clock, LEASE * 0.3)
    (key,) = add_shards(store, 1)
    store.seconds = LEASE * 0.3
    a = coordinator_factory("a", of=store)
    slot = a.held.slot
    assert slot is not None
    clock.advance(LEASE * 0.5 - 0.01)
    assert a.held.holds(slot, 1)
    clock.advance(0.02)
    assert not a.held.holds(slot, 1)
    for _ in range(2):
        a.renew()
        clock.advance(LEASE * 0.5 - 0.01)
        assert a.held.holds(key, 1)
        assert a.held.holds(slot, 1)
        clock.advance(0.02)
        assert not a.held.holds(key, 1)
        assert not a.held.holds(slot, 1)


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.UNKNOWN_WRITTEN])
def test_a_slot_says_when_it_was_taken(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make, outcome: Outcome
) -> None:
    """Also if the answer was lost and the slot was found to be its own."""
    outcomes = [outcome]
    store.outcome = lambda: outcomes.pop() if outcomes else Outcome.OK
    clock.advance(1)
    one = coordinator_factory("a")
    assert one.held.slot is not None
    assert row(store, one.held.slot).updated_at == clock.now()


def test_a_slot_that_is_taken_is_in_its_next_epoch(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """A worker that slept through the loss of its slot must not take the slot for its own. Nobody takes a
    slot that is held.
    """
    first = coordinator_factory("first", slots=1)
    assert first.held.slot is not None
    assert row(store, first.held.slot).epoch == 1
    second = coordinator_factory("second", slots=1)
    assert second.held.slot == first.held.slot
    assert (row(store, first.held.slot).epoch, row(store, first.held.slot).lease_owner) == (2, "second")
    assert first.renew().lost == [second.held.slot]
    assert first.held.slot is None
    second.leave()
    assert row(store, coordinator_factory("third", slots=1).held.slot or second.held.slot).epoch == 3


def test_a_failing_store_fences_the_owner(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """A renewal that fails renews nothing, so the lease runs out on time."""
    (key,) = add_shards(store, 1)
    a = coordinator_factory("a")
    a.renew()
    store.outcome = lambda: Outcome.FAIL
    for _ in range(9):
        clock.advance(1.0)
        with pytest.raises(StoreUnavailableError):
            a.renew()
    assert not a.held.holds(key, 1)


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN_WRITTEN, Outcome.UNKNOWN_LOST, Outcome.CONFLICT])
def test_a_renewal_whose_answer_is_lost_keeps_the_lease(
    store: MemoryStore, coordinator_factory: Make, outcome: Outcome
) -> None:
    """Whether or not the unknown commit was written, the owner is the same and the epoch has not moved."""
    (key,) = add_shards(store, 1)
    a = coordinator_factory("a")
    a.renew()
    outcomes = iter([outcome])
    store.outcome = lambda: next(outcomes, Outcome.OK)
    renewal = a.renew()
    assert (renewal.lost, renewal.gained) == ([], [])
    assert (row(store, key).lease_owner, row(store, key).epoch) == ("a", 1)
    assert a.held.holds(key, 1)


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN_WRITTEN, Outcome.UNKNOWN_LOST])
def test_a_take_whose_answer_is_lost_is_one_take(
    store: MemoryStore, coordinator_factory: Make, outcome: Outcome
) -> None:
    """The worker finds its own take by owner and epoch: the epoch rises once."""
    (key,) = add_shards(store, 1)
    a = coordinator_factory("a")
    outcomes = iter([outcome])
    store.outcome = lambda: next(outcomes, Outcome.OK)
    assert [(lease.key, lease.epoch) for lease in a.renew().gained] == [(key, 1)]
    assert a.held.holds(key, 1)


def test_a_hand_over_whose_answer_is_lost_is_not_reported_as_a_loss(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """A lease that was given away on purpose is not an alarm."""
    add_shards(store, 2)
    a = coordinator_factory("a")
    a.renew()
    b = coordinator_factory("b")
    b.renew()
    (closing,) = a.renew().close
    a.held.mark_closed(closing)
    outcomes = iter([Outcome.UNKNOWN_WRITTEN])
    store.outcome = lambda: next(outcomes, Outcome.OK)
    assert a.renew().lost == []
    assert row(store, closing).lease_owner == "b"


def test_the_old_owner_learns_that_it_lost(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """An owner slept through its lease. Its next renewal reports the loss and does not touch the new owner's
    row.
    """
    (key,) = add_shards(store, 1)
    a = coordinator_factory("a")
    a.renew()
    b = coordinator_factory("b")
    b.renew()
    clock.advance(LEASE + 1)
    b.renew()
    assert key in a.renew().lost
    assert (row(store, key).lease_owner, row(store, key).epoch) == ("b", 2)


def test_what_is_given_to_a_worker_and_wanted_no_more_is_free_at_once(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """A lease is handed over while its pipeline is paused. It keeps no owner that would never consume it, and
    is shared again once the pipeline is resumed.
    """
    add_shards(store, 2)
    paused = False
    a = coordinator_factory("a", wanted=lambda *_: not paused)
    a.renew()
    b = coordinator_factory("b", wanted=lambda *_: not paused)
    b.renew()
    (asked,) = a.renew().close
    a.held.mark_closed(asked)
    a.renew()
    assert row(store, asked).lease_owner == "b"
    paused = True
    for worker in (a, b):
        for key in worker.renew().close:
            worker.held.mark_closed(key)
        worker.renew()
    assert set(owners(store).values()) == {""}
    paused = False
    assert len(b.renew().gained) == 1


def test_a_closed_lease_is_not_held(store: MemoryStore, coordinator_factory: Make) -> None:
    """Once its consumer has stopped nobody may write under it, even if the outcome of the hand-over is
    unknown.
    """
    (key,) = add_shards(store, 1)
    a = coordinator_factory("a")
    a.renew()
    a.held.mark_closed(key)
    assert not a.held.holds(key, 1)


def test_a_complete_fleet_has_no_slot_for_another(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """A worker finds live owners on every slot. It gets none, takes no lease, and learns it within one and a
    quarter leases.
    """
    add_shards(store, 1)
    a = coordinator_factory("a", slots=1)
    a.renew()
    late = coordinator_factory("b", slots=1, slot=False)
    began, waits = clock.monotonic(), set()

    def wait(seconds: float) -> None:
        waits.add(seconds)
        clock.advance(seconds)
        a.renew()

    assert not late.acquire_slot(wait)
    assert clock.monotonic() - began <= LEASE * 1.4
    assert waits == {late.held.renewal_seconds / 2}
    assert "b" not in {lease.lease_owner for lease in store.read().leases.values()}


def test_a_dead_workers_slot_is_taken_over(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """A replacement waits one lease for the dead worker's slot and then has it."""
    coordinator_factory("a", slots=1)
    assert coordinator_factory("b", slots=1).held.slot == LeaseKey("f", StatusType.SLOT, "0")


def test_a_shard_that_is_not_wanted_is_closed_and_freed(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """A paused pipeline's shard is closed by its consumer first, then free, and is not taken again."""
    (key,) = add_shards(store, 1)
    paused = False
    a = coordinator_factory("a", wanted=lambda *_: not paused)
    a.renew()
    paused = True
    assert a.renew().close == [key]
    a.held.mark_closed(key)
    a.renew()
    assert (row(store, key).lease_owner, row(store, key).state) == ("", ShardState.CLOSED)
    assert a.renew().gained == []


def test_a_request_of_a_dead_worker_is_withdrawn(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """A lease that a dead worker had asked for stays with its owner. It would else be closed for nobody, for
    ever.
    """
    add_shards(store, 2)
    a = coordinator_factory("a")
    a.renew()
    b = coordinator_factory("b")
    b.renew()
    for _ in range(5):
        clock.advance(LEASE / 4)
        closing = a.renew().close
    for key in closing:
        a.held.mark_closed(key)
    for _ in range(3):
        a.renew()
    assert set(owners(store).values()) == {"a"}
    assert {lease.lease_stealer for lease in store.read().leases.values()} == {""}


def test_a_checkpoint_is_written_with_the_renewal(store: MemoryStore, coordinator_factory: Make) -> None:
    """What a consumer reports is in the lease after the next renewal."""
    (key,) = add_shards(store, 1)
    a = coordinator_factory("a")
    a.renew()
    a.held.report(key, 1, checkpoint={"batch": 5}, detail={"lag_records": 3})
    a.renew()
    assert row(store, key).checkpoint["batch"] == 5
    assert row(store, key).detail["lag_records"] == 3
    assert row(store, key).checkpoint["start_offsets"] == {"0": 0}


def test_a_checkpoint_of_an_earlier_epoch_comes_too_late(
    store: MemoryStore, clock: FakeClock, coordinator_factory: Make
) -> None:
    """A worker that lost a shard and has it again keeps the checkpoint that it found, whatever its old
    consumer still reports.
    """
    (key,) = add_shards(store, 1)
    a, b = coordinator_factory("a"), coordinator_factory("b")
    a.renew()
    b.renew()
    clock.advance(LEASE + 1)
    b.renew()
    b.held.report(key, 2, checkpoint={"batch": 9})
    b.held.mark_closed(key)
    b.held.drain()
    b.leave()
    a = coordinator_factory("a")
    assert [lease.epoch for lease in a.renew().gained] == [3]
    a.held.report(key, 1, checkpoint={"batch": 5})
    a.renew()
    assert row(store, key).checkpoint["batch"] == 9


def test_swap_gives_up_after_many_conflicts() -> None:
    """A store that always conflicts is reported instead of being tried for ever."""
    store = MemoryStore(lambda: Outcome.CONFLICT)
    with pytest.raises(Exception, match="Another writer"):
        swap(
            store,
            lambda _: [Lease(stream_id="p", status_type=StatusType.SHARD, status_value="x")],
            attempts=3,
            sleep=lambda _: None,
        )


def test_a_lease_given_back_and_taken_again_in_one_commit_is_held_in_a_new_epoch(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """The pipeline is paused and resumed between two renewals. The worker starts in the new epoch at once,
    and not two renewals later.
    """
    (key,) = add_shards(store, 1)
    a = coordinator_factory("a")
    a.renew()
    a.held.mark_closed(key)
    (gained,) = a.renew().gained
    assert (gained.lease_owner, gained.epoch) == ("a", 2)
    assert a.held.holds(key, 2)
    assert a.renew().lost == []


def test_a_consumer_of_an_earlier_epoch_does_not_close_the_lease(
    store: MemoryStore, coordinator_factory: Make
) -> None:
    """The shard was lost and taken again meanwhile. If it were given back once more, it would stand still for
    nothing.
    """
    (key,) = add_shards(store, 1)
    a = coordinator_factory("a")
    (lease,) = a.renew().gained
    a.held.mark_closed(key, lease.epoch - 1)
    assert a.held.holds(key, lease.epoch)
    a.held.mark_closed(key, lease.epoch)
    assert not a.held.holds(key, lease.epoch)
