"""A new generation of shards: which shard follows which, where each begins, and that no key is ever in two of
them.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.errors import BadInputError
from hindcast.leases.lease import Lease, ShardState, StatusType
from hindcast.partitions import ShardId
from hindcast.pipeline import TOPIC_STRIDE
from hindcast.shards import resharding
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.pipeline_row import DesiredState, InactiveState, InactiveVersion
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail
from hindcast.testing import FakeClock, MemoryStore


def generation(store: MemoryStore, number: int) -> list[Lease]:
    found = resharding.of_version(store.read().leases.values(), "p", 1)
    return [lease for lease in found if ShardId.parse(lease.status_value).generation == number]


def end(store: MemoryStore, lease: Lease, *, watermark_ms: int = 0, **offsets: int) -> None:
    """End a shard at these offsets, given as ``p0=5``; at its start if none is given."""
    checkpoint = {**lease.checkpoint, "watermark_ms": watermark_ms}
    if offsets:
        checkpoint["end_offsets"] = {name.removeprefix("p"): offset for name, offset in offsets.items()}
    store.commit(store.read(), [lease.evolve(state=ShardState.TERMINATED, checkpoint=checkpoint)])


def open_ready(store: MemoryStore) -> list[Lease]:
    snapshot = store.read()
    found = resharding.opened(snapshot.leases)
    store.commit(snapshot, found)
    return found


def test_children_wait_for_every_parent_and_begin_where_those_ended() -> None:
    """Two shards become three. Each child opens once its own parents are done, at their offsets and with
    their watermarks.
    """
    store = MemoryStore()
    first, second = resharding.create(store, "p", 1, 2, {0: 0, 1: 0, 2: 0, 3: 0})
    children = resharding.reshard(store, "p", 1, 3, dict.fromkeys(range(4), 0))
    assert [(child.state, child.detail["partitions"], child.parent_shard_ids) for child in children] == [
        ("WAIT", [0, 3], ["v1.g0.s0", "v1.g0.s1"]),
        ("WAIT", [1], ["v1.g0.s1"]),
        ("WAIT", [2], ["v1.g0.s0"]),
    ]
    assert resharding.superseded(store.read().leases.values()) == {first.key, second.key}
    assert open_ready(store) == []
    end(store, first, watermark_ms=7000, p0=10, p2=12)
    assert [(child.status_value, child.checkpoint) for child in open_ready(store)] == [
        ("v1.g1.s2", {"start_offsets": {"2": 12}, "floors": {"2": 7000}})
    ]
    end(store, second, watermark_ms=9000, p1=11, p3=13)
    assert [child.checkpoint for child in open_ready(store)] == [
        {"start_offsets": {"0": 10, "3": 13}, "floors": {"0": 7000, "3": 9000}},
        {"start_offsets": {"1": 11}, "floors": {"1": 9000}},
    ]


def test_each_row_says_when_it_was_written() -> None:
    """That holds for shards that are created, that wait and that are opened: the instant is now, in UTC."""
    store, began = MemoryStore(), datetime.now(UTC)
    (root,) = resharding.create(store, "p", 1, 1, {0: 0, 1: 0})
    waiting = resharding.reshard(store, "p", 1, 2, {0: 0, 1: 0})
    end(store, root)
    for lease in (root, *waiting):
        assert lease.updated_at is not None
        assert began <= lease.updated_at <= datetime.now(UTC)
    began = datetime.now(UTC)
    for lease in open_ready(store):
        assert lease.updated_at is not None
        assert began <= lease.updated_at <= datetime.now(UTC)


def test_resharding_is_written_once() -> None:
    """The same number again writes nothing. Nor does a number that is asked for while a generation still
    waits.
    """
    store = MemoryStore()
    resharding.create(store, "p", 1, 2, {0: 0, 1: 0})
    assert resharding.reshard(store, "p", 1, 2, {0: 0, 1: 0}) == []
    assert len(resharding.reshard(store, "p", 1, 1, {0: 0, 1: 0})) == 1
    assert resharding.reshard(store, "p", 1, 2, {0: 0, 1: 0}) == []


def test_a_generation_that_never_ran_hands_its_beginning_on() -> None:
    """If a shard ends before its first batch, its child begins where the shard would have begun, with its
    floors.
    """
    store = MemoryStore()
    (root,) = resharding.create(store, "p", 1, 1, {0: 3, 1: 4})
    resharding.reshard(store, "p", 1, 2, {0: 0, 1: 0})
    end(store, root, watermark_ms=500, p0=8, p1=9)
    for child in open_ready(store):
        end(store, child)
    resharding.reshard(store, "p", 1, 1, {0: 0, 1: 0})
    (last,) = open_ready(store)
    assert last.checkpoint == {"start_offsets": {"0": 8, "1": 9}, "floors": {"0": 500, "1": 500}}


def test_each_partition_hands_its_own_floor_on() -> None:
    """A partition that the parent had from a slower shard stays open for as long as it was there."""
    store = MemoryStore()
    first, second = resharding.create(store, "p", 1, 2, {0: 0, 1: 0})
    resharding.reshard(store, "p", 1, 1, {0: 0, 1: 0})
    end(store, first, watermark_ms=100, p0=10)
    end(store, second, watermark_ms=200, p1=11)
    (joined,) = open_ready(store)
    assert joined.checkpoint["floors"] == {"0": 100, "1": 200}
    resharding.reshard(store, "p", 1, 2, {0: 0, 1: 0})
    end(store, joined, watermark_ms=150, p0=12, p1=13)
    assert [child.checkpoint for child in open_ready(store)] == [
        {"start_offsets": {"0": 12}, "floors": {"0": 150}},
        {"start_offsets": {"1": 13}, "floors": {"1": 200}},
    ]


def test_nothing_is_final_for_a_shard_that_has_read_nothing() -> None:
    """Nothing is final of one of its partitions, nor of all of them."""
    (lease,) = resharding.create(MemoryStore(), "p", 1, 1, {0: 0})
    checkpoint = ShardCheckpoint.of(lease)
    assert (checkpoint.all_final_ms, checkpoint.final_ms(0)) == (0, 0)


def test_an_added_partition_reopens_no_window_that_was_final_for_any_other() -> None:
    """Its keys come from any partition of the parent, and so from the fastest. That holds though the parent
    itself has read nothing since.
    """
    store = MemoryStore()
    first, second = resharding.create(store, "p", 1, 2, {0: 0, 1: 0})
    resharding.reshard(store, "p", 1, 1, {0: 0, 1: 0})
    end(store, first, watermark_ms=100, p0=10)
    end(store, second, watermark_ms=200, p1=11)
    (joined,) = open_ready(store)
    resharding.reshard(store, "p", 1, 1, {0: 0, 1: 0, 2: 5})
    end(store, joined)
    assert [child.checkpoint["floors"] for child in open_ready(store)] == [{"0": 100, "1": 200, "2": 200}]


#: Two topics, of three partitions and of one.
UNLIKE = {0: 0, 1: 0, 2: 0, TOPIC_STRIDE: 0}


def test_topics_of_unlike_size_stay_one_shard() -> None:
    """A key is in another partition of each topic, so two shards would each emit a part of its windows."""
    store = MemoryStore()
    resharding.create(store, "p", 1, 1, UNLIKE)
    commits = store.commits
    with pytest.raises(BadInputError, match="The topics of p have 3, 1 partitions"):
        resharding.reshard(store, "p", 1, 2, UNLIKE)
    assert store.commits == commits


def test_a_topic_that_has_grown_to_the_size_of_the_other_stays_one_shard() -> None:
    """Its older records are in one partition, whatever their key."""
    store = MemoryStore()
    resharding.create(store, "p", 1, 1, UNLIKE)
    grown = {**UNLIKE, TOPIC_STRIDE + 1: 0, TOPIC_STRIDE + 2: 0}
    (child,) = resharding.reshard(store, "p", 1, 2, grown)
    assert child.detail["partitions"] == sorted(grown)


def test_a_new_partition_keeps_what_was_final_for_its_keys() -> None:
    """A partition that was added begins at its first offset. Windows that its keys' old shard had emitted are
    final in it.
    """
    store = MemoryStore()
    first, second = resharding.create(store, "p", 1, 2, {0: 0, 1: 0})
    resharding.reshard(store, "p", 1, 2, {0: 0, 1: 0, 2: 5, 3: 6})
    end(store, first, watermark_ms=100, p0=10)
    end(store, second, watermark_ms=200, p1=11)
    assert [child.checkpoint for child in open_ready(store)] == [
        {"start_offsets": {"0": 10, "2": 5}, "floors": {"0": 100, "2": 100}},
        {"start_offsets": {"1": 11, "3": 6}, "floors": {"1": 200, "3": 200}},
    ]


def test_a_new_partition_keeps_what_was_final_for_any_shard_whose_keys_it_may_have() -> None:
    """With three partitions instead of two, a key of either shard may come to the new one. It reopens no
    window of the faster of them.
    """
    store = MemoryStore()
    first, second = resharding.create(store, "p", 1, 2, {0: 0, 1: 0})
    resharding.reshard(store, "p", 1, 1, {0: 0, 1: 0, 2: 5})
    end(store, first, watermark_ms=100, p0=10)
    end(store, second, watermark_ms=200, p1=11)
    (child,) = open_ready(store)
    assert child.checkpoint == {
        "start_offsets": {"0": 10, "1": 11, "2": 5},
        "floors": {"0": 100, "1": 200, "2": 200},
    }


@given(
    st.lists(st.integers(1, 24), min_size=2, max_size=4).map(sorted),
    st.lists(st.integers(1, 8), min_size=4, max_size=4),
    st.data(),
)
def test_a_key_is_in_one_shard_however_the_topic_grew(
    counts: list[int], numbers: list[int], data: st.DataObject
) -> None:
    """All partitions that ever held a key, at any size of the topic, are in the same shard of the newest
    generation.
    """
    store = MemoryStore()
    resharding.create(store, "p", 1, numbers[0], dict.fromkeys(range(counts[0]), 0))
    for count, number in zip(counts[1:], numbers[1:], strict=False):
        resharding.reshard(store, "p", 1, number, dict.fromkeys(range(count), 0))
        for lease in store.read().leases.values():
            if lease.state not in {ShardState.WAIT, ShardState.TERMINATED}:
                end(store, lease)
        open_ready(store)
    newest = resharding.newest_generation(resharding.of_version(store.read().leases.values(), "p", 1))
    assert sorted(partition for lease in newest for partition in lease.detail["partitions"]) == list(
        range(counts[-1])
    )
    digest = data.draw(st.integers(0, 2**31))
    homes = {
        lease.status_value
        for lease in newest
        for count in counts
        if digest % count in lease.detail["partitions"]
    }
    assert len(homes) == 1


def wanted_row(count: int) -> Lease:
    return Lease(
        stream_id="p",
        status_type=StatusType.PIPELINE,
        status_value="active",
        state=DesiredState.RUNNING,
        detail={"version": 1, "shards": count, "workers": 2},
    )


def test_what_is_wanted_says_which_pipelines_to_reshard() -> None:
    """A pipeline is due if its newest generation has another number of shards than is wanted, as far as its
    partitions allow that.
    """
    store = MemoryStore()
    resharding.create(store, "p", 1, 1, {0: 0, 1: 0, 2: 0})
    store.commit(store.read(), [wanted_row(2)])
    assert resharding.to_reshard(store.read().leases.values()) == [("p", 1, 2)]
    store = MemoryStore()
    resharding.create(store, "p", 1, 2, {0: 0, 1: 0, 2: 0})
    for count, due in ((2, []), (3, [("p", 1, 3)]), (7, [("p", 1, 7)])):
        store.commit(store.read(), [wanted_row(count)])
        assert resharding.to_reshard(store.read().leases.values()) == due
    resharding.reshard(store, "p", 1, 7, {0: 0, 1: 0, 2: 0})
    for lease in generation(store, 0):
        end(store, lease)
    open_ready(store)
    assert resharding.to_reshard(store.read().leases.values()) == [], (
        "three partitions cannot fill seven shards"
    )


def test_what_is_not_ready_for_a_reshard_keeps_nothing_else_from_it() -> None:
    """A pipeline that has no shards yet, and one whose last reshard has not ended, are passed over. The
    others are due.
    """
    store = MemoryStore()
    for name in ("o", "p"):
        resharding.create(store, name, 1, 2, {0: 0, 1: 0, 2: 0})
    resharding.reshard(store, "o", 1, 1, {0: 0, 1: 0, 2: 0})
    store.commit(store.read(), [wanted_row(3).evolve(stream_id=name) for name in ("n", "o", "p")])
    assert resharding.to_reshard(store.read().leases.values()) == [("p", 1, 3)]


def test_what_runs_without_shards_is_named() -> None:
    """A worker makes them, for each version that is to run and has none of its own yet."""
    store = MemoryStore()
    resharding.create(store, "p", 1, 2, {0: 0, 1: 0})
    resharding.create(store, "other", 2, 1, {0: 0})
    beside = InactiveVersion(version=2, state=InactiveState.CATCHING_UP, shards=4, tables=())
    running = wanted_row(3).evolve(detail={**wanted_row(3).detail, "beside": beside.to_json()})
    paused = wanted_row(1).evolve(stream_id="q", state=DesiredState.PAUSED)
    store.commit(store.read(), [running, paused, wanted_row(5).evolve(stream_id="r")])
    assert resharding.pipelines_without_shards(store.read()) == [("p", 2, 4), ("r", 1, 5)]


@pytest.mark.parametrize("dies", [False, True])
def test_workers_carry_a_resharding_through(*, dies: bool) -> None:
    """The old generation is closed and ended, the new one is opened and shared out. A worker that dies on the
    way changes nothing.
    """
    clock, store = FakeClock(), MemoryStore()
    resharding.create(store, "p", 1, 2, dict.fromkeys(range(4), 0))

    def wanted(lease: Lease, _: object) -> bool:
        return lease.state not in {ShardState.WAIT, ShardState.TERMINATED}

    coordinators = [
        LeaseCoordinator(
            store,
            clock,
            owner=f"w{index}",
            fleet="f",
            slots=3,
            lease_seconds=8,
            wanted=wanted,
            sleep=lambda _: None,
        )
        for index in range(3)
    ]
    coordinators = coordinators[:2] if not dies else coordinators
    for coordinator in coordinators:
        assert coordinator.acquire_slot(clock.advance)

    def round_(live: list[LeaseCoordinator]) -> None:
        for coordinator in live:
            for key in coordinator.renew().close:
                coordinator.held.mark_closed(
                    key, ended=key in resharding.superseded(store.read().leases.values())
                )
        clock.advance(2)

    for _ in range(4):
        round_(coordinators)
    resharding.reshard(store, "p", 1, 3, dict.fromkeys(range(4), 0))
    for _ in range(12):
        round_(coordinators[1:] if dies else coordinators)
    assert {lease.state for lease in generation(store, 0)} == {"TERMINATED"}
    owners = [lease.lease_owner for lease in generation(store, 1)]
    assert len(owners) == 3
    assert {state.state for state in generation(store, 1)} == {"OPEN"}
    assert set(owners) <= {
        coordinator.held.owner for coordinator in (coordinators[1:] if dies else coordinators)
    }
    assert len(set(owners)) == 2


def test_shards_of_an_adopted_stream_begin_where_it_ended() -> None:
    """Once, dealt as any generation is, with the windows final that it has emitted, and to be rebuilt."""
    store = MemoryStore()
    start = {0: 10, 1: 20, 2: 30}
    floors = {0: 5, 1: 6, 2: 7}
    made = resharding.adopt(store, "p", 1, 2, start, floors, "taken over")
    assert [lease.status_value for lease in made] == ["v1.g1.s0", "v1.g1.s1"]
    for lease in made:
        partitions = ShardDetail.of(lease).partitions
        checkpoint = ShardCheckpoint.of(lease)
        assert checkpoint.start_offsets == {partition: start[partition] for partition in partitions}
        assert checkpoint.floors == {partition: floors[partition] for partition in partitions}
        assert ShardDetail.of(lease).damaged == "taken over"
        assert (lease.state, lease.parent_shard_ids) == (ShardState.OPEN, [])
    assert resharding.adopt(store, "p", 1, 2, start, floors, "taken over") == []
    assert resharding.create(store, "p", 1, 2, start) == []
