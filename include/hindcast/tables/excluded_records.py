"""Records that a stream left out because the pipeline's function raises on them.

A batch that left records out names them in its commit and in its row of the ledger. So all who read the
batch's records again leave out the same ones. The error's message is not kept there: it may hold what the
record holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from hindcast.partitions import Offsets

#: Partition -> offset -> the error, by its class and its place in the code. It has the pipeline's own
#: partitions.
Excluded = dict[int, dict[int, str]]


def together(parts: Iterable[Mapping[int, Mapping[int, str]]]) -> Excluded:
    """All that one of these has."""
    found: Excluded = {}
    for part in parts:
        for partition, offsets in part.items():
            found.setdefault(partition, {}).update(offsets)
    return found


def within(excluded: Mapping[int, Mapping[int, str]], start: Offsets, end: Offsets) -> Excluded:
    """Those in [start, end) of each partition."""
    found: Excluded = {}
    for partition, stop in end.items():
        first = start[partition]
        offsets = excluded.get(partition, {})
        inside = {offset: error for offset, error in offsets.items() if first <= offset < stop}
        if inside:
            found[partition] = inside
    return found


def count(excluded: Mapping[int, Mapping[int, str]]) -> int:
    """How many records these are."""
    return sum(len(offsets) for offsets in excluded.values())


def excluded_to_json(excluded: Mapping[int, Mapping[int, str]]) -> str:
    """``{partition: {offset: error}}``; empty for none."""
    if not excluded:
        return ""
    written = {}
    for partition, offsets in sorted(excluded.items()):
        written[str(partition)] = {str(offset): error for offset, error in sorted(offsets.items())}
    return json.dumps(written)


def excluded_from_json(text: str | None) -> Excluded:
    """What :func:`excluded_to_json` wrote. Without a text there are none."""
    if not text:
        return {}
    found: Excluded = {}
    for partition, offsets in json.loads(text).items():
        found[int(partition)] = {int(offset): error for offset, error in offsets.items()}
    return found
