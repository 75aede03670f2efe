"""Speakers who talk at the same time, one word a record. The last word of a sentence has a full stop.

This is the stream of Storm's example of stateful Kafka consumption: sentences are put together from words.
The order of the words within a partition matters, so no row is late. A few are poison: a spoilt copy that
comes before the word itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from hindcast_sandbox.generators.flaws import json_record
from hindcast_sandbox.generators.record import Record

#: Under Kafka's own partitioner these fall on all of 4 partitions.
SPEAKERS = ("ada", "ben", "cleo", "dora", "emil", "finn", "greta", "hugo", "ines", "jonas", "kira", "leo")
SENTENCES = (
    "I saw it first.",
    "Nobody asked the river where it goes.",
    "Please pass the salt.",
    "The last train leaves at nine and it never waits.",
    "We could walk along the wall until we find a door.",
    "My grandmother kept bees behind the school.",
    "Stop.",
    "It rained for three days and then the bridge was gone.",
    "Tell me again what the captain said about the map.",
    "There is always one more stair than you remember.",
)


@dataclass(slots=True)
class _Speaker:
    seq: int = 0
    rest: list[str] = field(default_factory=list)


def sentences(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """``{"speaker", "word", "seq", "ts"}``, key = speaker; ``seq`` counts a speaker's words from 0."""
    rng = random.Random(seed)
    speakers = {name: _Speaker() for name in SPEAKERS}
    for number in count():
        due = number / rows_per_second
        name = rng.choice(SPEAKERS)
        speaker = speakers[name]
        if not speaker.rest:
            speaker.rest = rng.choice(SENTENCES).split()
        fields = {
            "speaker": name,
            "word": speaker.rest[0],
            "seq": speaker.seq,
            "ts": start + timedelta(seconds=due),
        }
        record = json_record(rng, due, name.encode(), fields, late_share=0.0)
        yield record
        if not record.poison:
            speaker.seq += 1
            del speaker.rest[0]
