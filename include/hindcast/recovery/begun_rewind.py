"""A rewind that has begun and not ended, as the shards that wait for its end say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hindcast.leases.store import LeaseStore
from hindcast.partitions import Offsets
from hindcast.recovery.rewind_record import BegunRecord
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail, awaiting_rewind


@dataclass(frozen=True)
class BegunRewind:
    """What is known of it.

    ``record``: what was recorded when it began; ``epochs``: shard that ended -> its new epoch; ``offsets``:
    by partition, where the new shards begin.
    """

    record: BegunRecord
    epochs: dict[str, int]
    offsets: Offsets

    @property
    def id(self) -> str:
        return self.record["id"]

    @property
    def kept_batches(self) -> dict[str, int]:
        """Shard -> its last batch that is kept, 0 for none; of all shards that ended or have batches."""
        return {**dict.fromkeys(self.epochs, 0), **self.record["last"]}


def find_begun(store: LeaseStore, pipeline: str) -> BegunRewind | None:
    """The rewind of this pipeline that has begun and not ended, None if there is none."""
    leases = store.read().leases
    waiting = awaiting_rewind(leases.values(), pipeline)
    if not waiting:
        return None
    ended: set[str] = set()
    offsets: Offsets = {}
    for child in waiting:
        ended.update(child.parent_shard_ids)
        offsets.update(ShardCheckpoint.of(child).start_offsets)
    epochs = {}
    for lease in leases.values():
        if lease.stream_id == pipeline and lease.status_value in ended:
            epochs[lease.status_value] = lease.epoch
    record: Any = ShardDetail.of(waiting[0]).rewind
    assert record is not None  # or the shard would not wait for a rewind
    return BegunRewind(record, epochs, offsets)
