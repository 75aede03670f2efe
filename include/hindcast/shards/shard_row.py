"""What a shard's lease says in its columns ``checkpoint`` and ``detail``. No other module knows their keys.

Both columns hold a JSON object. A worker reports some of the keys with each renewal
(:class:`ReportedCheckpoint`, :class:`ReportedDetail`); the others are written once, with the shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypedDict

from hindcast.leases.lease import Lease, ShardState, StatusType
from hindcast.partitions import Offsets, as_json_object, by_partition

#: The mark of a shard that its worker refused to consume, and the mark of one that was drained.
REFUSED, DRAINED = "refused", "drained"
_PARTITIONS = "partitions"
_MODULUS = "modulus"
_REWIND = "reset"


class ReportedCheckpoint(TypedDict, total=False):
    """The keys of a checkpoint that a worker reports. As in JSON, the keys of ``end_offsets`` are texts."""

    batch: int
    end_offsets: dict[str, int]
    watermark_ms: int
    sink_version: int
    fingerprint: str


class ReportedDetail(TypedDict, total=False):
    """The keys of a detail that a worker reports. They mean what those of :class:`ShardDetail` mean."""

    lag_records: int | None
    refused: str
    drained: bool
    rebuild: str
    damaged: str


@dataclass(frozen=True, kw_only=True)
class ShardCheckpoint:
    """How far a shard is read.

    :param start_offsets: where its first batch begins; of a shard that waits for its parents, where those of
        its partitions begin that no shard has had
    :param floors: by partition, in epoch milliseconds: the windows that end at or before it are final,
        whatever the watermark says
    :param end_offsets: where its last batch ended; None before the first
    :param batch: the number of its last batch; 0 before the first
    :param watermark_ms: after its last batch, in epoch milliseconds; 0 before the first
    :param sink_version: the version of the sink's table that has its last batch; None before the first
    :param fingerprint: of the query that consumes it; None before its first start
    """

    start_offsets: Offsets
    floors: Offsets = field(default_factory=dict)
    end_offsets: Offsets | None = None
    batch: int = 0
    watermark_ms: int = 0
    sink_version: int | None = None
    fingerprint: str | None = None

    @classmethod
    def of(cls, lease: Lease) -> Self:
        recorded = lease.checkpoint
        ends = recorded.get("end_offsets")
        return cls(
            start_offsets=by_partition(recorded.get("start_offsets", {})),
            floors=by_partition(recorded.get("floors", {})),
            end_offsets=by_partition(ends) if ends else None,
            batch=int(recorded.get("batch") or 0),
            watermark_ms=int(recorded.get("watermark_ms") or 0),
            sink_version=recorded.get("sink_version"),
            fingerprint=recorded.get("fingerprint"),
        )

    def to_json(self) -> dict[str, Any]:
        """What a shard begins with."""
        begun: dict[str, Any] = {"start_offsets": as_json_object(self.start_offsets)}
        if self.floors:
            begun["floors"] = as_json_object(self.floors)
        if self.fingerprint is not None:
            begun["fingerprint"] = self.fingerprint
        return begun

    @property
    def read_to(self) -> Offsets:
        """By partition, the offset up to which the shard is read."""
        return self.end_offsets or self.start_offsets

    def final_ms(self, partition: int) -> int:
        """The partition's windows that end at or before the result, in epoch milliseconds, are final."""
        return max(self.watermark_ms, self.floors.get(partition, 0))

    @property
    def all_final_ms(self) -> int:
        """The latest instant up to which the windows of any of its partitions are final."""
        return max([self.watermark_ms, *self.floors.values()])


@dataclass(frozen=True, kw_only=True)
class ShardDetail:
    """What else is known of a shard.

    :param partitions: which it consumes
    :param modulus: keys never leave the partitions that are equal modulo this
        (:mod:`hindcast.shards.resharding`)
    :param lag_records: how far the topic's end was ahead when its last batch was planned; None before that
    :param refused: why its worker does not consume it; empty if nothing is wrong
    :param drained: whether it reached the end that its topic had when its pipeline was to be drained
    :param rebuilt: the last request to rebuild it that was met; empty if there was none
    :param damaged: why its next owner has to rebuild its state; empty if it does not
    :param rewind: the rewind that the shard waits for, which opens it
        (:mod:`hindcast.recovery.rewind_point`); None if it waits for no rewind
    """

    partitions: list[int]
    modulus: int
    lag_records: int | None = None
    refused: str = ""
    drained: bool = False
    rebuilt: str = ""
    damaged: str = ""
    rewind: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, lease: Lease) -> Self:
        recorded = lease.detail
        return cls(
            partitions=list(recorded.get(_PARTITIONS, ())),
            modulus=int(recorded.get(_MODULUS, 1)),
            lag_records=recorded.get("lag_records"),
            refused=str(recorded.get(REFUSED) or ""),
            drained=bool(recorded.get(DRAINED)),
            rebuilt=str(recorded.get("rebuild") or ""),
            damaged=str(recorded.get("damaged") or ""),
            rewind=recorded.get(_REWIND),
        )

    def to_json(self) -> dict[str, Any]:
        """What a shard begins with."""
        begun: dict[str, Any] = {_PARTITIONS: self.partitions, _MODULUS: self.modulus}
        if self.rewind is not None:
            begun[_REWIND] = dict(self.rewind)
        return begun


def awaits_rewind(lease: Lease) -> bool:
    """Whether a shard waits for a rewind, not for its parents alone."""
    return _REWIND in lease.detail


def awaiting_rewind(leases: Iterable[Lease], pipeline: str) -> list[Lease]:
    """The shards of a pipeline that wait for a rewind, which has begun and not ended."""
    return [
        lease
        for lease in leases
        if lease.status_type is StatusType.SHARD
        and lease.stream_id == pipeline
        and lease.state == ShardState.WAIT
        and awaits_rewind(lease)
    ]


def without_rewind(lease: Lease) -> Lease:
    """The shard once its rewind has ended."""
    return _without(lease, {_REWIND})


def without_marks(lease: Lease, marks: frozenset[str]) -> Lease:
    """The shard without the marks that are named: some of :data:`REFUSED` and :data:`DRAINED`."""
    return _without(lease, marks)


def _without(lease: Lease, keys: frozenset[str] | set[str]) -> Lease:
    kept = {key: value for key, value in lease.detail.items() if key not in keys}
    return lease.evolve(detail=kept)
