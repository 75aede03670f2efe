"""Where a rewound pipeline goes on, and the shards that do it. Pure Python; the protocol is in :mod:`hindcast.recovery.rewind`.

A sink's version holds whole batches of all shards, so a pipeline is rewound to the sink as it was after one of its batches: what came
later is taken back, and read again. Each shard is followed by one of a new generation, which begins where that version had left its
partitions, under the watermark of that moment, as the shards of a reshard do.
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
from hindcast.shards.pipeline_row import DesiredState, row_of
from hindcast.shards.resharding import newest_of_version
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail, awaits_rewind, without_rewind
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.ledger_history import History


@dataclass(frozen=True, kw_only=True)
class RewindPoint:
    """A version of the sink to go back to. ``sink_version`` is -1 where nothing is kept, not even the first batch.

    ``offsets`` and ``floors``: by partition where reading goes on, and what was final there. ``last``: shard -> its last batch that is
    kept, 0 for none, of all shards that have batches.
    """

    sink_version: int
    offsets: Offsets
    floors: Offsets
    last: dict[str, int]
    kept: tuple[LedgerRow, ...]
    undone: tuple[LedgerRow, ...]


def find(rows: Sequence[LedgerRow], target: Mapping[int, int] | None, begun: Mapping[int, int]) -> RewindPoint:
    """The newest version of the sink of which no batch had read past ``target``; nothing is kept where that is None.

    :param rows: the ledger's rows of one version of a pipeline
    :param begun: the offset at which a partition begins that no batch has read
    """
    ordered = History.of(rows).rows
    past = (n for n, row in enumerate(ordered) if target is None or any(end > target.get(p, end) for p, end in row.end_offsets.items()))
    number = next(past, len(ordered))
    kept, undone = ordered[:number], ordered[number:]
    chains, begins = History.of(kept).chains, {**begun, **History.of(ordered).first}
    final_ms = max((chain[-1].watermark_ms for chain in chains.values()), default=0)
    return RewindPoint(
        sink_version=kept[-1].sink_version if kept else -1,
        offsets={p: chains[p][-1].end if p in chains else begins[p] for p in sorted(begins)},
        # A partition that came later takes keys of others: what was final for one of them stays so.
        floors={p: chains[p][-1].watermark_ms if p in chains else final_ms for p in sorted(begins)} if kept else {},
        last={row.shard: max((k.batch for k in kept if k.shard == row.shard), default=0) for row in ordered},
        kept=kept,
        undone=undone,
    )


def unfinished(leases: Mapping[Any, Lease], pipeline: str) -> list[Lease]:
    """The shards of a reset that has begun and not ended."""
    return [
        lease
        for lease in leases.values()
        if lease.status_type is StatusType.SHARD and lease.stream_id == pipeline and lease.state == ShardState.WAIT and awaits_rewind(lease)
    ]


def check_still(pipeline: str, version: int, to: str, leases: Mapping[Any, Lease]) -> None:
    """:raises RewindRefusedError: where the pipeline is not paused, or a shard is held or waits"""
    row = row_of(leases, pipeline)
    refused = {"pipeline": pipeline, "to": to}
    if row is None or row.state != DesiredState.PAUSED:
        cure = f"`hindcast pause {pipeline}`, and again once `hindcast leases` shows no owner."
        raise RewindRefusedError(**refused, problem="it is not paused", cure=cure)
    if row.version != version:
        problem = f"version {row.version} is the active one and version {version} is declared"
        raise RewindRefusedError(**refused, problem=problem, cure="Rewind the version that runs.")
    shards = newest_of_version(leases.values(), pipeline, version)
    if not shards:
        raise RewindRefusedError(**refused, problem="it has no shards yet", cure="There is nothing to take back before it has run.")
    for lease in shards:
        if lease.lease_owner:
            cure = f"It gives it up after the batch in hand. Where it has died: `hindcast resume {pipeline}`, then pause it again."
            raise RewindRefusedError(**refused, problem=f"{lease.lease_owner} still holds {lease.status_value}", cure=cure)
        if lease.state == ShardState.WAIT:
            cure = f"`hindcast resume {pipeline}`, and pause it again once the new shards are open."
            raise RewindRefusedError(**refused, problem=f"{lease.status_value} waits for its parents", cure=cure)


def begin(store: LeaseStore, pipeline: str, version: int, planned: Sequence[Lease], cut: RewindPoint, record: Mapping[str, Any]) -> None:
    """Step 1: put waiting shards in the place of the planned ones, in one commit.

    :param planned: the shards as they were when the cut was decided
    :param record: what the reset keeps of itself, of JSON's types
    :raises RewindRefusedError: where one was taken since
    """
    epochs = {lease.key: lease.epoch for lease in planned}
    states = {lease.status_value: lease.state for lease in planned}
    told = {**record, "sink_version": cut.sink_version, "last": cut.last, "states": states}

    def decide(snapshot: Snapshot) -> list[Lease]:
        if any(_rewind_of(lease)["id"] == record["id"] for lease in unfinished(snapshot.leases, pipeline)):
            return []  # this very commit, whose outcome was unknown
        check_still(pipeline, version, str(record["to"]), snapshot.leases)
        shards = newest_of_version(snapshot.leases.values(), pipeline, version)
        if {lease.key: lease.epoch for lease in shards} != epochs:
            problem = "its shards have changed hands since this was planned"
            raise RewindRefusedError(pipeline=pipeline, to=record["to"], problem=problem, cure="Ask again: it is planned anew.")
        number, now = ShardId.parse(shards[0].status_value).generation + 1, datetime.now(UTC)
        ended = [lease.moved(ShardState.TERMINATED).renewed(epoch=lease.epoch + 1, updated_at=now) for lease in shards]
        return [*ended, *(_follower(lease, index, number, cut, told) for index, lease in enumerate(shards))]

    swap(store, decide)


def _follower(lease: Lease, index: int, generation: int, cut: RewindPoint, told: Mapping[str, Any]) -> Lease:
    dealt = ShardDetail.of(lease)
    # What is kept was made by this query, so the query must be the same.
    fingerprint = ShardCheckpoint.of(lease).fingerprint if cut.kept else None
    checkpoint = ShardCheckpoint(
        start_offsets={partition: cut.offsets[partition] for partition in dealt.partitions},
        floors={partition: cut.floors[partition] for partition in dealt.partitions if partition in cut.floors},
        fingerprint=fingerprint,
    )
    detail = ShardDetail(partitions=dealt.partitions, modulus=dealt.modulus, rewind=told)
    return Lease(
        stream_id=lease.stream_id,
        status_type=StatusType.SHARD,
        status_value=str(ShardId(ShardId.parse(lease.status_value).version, generation, index)),
        state=ShardState.WAIT,
        parent_shard_ids=[lease.status_value],
        checkpoint=checkpoint.to_json(),
        detail=detail.to_json(),
        updated_at=datetime.now(UTC),
    )


def end(store: LeaseStore, pipeline: str, reset_id: str) -> list[Lease]:
    """Step 5: open the waiting shards of this reset, in one commit; nothing if that is done."""

    def decide(snapshot: Snapshot) -> list[Lease]:
        return [
            without_rewind(lease).moved(ShardState.OPEN).renewed(updated_at=datetime.now(UTC))
            for lease in _waiting_for(snapshot, pipeline, reset_id)
        ]

    return swap(store, decide)


def undo(store: LeaseStore, pipeline: str, reset_id: str) -> list[Lease]:
    """The way back from step 1, in one commit: the waiting shards of this reset are gone, and those they were to follow are as they were.

    Their epochs stay raised: nobody who held one before writes again. Nothing if that is done.
    """

    def decide(snapshot: Snapshot) -> list[Lease]:
        waiting = _waiting_for(snapshot, pipeline, reset_id)
        parents = {name for lease in waiting for name in lease.parent_shard_ids}
        states: Mapping[str, str] = _rewind_of(waiting[0]).get("states", {}) if waiting else {}
        # The only way out of TERMINATED: the commit also removes the shard that was to follow.
        again = [
            lease.renewed(state=states.get(lease.status_value, ShardState.CLOSED), updated_at=datetime.now(UTC))
            for lease in snapshot.leases.values()
            if lease.status_type is StatusType.SHARD and lease.stream_id == pipeline and lease.status_value in parents
        ]
        return [*(lease.evolve(state=REMOVED) for lease in waiting), *again]

    return swap(store, decide)


def _rewind_of(lease: Lease) -> Mapping[str, Any]:
    """What a waiting shard keeps of its rewind."""
    return ShardDetail.of(lease).rewind or {}


def _waiting_for(snapshot: Snapshot, pipeline: str, reset_id: str) -> list[Lease]:
    return [lease for lease in unfinished(snapshot.leases, pipeline) if _rewind_of(lease)["id"] == reset_id]


def reset_row(pipeline: str, version: int, topic: str, shard: str, kept: int, epoch: int, offsets: Offsets, sink_version: int) -> LedgerRow:
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
    return {p: o for lease in leases for p, o in ShardCheckpoint.of(lease).start_offsets.items()}
