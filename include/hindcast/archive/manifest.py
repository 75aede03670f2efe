"""What an archive holds, as its newest commit says of itself. Pure Python.

It counts ranges of offsets, not rows. A compacted topic, an aborted transaction and a transaction's own marks
leave offsets without a record, and a range that was read to its end is complete all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from hindcast.archive.archive_or_live import Ranges, extended, with_older
from hindcast.partitions import Offsets


@dataclass(frozen=True)
class Gap:
    """The offsets [start, end) of a partition that the topic dropped before they were archived, and why a
    person accepted that.
    """

    partition: int
    start: int
    end: int
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.start} to {self.end} of partition {self.partition}"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that was archived of a topic, by its own partitions. Ends are exclusive.

    ``number`` counts the commits. ``step`` names the last one, so that its writer recognises it. ``ends``:
    where the archive continues; a partition may have an end and no range. ``newest_at`` is the greatest
    broker timestamp, ISO 8601 in UTC, "" before the first row.
    """

    topic: str
    topic_id: str = ""
    number: int = 0
    step: str = ""
    ends: Offsets = field(default_factory=dict)
    ranges: Mapping[int, Ranges] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    rows: int = 0
    bytes: int = 0
    newest_at: str = ""

    def starts(self, earliest: Mapping[int, int]) -> Offsets:
        """Where the next step begins, for each partition of the topic.

        Before the first commit it is the topic's earliest offset, then the end of the archive: 0 for a
        partition that was added since.
        """
        if self.number == 0:
            return dict(earliest)
        return {partition: self.ends.get(partition, 0) for partition in earliest}

    def lost(self, earliest: Mapping[int, int]) -> tuple[Gap, ...]:
        """The offsets that the topic no longer holds and the archive does not either."""
        gaps: list[Gap] = []
        for partition, start in self.starts(earliest).items():
            first_held = earliest[partition]
            if first_held > start:
                gaps.append(Gap(partition, start, first_held))
        return tuple(gaps)

    def with_gaps(self, step: str, gaps: Sequence[Gap]) -> Self:
        """After a commit that continues behind these gaps."""
        ends = dict(self.ends)
        for gap in gaps:
            ends[gap.partition] = gap.end
        return replace(self, step=step, number=self.number + 1, ends=ends, gaps=(*self.gaps, *gaps))

    def with_step(
        self,
        step: str,
        start: Mapping[int, int],
        end: Mapping[int, int],
        *,
        rows: int,
        size: int,
        newest_at: str,
        topic_id: str = "",
    ) -> Self:
        """After a commit of the records of [start, end). Steps form a chain: it starts at the archive's end.

        :raises ValueError: if it does not
        """
        if self.number:
            self._check_continues(start)
        ranges = dict(self.ranges)
        for partition, offset in start.items():
            extended_ranges = extended(ranges.get(partition, ()), offset, end[partition])
            if extended_ranges:
                ranges[partition] = extended_ranges
        return self._after_commit(
            step,
            rows,
            size,
            newest_at,
            topic_id=self.topic_id or topic_id,
            ends={**self.ends, **end},
            ranges=ranges,
        )

    def first(self, partition: int) -> int | None:
        """The offset with which a partition's part of the archive begins; None before anything was decided of
        it.
        """
        ranges = self.ranges.get(partition, ())
        if ranges:
            return ranges[0][0]
        return self.ends.get(partition)

    def with_older(
        self,
        step: str,
        start: Mapping[int, int],
        end: Mapping[int, int],
        *,
        rows: int,
        size: int,
        newest_at: str,
    ) -> Self:
        """After a commit of the records of [start, end), which come before all that is archived.

        :raises ValueError: if the archive of a partition begins elsewhere than at ``end``
        """
        ranges = dict(self.ranges)
        ends = dict(self.ends)
        for partition, offset in start.items():
            first = self.first(partition)
            if first is not None and first != end[partition]:
                raise ValueError(f"the step ends at {dict(end)}, and partition {partition} begins at {first}")
            older = with_older(ranges.get(partition, ()), offset, end[partition])
            if older:
                ranges[partition] = older
            ends.setdefault(partition, end[partition])
        return self._after_commit(step, rows, size, newest_at, ends=ends, ranges=ranges)

    def _after_commit(self, step: str, rows: int, size: int, newest_at: str, **changes: Any) -> Self:
        """After one more commit, of so many rows and bytes.

        :param changes: the fields that it changes beside those which count
        """
        return replace(
            self,
            step=step,
            number=self.number + 1,
            rows=self.rows + rows,
            bytes=self.bytes + size,
            newest_at=max(self.newest_at, newest_at),
            **changes,
        )

    def _check_continues(self, start: Mapping[int, int]) -> None:
        for partition, offset in start.items():
            if offset != self.ends.get(partition, 0):
                raise ValueError(f"the step begins at {dict(start)}, the archive ends at {self.ends}")

    def as_metadata(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_metadata(cls, text: str) -> Self:
        values: dict[str, Any] = json.loads(text)
        # JSON turned partitions into text, and tuples into lists.
        ranges: dict[int, Ranges] = {}
        for partition, pairs in values["ranges"].items():
            ranges[int(partition)] = tuple((first, last) for first, last in pairs)
        values["ranges"] = ranges
        values["ends"] = {int(partition): offset for partition, offset in values["ends"].items()}
        values["gaps"] = tuple(Gap(**gap) for gap in values["gaps"])
        return cls(**values)

    def as_row(self) -> dict[str, Any]:
        """For a listing: ranges by partition and gaps as plain lists."""
        ranges: dict[str, list[list[int]]] = {}
        for partition, pairs in sorted(self.ranges.items()):
            ranges[str(partition)] = [list(pair) for pair in pairs]
        return {
            "topic": self.topic,
            "rows": self.rows,
            "bytes": self.bytes,
            "newest_at": self.newest_at or None,
            "ranges": ranges,
            "gaps": [asdict(gap) for gap in self.gaps],
            "commits": self.number,
        }
