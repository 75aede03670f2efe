"""How far streams are behind their topics, in records and in seconds.

The leases say how far each shard has committed, and the brokers what came after that. No worker is asked, so
the answer is right for a stream that none consumes as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from hindcast.catalog import Catalog
from hindcast.errors import UnknownPipelineError, UnknownVersionError
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.shards import resharding
from hindcast.shards.pipeline_row import rows_of
from hindcast.shards.shard_row import ShardCheckpoint


@dataclass(frozen=True)
class PartitionLag:
    """Of one partition of a pipeline's.

    :param read_to: the offset up to which it is committed
    :param end: the offset after its last record
    :param oldest_at: the broker's time of the first record in between; None if there is none
    """

    read_to: int
    end: int
    oldest_at: datetime | None

    @property
    def records(self) -> int:
        """Offsets, as Kafka's own tools count: those of markers of transactions count too."""
        return max(self.end - self.read_to, 0)


@dataclass(frozen=True)
class ShardLag:
    """One shard's partitions. ``state`` and ``owner`` are those of its lease."""

    pipeline: str
    version: int
    shard: str
    state: str
    owner: str
    partitions: Mapping[int, PartitionLag] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions.values())

    @property
    def oldest_at(self) -> datetime | None:
        """The broker's time of the oldest record that is not committed; None if there is none."""
        times = [partition.oldest_at for partition in self.partitions.values() if partition.oldest_at]
        return min(times, default=None)

    def seconds(self, now: datetime) -> float:
        """The age of that record; 0 if there is none."""
        if self.oldest_at is None:
            return 0.0
        return max((now - self.oldest_at).total_seconds(), 0.0)


def lag_of_shards(
    leases: Iterable[Lease], catalog: Catalog, offsets: TopicOffsets, pipeline: str = ""
) -> list[ShardLag]:
    """The shards of every version that is consumed or would be, in the order of pipeline, version and shard.

    A version that no file here declares is left out: its topics are not known.

    :param pipeline: only the shards of this one
    :raises BrokerUnavailableError, UnknownTopicError: if the brokers do not say
    """
    every = list(leases)
    found = []
    for row in rows_of(every):
        if pipeline not in ("", row.pipeline):
            continue
        for version in sorted(row.wanted_versions):
            with suppress(UnknownPipelineError, UnknownVersionError):
                declared = catalog.of(row.pipeline, version)
                found += _of_version(resharding.reading(every, row.pipeline, version), declared, offsets)
    return sorted(found, key=lambda shard: (shard.pipeline, shard.version, shard.shard))


def _of_version(shards: list[Lease], pipeline: Pipeline, offsets: TopicOffsets) -> list[ShardLag]:
    if not shards:
        return []
    read_to: Offsets = {}
    shard_of: dict[int, str] = {}
    for lease in shards:
        for partition, offset in ShardCheckpoint.of(lease).read_to.items():
            read_to[partition] = offset
            shard_of[partition] = lease.status_value
    ends = across(pipeline, offsets.latest)
    times = _oldest(pipeline, offsets, read_to, ends)
    by_shard: dict[str, dict[int, PartitionLag]] = defaultdict(dict)
    for partition, offset in sorted(read_to.items()):
        lag = PartitionLag(offset, ends.get(partition, offset), times.get(partition))
        by_shard[shard_of[partition]][partition] = lag
    return [
        ShardLag(
            pipeline.name,
            pipeline.version,
            lease.status_value,
            str(lease.state),
            lease.lease_owner or "",
            by_shard[lease.status_value],
        )
        for lease in shards
    ]


def _oldest(
    pipeline: Pipeline, offsets: TopicOffsets, read_to: Offsets, ends: Offsets
) -> dict[int, datetime]:
    """By the pipeline's partitions, the time of the first record that is not committed."""
    found: dict[int, datetime] = {}
    for index, topic in enumerate(pipeline.topics):
        behind: Offsets = {}
        for partition, offset in read_to.items():
            if partition // TOPIC_STRIDE == index and offset < ends.get(partition, offset):
                behind[partition % TOPIC_STRIDE] = offset
        for number, at in offsets.first_times(topic.name, behind).items():
            found[index * TOPIC_STRIDE + number] = at
    return found
