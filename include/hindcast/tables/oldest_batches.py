"""What the oldest batches of a version come to; see :mod:`hindcast.tables.ledger_bases`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


class HistoryTooShortError(Exception):
    """The answer depends on batches that are known by their :class:`HistoryBase` alone: read more of the
    ledger.
    """


@dataclass(frozen=True)
class Place:
    """What a partition's oldest batches come to: its ``first`` offset, the ``end`` of the last one, and the
    greatest watermark of all.
    """

    first: int
    end: int
    watermark_ms: int


@dataclass(frozen=True, kw_only=True)
class HistoryBase:
    """What all batches of a version up to one version of the sink come to.

    It is of bounded size, whatever the number of batches. An answer that needs no more of them than this is
    exact.

    :param sink_version: of the last of them
    :param last_read: the sink's version of the last of them that read something; -1 if none did
    :param places: by partition
    :param shards: shard -> its last batch among them
    :param latest_event_ms: the greatest event time of their rows; None if it is not known
    :param latest_commit_at: the greatest time of their commits
    """

    sink_version: int
    last_read: int
    places: Mapping[int, Place]
    shards: Mapping[str, int]
    latest_event_ms: int | None
    latest_commit_at: datetime

    def reaches_beyond(self, offsets: Mapping[int, int]) -> bool:
        """Whether one of the batches read something at or after the offsets."""
        return any(place.end > offsets.get(partition, 0) for partition, place in self.places.items())
