"""The words of a few sentences, one a record, as the classic word count reads them.

Text follows Zipf's law: its commonest word, *the*, comes many times as often as most others. The sentences
follow it too. Some rows are late, a few are poison.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count

from hindcast_sandbox.generators.flaws import json_record
from hindcast_sandbox.generators.record import Record

#: The first comes most often, the n-th one n-th as often.
SENTENCES = (
    "the river runs past the mill and under the old bridge to the sea",
    "a heron stands in the shallow water and waits for the fish",
    "the miller opens the gate and the wheel of the mill begins to turn",
    "in the morning the children walk to the bridge and count the boats",
    "one boat carries wood and another carries salt from the coast",
    "the keeper of the bridge writes each name in a book and lets the boat pass",
    "when rain falls in the hills the water rises and the wheel turns faster",
    "at night the lamps on the water look like stars that have come down to drink",
    "nobody remembers who built the bridge or why it has only three arches",
    "the wind brings the smell of bread and smoke across the fields to the harbour",
    "an old sailor says that the river was wider before the great flood",
    "every spring the herons return to the same tree and mend the same nest",
)


def words(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """``{"word", "ts"}``, key = word."""
    rng = random.Random(seed)
    text = _text(rng)
    for number in count():
        due = number / rows_per_second
        word = next(text)
        fields = {"word": word, "ts": start + timedelta(seconds=due)}
        yield json_record(rng, due, word.encode(), fields)


def _text(rng: random.Random) -> Iterator[str]:
    weights = [1 / rank for rank in range(1, len(SENTENCES) + 1)]
    while True:
        (sentence,) = rng.choices(SENTENCES, weights)
        yield from sentence.split()
