"""Two people at one rewind: the second completes it, or calls it off, right after the first has begun it."""

from __future__ import annotations

import pytest
from protocols.oracles import check_end
from protocols.scheduler import Order
from protocols.world import World, world

from hindcast.leases.lease import ShardState
from hindcast.recovery.begun_rewind import find_begun
from hindcast.shards import resharding
from hindcast.shards.pipeline_row import DesiredState


def consume(made: World) -> None:
    """Two rounds of records are read, and every owner gives its shard back."""
    for _ in range(2):
        made.grow()
        made.take_over()
        for _ in range(400):
            made._go_on()
    made.desired.set_state("counted", DesiredState.PAUSED)
    while any(lease.lease_owner for lease in made._shards().values()):
        assert made._go_on()
    made._kill_all()


def begun(made: World) -> bool:
    """Whether the first person's rewind has begun; looked at between two steps, so it takes none."""
    return any(lease.state is ShardState.WAIT for lease in made._shards().values())


@pytest.mark.parametrize("way", ["complete", "call off"])
def test_the_second_ends_what_the_first_has_begun(way: str) -> None:
    """The first is told so: by a rewind that is done, or by a refusal that says what to do."""
    with world("two people") as made:
        consume(made)
        made.rebuilt_share = 0.0
        made._begin("first", made._rewind_once)
        first = made.scheduler.processes[-1]
        while not begun(made):
            assert not first.ended, made.errors
            made._step(first.threads[0], Order.GO)
        made._begin("second", made._complete if way == "complete" else made._call_off)
        second = made.scheduler.processes[-1]
        while not second.ended:
            made._step(second.threads[0], Order.GO)
        assert find_begun(made.leases, "counted") is None
        while not first.ended:
            made._step(first.threads[0], Order.GO)
        told = [error for error in made.errors if error.startswith("first")]
        if way == "complete":
            assert told == []
        else:
            assert "another person has called it off" in told[0]
            assert "it makes a new plan" in told[0]
        assert resharding.newest_of_version(made._shards().values(), "counted", 1)
        made.heal()
        check_end(made)
