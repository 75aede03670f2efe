"""What batches cost: the shards of one worker add up to the worker."""

from __future__ import annotations

import pytest

from hindcast.stream.batch_cpu import READING_SECONDS, CpuMeter, cpu_seconds
from hindcast.testing import FakeClock


class Machine:
    """A process that uses two cores whenever time passes."""

    cores = 2.0

    def __init__(self) -> None:
        self.clock, self.used, self.readings = FakeClock(), 100.0, 0  # it has used some before
        self.meter = CpuMeter(self.clock, self.read)

    def read(self) -> float:
        self.readings += 1
        return self.used

    def run(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.used += seconds * self.cores


def test_the_batches_of_two_shards_add_up_to_what_the_process_used() -> None:
    """Two batches that run beside each other have half of the time each, and one that runs alone has all of
    it.
    """
    machine = Machine()
    meter = machine.meter
    one, two = meter.opened(), meter.opened()
    meter.began(one)
    machine.run(1)
    meter.began(two)
    machine.run(2)
    first = meter.taken(one)
    meter.ended(one)
    machine.run(3)
    second = meter.taken(two)
    meter.ended(two)
    assert (first, second) == (2 + 2, 2 + 6)
    assert first + second == machine.used - 100


def test_what_is_used_between_batches_is_shared_by_all_shards() -> None:
    """Plans, leases and the filing of rows cost something, too, and the sum leaves nothing out."""
    machine = Machine()
    meter = machine.meter
    accounts = [meter.opened() for _ in range(4)]
    for account in accounts:
        machine.run(0.5)
        meter.began(account)
        machine.run(0.5)
        meter.ended(account)
    costs = [meter.taken(account) for account in accounts]
    assert sum(costs) == pytest.approx(machine.used - 100)
    assert costs == pytest.approx([2.0] * 4)


def test_a_process_that_ends_while_it_is_read_is_counted_once() -> None:
    """A total that goes back is no cost below nothing, and the next reading counts on from the highest."""
    machine = Machine()
    account = machine.meter.opened()
    machine.run(1)
    machine.used -= 5
    assert machine.meter.taken(account) == 0
    machine.used += 5
    machine.run(1)
    assert machine.meter.taken(account) == 4


def test_many_short_batches_do_not_read_the_system_each_time() -> None:
    """A reading looks at all processes; what a batch used just after one comes with the shard's next."""
    machine = Machine()
    account = machine.meter.opened()
    cost = 0.0
    for _ in range(1000):
        machine.meter.began(account)
        machine.run(READING_SECONDS / 10)
        cost += machine.meter.taken(account)
        machine.meter.ended(account)
    assert machine.readings <= 110
    assert cost == pytest.approx(machine.used - 100, rel=0.02)


def test_a_shard_that_is_given_up_leaves_its_rest_to_the_others() -> None:
    """Nothing of what the process used is dropped while one of its shards is consumed; what is used after the
    last belongs to none.
    """
    machine = Machine()
    meter = machine.meter
    one, two = meter.opened(), meter.opened()
    machine.run(1)
    meter.closed(one)
    meter.closed(one)
    machine.run(1)
    assert meter.taken(two) == 4
    meter.closed(two)
    machine.run(10)
    three = meter.opened()
    machine.run(1)
    assert meter.taken(three) == 2


def test_the_cpu_of_this_process_rises() -> None:
    """It is read from the system, with that of the processes below."""
    before = cpu_seconds()
    sum(range(3_000_000))
    assert cpu_seconds() > before
