"""What topics and their archives hold together: arithmetic of offset ranges. Pure Python. A range is (start,
end), its end exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hindcast.partitions import Offsets

Range = tuple[int, int]
#: In order, none empty, no two that touch.
Ranges = tuple[Range, ...]


@dataclass(frozen=True)
class HeldRecords:
    """What can be read of a pipeline's topics, by the pipeline's partitions.

    ``earliest`` and ``latest``: the topics' own first offset, and the one after their last. ``archived``: the
    ranges that archives hold, of topics that have dropped records.
    """

    earliest: Offsets
    latest: Offsets
    archived: Mapping[int, Ranges]

    def missing(self, partition: int, start: int, end: int) -> Ranges:
        """What of a partition's [start, end) neither the topic nor its archive holds, in order."""
        return missing(self.archived.get(partition, ()), self.earliest.get(partition, 0), start, end)

    def seams(self, start: Mapping[int, int], end: Mapping[int, int]) -> Offsets:
        """By partition, up to where [start, end) is read from the archive; see :func:`seam`."""
        seams: Offsets = {}
        for partition, offset in start.items():
            ranges = self.archived.get(partition, ())
            seams[partition] = seam(ranges, self.earliest.get(partition, 0), offset, end[partition])
        return seams

    def dropped(self, offsets: Mapping[int, int]) -> bool:
        """Whether a topic no longer holds what comes at one of these offsets."""
        return any(offset < self.earliest.get(partition, 0) for partition, offset in offsets.items())

    def first(self) -> Offsets:
        """By partition, the first offset from which on nothing is missing."""
        firsts: Offsets = {}
        for partition, earliest in self.earliest.items():
            firsts[partition] = earliest
            for first, end in self.archived.get(partition, ()):
                if first <= earliest <= end:
                    firsts[partition] = first
        return firsts

    def archived_to(self, partition: int, offset: int) -> int:
        """How far the archive goes on from this offset without a gap: the offset itself if it lacks it."""
        for first, end in self.archived.get(partition, ()):
            if first <= offset < end:
                return end
        return offset


def extended(ranges: Ranges, start: int, end: int) -> Ranges:
    """The ranges with [start, end) after the last of them, joined to it if they touch."""
    if start == end:
        return ranges
    if ranges and ranges[-1][1] == start:
        first, _ = ranges[-1]
        return (*ranges[:-1], (first, end))
    return (*ranges, (start, end))


def with_older(ranges: Ranges, start: int, end: int) -> Ranges:
    """The ranges with [start, end) before the first of them, joined to it if they touch."""
    if start == end:
        return ranges
    if ranges and ranges[0][0] == end:
        _, last = ranges[0]
        return ((start, last), *ranges[1:])
    return ((start, end), *ranges)


def missing(ranges: Sequence[Range], earliest: int, start: int, end: int) -> Ranges:
    """What of [start, end) is held neither by these archived ranges nor by a topic whose first offset is
    ``earliest``, in order.
    """
    stop = min(end, earliest)
    reached = start
    gaps: list[Range] = []
    for first, last in ranges:
        if last <= reached:
            continue
        if first >= stop:
            break
        if first > reached:
            gaps.append((reached, first))
        reached = last
    if reached < stop:
        gaps.append((reached, stop))
    return tuple(gaps)


def seam(ranges: Sequence[Range], earliest: int, start: int, end: int) -> int:
    """The offset at which a reader of [start, end) passes from the archive to the topic. Nothing of that
    range may be :func:`missing`.

    It is ``start`` if the topic holds all of the range. Otherwise it is as far as the archive goes: the topic
    may drop its oldest records meanwhile, so that they are not read from it.
    """
    if start >= earliest:
        return start
    for first, last in ranges:
        if first <= start < last:
            return min(last, end)
    return start


def next_step(start: Mapping[int, int], end: Mapping[int, int], most: int) -> Offsets:
    """By partition, the ends of a step of about ``most`` offsets from ``start`` towards ``end``. Each
    partition gives its share of what is left.
    """
    left = {partition: end[partition] - offset for partition, offset in start.items()}
    total = sum(left.values())
    if total <= most:
        return dict(end)
    ends: Offsets = {}
    for partition, offset in start.items():
        share = -(-left[partition] * most // total)  # rounded up
        ends[partition] = offset + share
    return ends
