"""What a person or a schedule asks of a replay, before anything is looked up. Pure Python: the CLI, Airflow and the Spark app share it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from hindcast.errors import BadRangeError
from hindcast.pipeline import check_name

FORMS = "Give --from-offsets and --to-offsets, or --from-time and --to-time, or --since-last-verdict, or --late, or --all."
OFFSETS_FORM = 'Offsets are JSON of partition to offset, e.g. {"0": 100, "1": 200}.'
TIME_FORM = "Times are ISO 8601 with an offset from UTC, e.g. 2026-01-31T12:00:00+00:00."


def new_run_id(pipeline: str, at: datetime) -> str:
    """A run id that sorts by time and that no other run has; at most 64 characters."""
    stamp = at.astimezone(UTC).strftime("%Y%m%dT%H%M%S")
    return f"{pipeline[:40]}-{stamp}-{uuid.uuid4().hex[:6]}"


def parse_offsets(text: str) -> dict[int, int]:
    """``{"0": 12}`` as partition -> offset.

    :raises BadRangeError: where it is anything else, or an offset is negative
    """
    try:
        offsets = {int(partition): offset for partition, offset in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise BadRangeError(range=text, problem="it is not JSON of partition to offset", cure=OFFSETS_FORM) from error
    if not offsets or any(
        not isinstance(offset, int) or isinstance(offset, bool) or offset < 0 or partition < 0 for partition, offset in offsets.items()
    ):
        raise BadRangeError(range=text, problem="partitions and offsets are whole numbers from 0, at least one of them", cure=OFFSETS_FORM)
    return offsets


def parse_time(text: str) -> datetime:
    """An aware instant in UTC.

    :raises BadRangeError: where the text is no ISO 8601 time, or says no offset from UTC
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
    """One range of one pipeline: exactly one of offsets, times, ``since_last_verdict``, ``late`` or ``everything``.

    ``late``: from the first window for which a late row came that no correction has.

    Ends are exclusive. Times are broker timestamps. ``run_id`` empty means: a new one; ``version`` 0: the active one.

    :raises BadRangeError: where the parts do not make one range
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
        for first, last in ((self.from_offsets, self.to_offsets), (self.from_time, self.to_time)):
            if (first is None) != (last is None):
                raise BadRangeError(range=self.describe(), problem="it has only one of its two ends", cure=FORMS)
        ways = [self.from_offsets is not None, self.from_time is not None, self.since_last_verdict, self.late, self.everything]
        if sum(ways) != 1:
            raise BadRangeError(range=self.describe(), problem=f"{sum(ways)} ranges were given, not one", cure=FORMS)

    @classmethod
    def parse(
        cls,
        *,
        pipeline: str,
        run_id: str = "",
        from_offsets: str = "",
        to_offsets: str = "",
        from_time: str = "",
        to_time: str = "",
        since_last_verdict: bool = False,
        late: bool = False,
        everything: bool = False,
        version: int = 0,
    ) -> Self:
        """Build a request from texts as they come from a command line or a form; an empty text is an absent one."""
        return cls(
            pipeline=pipeline,
            run_id=run_id,
            since_last_verdict=since_last_verdict,
            late=late,
            everything=everything,
            version=version,
            from_offsets=parse_offsets(from_offsets) if from_offsets else None,
            to_offsets=parse_offsets(to_offsets) if to_offsets else None,
            from_time=parse_time(from_time) if from_time else None,
            to_time=parse_time(to_time) if to_time else None,
        )

    def to_arguments(self) -> list[str]:
        """The arguments that follow ``hindcast`` or ``judge`` on the command line of ``spark_apps/replay.py``; never for a shell string."""
        arguments = ["--pipeline", self.pipeline, *(["--version", str(self.version)] if self.version else [])]
        if self.from_offsets is not None and self.to_offsets is not None:
            arguments += ["--from-offsets", _offsets_text(self.from_offsets), "--to-offsets", _offsets_text(self.to_offsets)]
        if self.from_time is not None and self.to_time is not None:
            arguments += ["--from-time", self.from_time.isoformat(), "--to-time", self.to_time.isoformat()]
        arguments += ["--since-last-verdict"] if self.since_last_verdict else []
        arguments += ["--late"] if self.late else []
        arguments += ["--all"] if self.everything else []
        return arguments + (["--run-id", self.run_id] if self.run_id else [])

    def describe(self) -> str:
        """The range in one line, for messages and for telling whether two requests ask the same."""
        parts: list[Any] = []
        if self.from_offsets is not None or self.to_offsets is not None:
            parts += [f"offsets {_offsets_text(self.from_offsets)} to {_offsets_text(self.to_offsets)}"]
        if self.from_time is not None or self.to_time is not None:
            parts += [f"times {_time_text(self.from_time)} to {_time_text(self.to_time)}"]
        parts += ["since the last verdict"] if self.since_last_verdict else []
        parts += ["late rows that no correction has"] if self.late else []
        parts += ["all"] if self.everything else []
        of = f"{self.pipeline} version {self.version}" if self.version else self.pipeline
        return f"{of}: {' and '.join(parts) or 'nothing'}"


def _offsets_text(offsets: Mapping[int, int] | None) -> str:
    return json.dumps({str(partition): offset for partition, offset in sorted((offsets or {}).items())}) if offsets is not None else "?"


def _time_text(at: datetime | None) -> str:
    return at.isoformat() if at is not None else "?"
