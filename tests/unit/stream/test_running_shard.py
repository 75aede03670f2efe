"""What a worker knows of a shard that it has started."""

from __future__ import annotations

from typing import Any

from support.shard_stand_ins import FailingAudit, ShardQuery

from hindcast.leases.lease import Lease, StatusType
from hindcast.stream.running_shard import RunningShard


def running(**state: Any) -> RunningShard:
    lease = Lease(stream_id="p", status_type=StatusType.SHARD, status_value="v1.g0.s0")
    query: Any = ShardQuery(lease, **state)
    audit: Any = FailingAudit()
    return RunningShard(query, audit)


def test_a_shard_stands_still_until_its_first_batch_or_until_it_drains() -> None:
    """One that drains has no first batch to wait for."""
    assert running().stands_still
    assert not running(progressed=True).stands_still
    shard = running()
    shard.drain()
    assert not shard.stands_still


def test_a_shard_has_reached_its_end_once_each_partition_has() -> None:
    """Nothing is reached as long as no end is wanted."""
    shard = running(end_offsets={0: 10, 1: 5})
    assert not shard.reached_drain_end
    shard.drain_to = {0: 10, 1: 6}
    assert not shard.reached_drain_end
    shard.drain_to = {0: 10, 1: 5}
    assert shard.reached_drain_end


def test_a_shard_that_is_to_close_is_not_started_again() -> None:
    """The later wish counts: a pipeline may be paused while a rebuild waits for the batch in hand."""
    shard = running()
    shard.drain(restart=(shard.runner.lease, "r1"))
    shard.drain()
    assert shard.draining
    assert shard.restart is None
