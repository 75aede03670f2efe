"""One contract for every lease store (the table on Delta and its twin in memory), and how changes are
committed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hindcast.errors import CommitConflictError, StoreUnavailableError
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import REMOVED, TRANSITIONS, Lease, LeaseKey, ShardState, StatusType
from hindcast.leases.store import ATTEMPTS, LeaseStore, Snapshot, after, shuffled, swap
from hindcast.settings import Settings
from hindcast.testing import MemoryStore, Outcome

KEY = LeaseKey("trades", "shard", "v1.g0.s0")


def lease(**changes: object) -> Lease:
    return Lease(**{"stream_id": KEY[0], "status_type": StatusType.SHARD, "status_value": KEY[2], **changes})


@pytest.fixture(params=["delta", "memory"])
def stores(request: pytest.FixtureRequest, settings: Settings) -> Callable[[], LeaseStore]:
    """Makes clients of one and the same store."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    return lambda: LeaseTable(settings)


def test_a_new_store_is_empty(stores: Callable[[], LeaseStore]) -> None:
    """A read of a store that has never been written gives no leases."""
    assert stores().read().leases == {}


def test_what_is_committed_is_read_back_whole(stores: Callable[[], LeaseStore]) -> None:
    """Each column of a lease survives the store."""
    store = stores()
    written = lease(
        checkpoint={"batch": 7},
        lease_counter=3,
        lease_owner="a",
        lease_stealer="b",
        parent_shard_ids=["p"],
        epoch=2,
        state="CLOSING",
        detail={"x": [1]},
    )
    store.commit(store.read(), [written.evolve(state="OPEN")])
    store.commit(store.read(), [written])
    assert stores().read().leases == {written.key: written}


@pytest.mark.parametrize("first", ["", *TRANSITIONS])
@pytest.mark.parametrize("second", [*TRANSITIONS, REMOVED])
def test_every_step_of_a_shards_life_is_in_the_table(first: str, second: str) -> None:
    """A commit with another step is refused whole. A shard begins waiting or open, and a shard that is gone
    may be removed again.
    """
    before = {}
    origin = "no row"
    allowed = {ShardState.WAIT, ShardState.OPEN, REMOVED}
    if first:
        before = {KEY: lease(state=first)}
        origin = first
        allowed = TRANSITIONS[first] | {first}
    shard = lease(state=second)
    slot = lease(status_type=StatusType.SLOT, status_value="0")
    if second not in allowed:
        with pytest.raises(ValueError, match=f"trades/v1.g0.s0 cannot go from {origin} to {second}"):
            after(before, [shard, slot])
    elif second == REMOVED:
        assert after(before, [shard, slot]) == {slot.key: slot}
    else:
        assert after(before, [shard, slot]) == {KEY: shard, slot.key: slot}


@pytest.mark.parametrize("state", [ShardState.OPEN, ShardState.CLOSING, ShardState.CLOSED])
def test_only_a_rewind_that_is_called_off_brings_an_ended_shard_back(state: ShardState) -> None:
    """The shard that was to follow it is removed in the same commit. The removal of a shard of another stream
    or of another parent is no reason. The ended shard may also stay as it is, or be removed too.
    """
    ended = lease(state=ShardState.TERMINATED)
    back = ended.evolve(state=state)
    follower = lease(status_value="v1.g1.s0", state=ShardState.WAIT, parent_shard_ids=[ended.status_value])
    rows = {row.key: row for row in (ended, follower)}
    removed = follower.evolve(state=REMOVED)
    assert after(rows, [removed, back]) == {back.key: back}
    assert after(rows, [removed, ended]) == {ended.key: ended}
    assert after(rows, [removed, ended.evolve(state=REMOVED)]) == {}
    for other in (
        follower,
        follower.evolve(state=REMOVED, parent_shard_ids=["v1.g0.s1"]),
        follower.evolve(state=REMOVED, stream_id="another"),
    ):
        with pytest.raises(ValueError, match="TERMINATED"):
            after(rows, [other, back])
    with pytest.raises(ValueError, match="TERMINATED to WAIT"):
        after(rows, [removed, ended.evolve(state=ShardState.WAIT)])


def test_the_state_of_a_pipeline_is_no_state_of_a_shard() -> None:
    """Rows of pipelines have states of their own."""
    row = lease(status_type=StatusType.PIPELINE, state="running")
    changed = row.evolve(state="paused")
    assert after({row.key: row}, [changed]) == {row.key: changed}


def test_a_commit_with_a_refused_step_writes_nothing(stores: Callable[[], LeaseStore]) -> None:
    """The store is as it was, and the next commit on the same snapshot lands."""
    store = stores()
    store.commit(store.read(), [lease(state=ShardState.OPEN)])
    snapshot = store.read()
    with pytest.raises(ValueError, match="OPEN to WAIT"):
        store.commit(snapshot, [lease(state=ShardState.WAIT)])
    assert stores().read().leases[KEY].state == ShardState.OPEN
    store.commit(snapshot, [lease(state=ShardState.CLOSED)])
    assert stores().read().leases[KEY].state == ShardState.CLOSED


def test_a_commit_on_an_old_snapshot_is_refused(stores: Callable[[], LeaseStore]) -> None:
    """Of two commits decided on the same snapshot one wins, and the other changes nothing."""
    one, two = stores(), stores()
    first, second = one.read(), two.read()
    one.commit(first, [lease(lease_owner="a")])
    with pytest.raises(CommitConflictError):
        two.commit(second, [lease(lease_owner="b")])
    assert [row.lease_owner for row in stores().read().leases.values()] == ["a"]


def test_a_snapshot_serves_one_commit(stores: Callable[[], LeaseStore]) -> None:
    """A client must read again after its own commit too."""
    store = stores()
    snapshot = store.read()
    store.commit(snapshot, [lease(lease_owner="a")])
    with pytest.raises(CommitConflictError):
        store.commit(snapshot, [lease(lease_owner="b")])


def test_other_leases_stay(stores: Callable[[], LeaseStore]) -> None:
    """A commit replaces the leases it names and keeps the others."""
    store = stores()
    store.commit(store.read(), [lease(), lease(status_value="v1.g0.s1")])
    store.commit(store.read(), [lease(lease_owner="a")])
    assert sorted(row.lease_owner for row in store.read().leases.values()) == ["", "a"]


def test_an_unknown_outcome_that_was_written_is_not_written_twice() -> None:
    """After a commit whose answer was lost, the next decision sees its own work."""
    outcomes = iter([Outcome.UNKNOWN_WRITTEN, Outcome.OK])
    store = MemoryStore(lambda: next(outcomes))

    def take(snapshot: Snapshot) -> list[Lease]:
        found = list(snapshot.leases.values())
        return [] if found else [lease().given_to("a")]

    assert swap(store, take, sleep=lambda _: None) == []
    assert [(row.lease_owner, row.epoch) for row in store.read().leases.values()] == [("a", 1)]


def test_attempts_wait_longer_and_longer_but_never_long() -> None:
    """The first waits are short and differ, so that writers do not meet again. No wait is longer than half a
    second.
    """
    first: list[float] = []
    for _ in range(5):
        slept: list[float] = []
        with pytest.raises(CommitConflictError):
            swap(MemoryStore(lambda: Outcome.CONFLICT), lambda _: [lease()], sleep=slept.append)
        assert len(slept) == ATTEMPTS - 1
        assert 0.05 < max(slept) <= 0.5
        first.append(slept[0])
    assert max(first) <= 0.01
    assert len(set(first)) == 5


def test_a_swap_without_a_way_to_wait_waits_in_real_time() -> None:
    """After a conflict it tries again."""
    outcomes = iter([Outcome.CONFLICT, Outcome.OK])
    assert swap(MemoryStore(lambda: next(outcomes)), lambda _: [lease()]) == [lease()]


def test_a_store_that_does_not_answer_is_asked_once() -> None:
    """An owner must know at once that its lease was not renewed."""
    asked: list[Outcome] = []

    def outcome() -> Outcome:
        asked.append(Outcome.FAIL)
        return Outcome.FAIL

    with pytest.raises(StoreUnavailableError):
        swap(MemoryStore(outcome), lambda _: [lease()], sleep=lambda _: None)
    assert len(asked) == 1


def test_what_is_gone_may_be_removed_again() -> None:
    """A removal whose first answer was lost finds nothing to remove."""
    gone, kept = lease(state=REMOVED), lease(status_value="kept")
    assert after({kept.key: kept}, [gone]) == {kept.key: kept}
    assert after({kept.key: kept, gone.key: lease()}, [gone]) == {kept.key: kept}


def test_workers_see_leases_in_different_orders() -> None:
    """Two leases are enough for that. Each worker always sees the same order."""
    pair = [lease(status_value=name) for name in "ab"]
    orders: set[str] = set()
    for seed in map(str, range(20)):
        order = shuffled(pair, seed)
        assert shuffled(reversed(pair), seed) == order
        orders.add("".join(one.status_value for one in order))
    assert orders == {"ab", "ba"}


def test_new_json_of_a_lease_that_was_read_is_written(stores: Callable[[], LeaseStore]) -> None:
    """JSON that the caller has changed is written, not the JSON that is remembered."""
    store = stores()
    store.commit(store.read(), [lease(detail={"list": [1]})])
    snapshot = store.read()
    store.commit(snapshot, [snapshot.leases[lease().key].renewed(detail={"list": [1, 2]})])
    assert stores().read().leases[lease().key].detail == {"list": [1, 2]}


def test_clients_that_take_turns_see_each_other(stores: Callable[[], LeaseStore]) -> None:
    """What a client remembers never hides what another has written."""
    one = stores()
    two = stores()
    one.commit(one.read(), [lease(), lease(status_value="other", detail={"x": 1})])
    for number in range(1, 4):
        swap(two, lambda snapshot: [snapshot.leases[lease().key].renewed(lease_owner="two")])
        swap(one, lambda snapshot: [snapshot.leases[lease().key].renewed(lease_owner="one")])
        assert one.read().leases == two.read().leases == stores().read().leases
        assert one.read().leases[lease().key].lease_counter == 2 * number
