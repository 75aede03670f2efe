"""Arithmetic of offset ranges, for one partition at a time. Pure Python. A range is (start, end), its end
exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hindcast.partitions import Offsets

Range = tuple[int, int]
#: In order, none empty, no two that touch.
Ranges = tuple[Range, ...]


def extended(ranges: Ranges, start: int, end: int) -> Ranges:
    """The ranges with [start, end) after the last of them, joined to it if they touch."""
    if start == end:
        return ranges
    if ranges and ranges[-1][1] == start:
        first, _ = ranges[-1]
        return (*ranges[:-1], (first, end))
    return (*ranges, (start, end))


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
