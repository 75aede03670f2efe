"""What a rewind records of itself, as JSON: in the shards that wait for its end, in its events, and for
people and programs that asked for it.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class PlannedRewind(TypedDict):
    """What a rewind would do.

    ``to``: where it leads, in words; ``partitions``: by partition, where it leads and up to where it is read
    now; ``records_estimated``: how many records are read again; ``sink_version``: of the sink's table, which
    is kept; ``rows_replaced``, ``rows_kept``: rows of the sink; ``windows_after``: the instant after which
    windows end that are computed again, in ISO 8601; None if all are.
    """

    pipeline: str
    to: str
    partitions: dict[str, list[int]]
    records_estimated: int
    batches_taken_back: int
    sink_version: int
    rows_replaced: int
    rows_kept: int
    windows_after: str | None


class RewindRecord(PlannedRewind):
    """A rewind that was asked for, by whom, and why."""

    id: str
    by: str
    reason: str


class BegunRecord(RewindRecord):
    """A rewind that has begun.

    ``last``: shard -> its last batch that is kept; ``states``: shard -> in which state it was. An older
    Hindcast did not write the states.
    """

    last: dict[str, int]
    states: NotRequired[dict[str, str]]
