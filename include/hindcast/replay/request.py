"""What a person or a schedule asks of a replay, before anything is looked up. Pure Python.

A range is declared once, here: :data:`RANGE_OPTIONS` says which parts it has and how each is written as text.
The options of the command line, the fields of Airflow's forms and the arguments of ``hindcast.apps.replay``
are made from it.
"""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Self, TypedDict

from hindcast.errors import BadRangeError
from hindcast.pipeline import check_name

FORMS = (
    "Give --from-offsets and --to-offsets, or --from-time and --to-time, "
    "or --since-last-verdict, or --late, or --all."
)
OFFSETS_FORM = 'Offsets are JSON of partition to offset, e.g. {"0": 100, "1": 200}.'
TIME_FORM = "Times are ISO 8601 with an offset from UTC, e.g. 2026-01-31T12:00:00+00:00."


class RangeValue(Enum):
    """What the value of a part of a range is."""

    OFFSETS = "JSON of partition to offset"
    TIME = "an ISO 8601 time with an offset from UTC"
    FLAG = "given or not"


@dataclass(frozen=True)
class RangeOption:
    """One part of a range: a field of :class:`ReplayRequest` and an option of the command line."""

    field: str
    flag: str
    value: RangeValue
    help: str


RANGE_OPTIONS = (
    RangeOption(
        "from_offsets",
        "--from-offsets",
        RangeValue.OFFSETS,
        'first offset of each partition: {"0": 100, "1": 200}',
    ),
    RangeOption(
        "to_offsets", "--to-offsets", RangeValue.OFFSETS, "offset after the last one of each partition"
    ),
    RangeOption(
        "from_time",
        "--from-time",
        RangeValue.TIME,
        "broker timestamp of the first records, ISO 8601 with an offset from UTC",
    ),
    RangeOption(
        "to_time", "--to-time", RangeValue.TIME, "records of this broker timestamp or later are left out"
    ),
    RangeOption(
        "since_last_verdict",
        "--since-last-verdict",
        RangeValue.FLAG,
        "the stream's input since the last verdict",
    ),
    RangeOption(
        "late", "--late", RangeValue.FLAG, "from the first window with a late row that no correction has"
    ),
    RangeOption(
        "everything", "--all", RangeValue.FLAG, "all that the topic holds and the stream has committed"
    ),
)


class RangeFields(TypedDict, total=False):
    """The range of a replay as keyword arguments; :class:`ReplayRequest` says which of them go together."""

    from_offsets: Mapping[int, int]
    to_offsets: Mapping[int, int]
    from_time: datetime
    to_time: datetime
    since_last_verdict: bool
    late: bool
    everything: bool


def new_run_id(pipeline: str, at: datetime) -> str:
    """A run id that sorts by time and that no other run has; at most 64 characters."""
    stamp = at.astimezone(UTC).strftime("%Y%m%dT%H%M%S")
    return f"{pipeline[:40]}-{stamp}-{uuid.uuid4().hex[:6]}"


def parse_offsets(text: str) -> dict[int, int]:
    """``{"0": 12}`` as partition -> offset.

    :raises BadRangeError: if it is anything else, or an offset is negative
    """
    offsets: dict[int, int] = {}
    try:
        for partition, offset in json.loads(text).items():
            offsets[int(partition)] = offset
    except (ValueError, AttributeError, TypeError) as error:
        problem = "it is not JSON of partition to offset"
        raise BadRangeError(range=text, problem=problem, cure=OFFSETS_FORM) from error
    numbers = [*offsets.keys(), *offsets.values()]
    if not numbers or not all(_is_offset(number) for number in numbers):
        problem = "partitions and offsets are whole numbers from 0, at least one of them"
        raise BadRangeError(range=text, problem=problem, cure=OFFSETS_FORM)
    return offsets


def _is_offset(number: Any) -> bool:
    # In Python true and false are whole numbers too.
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def parse_time(text: str) -> datetime:
    """An aware instant in UTC.

    :raises BadRangeError: if the text is no ISO 8601 time, or says no offset from UTC
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRangeError(range=text, problem="it is not a time", cure=TIME_FORM) from error
    if at.tzinfo is None:
        raise BadRangeError(range=text, problem="the time says no offset from UTC", cure=TIME_FORM)
    return at.astimezone(UTC)


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """One range of one pipeline: exactly one of offsets, times, ``since_last_verdict``, ``late`` or
    ``everything``.

    Ends are exclusive. Times are broker timestamps. ``late`` begins at the first window that has a late row
    which no correction has. An empty ``run_id`` means a new one; ``version`` 0 means the active one.

    :raises BadRangeError: if the parts do not make one range
    """

    pipeline: str
    run_id: str = ""
    from_offsets: Mapping[int, int] | None = None
    to_offsets: Mapping[int, int] | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None
    since_last_verdict: bool = False
    late: bool = False
    everything: bool = False
    version: int = 0

    def __post_init__(self) -> None:
        check_name("pipeline", self.pipeline)
        if self.run_id:
            check_name("run", self.run_id)
        self._check_ends(self.from_offsets, self.to_offsets)
        self._check_ends(self.from_time, self.to_time)
        ways = [
            self.from_offsets is not None,
            self.from_time is not None,
            self.since_last_verdict,
            self.late,
            self.everything,
        ]
        if sum(ways) != 1:
            problem = f"{sum(ways)} ranges were given, not one"
            raise BadRangeError(range=self.describe(), problem=problem, cure=FORMS)

    def _check_ends(self, first: object, last: object) -> None:
        if (first is None) != (last is None):
            problem = "it has only one of its two ends"
            raise BadRangeError(range=self.describe(), problem=problem, cure=FORMS)

    @classmethod
    def parse(cls, *, pipeline: str, run_id: str = "", version: int = 0, **range_: Any) -> Self:
        """Build a request from texts as they come from a command line or a form. An empty text is an absent
        one.

        :param range_: by the field of a :class:`RangeOption`, its text, or whether it is given
        """
        fields: dict[str, Any] = {}
        for option in RANGE_OPTIONS:
            given = range_.pop(option.field, "")
            if given:
                fields[option.field] = _parse(option, given)
        if range_:
            raise TypeError(f"a range has no {', '.join(sorted(range_))}")
        return cls(pipeline=pipeline, run_id=run_id, version=version, **fields)

    def to_arguments(self) -> list[str]:
        """The arguments that follow the command of ``hindcast.apps.replay``; never for a shell string."""
        arguments = ["--pipeline", self.pipeline]
        if self.version:
            arguments += ["--version", str(self.version)]
        for option in RANGE_OPTIONS:
            arguments += _arguments(option, getattr(self, option.field))
        if self.run_id:
            arguments += ["--run-id", self.run_id]
        return arguments

    def describe(self) -> str:
        """The range in one line, for messages and for telling whether two requests ask the same."""
        parts: list[str] = []
        if self.from_offsets is not None or self.to_offsets is not None:
            parts.append(f"offsets {_offsets_text(self.from_offsets)} to {_offsets_text(self.to_offsets)}")
        if self.from_time is not None or self.to_time is not None:
            parts.append(f"times {_time_text(self.from_time)} to {_time_text(self.to_time)}")
        if self.since_last_verdict:
            parts.append("since the last verdict")
        if self.late:
            parts.append("late rows that no correction has")
        if self.everything:
            parts.append("all")
        name = self.pipeline
        if self.version:
            name = f"{self.pipeline} version {self.version}"
        return f"{name}: {' and '.join(parts) or 'nothing'}"


def add_range_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser of arguments one for each part of a range; :meth:`ReplayRequest.parse` takes their
    values.
    """
    for option in RANGE_OPTIONS:
        if option.value is RangeValue.FLAG:
            parser.add_argument(option.flag, dest=option.field, action="store_true", help=option.help)
        else:
            parser.add_argument(option.flag, dest=option.field, default="", help=option.help)


def _parse(option: RangeOption, given: Any) -> Any:
    if option.value is RangeValue.OFFSETS:
        return parse_offsets(given)
    if option.value is RangeValue.TIME:
        return parse_time(given)
    return given


def _arguments(option: RangeOption, value: Any) -> list[str]:
    """The flag and its text; nothing if the part is absent."""
    if option.value is RangeValue.FLAG:
        return [option.flag] if value else []
    if value is None:
        return []
    if option.value is RangeValue.OFFSETS:
        return [option.flag, _offsets_text(value)]
    return [option.flag, _time_text(value)]


def _offsets_text(offsets: Mapping[int, int] | None) -> str:
    if offsets is None:
        return "?"
    by_text = {str(partition): offset for partition, offset in sorted(offsets.items())}
    return json.dumps(by_text)


def _time_text(at: datetime | None) -> str:
    if at is None:
        return "?"
    return at.isoformat()
