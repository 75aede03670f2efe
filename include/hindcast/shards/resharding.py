"""Shards: how a pipeline's partitions are dealt out, and which shards may be consumed now.

A generation of shards covers all partitions of the topic, each partition in exactly one shard. Shard
``v1.g0.s0`` is the first of generation 0 of version 1.

Resharding writes a new generation and ends the old one:

1. one commit adds the children, in WAIT. Each names as parents the shards that had its keys: these are
   *superseded* from now on;
2. a superseded shard's owner ends the batch in hand, files what was late or poison, and gives the lease up as
   TERMINATED;
3. once all parents of a child are TERMINATED, the next renewal of any worker opens the child. It begins at
   the offsets where its parents ended, with their watermarks as its *floors*, and rebuilds the state that
   they leave (:mod:`hindcast.recovery.rebuild_state`).

A key must stay within one shard, or two shards would each emit a part of its windows. Kafka's producers put a
key into partition ``hash mod partitions``. If partitions are added, keys move to other partitions. But
``hash`` modulo the greatest common divisor of the old and the new number stays the same. So partitions are
dealt by that residue, and :attr:`hindcast.shards.shard_row.ShardDetail.modulus` remembers it.
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
from hindcast.shards.pipeline_row import DesiredState, row_of, rows_of
from hindcast.shards.shard_row import ReportedDetail, ShardCheckpoint, ShardDetail, awaits_rewind


def deal(partitions: Iterable[int], shards: int, modulus: int) -> list[list[int]]:
    """Deal the partitions: p of each topic goes to shard (p mod modulus) mod n.

    :returns: the partitions of each shard that gets at least one
    """
    dealt: list[list[int]] = [[] for _ in range(shards)]
    for partition in sorted(partitions):
        dealt[_residue(partition, modulus) % shards].append(partition)
    return [part for part in dealt if part]


def create(store: LeaseStore, pipeline: str, version: int, shards: int, start: Offsets) -> list[Lease]:
    """Write the first generation of a version's shards, if the version has none.

    Any number of workers may do it at once: one commit wins and the others find its rows.

    :param start: the offset at which each partition begins
    :raises BadInputError: if several shards are asked for and the topics differ in their numbers of
        partitions
    """
    return _begin(store, pipeline, version, first_generation(pipeline, version, shards, start))


def first_generation(pipeline: str, version: int, shards: int, start: Offsets) -> list[Lease]:
    """The shards of a version that has none yet, beginning at these offsets.

    :raises BadInputError: if several shards are asked for and the topics differ in their numbers of
        partitions
    """
    return _generation(pipeline, version, 0, shards, start)


def adopt(
    store: LeaseStore, pipeline: str, version: int, shards: int, start: Offsets, floors: Offsets, why: str
) -> list[Lease]:
    """Write the shards that go on where a stream of others has ended, if the version has none.

    They are of generation 1: that stream stands in the ledger as the only shard of generation 0.

    :param floors: by partition, in epoch milliseconds: the windows up to there are in the table
    :param why: the state is rebuilt, in words
    :returns: none if the version has shards
    :raises BadInputError: if several shards are asked for and the topics differ in their numbers of
        partitions
    """
    first = []
    for shard in _generation(pipeline, version, 1, shards, start):
        begins = ShardCheckpoint.of(shard).start_offsets
        final = {partition: floors[partition] for partition in begins}
        checkpoint = ShardCheckpoint(start_offsets=begins, floors=final)
        detail = {**shard.detail, **ReportedDetail(damaged=why)}
        first.append(shard.evolve(checkpoint=checkpoint.to_json(), detail=detail))
    return _begin(store, pipeline, version, first)


def _generation(pipeline: str, version: int, number: int, shards: int, start: Offsets) -> list[Lease]:
    """Deal the partitions out to shards of a generation without parents."""
    modulus = _modulus(pipeline, shards, start)
    dealt = []
    for shard, partitions in enumerate(deal(start, shards, modulus)):
        begins = {partition: start[partition] for partition in partitions}
        name = ShardId(version, number, shard)
        dealt.append(_new_shard(pipeline, name, ShardState.OPEN, begins, partitions, modulus))
    return dealt


def _begin(store: LeaseStore, pipeline: str, version: int, first: list[Lease]) -> list[Lease]:
    """Write the first shards of a version, unless it has some."""

    def decide(snapshot: Snapshot) -> list[Lease]:
        if of_version(snapshot.leases.values(), pipeline, version):
            return []
        return first

    return swap(store, decide)


def _new_shard(
    pipeline: str,
    shard: ShardId,
    state: ShardState,
    start: Offsets,
    partitions: list[int],
    modulus: int,
    parents: Iterable[str] = (),
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
    """Step 1: write the next generation.

    Nothing is written if the newest one is dealt in that way already, or if it still waits for its parents.

    :param start: all partitions of the topic; at these offsets those begin that no shard has had
    :returns: the children
    :raises BadInputError: if several shards are asked for and the topics differ in their numbers of
        partitions
    """

    def decide(snapshot: Snapshot) -> list[Lease]:
        current = newest_of_version(snapshot.leases.values(), pipeline, version)
        if not current or any(lease.state == ShardState.WAIT for lease in current):
            return []
        dealt_now = [ShardDetail.of(lease).partitions for lease in current]
        before = _partitions(current)
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
            child = _new_shard(pipeline, shard, ShardState.WAIT, begins, partitions, modulus, parents)
            children.append(child)
        return children

    return swap(store, decide)


def opened(leases: Mapping[LeaseKey, Lease]) -> list[Lease]:
    """Step 3: the children whose parents are all TERMINATED, as they are once open."""
    children = []
    for lease in leases.values():
        if not _waits_for_parents(lease):
            continue
        keys = [LeaseKey(lease.stream_id, StatusType.SHARD, name) for name in lease.parent_shard_ids]
        parents = [leases[key] for key in keys]
        if all(parent.state == ShardState.TERMINATED for parent in parents):
            children.append(_begun(lease, parents))
    return children


def _waits_for_parents(lease: Lease) -> bool:
    """Whether it is a shard that waits for its parents and for nothing else."""
    if lease.status_type is not StatusType.SHARD or lease.state != ShardState.WAIT:
        return False
    return not awaits_rewind(lease)


def _begun(child: Lease, parents: list[Lease]) -> Lease:
    """A child that begins where its parents ended, with their watermarks as its floors."""
    detail = ShardDetail.of(child)
    start: Offsets = {}
    floors: Offsets = {}
    for partition in detail.partitions:
        before = _that_had(partition, parents)
        if before is not None:
            checkpoint = ShardCheckpoint.of(before)
            start[partition] = checkpoint.read_to[partition]
            floors[partition] = checkpoint.final_ms(partition)
        else:
            # The partition was added. It takes keys of any parent with its residue. What was final for one of
            # them stays final.
            residue = _residue(partition, detail.modulus)
            had_keys = [parent for parent in parents if residue in _residues(parent, detail.modulus)]
            start[partition] = ShardCheckpoint.of(child).start_offsets[partition]
            floors[partition] = max(ShardCheckpoint.of(parent).all_final_ms for parent in had_keys)
    begun = ShardCheckpoint(start_offsets=start, floors=floors)
    return child.moved(ShardState.OPEN).evolve(checkpoint=begun.to_json(), updated_at=datetime.now(UTC))


def _that_had(partition: int, shards: Iterable[Lease]) -> Lease | None:
    """The one shard that had the partition; None if it was added since."""
    for shard in shards:
        if partition in ShardDetail.of(shard).partitions:
            return shard
    return None


def to_reshard(leases: Iterable[Lease]) -> list[tuple[str, int, int]]:
    """(pipeline, version, shards) of what is to run in another number of shards than it has."""
    found = list(leases)
    due = []
    for name, version, shards in _running(found):
        current = newest_of_version(found, name, version)
        if not current or any(lease.state == ShardState.WAIT for lease in current):
            continue
        modulus = ShardDetail.of(current[0]).modulus
        if len(deal(_partitions(current), shards, modulus)) != len(current):
            due.append((name, version, shards))
    return due


def _running(leases: Iterable[Lease]) -> list[tuple[str, int, int]]:
    """(pipeline, version, shards) of all that is to run."""
    running = []
    for row in rows_of(leases):
        if row.state is not DesiredState.RUNNING:
            continue
        for version, shards in row.wanted_versions.items():
            running.append((row.pipeline, version, shards))
    return running


def _partitions(shards: Iterable[Lease]) -> set[int]:
    """All partitions of these shards."""
    partitions: set[int] = set()
    for shard in shards:
        partitions.update(ShardDetail.of(shard).partitions)
    return partitions


def _residues(lease: Lease, modulus: int) -> set[int]:
    return {_residue(partition, modulus) for partition in ShardDetail.of(lease).partitions}


def _residue(partition: int, modulus: int) -> int:
    return partition % TOPIC_STRIDE % modulus


def _modulus(pipeline: str, shards: int, start: Iterable[int]) -> int:
    """What a key's partitions are equal modulo: the greatest common divisor of the topics' sizes.

    A topic that grew keeps its older records in the partitions that they were sent to.

    :raises BadInputError: if several shards are asked for and the topics differ in their numbers of
        partitions
    """
    counts = Counter(partition // TOPIC_STRIDE for partition in start)
    if shards > 1 and len(set(counts.values())) > 1:
        numbers = ", ".join(map(str, counts.values()))
        problem = (
            f"The topics of {pipeline} have {numbers} partitions, so a key is not in the same shard of each"
        )
        raise BadInputError(problem=problem, cure="Give the topics as many partitions each, or use shards=1.")
    return math.gcd(*counts.values())


def superseded(leases: Iterable[Lease]) -> set[LeaseKey]:
    """The shards that others name as parents: they are to be ended, not consumed."""
    parents = set()
    for lease in leases:
        if lease.status_type is StatusType.SHARD:
            for parent in lease.parent_shard_ids:
                parents.add(LeaseKey(lease.stream_id, StatusType.SHARD, parent))
    return parents


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
    """The shards of a version's newest generation that wait until their parents have ended.

    Until then the parents read what these were dealt.
    """
    newest = newest_of_version(leases, pipeline, version)
    return [lease for lease in newest if lease.state == ShardState.WAIT]


def reading(leases: Iterable[Lease], pipeline: str, version: int) -> list[Lease]:
    """The shards whose ends together say how far a version is.

    They are the parents of those that wait, and after them the newest generation. A partition may be in both:
    then the later one in the list reads it.
    """
    every = of_version(leases, pipeline, version)
    newest = newest_generation(every)
    awaited: set[str] = set()
    for lease in newest:
        if lease.state == ShardState.WAIT:
            awaited.update(lease.parent_shard_ids)
    parents = [lease for lease in every if lease.status_value in awaited]
    return parents + newest


def served(leases: Iterable[Lease], pipeline: str, version: int) -> bool:
    """Whether a worker owns a shard of the version."""
    return any(lease.lease_owner for lease in of_version(leases, pipeline, version))


def of_version(leases: Iterable[Lease], pipeline: str, version: int) -> list[Lease]:
    """The shards of one version of a pipeline, in the order of their names."""
    found = []
    for lease in leases:
        if lease.status_type is not StatusType.SHARD or lease.stream_id != pipeline:
            continue
        if ShardId.parse(lease.status_value).version == version:
            found.append(lease)
    return sorted(found, key=lambda lease: lease.key)


def wanted(lease: Lease, snapshot: Snapshot, able: Callable[[str, int], bool]) -> bool:
    """Whether a shard is to be held.

    It is if its version of the pipeline is wanted, no worker refused it, it has begun, and it is not at its
    end.

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
    """(pipeline, version, shards) of what is to run and has no shards yet."""
    leases = list(snapshot.leases.values())
    missing = []
    for name, version, shards in _running(leases):
        if not of_version(leases, name, version):
            missing.append((name, version, shards))
    return missing
