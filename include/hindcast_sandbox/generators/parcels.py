"""Parcels to be packed into trucks in the order in which they come, each load of parcels by itself: online
bin packing.

Most loads are random. Some are the classic bad case of first fit: first parcels just above a seventh of a
truck, then as many just above a third, then as many just above a half. One of each fills a truck of 100,
and first fit takes 5/3 times as many trucks. Some rows are late. A few are poison: a spoilt copy that comes
before the parcel itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count

from hindcast_sandbox.generators.flaws import json_record
from hindcast_sandbox.generators.record import Record

CAPACITY = 100
#: Just above a seventh, a third and a half of the capacity, and together all of it.
BAD_SIZES = (15, 34, 51)
BAD_SHARE = 0.25  # of the loads
LOADS_AT_A_TIME = 12


@dataclass(slots=True)
class _Load:
    name: str
    sizes: list[int]
    parcel: int = 1


def parcels(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """``{"truck_load", "parcel", "size", "ts"}``, key = truck_load.

    ``parcel`` counts a load's parcels from 1; ``size`` is 1 to 100.
    """
    rng = random.Random(seed)
    new_loads = _new_loads(rng)
    open_loads = [next(new_loads) for _ in range(LOADS_AT_A_TIME)]
    for number in count():
        due = number / rows_per_second
        place = rng.randrange(LOADS_AT_A_TIME)
        load = open_loads[place]
        fields = {
            "truck_load": load.name,
            "parcel": load.parcel,
            "size": load.sizes[load.parcel - 1],
            "ts": start + timedelta(seconds=due),
        }
        record = json_record(rng, due, load.name.encode(), fields)
        yield record
        if record.poison:
            continue
        load.parcel += 1
        if load.parcel > len(load.sizes):
            open_loads[place] = next(new_loads)


def _new_loads(rng: random.Random) -> Iterator[_Load]:
    for number in count():
        yield _Load(f"l{number:06}", _sizes(rng))


def _sizes(rng: random.Random) -> list[int]:
    if rng.random() < BAD_SHARE:
        each = 6 * rng.randint(1, 4)  # first fit leaves no truck half full when the size changes
        sizes = []
        for size in BAD_SIZES:
            sizes += [size] * each
        return sizes
    parcels_of_load = rng.randint(10, 60)
    return [rng.randint(1, CAPACITY) for _ in range(parcels_of_load)]
