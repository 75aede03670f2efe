"""How far a version has come, by its own table: the ledger and the leases learn of its commits some seconds
later.
"""

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
from hindcast.tables.ledger import Ledger


@dataclass(frozen=True)
class VersionPosition:
    """Up to which offsets a version has committed, and which windows are final by then.

    :param offsets: by partition; an end is exclusive
    :param final_ms: by partition, in epoch milliseconds: its windows that end at or before it are final. It
        lacks the partitions of which nothing was read yet, because they close no window
    """

    offsets: Offsets
    final_ms: Offsets

    @property
    def horizon_ms(self) -> int:
        """All windows that end at or before it are final; 0 if none are."""
        return min(self.final_ms.values(), default=0)

    def behind(self, other: VersionPosition) -> int:
        """How many records the other has read that this one has not."""
        records = 0
        for partition, end in other.offsets.items():
            records += max(0, end - self.offsets.get(partition, 0))
        return records

    def covers(self, other: VersionPosition) -> bool:
        """Whether it has read all that the other has, and closed every window that the other has closed."""
        return self.behind(other) == 0 and self.horizon_ms >= other.horizon_ms


def position(
    settings: Settings, ledger: Ledger, sink: str, leases: Iterable[Lease], pipeline: str, version: int
) -> VersionPosition:
    """How far a version has come.

    :param sink: the name of its table
    :param leases: of one read
    :raises StoreUnavailableError: if the store does not answer
    """
    url = settings.table("sinks", sink)
    # Before the table is read: a batch comes into the ledger after it came into the table.
    known = {row.shard: row for row in ledger.newest(pipeline, version)}

    def last_commit(lease: Lease) -> BatchCommit | None:
        shard = lease.status_value
        table = FencedTable(url, settings.storage_options, app_id(pipeline, shard))
        try:
            recorded, reached = table.reached()
        except TableNotFoundError:
            return None
        if recorded is None:
            return None
        last, _ = table.since(recorded, reached, known.get(shard))
        return last

    return position_by(leases, pipeline, version, last_commit)


class Commit(Protocol):
    """What a shard's last commit says of the shard."""

    @property
    def end_offsets(self) -> Offsets: ...
    @property
    def watermark_ms(self) -> int: ...
    @property
    def floors(self) -> Offsets: ...


def position_by(
    leases: Iterable[Lease], pipeline: str, version: int, last_commit: Callable[[Lease], Commit | None]
) -> VersionPosition:
    """How far a version has come, by the last commit of each shard.

    A shard that waits for its parents has read nothing: its partitions are where the parents are.
    """
    offsets: Offsets = {}
    final_ms: Offsets = {}
    for lease in resharding.reading(leases, pipeline, version):
        last = last_commit(lease)
        checkpoint = ShardCheckpoint.of(lease)
        ends = checkpoint.read_to
        if last is not None:
            ends = last.end_offsets
        offsets |= ends
        for partition, end in ends.items():
            if lease.parent_shard_ids or end > checkpoint.start_offsets[partition]:
                final_ms[partition] = _final_ms(checkpoint, last, partition)
    return VersionPosition(offsets, final_ms)


def _final_ms(checkpoint: ShardCheckpoint, last: Commit | None, partition: int) -> int:
    """The partition's windows that end at or before it are final, in epoch milliseconds.

    What was final once stays final. So the greatest counts: of the last commit's watermark, of its floor for
    the partition, and of what the lease's checkpoint says.
    """
    known_ms = checkpoint.final_ms(partition)
    if last is None:
        return known_ms
    return max(known_ms, last.watermark_ms, last.floors.get(partition, 0))
