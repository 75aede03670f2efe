"""The shards that a worker has gained are started one after the other."""

from __future__ import annotations

from hindcast.leases.lease import Lease, StatusType
from hindcast.stream.start_queue import StartQueue, WaitingShard


def lease(number: int, epoch: int = 1) -> Lease:
    name = f"v1.g0.s{number}"
    return Lease(stream_id="p", status_type=StatusType.SHARD, status_value=name, epoch=epoch)


def test_the_shard_that_has_waited_longest_comes_first() -> None:
    """No shard stands still for longer than those before it take."""
    queue = StartQueue()
    assert not queue
    for number in range(3):
        queue.add(WaitingShard(lease(number)))
    assert queue.keys() == [lease(number).key for number in range(3)]
    assert queue.get(lease(1).key) == WaitingShard(lease(1))
    assert queue.remove(lease(1).key) == WaitingShard(lease(1))
    assert lease(1).key not in queue
    assert queue.take_next().lease == lease(0)
    assert queue
    assert queue.take_next().lease == lease(2)
    assert not queue


def test_a_shard_that_is_gained_again_keeps_its_place() -> None:
    """It is started in its later epoch."""
    queue = StartQueue()
    queue.add(WaitingShard(lease(0)))
    queue.add(WaitingShard(lease(1)))
    queue.add(WaitingShard(lease(0, epoch=3), "r1"))
    assert [(shard.lease.epoch, shard.request) for shard in queue.shards()] == [(3, "r1"), (1, "")]


def test_what_does_not_wait_is_nothing() -> None:
    """A shard may be started, or lost, before the worker is asked for it."""
    queue = StartQueue()
    assert queue.get(lease(0).key) is None
    assert queue.remove(lease(0).key) is None
    assert lease(0).key not in queue
