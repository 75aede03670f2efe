"""Shapes of pipeline whose function raises on some records, and such records."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from support.shapes import APPEND, Join, Shape, iso
from support.simulated_stream import Record

_CHECKED = """
AWAY = __file__.replace(".py", ".away")

def checked(ask):
    import os
    if os.path.exists(AWAY):
        raise ConnectionError("the service is away")
    if ask < 0:
        raise ValueError(f"the ask {ask} is negative")
    return ask

@pipeline("""


@dataclass(frozen=True)
class Raising(Shape):
    """Another shape, whose function raises on each trade with a negative ask."""

    of: Shape = field(default_factory=Shape)

    def module(self, name: str, topic: str, version: int, shards: int) -> str:
        text = self.of.module(name, topic, version, shards).replace("@pipeline(", _CHECKED, 1)
        begun, function, rest = text.partition(f"def {name}(")
        head, colon, body = rest.partition(":\n")
        return (
            begun
            + function
            + head
            + colon
            + '    trades = trades.where(F.udf(checked, "double")("ask") >= 0)\n'
            + body
        )


def raising(of: Shape) -> Shape:
    """The shape with a function that raises; all else is as it was."""
    made = Raising(of.name, of.upserts, of.clockwork, of)
    # What is not the module is the other shape's own.
    for name in ("topics", "tables", "spread", "value", "encoded", "windows_late", "expected", "result"):
        object.__setattr__(made, name, getattr(of, name))
    return made


def bad(record: Record, shape: Shape = APPEND) -> Record:
    """The record with a negative ask. No result has it, as if it were poison."""
    assert record.event_ms is not None
    value = {"ticker": record.ticker, "ts": iso(record.event_ms), "ask": -1.0}
    if isinstance(shape, Join):
        value["id"] = "bad"
    return replace(record, event_ms=None, poison=json.dumps(value).encode())


def spoil(
    records: list[Record], *numbers: int, shape: Shape = APPEND
) -> tuple[list[Record], set[tuple[int, int]]]:
    """The feed with bad records: the first good one from each of these numbers on. And their places."""
    spoilt = list(records)
    places = set()
    for number in numbers:
        while spoilt[number].event_ms is None:
            number += 2  # noqa: PLW2901 - the next one, of the same topic
        spoilt[number] = bad(spoilt[number], shape)
        places.add(spoilt[number].place)
    return spoilt, places
