"""What can happen to a world, by name. Each action takes the numbers that it needs, so that any numbers are a
history.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from simulation.ports import Place
from simulation.worker import SimulatedWorker
from simulation.world import LEASE_SECONDS, MOST_SHARDS, World

from hindcast.leases.lease import LeaseKey
from hindcast.testing import Outcome


class Action(NamedTuple):
    """What happens next: its name, and three numbers that pick a worker, a shard or a fault, and a size."""

    name: str
    who: int = 0
    what: int = 0
    size: int = 0


def act(world: World, action: Action) -> None:
    """Let one thing happen, and look."""
    _ACTIONS[action.name](world, action)
    world.look()


def _worker(world: World, action: Action) -> SimulatedWorker | None:
    awake = world.awake()
    return awake[action.who % len(awake)] if awake else None


def _step(world: World, action: Action) -> None:
    if (worker := _worker(world, action)) is not None:
        world.step(worker, action.what)
        if action.size % 3:
            world.run(worker)


def _slow_step(world: World, action: Action) -> None:
    """A step whose answer takes its time, in which others step, or this worker's own queries go on."""
    if (worker := _worker(world, action)) is None:
        return

    def meanwhile() -> None:
        world.pass_time(LEASE_SECONDS * (0.1, 0.3, 0.7, 1.2)[action.size % 4])
        if action.size % 3 == 0:
            for other in world.awake():
                other.step()
                world.run(other)
        elif action.size % 3 == 1:
            for key in list(worker.consumers):
                world.begin(worker, key)
                worker.land(key, Outcome.OK, at_once=True)
        world.look()

    world.store.slow = {tuple(Place)[action.size // 4 % len(Place)]: meanwhile}
    world.step(worker, action.what)


def _leave_in_a_step(world: World, action: Action) -> None:
    """A worker is told to stop while its renewal waits for the store; its main thread comes round before the
    answer does.
    """
    if (worker := _worker(world, action)) is None or len(world.workers) == 1:
        return

    def meanwhile() -> None:
        worker.leaving = True
        world.run(worker)

    world.store.slow = {tuple(Place)[action.size % len(Place)]: meanwhile}
    world.step(worker, action.what)
    if action.size // 3 % 2:
        world.run(worker)


def _work(world: World, action: Action) -> None:
    if (worker := _worker(world, action)) is not None:
        world.run(worker)


def _begin(world: World, action: Action) -> None:
    if (worker := _worker(world, action)) is not None and worker.consumers:
        world.begin(worker, _consumed(worker, action))


def _land(world: World, action: Action) -> None:
    if (worker := _worker(world, action)) is not None and worker.consumers:
        outcome = (Outcome.OK, Outcome.OK, Outcome.UNKNOWN_WRITTEN, Outcome.UNKNOWN_LOST)[action.size % 4]
        worker.land(_consumed(worker, action), outcome, at_once=action.size // 4 % 3 > 0)


def _fail(world: World, action: Action) -> None:
    if (worker := _worker(world, action)) is not None and worker.consumers:
        worker.fail(_consumed(worker, action))


def _consumed(worker: SimulatedWorker, action: Action) -> LeaseKey:
    return list(worker.consumers)[action.what % len(worker.consumers)]


def _pause(world: World, action: Action) -> None:
    """Nobody runs this worker for 0.4 to 3 leases; what it had in hand it lands on waking."""
    if (worker := _worker(world, action)) is not None:
        worker.wakes_at = world.at + LEASE_SECONDS * (0.4, 0.9, 1.3, 3.0)[action.size % 4]


def _stick(world: World, action: Action) -> None:
    """This worker's main thread waits for something for 1 to 4 leases, while it renews."""
    if (worker := _worker(world, action)) is not None:
        worker.stuck_until = world.at + LEASE_SECONDS * (1.0, 1.5, 2.5, 4.0)[action.size % 4]


def _round(world: World, action: Action) -> None:
    for number in range(1 + action.size % 4):
        world.round(first=action.who + number)
        world.look()


def _time(world: World, action: Action) -> None:
    world.pass_time(LEASE_SECONDS * (0.05, 0.25, 0.5, 0.81, 1.01, 1.5)[action.size % 6])


def _jump(world: World, action: Action) -> None:
    if (worker := _worker(world, action)) is not None:
        worker.clock.wall_offset += timedelta(seconds=(-7200, -60, 11, 3600)[action.size % 4])


def _die(world: World, action: Action) -> None:
    if (worker := _worker(world, action)) is not None and len(world.workers) > 1:
        world.die(worker)


def _join(world: World, action: Action) -> None:
    """Another process. Where all slots are held it is a second start of one that runs, which finds none."""
    world.join()


def _join_with_a_shorter_lease(world: World, _: Action) -> None:
    """Somebody has changed the setting for one worker."""
    world.join(LEASE_SECONDS / 2)


def _leave(world: World, action: Action) -> None:
    if (worker := _worker(world, action)) is not None and len(world.workers) > 1:
        worker.leaving = True


def _crash(world: World, action: Action) -> None:
    """The main thread ends with an error: its queries are left to the fence, and its leases are given up."""
    if (worker := _worker(world, action)) is not None and len(world.workers) > 1:
        worker.consumers, worker.stuck_until = {}, 0.0
        worker.leaving = worker.draining = True
        world.run(worker)


def _reshard(world: World, action: Action) -> None:
    world.reshard(1 + action.what % MOST_SHARDS, newer=bool(action.who % 2))


def _grow(world: World, action: Action) -> None:
    world.grow(1 + action.what % MOST_SHARDS)


def _operate(world: World, action: Action) -> None:
    world.operate(action.size)


def _long_answer(world: World, action: Action) -> None:
    """A renewal lands at once, and its answer takes a lease and more: meanwhile the others renew, and see its
    row as it is.
    """
    if (worker := _worker(world, action)) is None:
        return

    def meanwhile() -> None:
        for _ in range(2 + action.size % 3):
            for other in world.awake():
                other.step()
                world.run(other)
            world.pass_time(LEASE_SECONDS * 0.55)
        world.look()

    world.store.slow = {Place.ANSWER: meanwhile}
    world.step(worker)


def _slow_seal(world: World, action: Action) -> None:
    """All others stand still for a lease. While one is about to seal what it took from them, they land what
    they have in hand.
    """

    def meanwhile() -> None:
        for worker in list(world.workers.values()):
            for key in list(worker.consumers):
                worker.land(key, Outcome.OK, at_once=False)

    if (worker := _worker(world, action)) is not None:
        world.step(worker)
        world.pass_time(LEASE_SECONDS * 1.05)
        world.step(worker)
        world.sink.meanwhile = meanwhile
        world.run(worker)
        world.sink.meanwhile = None


#: What can happen, and how often in a drawn history.
_ACTIONS: dict[str, Callable[[World, Action], None]] = {
    "step": _step,
    "slow step": _slow_step,
    "work": _work,
    "begin": _begin,
    "land": _land,
    "fail": _fail,
    "pause": _pause,
    "stick": _stick,
    "round": _round,
    "time": _time,
    "jump": _jump,
    "die": _die,
    "join": _join,
    "join with a shorter lease": _join_with_a_shorter_lease,
    "leave": _leave,
    "leave in a step": _leave_in_a_step,
    "crash": _crash,
    "reshard": _reshard,
    "long answer": _long_answer,
    "slow seal": _slow_seal,
    "grow": _grow,
    "operate": _operate,
}
WEIGHTS: dict[str, int] = {
    "step": 12, "slow step": 6, "work": 6, "begin": 10, "land": 10, "fail": 2, "pause": 5, "stick": 3, "round": 8,
    "time": 5, "jump": 1, "die": 2, "join": 2, "join with a shorter lease": 1, "leave": 1, "leave in a step": 4, "crash": 1, "reshard": 1,
    "long answer": 1, "slow seal": 2,
}  # fmt: skip
#: The same of a history in which a pipeline has several versions.
VERSION_WEIGHTS: dict[str, int] = WEIGHTS | {"operate": 14, "reshard": 3, "grow": 1}
