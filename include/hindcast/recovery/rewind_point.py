"""Where a rewound pipeline resumes, and the shards that do it. Pure Python; the protocol is in
:mod:`hindcast.recovery.rewind`.

A sink's version holds whole batches of all shards. So a pipeline is rewound to the sink as it was after one
of its batches: what came later is taken back, and read again. Each shard is followed by one of a new
generation. That one begins where the version had left its partitions, under the watermark of that moment, as
the shards of a reshard do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hindcast.errors import RewindRefusedError
from hindcast.leases.lease import REMOVED, Lease, ShardState, StatusType
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.partitions import Offsets, ShardId
from hindcast.recovery.rewind_record import BegunRecord, RewindRecord
from hindcast.shards.pipeline_row import DesiredState, row_of
from hindcast.shards.resharding import newest_of_version
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail, awaiting_rewind, without_rewind
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.ledger_history import History


@dataclass(frozen=True)
class RewindRequest:
    """Which pipeline is to be rewound, and to where, in words."""

    pipeline: str
    to: str

    def refused(self, problem: str, cure: str) -> RewindRefusedError:
        return RewindRefusedError(pipeline=self.pipeline, to=self.to, problem=problem, cure=cure)


@dataclass(frozen=True, kw_only=True)
class RewindPoint:
    """A version of the sink to return to. ``sink_version`` is -1 if nothing is kept, not even the first
    batch.

    ``offsets`` and ``floors``: by partition, where reading resumes, and what was final there.

    ``last``: shard -> its last batch that is kept, 0 for none; of all shards that have batches.
    """

    sink_version: int
    offsets: Offsets
    floors: Offsets
    last: dict[str, int]
    kept: tuple[LedgerRow, ...]
    undone: tuple[LedgerRow, ...]


def find(
    rows: Sequence[LedgerRow], target: Mapping[int, int] | None, begun: Mapping[int, int]
) -> RewindPoint:
    """The newest version of the sink of which no batch had read past ``target``; if that is None, nothing is
    kept.

    :param rows: the ledger's rows of one version of a pipeline
    :param begun: the offset at which a partition begins that no batch has read
    """
    ordered = History.of(rows).rows
    number = _first_past(ordered, target)
    kept = ordered[:number]
    chains = History.of(kept).chains
    offsets = {**begun, **History.of(ordered).first}
    final_ms = max((chain[-1].watermark_ms for chain in chains.values()), default=0)
    # A partition that came later takes keys of others: what was final for one of them stays so.
    floors = dict.fromkeys(offsets, final_ms) if kept else {}
    for partition, chain in chains.items():
        offsets[partition] = chain[-1].end
        floors[partition] = chain[-1].watermark_ms
    last = {row.shard: 0 for row in ordered}
    for row in kept:
        last[row.shard] = row.batch
    return RewindPoint(
        sink_version=kept[-1].sink_version if kept else -1,
        offsets=dict(sorted(offsets.items())),
        floors=floors,
        last=last,
        kept=kept,
        undone=ordered[number:],
    )


def _first_past(rows: Sequence[LedgerRow], target: Mapping[int, int] | None) -> int:
    """The index of the first batch that had read past ``target``; how many there are if none had.

    Each batch is past a target that is None.
    """
    for number, row in enumerate(rows):
        if target is None or _reads_past(row, target):
            return number
    return len(rows)


def _reads_past(row: LedgerRow, target: Mapping[int, int]) -> bool:
    return any(end > target.get(partition, end) for partition, end in row.end_offsets.items())


def check_still(pipeline: str, version: int, to: str, leases: Mapping[Any, Lease]) -> None:
    """:raises RewindRefusedError: if the pipeline is not paused, or a shard is held or waits"""
    row = row_of(leases, pipeline)
    request = RewindRequest(pipeline, to)
    if row is None or row.state != DesiredState.PAUSED:
        cure = f"`hindcast pause {pipeline}`, and again once `hindcast leases` shows no owner."
        raise request.refused("it is not paused", cure)
    if row.version != version:
        problem = f"version {row.version} is the active one and version {version} is declared"
        raise request.refused(problem, "Rewind the version that runs.")
    shards = newest_of_version(leases.values(), pipeline, version)
    if not shards:
        raise request.refused("it has no shards yet", "There is nothing to take back before it has run.")
    resume = f"`hindcast resume {pipeline}`"
    for lease in shards:
        if lease.lease_owner:
            cure = f"It releases the shard after its batch. If it has died: {resume}, then pause it again."
            raise request.refused(f"{lease.lease_owner} still holds {lease.status_value}", cure)
        if lease.state == ShardState.WAIT:
            cure = f"{resume}, and pause it again once the new shards are open."
            raise request.refused(f"{lease.status_value} waits for its parents", cure)


def begin(
    store: LeaseStore,
    pipeline: str,
    version: int,
    planned: Sequence[Lease],
    point: RewindPoint,
    record: RewindRecord,
) -> BegunRecord:
    """Step 1: put waiting shards in the place of the planned ones, in one commit.

    :param planned: the shards as they were when the point was found
    :param record: what the rewind records of itself
    :returns: what it has recorded
    :raises RewindRefusedError: if one was taken since
    """
    epochs = {lease.key: lease.epoch for lease in planned}
    states = {lease.status_value: lease.state for lease in planned}
    extended: BegunRecord = {
        **record,
        "sink_version": point.sink_version,
        "last": point.last,
        "states": states,
    }

    def decide(snapshot: Snapshot) -> list[Lease]:
        if _waiting_for(snapshot, pipeline, record["id"]):
            return []  # this very commit, whose outcome was unknown
        check_still(pipeline, version, record["to"], snapshot.leases)
        shards = newest_of_version(snapshot.leases.values(), pipeline, version)
        if {lease.key: lease.epoch for lease in shards} != epochs:
            request = RewindRequest(pipeline, record["to"])
            problem = "a worker has taken one of its shards since this was planned"
            raise request.refused(problem, "Give the command again: it makes a new plan.")
        generation = ShardId.parse(shards[0].status_value).generation + 1
        now = datetime.now(UTC)
        ended = [
            lease.moved(ShardState.TERMINATED).renewed(epoch=lease.epoch + 1, updated_at=now)
            for lease in shards
        ]
        waiting = [_follower(lease, index, generation, point, extended) for index, lease in enumerate(shards)]
        return ended + waiting

    swap(store, decide)
    return extended


def _follower(lease: Lease, index: int, generation: int, point: RewindPoint, record: BegunRecord) -> Lease:
    dealt = ShardDetail.of(lease)
    starts = {}
    floors = {}
    for partition in dealt.partitions:
        starts[partition] = point.offsets[partition]
        if partition in point.floors:
            floors[partition] = point.floors[partition]
    # What is kept was made by this query, so the query must be the same.
    fingerprint = ShardCheckpoint.of(lease).fingerprint if point.kept else None
    checkpoint = ShardCheckpoint(start_offsets=starts, floors=floors, fingerprint=fingerprint)
    detail = ShardDetail(partitions=dealt.partitions, modulus=dealt.modulus, rewind=record)
    version = ShardId.parse(lease.status_value).version
    return Lease(
        stream_id=lease.stream_id,
        status_type=StatusType.SHARD,
        status_value=str(ShardId(version, generation, index)),
        state=ShardState.WAIT,
        parent_shard_ids=[lease.status_value],
        checkpoint=checkpoint.to_json(),
        detail=detail.to_json(),
        updated_at=datetime.now(UTC),
    )


def end(store: LeaseStore, pipeline: str, rewind_id: str) -> list[Lease]:
    """Step 5: open the waiting shards of this rewind, in one commit; nothing if that is done."""

    def decide(snapshot: Snapshot) -> list[Lease]:
        return [
            without_rewind(lease).moved(ShardState.OPEN).renewed(updated_at=datetime.now(UTC))
            for lease in _waiting_for(snapshot, pipeline, rewind_id)
        ]

    return swap(store, decide)


def undo(store: LeaseStore, pipeline: str, rewind_id: str) -> list[Lease]:
    """The way back from step 1, in one commit: the waiting shards of this rewind are gone, and those that
    they were to follow are as they were.

    Their epochs stay raised: no owner of before writes again. Nothing if that is done.
    """

    def decide(snapshot: Snapshot) -> list[Lease]:
        waiting = _waiting_for(snapshot, pipeline, rewind_id)
        if not waiting:
            return []
        parents: set[str] = set()
        for lease in waiting:
            parents.update(lease.parent_shard_ids)
        # A rewind that an older Hindcast began does not say the states.
        states = _rewind_of(waiting[0]).get("states", {})
        # The only way out of TERMINATED: the commit also removes the shard that was to follow.
        changed = [lease.evolve(state=REMOVED) for lease in waiting]
        for lease in snapshot.leases.values():
            is_shard = lease.status_type is StatusType.SHARD and lease.stream_id == pipeline
            if is_shard and lease.status_value in parents:
                state = states.get(lease.status_value, ShardState.CLOSED)
                changed.append(lease.renewed(state=state, updated_at=datetime.now(UTC)))
        return changed

    return swap(store, decide)


def _rewind_of(lease: Lease) -> BegunRecord:
    """The record of the rewind whose end a shard waits for."""
    recorded: Any = ShardDetail.of(lease).rewind
    record: BegunRecord = recorded
    return record


def _waiting_for(snapshot: Snapshot, pipeline: str, rewind_id: str) -> list[Lease]:
    waiting = awaiting_rewind(snapshot.leases.values(), pipeline)
    return [lease for lease in waiting if _rewind_of(lease)["id"] == rewind_id]


def reset_row(
    pipeline: str,
    version: int,
    topic: str,
    shard: str,
    kept: int,
    epoch: int,
    offsets: Offsets,
    sink_version: int,
) -> LedgerRow:
    """The ledger's row that takes back the shard's batches after ``kept``."""
    return LedgerRow.unmeasured(
        pipeline=pipeline,
        version=version,
        shard=shard,
        epoch=epoch,
        batch=-1 - kept,
        worker="",
        topic=topic,
        start_offsets=offsets,
        end_offsets=offsets,
        late_watermark_ms=0,
        watermark_ms=0,
        output_rows=0,
        sink_version=sink_version,
        committed_at=datetime.now(UTC),
    )


def starts(leases: Sequence[Lease]) -> Offsets:
    """By partition, where shards that have no batch begin."""
    begun: Offsets = {}
    for lease in leases:
        begun.update(ShardCheckpoint.of(lease).start_offsets)
    return begun
