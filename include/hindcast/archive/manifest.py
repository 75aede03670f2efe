"""What an archive holds, as its newest commit says of itself. Pure Python.

Ranges of offsets are accounted for, not rows: a compacted topic, an aborted transaction and a transaction's own marks leave offsets without
a record, and a range that was read to its end is complete all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from hindcast.archive.archive_or_live import Ranges, extended
from hindcast.tables.ledger import Offsets


@dataclass(frozen=True)
class Gap:
    """The offsets [start, end) of a partition that the topic dropped before they were archived, and why somebody went on without them."""

    partition: int
    start: int
    end: int
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.start} to {self.end} of partition {self.partition}"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that was archived of a topic, by its own partitions; ends are exclusive.

    ``number`` counts the commits and ``step`` names the last one, so that whoever wrote it knows it again. ``ends``: where the archive goes
    on; a partition may have an end and no range. ``newest_at`` is the greatest broker timestamp, ISO 8601 in UTC, "" before the first row.
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
        """Where the next step begins, for each partition of the topic: the topic's earliest before the first commit, then where the archive
        ends, which is 0 for a partition that was added since.
        """
        return dict(earliest) if self.number == 0 else {partition: self.ends.get(partition, 0) for partition in earliest}

    def lost(self, earliest: Mapping[int, int]) -> tuple[Gap, ...]:
        """What the topic no longer holds and nobody has archived."""
        starts = self.starts(earliest)
        return tuple(Gap(partition, starts[partition], offset) for partition, offset in earliest.items() if offset > starts[partition])

    def with_gaps(self, step: str, gaps: Sequence[Gap]) -> Self:
        """After a commit that goes on behind these gaps."""
        ends = {**self.ends, **{gap.partition: gap.end for gap in gaps}}
        return replace(self, step=step, number=self.number + 1, ends=ends, gaps=(*self.gaps, *gaps))

    def with_step(
        self, step: str, start: Mapping[int, int], end: Mapping[int, int], *, rows: int, size: int, newest_at: str, topic_id: str = ""
    ) -> Self:
        """After a commit of the records of [start, end). They form a chain: the start must be where the archive ends.

        :raises ValueError: where it is not
        """
        if self.number and any(self.ends.get(partition, 0) != offset for partition, offset in start.items()):
            raise ValueError(f"the step begins at {dict(start)}, the archive ends at {self.ends}")
        ranges = {partition: extended(self.ranges.get(partition, ()), offset, end[partition]) for partition, offset in start.items()}
        return replace(
            self,
            topic_id=self.topic_id or topic_id,
            step=step,
            number=self.number + 1,
            ends={**self.ends, **end},
            ranges={**self.ranges, **{partition: found for partition, found in ranges.items() if found}},
            rows=self.rows + rows,
            bytes=self.bytes + size,
            newest_at=max(self.newest_at, newest_at),
        )

    def as_metadata(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_metadata(cls, text: str) -> Self:
        values: dict[str, Any] = json.loads(text)
        return cls(
            **{
                **values,
                "ends": {int(partition): offset for partition, offset in values["ends"].items()},
                "ranges": {
                    int(partition): tuple((first, last) for first, last in ranges) for partition, ranges in values["ranges"].items()
                },
                "gaps": tuple(Gap(**gap) for gap in values["gaps"]),
            }
        )

    def as_row(self) -> dict[str, Any]:
        """For a listing: ranges by partition and gaps as plain lists."""
        return {
            "topic": self.topic,
            "rows": self.rows,
            "bytes": self.bytes,
            "newest_at": self.newest_at or None,
            "ranges": {str(partition): [list(one) for one in ranges] for partition, ranges in sorted(self.ranges.items())},
            "gaps": [asdict(gap) for gap in self.gaps],
            "commits": self.number,
        }
