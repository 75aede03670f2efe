"""How far a version is, by what its own table says: the ledger and the leases learn it some seconds later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from deltalake.exceptions import TableNotFoundError

from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets, app_id
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.shard_row import ShardCheckpoint
from hindcast.tables.fenced_sink import BatchCommit, FencedTable


@dataclass(frozen=True)
class VersionPosition:
    """Up to which offsets a version has committed, and by partition which windows are final: those that end at or before it (epoch
    milliseconds). A partition of which nothing was read yet closes no window and is left out of ``final_ms``.
    """

    offsets: Offsets
    final_ms: Offsets

    @property
    def horizon_ms(self) -> int:
        """All windows that end at or before it are final; 0 for none."""
        return min(self.final_ms.values(), default=0)

    def behind(self, other: VersionPosition) -> int:
        """How many records the other has read that this one has not."""
        return sum(max(0, end - self.offsets.get(partition, 0)) for partition, end in other.offsets.items())

    def covers(self, other: VersionPosition) -> bool:
        """Whether it has read all that the other has, and closed every window that the other has closed."""
        return self.behind(other) == 0 and self.horizon_ms >= other.horizon_ms


def position(settings: Settings, sink: str, leases: Iterable[Lease], pipeline: str, version: int) -> VersionPosition:
    """Where a version stands.

    :param sink: the name of its table
    :raises StoreUnavailableError: the store does not answer
    """

    def last(lease: Lease) -> BatchCommit | None:
        table = FencedTable(settings.table("sinks", sink), settings.storage_options, app_id(pipeline, lease.status_value))
        try:
            return next(table.commits(), None)
        except TableNotFoundError:
            return None

    return position_by(leases, pipeline, version, last)


class Commit(Protocol):
    """What a shard's last commit says of it."""

    @property
    def end_offsets(self) -> Offsets: ...
    @property
    def watermark_ms(self) -> int: ...
    @property
    def floors(self) -> Offsets: ...


def position_by(leases: Iterable[Lease], pipeline: str, version: int, last_commit: Callable[[Lease], Commit | None]) -> VersionPosition:
    """Where a version stands, by the last commit of each shard. What a shard was dealt that waits for its parents stands where those do."""
    offsets: Offsets = {}
    final_ms: Offsets = {}
    for lease in resharding.reading(leases, pipeline, version):
        last = last_commit(lease)
        checkpoint = ShardCheckpoint.of(lease)
        ends = last.end_offsets if last else checkpoint.read_to
        offsets |= ends
        for partition, end in ends.items():
            if lease.parent_shard_ids or end > checkpoint.start_offsets[partition]:
                own = max(last.watermark_ms, last.floors.get(partition, 0)) if last else 0
                final_ms[partition] = max(own, checkpoint.final_ms(partition))
    return VersionPosition(offsets, final_ms)
