"""What the waiting shards say of a rewind that has begun."""

from __future__ import annotations

from functools import partial

import pytest
from support.crashes import die_before
from support.paused_pipeline import EPOCH, Paused

from hindcast.leases.lease import Lease, ShardState, StatusType
from hindcast.recovery.begun_rewind import BegunRewind, find_begun
from hindcast.testing import MemoryStore


def shard(name: str, state: ShardState, pipeline: str = "bar", **fields: object) -> Lease:
    return Lease(stream_id=pipeline, status_type=StatusType.SHARD, status_value=name, state=state, **fields)


def waiting(name: str, parent: str, offsets: dict[str, int]) -> Lease:
    """A shard that waits for the end of the rewind "one"."""
    return shard(
        name,
        ShardState.WAIT,
        parent_shard_ids=[parent],
        checkpoint={"start_offsets": offsets},
        detail={"reset": {"id": "one", "last": {"v1.g0.s0": 3}}},
    )


def stored(*leases: Lease) -> MemoryStore:
    store = MemoryStore()
    new = [lease.evolve(state=ShardState.OPEN) for lease in leases if lease.state == "TERMINATED"]
    store.commit(store.read(), new)
    store.commit(store.read(), list(leases))
    return store


def test_a_rewind_that_has_begun_is_found_by_its_waiting_shards() -> None:
    """The record, the new epochs of the shards that ended, and where the new ones begin; of this pipeline
    only.
    """
    store = stored(
        shard("v1.g0.s0", ShardState.TERMINATED, epoch=4),
        shard("v1.g0.s1", ShardState.TERMINATED, epoch=6),
        shard("v1.g0.s9", ShardState.TERMINATED, epoch=8),
        shard("v1.g0.s0", ShardState.TERMINATED, pipeline="baz", epoch=9),
        waiting("v1.g1.s0", "v1.g0.s0", {"0": 5, "2": 7}),
        waiting("v1.g1.s1", "v1.g0.s1", {"1": 6}),
    )
    begun = find_begun(store, "bar")
    assert begun is not None
    assert begun.id == "one"
    assert begun.record == {"id": "one", "last": {"v1.g0.s0": 3}}
    assert begun.epochs == {"v1.g0.s0": 4, "v1.g0.s1": 6}
    assert begun.offsets == {0: 5, 1: 6, 2: 7}
    assert find_begun(store, "baz") is None


def test_a_rewind_of_one_shard_is_found_too() -> None:
    """Its one waiting shard has the record."""
    store = stored(
        shard("v1.g0.s0", ShardState.TERMINATED, epoch=4), waiting("v1.g1.s0", "v1.g0.s0", {"0": 5})
    )
    begun = find_begun(store, "bar")
    assert begun is not None
    assert (begun.id, begun.epochs, begun.offsets) == ("one", {"v1.g0.s0": 4}, {0: 5})


def test_each_shard_has_a_last_batch_that_is_kept() -> None:
    """0 for a shard that ended without a batch; a shard of an older generation has batches and no new
    epoch.
    """
    begun = BegunRewind({"last": {"v1.g1.s0": 3, "v1.g0.s0": 2}}, {"v1.g1.s0": 4, "v1.g1.s1": 4}, {})
    assert begun.kept_batches == {"v1.g1.s0": 3, "v1.g1.s1": 0, "v1.g0.s0": 2}


def test_the_record_is_what_the_rewind_said_when_it_began(
    paused: Paused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan, who began it and why, what is kept of each shard, and the states to return to."""
    found = paused.plan(paused.middle)
    assert find_begun(paused.store, "stock_stats") is None
    die_before(monkeypatch, "reset.2", partial(paused.run, found))
    begun = find_begun(paused.store, "stock_stats")
    assert begun is not None
    assert begun.record.items() >= {**found.as_dict(), "by": "me", "reason": "a test"}.items()
    assert begun.kept_batches == begun.record["last"] == found.point.last
    assert begun.record["states"] == {"v1.g0.s0": "CLOSED", "v1.g0.s1": "CLOSED"}
    assert begun.epochs == {"v1.g0.s0": EPOCH + 1, "v1.g0.s1": EPOCH + 1}
    assert begun.offsets == found.point.offsets
