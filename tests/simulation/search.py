"""Exhaustive search: every interleaving of two workers and one shard up to a depth.

Histories that lead to the same state (same rows, same sink, same memories, same ages of what was seen) have
the same future and are followed once; they are counted all the same. The oracles look at every move, also
where it leads to a state that is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from simulation.oracles import Breach, check
from simulation.ports import AWAY, Away
from simulation.worker import SimulatedWorker
from simulation.world import LEASE_SECONDS, World

from hindcast.leases.lease import LeaseKey
from hindcast.testing import Outcome

#: A step's outcomes: what each of the store's answers is.
STEPS: dict[str, tuple[Outcome | Away, ...]] = {
    "ok": (),
    "conflict": (Outcome.CONFLICT,),
    "fail": (Outcome.FAIL,),
    "unknown, written": (Outcome.UNKNOWN_WRITTEN,),
    "unknown, lost": (Outcome.UNKNOWN_LOST,),
    "unknown, written, then away": (Outcome.UNKNOWN_WRITTEN, AWAY),
}


@dataclass(frozen=True)
class Moves:
    """What can happen. ``times`` are the shares of a lease that may pass at once; ``at_once``: the main
    thread acts on each step, and each batch that lands is reported, in the same move.
    """

    times: tuple[float, ...]
    steps: tuple[str, ...]
    lands: tuple[Outcome, ...]
    at_once: bool

    def of(self, world: World) -> Iterator[World]:
        """Each world that one move leads to. A move that cannot be made (nothing is in hand to land) is
        none.
        """
        for share in self.times:
            yield _after(world, lambda after, share=share: after.pass_time(share * LEASE_SECONDS))
        for name, worker in world.workers.items():
            for plan in self.steps:
                yield _after(world, lambda after, name=name, plan=plan: self._step(after, name, plan))
            if not self.at_once and _has_work(worker):
                yield _after(world, lambda after, name=name: after.workers[name].work())
            for key, consumer in worker.consumers.items():
                yield _after(world, lambda after, name=name, key=key: after.workers[name].fail(key))
                if consumer.in_hand is None:
                    yield _after(world, lambda after, name=name, key=key: after.workers[name].begin(key))
                    continue
                for outcome in self.lands:
                    yield _after(
                        world,
                        lambda after, name=name, key=key, outcome=outcome: after.workers[name].land(
                            key, outcome, at_once=self.at_once
                        ),
                    )

    def _step(self, world: World, name: str, plan: str) -> None:
        world.store.plan = list(STEPS[plan])
        world.workers[name].step()
        world.store.plan = []
        if self.at_once:
            world.workers[name].work()


def _after(world: World, move: Callable[[World], None]) -> World:
    after = world.copied()
    move(after)
    return after


def _has_work(worker: SimulatedWorker) -> bool:
    return any(step.gained or step.lost or step.close for step in worker.renewals) or any(
        consumer.draining or not worker.coordinator.held.holds(key, consumer.epoch)
        for key, consumer in worker.consumers.items()
    )


#: Every answer and every thread by itself.
FINE = Moves(
    (0.45, 0.85), tuple(STEPS), (Outcome.OK, Outcome.UNKNOWN_WRITTEN, Outcome.UNKNOWN_LOST), at_once=False
)
#: Fewer, so that it goes deeper in the same time: a worker's threads move together, and one time passes. A
#: conflict or a lost commit is tried again within the step and so ends like one that is well; FINE has them
#: all the same.
COARSE = Moves((0.45,), ("ok", "unknown, written, then away"), (Outcome.OK,), at_once=True)


class Search(NamedTuple):
    """``histories`` counts interleavings of exactly ``depth`` moves; ``states`` those that differ; ``moves``
    are those that were played.
    """

    depth: int
    histories: int
    states: int
    moves: int
    breaches: list[Breach]


def explore(depth: int, moves: Moves, *, owned: bool = False) -> Search:
    """Play all there is to play, up to the first breach.

    :param owned: begin where the first worker consumes the shard and the second has seen it, instead of where
        it is free
    """
    start = World(2, 1, steady=True)
    if owned:
        for worker in start.workers.values():
            worker.step()
            worker.work()
    worlds = {_state(start): start}
    following: dict[Any, list[Any]] = {}  # the states that a state's moves lead to
    layer = Counter(dict.fromkeys(worlds, 1))
    played = 0
    for _ in range(depth):
        reached: Counter[Any] = Counter()
        for state, histories in layer.items():
            if state not in following:
                following[state] = []
                for after in moves.of(worlds.pop(state)):
                    played += 1
                    after.look()
                    if breaches := check(after.history):
                        return Search(depth, sum(reached.values()), len(following), played, breaches)
                    following[state].append(_state(after))
                    if following[state][-1] not in following:
                        worlds.setdefault(following[state][-1], after)
            for next_state in following[state]:
                reached[next_state] += histories
        layer = reached
    return Search(depth, sum(layer.values()), len(following.keys() | layer.keys()), played, [])


def _state(world: World) -> Any:
    """All that the future depends on; instants as ages, counters as whether they were seen."""
    rows = tuple(
        (key, row.lease_owner, row.lease_stealer, row.epoch, row.state, row.checkpoint.get("batch", 0))
        for key, row in world.store.rows.items()
    )
    workers = tuple(_memory(world, worker) for worker in world.workers.values())
    return (
        rows,
        tuple(world.sink.recorded.items()),
        workers,
        max((event.epoch for event in world.history if event.op == "begin"), default=0),
    )


def _memory(world: World, worker: SimulatedWorker) -> Any:
    coordinator, now = worker.coordinator, worker.clock.monotonic()
    held = tuple(
        (
            key,
            lease.epoch,
            round(max(lease.valid_until - now, 0.0), 2),
            lease.closing,
            lease.closed,
            lease.checkpoint.get("batch", 0),
        )
        for key, lease in sorted(coordinator.held.leases.items())
    )
    ages = tuple(_age(world, worker, key, now) for key in world.store.rows)
    consumers = tuple(
        (consumer.epoch, consumer.after, consumer.in_hand, consumer.unreported, consumer.draining)
        for consumer in worker.consumers.values()
    )
    steps = tuple(
        (tuple(step.lost), tuple(step.close), tuple((lease.key, lease.epoch) for lease in step.gained))
        for step in worker.renewals
        if step.lost or step.close or step.gained
    )
    return held, ages, consumers, steps, coordinator.held.slot, worker.draining


def _age(world: World, worker: SimulatedWorker, key: LeaseKey, now: float) -> float | None:
    """For how long this worker has seen the row as it is; None where it has not."""
    row, known = world.store.rows[key], worker.coordinator._observer._seen.get(key)
    if known is None or known[0] != (row.lease_owner, row.epoch, row.lease_counter):
        return None
    return round(min(now - known[1], LEASE_SECONDS), 2)
