"""The plan of a replay as the ``runs`` table keeps it: the one writer and the one reader of that JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from hindcast.partitions import Offsets, by_partition
from hindcast.serving.corrected_windows import NOTHING
from hindcast.tables.excluded_records import Excluded, excluded_from_json, excluded_to_json


@dataclass(frozen=True)
class Counted:
    """What was in the range.

    Rows before the plan's start are read for their windows only. They count in ``rows_read``,
    ``judged_rows``, ``late_judged_rows``, ``pairs`` and ``poison_read``, and nowhere else. ``pairs`` are
    (row, judged window). ``late_rows`` were late for any window. ``output_rows`` are those of the answer in
    hindsight. ``poison_read``: of the rows that were read, those that are poison. ``one_answer``: the online
    answer is known to be the one in hindsight.
    """

    rows_read: int
    input_rows: int
    input_bytes: int
    dead_letters: int
    late_rows: int
    judged_rows: int
    late_judged_rows: int
    pairs: int
    output_rows: int
    latency_p50_seconds: float | None
    latency_p95_seconds: float | None
    reasons: dict[str, int] = field(default_factory=dict)
    poison_read: int = 0
    one_answer: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordedPlan:
    """The offsets, windows and versions of a replay; see :class:`hindcast.replay.planner.ReplayPlan`.

    :param seams: by partition, up to where the archive is read; in the JSON they are ``archive_to``
    :param sink_after: the rows that the sink's versions after this one brought are judged; -1 for all rows
    :param proof: the run that left the state in which the range begins; empty if there is none
    :param batches: how many batches of the stream read the range
    :param excluded: the records that are left out
    :param instants: by each time that was asked for (aware), the offsets that it stands for
    :param counted: what was in the range, once the replay has read it
    """

    asked: str
    topic: str
    start: Offsets
    end: Offsets
    read_from: Offsets
    seams: Offsets = field(default_factory=dict)
    windows_after_ms: int = 0
    windows_to_ms: int = 0
    sink_after: int = -1
    sink_version: int
    proof: str = ""
    corrections_version: int = NOTHING.version
    batches: int = 0
    left_out: str = ""
    excluded: Excluded = field(default_factory=dict)
    instants: Mapping[datetime, Offsets] = field(default_factory=dict)
    counted: Counted | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON's own types. Partitions are texts, as keys of JSON always are."""
        written: dict[str, Any] = {
            "asked": self.asked,
            "topic": self.topic,
            "start": _texts(self.start),
            "end": _texts(self.end),
            "read_from": _texts(self.read_from),
            "archive_to": _texts(self.seams),
            "windows_after_ms": self.windows_after_ms,
            "windows_to_ms": self.windows_to_ms,
            "sink_after": self.sink_after,
            "sink_version": self.sink_version,
            "proof": self.proof,
            "corrections_version": self.corrections_version,
            "batches": self.batches,
            "left_out": self.left_out,
        }
        if self.excluded:
            written["excluded"] = excluded_to_json(self.excluded)
        if self.instants:
            written["instants"] = {instant_text(at): _texts(offsets) for at, offsets in self.instants.items()}
        if self.counted is not None:
            written["counted"] = asdict(self.counted)
        return written

    def text(self) -> str:
        """The JSON as the table has it."""
        return json.dumps(self.to_json(), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what :meth:`text` wrote, also what an older Hindcast wrote without the later parts."""
        written = json.loads(text)
        counted = None
        if "counted" in written:
            counted = Counted(**written["counted"])
        return cls(
            asked=written["asked"],
            topic=written["topic"],
            start=by_partition(written["start"]),
            end=by_partition(written["end"]),
            read_from=by_partition(written["read_from"]),
            seams=by_partition(written.get("archive_to", {})),
            windows_after_ms=written["windows_after_ms"],
            windows_to_ms=written["windows_to_ms"],
            sink_after=written.get("sink_after", -1),
            sink_version=written["sink_version"],
            proof=written.get("proof", ""),
            corrections_version=written.get("corrections_version", NOTHING.version),
            batches=written["batches"],
            left_out=written.get("left_out", ""),
            excluded=excluded_from_json(written.get("excluded")),
            instants={
                datetime.fromisoformat(at): by_partition(offsets)
                for at, offsets in written.get("instants", {}).items()
            },
            counted=counted,
        )

    @property
    def range(self) -> tuple[str, Offsets, Offsets, Offsets]:
        """Which records it reads: two plans with equal ranges did the same work."""
        return self.topic, self.read_from, self.start, self.end

    @property
    def records(self) -> int:
        """How many records it reads, those before its range that only feed windows included."""
        return sum(self.end[partition] - offset for partition, offset in self.read_from.items())


def instant_text(at: datetime) -> str:
    """A time as the plan has it; equal times have equal texts."""
    return at.astimezone(UTC).isoformat()


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}
