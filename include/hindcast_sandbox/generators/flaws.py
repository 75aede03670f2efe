"""What is wrong with some rows: a few are late, and a few are poison, which means that no stream can use
them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast_sandbox.generators.record import Record

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
    """The fields as a record: late with probability ``late_share``, poison with :data:`POISON_SHARE`, never
    both.

    :param tombstones: a record without value deletes its key in this topic: it is not poison, and is not made
    """
    draw = rng.random()
    if draw < POISON_SHARE:
        reason = rng.choice(reasons(fields, tombstones=tombstones))
        spoil = POISON[reason]
        return Record(due_seconds, key, spoil(fields), poison=reason, topic=topic)
    if draw < POISON_SHARE + late_share:
        late_fields = {**fields, "ts": set_back(rng, fields["ts"])}
        return Record(due_seconds, key, to_json(late_fields), late=True, topic=topic)
    return Record(due_seconds, key, to_json(fields), topic=topic)


def set_back(rng: random.Random, instant: datetime) -> datetime:
    """The event time of a late row."""
    return instant - timedelta(seconds=rng.uniform(0.0, LATE_SECONDS))


def to_json(value: object) -> bytes:
    """Compact JSON; instants in ISO 8601, UTC, to the millisecond."""
    return json.dumps(value, separators=(",", ":"), default=_iso).encode()


def reasons(fields: Fields, *, tombstones: bool = False) -> list[str]:
    """The keys of :data:`POISON` that can be wrong with such a row."""
    possible = list(POISON)
    if tombstones:
        possible.remove(NO_VALUE)
    if not any(_is_number(value) for value in fields.values()):
        possible.remove(WRONG_TYPE)  # any JSON reads as a string
    return possible


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _cut_off(fields: Fields) -> bytes:
    return to_json(fields)[:-9]


def _not_json(fields: Fields) -> bytes:
    texts = map(str, fields.values())
    return ";".join(texts).encode()


def _not_an_object(fields: Fields) -> bytes:
    return to_json(list(fields.values()))


def _wrong_type(fields: Fields) -> bytes:
    """All numbers and flags become words, because a pipeline's schema may lack any one of them."""
    spoilt = dict(fields)
    for name, value in fields.items():
        if _is_number(value):
            spoilt[name] = "n/a"
    return to_json(spoilt)


def _nested(fields: Fields) -> bytes:
    name = next(iter(fields)).encode()
    lists = b"[" * DEEPER_THAN_PARSERS_GO + b"]" * DEEPER_THAN_PARSERS_GO
    return b'{"' + name + b'":' + lists + b"}"


def _bad_utf8(fields: Fields) -> bytes:
    return b"\xc3\x28\x80" + to_json(fields)


def _no_ts(fields: Fields) -> bytes:
    spoilt = dict(fields)
    spoilt.pop("ts", None)
    return to_json(spoilt)


def _far_future(fields: Fields) -> bytes:
    return to_json({**fields, "ts": fields["ts"] + FAR_FUTURE})


NO_VALUE = "no value"
WRONG_TYPE = "wrong type"
#: What is wrong -> the value of a row that is wrong in this way. Each must be poison by the rules of
#: hindcast.spark.parsed_records; an integration test checks that.
POISON: dict[str, Callable[[Fields], bytes | None]] = {
    "cut off": _cut_off,
    "not json": _not_json,
    "not an object": _not_an_object,
    "empty": lambda _: b"",
    NO_VALUE: lambda _: None,
    WRONG_TYPE: _wrong_type,
    "nested": _nested,
    "nul bytes": lambda _: b"\0" * 16,
    "bad utf-8": _bad_utf8,
    "no ts": _no_ts,
    "null ts": lambda fields: to_json({**fields, "ts": None}),
    "bad ts": lambda fields: to_json({**fields, "ts": "yesterday"}),
    "far future": _far_future,
}


def _iso(instant: datetime) -> str:
    utc = instant.astimezone(UTC)
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
