"""Which versions of a pipeline are consumed at one moment, and which one readers get.

The pipeline's row says it (:mod:`hindcast.shards.pipeline_row`).

A version that began later than the active one lacks windows, or parts of them, up to its *seam*: an instant
in epoch milliseconds, which is the end of a window. Once the version is promoted, readers get those windows
from the versions before it: ``earlier`` says from which, and up to which window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from hindcast.catalog import Catalog
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline
from hindcast.shards import resharding
from hindcast.shards.pipeline_row import (
    Change,
    InactiveState,
    InactiveVersion,
    PipelineRow,
    ServedUntil,
    rows_of,
)
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The versions of one pipeline at one moment.

    :param shards: into how many shards the active version is dealt
    :param tables: what the active version writes, if a promotion wrote it down; else empty
    :param beside: the inactive version
    """

    pipeline: str
    active: int
    shards: int
    tables: tuple[str, ...] = ()
    beside: InactiveVersion | None = None
    earlier: tuple[ServedUntil, ...] = ()
    change: Change | None = None

    @classmethod
    def of(cls, row: PipelineRow) -> Self:
        return cls(
            pipeline=row.pipeline,
            active=row.version,
            shards=row.shards,
            tables=row.tables,
            beside=row.beside,
            earlier=row.earlier,
            change=row.change,
        )

    @property
    def changes(self) -> int:
        """How many changes of its versions there were."""
        if self.change is None:
            return 0
        return self.change.number

    @property
    def warm_sign(self) -> tuple[str, float] | None:
        """What an observer sees unchanged as long as a version is warm; None if no version is kept warm."""
        beside = self.beside
        if beside is None or beside.state is not InactiveState.WARM or beside.leaving or self.change is None:
            return None
        return self.change.id, beside.warmed_seconds

    @property
    def warm_seconds_left(self) -> float:
        """For how long the inactive version must still be seen to be warm."""
        if self.beside is None or self.beside.until is None or self.change is None:
            return 0.0
        # Both instants are of one clock, that of the host that promoted.
        granted = self.beside.until - self.change.at
        return granted.total_seconds() - self.beside.warmed_seconds

    def written(self, row: Lease, token: str) -> Lease:
        """The pipeline's row once it says this.

        :param token: marks the writer (:attr:`hindcast.shards.pipeline_row.PipelineRow.written_by`)
        """
        known = PipelineRow.of(row)
        changed = replace(
            known,
            version=self.active,
            shards=self.shards,
            tables=self.tables,
            beside=self.beside,
            earlier=self.earlier,
            change=self.change,
            written_by=token,
        )
        updated_at = row.updated_at
        if self.change is not None:
            updated_at = self.change.at
        return row.renewed(detail=changed.to_json(), updated_at=updated_at)


def rollouts(leases: Iterable[Lease]) -> dict[str, Rollout]:
    """The versions of each pipeline, from the leases of one read."""
    return {row.pipeline: Rollout.of(row) for row in rows_of(leases)}


def tables_of(pipeline: Pipeline) -> tuple[str, ...]:
    """What a version writes, its sink first, as folder and name below the root of the tables."""
    sinks = [f"sinks/{table.name}" for table in pipeline.tables]
    return (*sinks, f"corrections/{pipeline.sink.name}")


def tables_at(catalog: Catalog, rollout: Rollout) -> tuple[str, ...]:
    """What the active version writes, in the same form."""
    return rollout.tables or tables_of(catalog.of(rollout.pipeline, rollout.active))


def active_pipeline(catalog: Catalog, leases: Iterable[Lease], name: str, version: int = 0) -> Pipeline:
    """The declaration of a pipeline's active version.

    :param version: another version, if it is not 0
    :returns: the lowest version that is declared if nothing was ever wanted of the pipeline
    :raises UnknownPipelineError: if no file declares the pipeline
    :raises UnknownVersionError: if none declares that version
    """
    lowest = catalog[name]
    if version:
        return catalog.of(name, version)
    rollout = rollouts(leases).get(name)
    if rollout is None:
        return lowest
    return catalog.of(name, rollout.active)


def caught_up(leases: Iterable[Lease]) -> list[Rollout]:
    """The pipelines whose shadow has just reached the end of its topic.

    The last plan of each of its shards took all that there was, or has read as far as the active version.
    """
    found = list(leases)
    reached = []
    for rollout in rollouts(found).values():
        beside = rollout.beside
        if beside is None or beside.state is not InactiveState.CATCHING_UP or beside.leaving:
            continue
        own = resharding.newest_of_version(found, rollout.pipeline, beside.version)
        read: Offsets = {}
        for lease in resharding.reading(found, rollout.pipeline, rollout.active):
            read.update(ShardCheckpoint.of(lease).read_to)
        if own and all(_at_the_end(lease, read) for lease in own):
            reached.append(rollout)
    return reached


def _at_the_end(shard: Lease, read: Offsets) -> bool:
    """Whether a shard has committed a batch and has nothing left to read, or has read as far as ``read``."""
    checkpoint = ShardCheckpoint.of(shard)
    if not checkpoint.batch:
        return False
    if ShardDetail.of(shard).lag_records == 0:
        return True
    if not read:
        return False
    return all(end >= read.get(partition, 0) for partition, end in checkpoint.read_to.items())
