"""Days on skis, for the question whether to rent or to buy: nobody knows beforehand how many days a skier
will come.

A skier comes for 1 to 40 days. Half of the skiers draw the number evenly; half give up after each day with
the same probability. Then a new skier begins. Some rows are late. A few are poison: a spoilt copy that
comes before the day itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count

from hindcast_sandbox.generators.flaws import json_record
from hindcast_sandbox.generators.record import Record

MOST_DAYS = 40
EVEN_SHARE = 0.5  # of the skiers draw their number of days evenly
GIVES_UP = 0.15  # after each day; the mean is between 6 and 7 days
SKIERS_AT_A_TIME = 40


@dataclass(slots=True)
class _Skier:
    name: str
    days: int
    day: int = 1


def rentals(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """``{"skier", "day", "ts"}``, key = skier; ``day`` counts a skier's days from 1."""
    rng = random.Random(seed)
    new_skiers = _new_skiers(rng)
    skiing = [next(new_skiers) for _ in range(SKIERS_AT_A_TIME)]
    for number in count():
        due = number / rows_per_second
        place = rng.randrange(SKIERS_AT_A_TIME)
        skier = skiing[place]
        fields = {"skier": skier.name, "day": skier.day, "ts": start + timedelta(seconds=due)}
        record = json_record(rng, due, skier.name.encode(), fields)
        yield record
        if record.poison:
            continue
        skier.day += 1
        if skier.day > skier.days:
            skiing[place] = next(new_skiers)


def _new_skiers(rng: random.Random) -> Iterator[_Skier]:
    for number in count():
        yield _Skier(f"s{number:06}", _days(rng))


def _days(rng: random.Random) -> int:
    if rng.random() < EVEN_SHARE:
        return rng.randint(1, MOST_DAYS)
    days = 1
    while days < MOST_DAYS and rng.random() >= GIVES_UP:
        days += 1
    return days
