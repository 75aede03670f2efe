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
number does not. So partitions are dealt by that residue, and :attr:`hindcast.shards.shard_row.ShardDetail.modulus` remembers it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from hindcast.errors import BadInputError
from hindcast.leases.lease import NOT_HELD, Lease, LeaseKey, ShardState, StatusType
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.partitions import Offsets, ShardId
from hindcast.pipeline import TOPIC_STRIDE
from hindcast.shards.pipeline_row import DesiredState, row_of, rows_of
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail, awaits_rewind


def deal(partitions: Iterable[int], shards: int, modulus: int) -> list[list[int]]:
    """Partition p of each topic goes to shard (p mod modulus) mod n, for as many shards as get at least one partition."""
    dealt: list[list[int]] = [[] for _ in range(shards)]
    for partition in sorted(partitions):
        dealt[_residue(partition, modulus) % shards].append(partition)
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
    first = []
    for number, partitions in enumerate(deal(start, shards, modulus)):
        begins = {partition: start[partition] for partition in partitions}
        shard = ShardId(version, 0, number)
        first.append(_new_shard(pipeline, shard, ShardState.OPEN, begins, partitions, modulus))
    return first


def _new_shard(
    pipeline: str, shard: ShardId, state: ShardState, start: Offsets, partitions: list[int], modulus: int, parents: Iterable[str] = ()
) -> Lease:
    return Lease(
        stream_id=pipeline,
        status_type=StatusType.SHARD,
        status_value=str(shard),
        state=state,
        parent_shard_ids=list(parents),
        checkpoint=ShardCheckpoint(start_offsets=start).to_json(),
        detail=ShardDetail(partitions=partitions, modulus=modulus).to_json(),
        updated_at=datetime.now(UTC),
    )


def reshard(store: LeaseStore, pipeline: str, version: int, shards: int, start: Offsets) -> list[Lease]:
    """Step 1: write the next generation; nothing where the newest one is dealt so already, or is still waiting for its parents.

    :param start: all partitions of the topic, with the offset at which those begin that no shard has had
    :raises BadInputError: where several shards are asked for and the topics have not as many partitions each
    """

    def decide(snapshot: Snapshot) -> list[Lease]:
        current = newest_of_version(snapshot.leases.values(), pipeline, version)
        if not current or any(lease.state == ShardState.WAIT for lease in current):
            return []
        dealt_now = [ShardDetail.of(lease).partitions for lease in current]
        before = set(itertools.chain.from_iterable(dealt_now))
        known = ShardDetail.of(current[0]).modulus
        modulus = math.gcd(known, _modulus(pipeline, shards, start))
        dealt = deal(before | start.keys(), shards, modulus)
        if dealt == dealt_now:
            return []
        generation = ShardId.parse(current[0].status_value).generation + 1
        children = []
        for number, partitions in enumerate(dealt):
            residues = {_residue(partition, modulus) for partition in partitions}
            parents = [lease.status_value for lease in current if _residues(lease, modulus) & residues]
            begins = {partition: start[partition] for partition in partitions if partition not in before}
            shard = ShardId(version, generation, number)
            children.append(_new_shard(pipeline, shard, ShardState.WAIT, begins, partitions, modulus, parents))
        return children

    return swap(store, decide)


def opened(leases: Mapping[LeaseKey, Lease]) -> list[Lease]:
    """Step 3: the children whose parents are all TERMINATED, as they are once open."""
    children = []
    for lease in leases.values():
        if lease.status_type is not StatusType.SHARD or lease.state != ShardState.WAIT or awaits_rewind(lease):
            continue
        keys = [LeaseKey(lease.stream_id, StatusType.SHARD, name) for name in lease.parent_shard_ids]
        parents = [leases[key] for key in keys]
        if all(parent.state == ShardState.TERMINATED for parent in parents):
            children.append(_begun(lease, parents))
    return children


def _begun(child: Lease, parents: list[Lease]) -> Lease:
    """A child that begins where its parents ended, with their watermarks as its floors."""
    detail = ShardDetail.of(child)
    start: Offsets = {}
    floors: Offsets = {}
    for partition in detail.partitions:
        had_it = [parent for parent in parents if partition in ShardDetail.of(parent).partitions]
        if had_it:
            checkpoint = ShardCheckpoint.of(had_it[0])
            start[partition] = checkpoint.read_to[partition]
            floors[partition] = max(ShardCheckpoint.of(parent).final_ms(partition) for parent in had_it)
        else:
            # The partition was added. It takes keys of any parent with its residue, and what was final for one
            # of them stays final.
            residue = _residue(partition, detail.modulus)
            had_keys = [parent for parent in parents if residue in _residues(parent, detail.modulus)]
            start[partition] = ShardCheckpoint.of(child).start_offsets[partition]
            floors[partition] = max(ShardCheckpoint.of(parent).all_final_ms for parent in had_keys)
    begun = ShardCheckpoint(start_offsets=start, floors=floors)
    return child.moved(ShardState.OPEN).evolve(checkpoint=begun.to_json(), updated_at=datetime.now(UTC))


def to_reshard(leases: Iterable[Lease]) -> list[tuple[str, int, int]]:
    """(pipeline, version, shards) of what is wanted to run in another number of shards than its newest generation has."""
    found = list(leases)
    due = []
    for name, version, shards in _running(found):
        current = newest_of_version(found, name, version)
        if not current or any(lease.state == ShardState.WAIT for lease in current):
            continue
        details = [ShardDetail.of(lease) for lease in current]
        partitions = itertools.chain.from_iterable(detail.partitions for detail in details)
        if len(deal(partitions, shards, details[0].modulus)) != len(current):
            due.append((name, version, shards))
    return due


def _running(leases: Iterable[Lease]) -> list[tuple[str, int, int]]:
    """(pipeline, version, shards) of all that is wanted to run."""
    running = []
    for row in rows_of(leases):
        if row.state is not DesiredState.RUNNING:
            continue
        for version, shards in row.wanted_versions.items():
            running.append((row.pipeline, version, shards))
    return running


def _residues(lease: Lease, modulus: int) -> set[int]:
    return {_residue(partition, modulus) for partition in ShardDetail.of(lease).partitions}


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
    row = row_of(snapshot.leases, lease.stream_id)
    detail = ShardDetail.of(lease)
    if row is None or row.state is DesiredState.PAUSED or detail.refused:
        return False
    version = ShardId.parse(lease.status_value).version
    if version not in row.wanted_versions or not able(lease.stream_id, version):
        return False
    return not (row.state is DesiredState.DRAINED and detail.drained)


def pipelines_without_shards(snapshot: Snapshot) -> list[tuple[str, int, int]]:
    """(pipeline, version, shards) of what is wanted to run and has no shards yet."""
    leases = list(snapshot.leases.values())
    return [(name, version, shards) for name, version, shards in _running(leases) if not of_version(leases, name, version)]
