"""What is wrong with some rows: a few are late, and a few are poison, which no stream can use."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast.local.generators.record import Record

LATE_SHARE = 0.02
LATE_SECONDS = 60.0  # a late row is late by up to this
POISON_SHARE = 0.001
FAR_FUTURE = timedelta(days=2)  # past every pipeline's max_future, which is one hour by default
DEEPER_THAN_PARSERS_GO = 1100  # Jackson stops at 1,000 levels

#: The fields of one JSON row, in order; ``ts`` is its event time, an aware instant.
Fields = Mapping[str, Any]


def json_record(
    rng: random.Random,
    due_seconds: float,
    key: bytes,
    fields: Fields,
    *,
    topic: str = "",
    late_share: float = LATE_SHARE,
    tombstones: bool = False,
) -> Record:
    """The fields as a record: late with the probability ``late_share``, poison with :data:`POISON_SHARE`, never both.

    :param tombstones: a record without value deletes its key in this topic, so it is no poison and is not made
    """
    draw = rng.random()
    if draw < POISON_SHARE:
        reason = rng.choice(reasons(fields, tombstones=tombstones))
        return Record(due_seconds, key, POISON[reason](fields), poison=reason, topic=topic)
    if draw < POISON_SHARE + late_share:
        return Record(due_seconds, key, to_json({**fields, "ts": set_back(rng, fields["ts"])}), late=True, topic=topic)
    return Record(due_seconds, key, to_json(fields), topic=topic)


def set_back(rng: random.Random, instant: datetime) -> datetime:
    """The event time of a late row."""
    return instant - timedelta(seconds=rng.uniform(0.0, LATE_SECONDS))


def to_json(value: object) -> bytes:
    """Compact JSON; instants in ISO 8601, UTC, to the millisecond."""
    return json.dumps(value, separators=(",", ":"), default=_iso).encode()


def reasons(fields: Fields, *, tombstones: bool = False) -> list[str]:
    """The keys of :data:`POISON` that can be wrong with such a row."""
    spared = {NO_VALUE} if tombstones else set()
    if not any(_is_number(value) for value in fields.values()):
        spared.add(WRONG_TYPE)  # any JSON reads as a string
    return [reason for reason in POISON if reason not in spared]


def _wrong_type(fields: Fields) -> bytes:
    """All numbers and flags are words: a pipeline's schema may lack any one of them."""
    return to_json({name: "n/a" if _is_number(value) else value for name, value in fields.items()})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _nested(fields: Fields) -> bytes:
    name = next(iter(fields)).encode()
    return b'{"' + name + b'":' + b"[" * DEEPER_THAN_PARSERS_GO + b"]" * DEEPER_THAN_PARSERS_GO + b"}"


NO_VALUE = "no value"
WRONG_TYPE = "wrong type"
#: What is wrong -> how a row becomes so. Each must be poison by the rules of hindcast.stream.source: an integration test
#: holds them to it.
POISON: dict[str, Callable[[Fields], bytes | None]] = {
    "cut off": lambda fields: to_json(fields)[:-9],
    "not json": lambda fields: ";".join(str(value) for value in fields.values()).encode(),
    "not an object": lambda fields: to_json(list(fields.values())),
    "empty": lambda _: b"",
    NO_VALUE: lambda _: None,
    WRONG_TYPE: _wrong_type,
    "nested": _nested,
    "nul bytes": lambda _: b"\0" * 16,
    "bad utf-8": lambda fields: b"\xc3\x28\x80" + to_json(fields),
    "no ts": lambda fields: to_json({name: value for name, value in fields.items() if name != "ts"}),
    "null ts": lambda fields: to_json({**fields, "ts": None}),
    "bad ts": lambda fields: to_json({**fields, "ts": "yesterday"}),
    "far future": lambda fields: to_json({**fields, "ts": fields["ts"] + FAR_FUTURE}),
}


def _iso(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
