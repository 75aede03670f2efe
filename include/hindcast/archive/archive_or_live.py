"""Arithmetic of offset ranges, for one partition at a time. Pure Python. A range is (start, end), its end exclusive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hindcast.tables.ledger import Offsets

Range = tuple[int, int]
#: In order, none empty, no two that touch.
Ranges = tuple[Range, ...]


def extended(ranges: Ranges, start: int, end: int) -> Ranges:
    """The ranges with [start, end) after the last of them, joined to it where they touch."""
    if start == end:
        return ranges
    if ranges and ranges[-1][1] == start:
        return (*ranges[:-1], (ranges[-1][0], end))
    return (*ranges, (start, end))


def missing(ranges: Sequence[Range], earliest: int, start: int, end: int) -> Ranges:
    """What of [start, end) is held neither by these archived ranges nor by a topic whose first offset is ``earliest``, in order."""
    stop, reached, gaps = min(end, earliest), start, list[Range]()
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
    """Where to pass from the archive to the topic when reading [start, end), of which nothing is :func:`missing`.

    ``start`` where the topic holds all of it. Otherwise as far as the archive goes: what stands next in the topic to be dropped is then
    not read from the topic, which may drop it meanwhile.
    """
    if start >= earliest:
        return start
    return next((min(last, end) for first, last in ranges if first <= start < last), start)


def next_step(start: Mapping[int, int], end: Mapping[int, int], most: int) -> Offsets:
    """By partition, the ends of a step of about ``most`` offsets from ``start`` towards ``end``; each gives its share of what is left."""
    left = {partition: end[partition] - offset for partition, offset in start.items()}
    total = sum(left.values())
    if total <= most:
        return dict(end)
    return {partition: offset - (-left[partition] * most // total) for partition, offset in start.items()}
