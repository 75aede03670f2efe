"""Histories drawn from a seed, each of which can be repeated alone, and those that are kept because they have
found something.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice

from simulation.actions import VERSION_WEIGHTS, WEIGHTS, Action, act
from simulation.history import Op
from simulation.oracles import Breach
from simulation.world import MOST_SHARDS, MOST_WORKERS, World

#: Numbers of an action are drawn below this: a multiple of what they pick from.
SPREAD = 120


#: (workers, shards, actions) that broke an oracle once and are too rare to wait for, by what they found.
KEPT: dict[str, tuple[int, int, list[Action]]] = {
    "a worker that is told to stop while its renewal is answered frees what it took in it": (
        4,
        7,
        [Action("leave in a step", 113, 108, 61)],
    ),
    "a worker has a shard again before its main thread knows that it had lost it": (
        5,
        7,
        [
            Action("step", 52, 67, 72),
            Action("pause", 113, 81, 99),
            Action("die", 40, 89, 39),
            Action("die", 91, 44, 88),
            Action("step", 14, 79, 30),
            Action("join", 112, 76, 64),
            Action("slow step", 95, 21, 97),
            Action("step", 92, 32, 98),
            Action("pause", 30, 102, 92),
            Action("die", 48, 47, 2),
            Action("begin", 50, 28, 1),
            Action("land", 37, 116, 37),
            Action("pause", 42, 111, 63),
            Action("round", 21, 111, 51),
            Action("time", 8, 92, 85),
            Action("slow step", 101, 101, 87),
            Action("round", 97, 22, 30),
            Action("slow step", 98, 72, 47),
            Action("step", 77, 84, 12),
            Action("begin", 26, 116, 28),
        ],
    ),
    "the last workers, told to leave, go when all is well again": (
        4,
        2,
        [
            Action("reshard", 110, 83, 36),
            Action("die", 12, 43, 100),
            Action("round", 47, 76, 42),
            Action("crash", 63, 49, 88),
            Action("slow step", 58, 66, 34),
            Action("round", 54, 19, 45),
            Action("leave", 50, 72, 20),
            Action("join", 91, 5, 82),
            Action("pause", 39, 32, 79),
            Action("step", 37, 34, 83),
            Action("die", 73, 27, 112),
            Action("leave", 42, 25, 4),
        ],
    ),
    "a lone worker that may have one shard waiting takes the next as soon as that has started, through two versions": (
        3,
        8,
        [
            Action("crash", 34, 80, 35),
            Action("pause", 65, 18, 14),
            Action("slow step", 116, 50, 11),
            Action("leave", 119, 29, 38),
            Action("reshard", 7, 68, 40),
            Action("slow step", 112, 38, 29),
            Action("operate", 13, 5, 69),
            Action("crash", 89, 105, 76),
        ],
    ),
    "a lone worker that may have one shard waiting takes the next as soon as that has started, through a growing topic": (
        2,
        1,
        [
            Action("step"),
            Action("join with a shorter lease"),
            Action("leave", 1),
            Action("long answer", 1),
            Action("operate", size=3),
            Action("step"),
            Action("die"),
            Action("grow", what=2),
        ],
    ),
    "a worker with a shorter lease is refused, while it would take what its owner still holds": (
        4,
        2,
        [
            Action("leave in a step", 74, 18, 63),
            Action("operate", 110, 78, 64),
            Action("join with a shorter lease", 9, 116, 51),
            Action("join", 94, 117, 3),
            Action("pause", 30, 28, 91),
            Action("round", 91, 114, 119),
        ],
    ),
}


def draw(seed: str, steps: int) -> tuple[int, int, list[Action]]:
    """(workers, shards, actions) of the history of this seed. Every second has several versions."""
    dice = random.Random(seed)
    workers, shards = dice.randint(2, MOST_WORKERS), dice.randint(1, MOST_SHARDS)
    weights = VERSION_WEIGHTS if dice.random() < 1 / 2 else WEIGHTS
    names = dice.choices(list(weights), list(weights.values()), k=steps)
    return (
        workers,
        shards,
        [
            Action(name, dice.randrange(SPREAD), dice.randrange(SPREAD), dice.randrange(SPREAD))
            for name in names
        ],
    )


def play(workers: int, shards: int, actions: list[Action]) -> World:
    """A world to which these actions have happened and which was healed after them."""
    world = World(workers, shards)
    for action in actions:
        act(world, action)
    world.heal()
    return world


def shrink(workers: int, shards: int, actions: list[Action], oracle: str) -> list[Action]:
    """Fewer actions that still break the same oracle: halves, quarters and at last single ones are left
    out.
    """
    size = len(actions) // 2
    while size:
        at = 0
        while at < len(actions):
            fewer = actions[:at] + actions[at + size :]
            if any(breach.oracle == oracle for breach in play(workers, shards, fewer).breaches()):
                actions = fewer
            else:
                at += size
        size //= 2
    return actions


def histories(seed: str, steps: int) -> Iterator[tuple[int, int, list[Action]]]:
    """The kept ones, then drawn ones without end."""
    yield from KEPT.values()
    yield from (draw(f"{seed}/{number}", steps) for number in count())


def has_versions(actions: list[Action]) -> bool:
    """Whether an operator makes new versions in it."""
    return any(action.name == "operate" for action in actions)


def changes(world: World) -> set[str]:
    """What became of the versions of a world that was played: kinds of changes."""
    return {event.places.change for event in world.history if event.op is Op.ROLLOUT}


def first_breach(seed: str, most: int, steps: int) -> tuple[int, Breach] | None:
    """How many histories it takes until an oracle breaks, and which; None where none of them does."""
    for number, history in enumerate(islice(histories(seed, steps), most), 1):
        if breaches := play(*history).breaches():
            return number, breaches[0]
    return None
