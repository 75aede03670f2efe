"""Shards: how a pipeline's partitions are dealt out, and which shards may be consumed now.

A generation of shards covers all partitions of the topic, each partition in exactly one shard. Shard ``v1.g0.s0`` is the first of
generation 0 of version 1.

Resharding writes a new generation beside the old one:

1. one commit adds the children, in WAIT, each naming as parents the shards that had its keys: these are *superseded* from now on;
2. a superseded shard's owner ends the batch in hand, files what was late or poison, and gives the lease up as TERMINATED;
3. once all parents of a child are TERMINATED, the next step of any worker opens it: it begins at the offsets where they ended, with
   their watermarks as its *floors*, and rewinds for the state that they leave (:mod:`hindcast.recovery.rebuild_state`).

A key must stay within one shard, or two shards would each emit a part of its windows. Kafka's producers put a key into partition
``hash mod partitions``; when partitions are added, keys move, but ``hash`` modulo the greatest common divisor of the old and the new
number does not. So partitions are dealt by that residue, and :data:`MODULUS` remembers it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from hindcast.errors import BadInputError
from hindcast.leases.lease import NOT_HELD, Lease, LeaseKey, ShardState, StatusType
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.partitions import Offsets, ShardId
from hindcast.pipeline import TOPIC_STRIDE
from hindcast.shards.desired_state import DRAINED, REFUSED, DesiredState, desired_key, rows_of, wanted_versions

#: In a shard's detail: keys never leave the partitions that are equal modulo this.
MODULUS = "modulus"
PARTITIONS = "partitions"
#: In a waiting shard's detail: the reset that it belongs to (:mod:`hindcast.recovery.rewind_point`), which opens it itself.
RESET = "reset"


def deal(partitions: Iterable[int], shards: int, modulus: int) -> list[list[int]]:
    """Partition p of each topic goes to shard (p mod modulus) mod n, for as many shards as get at least one partition."""
    dealt = [[partition for partition in sorted(partitions) if _residue(partition, modulus) % shards == index] for index in range(shards)]
    return [part for part in dealt if part]


def create(store: LeaseStore, pipeline: str, version: int, shards: int, start: Offsets) -> list[Lease]:
    """Write the first generation of a version's shards, each beginning at its partitions' ``start`` offsets; nothing where it exists.

    Any number of workers may do it at once: one commit wins and the others find its rows.

    :raises BadInputError: where several shards are asked for and the topics have not as many partitions each
    """
    first = first_generation(pipeline, version, shards, start)

    def decide(snapshot: Snapshot) -> list[Lease]:
        return [] if of_version(snapshot.leases.values(), pipeline, version) else first

    return swap(store, decide)


def first_generation(pipeline: str, version: int, shards: int, start: Offsets) -> list[Lease]:
    """The shards of a version that has none yet, beginning at these offsets.

    :raises BadInputError: where several shards are asked for and the topics have not as many partitions each
    """
    modulus = _modulus(pipeline, shards, start)
    return [
        Lease(
            stream_id=pipeline,
            status_type=StatusType.SHARD,
            status_value=str(ShardId(version, 0, index)),
            state=ShardState.OPEN,
            checkpoint={"start_offsets": {str(p): start[p] for p in partitions}},
            detail={PARTITIONS: partitions, MODULUS: modulus},
            updated_at=datetime.now(UTC),
        )
        for index, partitions in enumerate(deal(start, shards, modulus))
    ]


def reshard(store: LeaseStore, pipeline: str, version: int, shards: int, start: Offsets) -> list[Lease]:
    """Step 1: write the next generation; nothing where the newest one is dealt so already, or is still waiting for its parents.

    :param start: all partitions of the topic, with the offset at which those begin that no shard has had
    :raises BadInputError: where several shards are asked for and the topics have not as many partitions each
    """

    def decide(snapshot: Snapshot) -> list[Lease]:
        current = newest_of_version(snapshot.leases.values(), pipeline, version)
        if not current or any(lease.state == ShardState.WAIT for lease in current):
            return []
        before = {partition for lease in current for partition in lease.detail[PARTITIONS]}
        known = int(current[0].detail[MODULUS])
        modulus = math.gcd(known, _modulus(pipeline, shards, start))
        dealt = deal(before | start.keys(), shards, modulus)
        if dealt == [lease.detail[PARTITIONS] for lease in current]:
            return []
        number = ShardId.parse(current[0].status_value).generation + 1
        return [
            Lease(
                stream_id=pipeline,
                status_type=StatusType.SHARD,
                status_value=str(ShardId(version, number, index)),
                state=ShardState.WAIT,
                parent_shard_ids=[
                    lease.status_value for lease in current if _residues(lease, modulus) & {_residue(p, modulus) for p in partitions}
                ],
                checkpoint={"start_offsets": {str(p): start[p] for p in partitions if p not in before}},
                detail={PARTITIONS: partitions, MODULUS: modulus},
                updated_at=datetime.now(UTC),
            )
            for index, partitions in enumerate(dealt)
        ]

    return swap(store, decide)


def opened(leases: Mapping[LeaseKey, Lease]) -> list[Lease]:
    """Step 3: the children whose parents are all TERMINATED, as they are once open."""
    return [
        _begun(lease, parents)
        for lease in leases.values()
        if lease.status_type is StatusType.SHARD and lease.state == ShardState.WAIT and RESET not in lease.detail
        for parents in [[leases[LeaseKey(lease.stream_id, StatusType.SHARD, name)] for name in lease.parent_shard_ids]]
        if all(parent.state == ShardState.TERMINATED for parent in parents)
    ]


def _begun(child: Lease, parents: list[Lease]) -> Lease:
    modulus = child.detail[MODULUS]
    start: dict[str, int] = {}
    floors: dict[str, int] = {}
    for partition in map(str, child.detail[PARTITIONS]):
        had_it = [parent for parent in parents if int(partition) in parent.detail[PARTITIONS]]
        # A partition that was added takes keys of any parent with its residue; what was final for one of them stays so.
        had_its_keys = had_it or [parent for parent in parents if _residue(int(partition), modulus) in _residues(parent, modulus)]
        start[partition] = ends(had_it[0])[partition] if had_it else child.checkpoint["start_offsets"][partition]
        floors[partition] = max(final_ms(parent, partition if had_it else None) for parent in had_its_keys)
    return child.moved(ShardState.OPEN).evolve(checkpoint={"start_offsets": start, "floors": floors}, updated_at=datetime.now(UTC))


def ends(lease: Lease) -> dict[str, int]:
    """Partition -> the offset up to which the shard is read, as its lease has it."""
    found: dict[str, int] = lease.checkpoint.get("end_offsets") or lease.checkpoint["start_offsets"]
    return found


def final_ms(lease: Lease, partition: str | None) -> int:
    """The partition's windows that end at or before the result are final for the shard; of all its partitions where none is named."""
    floors: dict[str, int] = lease.checkpoint.get("floors", {})
    floor = floors.get(partition, 0) if partition is not None else max(floors.values(), default=0)
    return max(int(lease.checkpoint.get("watermark_ms", 0)), floor)


def to_reshard(leases: Iterable[Lease]) -> list[tuple[str, int, int]]:
    """(pipeline, version, shards) of what is wanted to run in another number of shards than its newest generation has."""
    found = list(leases)
    due = []
    for name, version, shards in _running(found):
        current = newest_of_version(found, name, version)
        if not current or any(lease.state == ShardState.WAIT for lease in current):
            continue
        partitions = [partition for lease in current for partition in lease.detail[PARTITIONS]]
        if len(deal(partitions, shards, current[0].detail[MODULUS])) != len(current):
            due.append((name, version, shards))
    return due


def _running(leases: Iterable[Lease]) -> list[tuple[str, int, int]]:
    """(pipeline, version, shards) of all that is wanted to run."""
    rows = [row for row in rows_of(leases) if row.state == DesiredState.RUNNING]
    return [(row.stream_id, version, shards) for row in rows for version, shards in wanted_versions(row).items()]


def _residues(lease: Lease, modulus: int) -> set[int]:
    return {_residue(partition, modulus) for partition in lease.detail[PARTITIONS]}


def _residue(partition: int, modulus: int) -> int:
    return partition % TOPIC_STRIDE % modulus


def _modulus(pipeline: str, shards: int, start: Iterable[int]) -> int:
    """A key's partitions are equal modulo the greatest common divisor of the topics' sizes. A topic that grew keeps its older records.

    :raises BadInputError: where several shards are asked for and the topics have not as many partitions each
    """
    counts = Counter(partition // TOPIC_STRIDE for partition in start)
    if shards > 1 and len(set(counts.values())) > 1:
        problem = (
            f"The topics of {pipeline} have {', '.join(map(str, counts.values()))} partitions, so a key is not in the same shard of each"
        )
        raise BadInputError(problem=problem, cure="Give the topics as many partitions each, or use shards=1.")
    return math.gcd(*counts.values())


def superseded(leases: Iterable[Lease]) -> set[LeaseKey]:
    """The shards that others name as parents: they are to be ended, not consumed."""
    return {
        LeaseKey(lease.stream_id, StatusType.SHARD, parent)
        for lease in leases
        if lease.status_type is StatusType.SHARD
        for parent in lease.parent_shard_ids
    }


def newest_generation(shards: Iterable[Lease]) -> list[Lease]:
    """Of one version's shards, those of the newest generation, in the order of their numbers."""
    by_id = {ShardId.parse(lease.status_value): lease for lease in shards}
    if not by_id:
        return []
    newest = max(shard.generation for shard in by_id)
    return [by_id[shard] for shard in sorted(by_id) if shard.generation == newest]


def newest_of_version(leases: Iterable[Lease], pipeline: str, version: int) -> list[Lease]:
    """The newest generation of one version of a pipeline."""
    return newest_generation(of_version(leases, pipeline, version))


def waiting(leases: Iterable[Lease], pipeline: str, version: int) -> list[Lease]:
    """The shards of a version's newest generation that wait for their parents: what they were dealt is still read by those."""
    return [lease for lease in newest_of_version(leases, pipeline, version) if lease.state == ShardState.WAIT]


def reading(leases: Iterable[Lease], pipeline: str, version: int) -> list[Lease]:
    """The shards whose ends together say how far a version is: its newest generation, and before them the parents of those that wait.

    A partition may be in one of either. It is read by the later one in the list.
    """
    every = of_version(leases, pipeline, version)
    newest = newest_generation(every)
    awaited = {parent for lease in newest if lease.state == ShardState.WAIT for parent in lease.parent_shard_ids}
    return [*(lease for lease in every if lease.status_value in awaited), *newest]


def of_version(leases: Iterable[Lease], pipeline: str, version: int) -> list[Lease]:
    """The shards of one version of a pipeline, in the order of their names."""
    found = [
        lease
        for lease in leases
        if lease.status_type is StatusType.SHARD and lease.stream_id == pipeline and ShardId.parse(lease.status_value).version == version
    ]
    return sorted(found, key=lambda lease: lease.key)


def wanted(lease: Lease, snapshot: Snapshot, able: Callable[[str, int], bool]) -> bool:
    """Whether a shard is to be held: its pipeline is wanted in its version, nothing refused it, it has begun and is not at its end.

    :param able: whether this worker has the pipeline in that version
    """
    if lease.state in NOT_HELD:
        return False
    row = snapshot.leases.get(desired_key(lease.stream_id))
    if row is None or row.state == DesiredState.PAUSED or lease.detail.get(REFUSED):
        return False
    version = ShardId.parse(lease.status_value).version
    if version not in wanted_versions(row) or not able(lease.stream_id, version):
        return False
    return not (row.state == DesiredState.DRAINED and lease.detail.get(DRAINED))


def pipelines_without_shards(snapshot: Snapshot) -> list[tuple[str, int, int]]:
    """(pipeline, version, shards) of what is wanted to run and has no shards yet."""
    leases = list(snapshot.leases.values())
    return [(name, version, shards) for name, version, shards in _running(leases) if not of_version(leases, name, version)]
