"""Shards: how a pipeline's partitions are dealt out, and which shards may be consumed now.

A generation of shards covers all partitions of the topic, each partition in exactly one shard. Shard ``v1.g0.s0`` is the first of
generation 0 of version 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from hindcast.control.desired import DRAINED, REFUSED, DesiredState, desired_key, desired_of
from hindcast.control.leases import Lease, LeaseKey, ShardState, StatusType
from hindcast.control.ledger import Offsets
from hindcast.control.store import LeaseStore, Snapshot, swap


def shard_name(version: int, generation: int, index: int) -> str:
    return f"v{version}.g{generation}.s{index}"


def shard_version(name: str) -> int:
    """The pipeline version a shard belongs to."""
    return int(name.split(".", maxsplit=1)[0].removeprefix("v"))


def app_id(pipeline: str, shard: str) -> str:
    """The application id of a shard's Delta transactions: the key under which a table remembers the shard's last commit."""
    return f"{pipeline}/v{shard_version(shard)}/{shard}"


def deal(partitions: Iterable[int], shards: int) -> list[list[int]]:
    """Partition p goes to shard p mod n, for as many shards as get at least one partition."""
    dealt = [[partition for partition in sorted(partitions) if partition % shards == index] for index in range(shards)]
    return [part for part in dealt if part]


def create(store: LeaseStore, pipeline: str, version: int, shards: int, start: Offsets) -> list[Lease]:
    """Write the first generation of a version's shards, each beginning at its partitions' ``start`` offsets; nothing where it exists.

    Any number of workers may do it at once: one commit wins and the others find its rows.
    """

    def decide(snapshot: Snapshot) -> list[Lease]:
        if of_version(snapshot.leases.values(), pipeline, version):
            return []
        return [
            Lease(
                stream_id=pipeline,
                status_type=StatusType.SHARD,
                status_value=shard_name(version, 0, index),
                state=ShardState.OPEN,
                checkpoint={"start_offsets": {str(p): start[p] for p in partitions}},
                detail={"partitions": partitions},
                updated_at=datetime.now(UTC),
            )
            for index, partitions in enumerate(deal(start, shards))
        ]

    return swap(store, decide)


def of_version(leases: Iterable[Lease], pipeline: str, version: int) -> list[Lease]:
    """The shards of one version of a pipeline, in the order of their names."""
    found = [
        lease
        for lease in leases
        if lease.status_type is StatusType.SHARD and lease.stream_id == pipeline and shard_version(lease.status_value) == version
    ]
    return sorted(found, key=lambda lease: lease.key)


def wanted(lease: Lease, snapshot: Snapshot, able: Callable[[str, int], bool]) -> bool:
    """Whether a shard is to be consumed: its pipeline is wanted in this version, nothing refused it, its parents are done.

    :param able: whether this worker has the pipeline in that version
    """
    row = snapshot.leases.get(desired_key(lease.stream_id))
    if row is None or row.state == DesiredState.PAUSED or lease.detail.get(REFUSED):
        return False
    version = shard_version(lease.status_value)
    if version != row.detail["version"] or not able(lease.stream_id, version):
        return False
    if row.state == DesiredState.DRAINED and lease.detail.get(DRAINED):
        return False
    return all(_terminated(LeaseKey(lease.stream_id, StatusType.SHARD, parent), snapshot.leases) for parent in lease.parent_shard_ids)


def _terminated(key: LeaseKey, leases: Mapping[LeaseKey, Lease]) -> bool:
    return key in leases and leases[key].state == ShardState.TERMINATED


def pipelines_without_shards(snapshot: Snapshot) -> list[tuple[str, int, int]]:
    """(pipeline, version, shards) of what is wanted to run and has no shards yet."""
    leases = list(snapshot.leases.values())
    return [
        (desired.pipeline, desired.version, desired.shards)
        for desired in desired_of(leases).values()
        if desired.state is DesiredState.RUNNING and not of_version(leases, desired.pipeline, desired.version)
    ]
