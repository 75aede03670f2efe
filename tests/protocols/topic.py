"""A scripted topic: when each of its records happened is arithmetic of its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hindcast.archive.archive_or_live import HeldRecords
from hindcast.partitions import Offsets

#: Of the tumbling windows, and the watermark's delay, in milliseconds.
WINDOW_MS = 5_000
DELAY_MS = 4_000
#: Between two records of a partition, in the mean.
_STEP_MS = 900


def event_ms(partition: int, offset: int) -> int:
    """When a record happened. Some come many seconds late, and partitions differ in how far they are."""
    mixed = (partition * 7919 + offset * 104_729) % 97
    late_ms = 0
    if mixed < 12:
        late_ms = 3_000 + mixed * 1_700
    return 60_000 + offset * _STEP_MS + partition * 370 + mixed * 11 - late_ms


def window_end(partition: int, offset: int) -> int:
    """The end of the window of a record."""
    return (event_ms(partition, offset) // WINDOW_MS + 1) * WINDOW_MS


def raises(partition: int, offset: int) -> bool:
    """Whether the pipeline's function raises on a record."""
    return (partition * 31 + offset * 7) % 113 == 5


def places(start: Offsets, end: Offsets) -> Iterator[tuple[int, int]]:
    """The partition and offset of each record of [start, end)."""
    for partition, stop in end.items():
        for offset in range(start.get(partition, 0), stop):
            yield partition, offset


@dataclass
class Topic:
    """``ends``: by partition, the offset after the last record. Nothing is ever dropped."""

    ends: Offsets = field(default_factory=dict)

    def held(self) -> HeldRecords:
        return HeldRecords(dict.fromkeys(self.ends, 0), dict(self.ends), {})
