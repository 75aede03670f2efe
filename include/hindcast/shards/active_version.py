"""Which versions of a pipeline are wanted at one moment, as the row says that says what is wanted of the pipeline.

A version that began later than the active one lacks windows, or parts of them, up to its *seam* (epoch milliseconds of window end).
Once it is promoted readers get those from the versions before it: ``earlier`` says from which, and up to which window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from hindcast.catalog import Catalog
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.partitions import Offsets, ShardId
from hindcast.pipeline import Pipeline
from hindcast.shards import resharding
from hindcast.shards.pipeline_row import SHADOW, Change, InactiveState, InactiveVersion, PipelineRow, ServedUntil, row_of, rows_of
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The versions of one pipeline at one moment."""

    pipeline: str
    active: int
    shards: int
    tables: tuple[str, ...] = ()  # of the active version, where a promotion wrote them down
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
        return self.change.number if self.change else 0

    @property
    def warm_sign(self) -> tuple[str, float] | None:
        """What of a warm version an observer sees unchanged; None where no version is kept warm."""
        beside = self.beside
        if beside is None or beside.state is not InactiveState.WARM or beside.leaving or self.change is None:
            return None
        return self.change.id, beside.warmed_seconds

    @property
    def warm_seconds_left(self) -> float:
        """For how long the version beside must yet be seen to be warm; both instants are of the one clock of whoever promoted."""
        if self.beside is None or self.beside.until is None or self.change is None:
            return 0.0
        return (self.beside.until - self.change.at).total_seconds() - self.beside.warmed_seconds

    def written(self, row: Lease, token: str = "") -> Lease:
        """The pipeline's row once it says this.

        :param token: marks the writer (:attr:`hindcast.shards.pipeline_row.PipelineRow.written_by`)
        """
        known = PipelineRow.of(row)
        said = replace(
            known,
            version=self.active,
            shards=self.shards,
            tables=self.tables,
            beside=self.beside,
            earlier=self.earlier,
            change=self.change,
            written_by=token or known.written_by,
        )
        changed_at = self.change.at if self.change else row.updated_at
        return row.renewed(detail=said.to_json(), updated_at=changed_at)


def rollouts(leases: Iterable[Lease]) -> dict[str, Rollout]:
    """The versions of each pipeline, from the leases of one read."""
    return {row.pipeline: Rollout.of(row) for row in rows_of(leases)}


def tables_of(pipeline: Pipeline) -> tuple[str, ...]:
    """What a version writes, its sink first, as folder and name below the root of the tables."""
    return (*(f"sinks/{table.name}" for table in pipeline.tables), f"corrections/{pipeline.sink.name}")


def tables_at(found: Catalog, standing: Rollout) -> tuple[str, ...]:
    """The same of the active version."""
    return standing.tables or tables_of(found.of(standing.pipeline, standing.active))


def active_pipeline(catalog: Catalog, leases: Iterable[Lease], name: str, version: int = 0) -> Pipeline:
    """The declaration of a pipeline's active version, or of the one that is given; of its first where nothing was ever wanted of it.

    :raises UnknownPipelineError: where no file declares the pipeline
    :raises UnknownVersionError: where none declares that version
    """
    declared = catalog[name]
    standing = rollouts(leases).get(name)
    return catalog.of(name, version or (standing.active if standing else declared.version))


def caught_up(leases: Iterable[Lease]) -> list[Rollout]:
    """The pipelines whose shadow has just reached the end of its topic: the last plan of each of its shards took all that there was, or it
    has read as far as the active version.
    """
    found = list(leases)
    reached = []
    for standing in rollouts(found).values():
        if standing.beside is None or standing.beside.state is not InactiveState.CATCHING_UP or standing.beside.leaving:
            continue
        own = resharding.newest_of_version(found, standing.pipeline, standing.beside.version)
        active = resharding.reading(found, standing.pipeline, standing.active)
        read: Offsets = {}
        for lease in active:
            read.update(ShardCheckpoint.of(lease).read_to)
        if own and all(_at_the_end(lease, read) for lease in own):
            reached.append(standing)
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


def is_shadow(leases: Mapping[LeaseKey, Lease], shard: Lease) -> bool:
    """Whether a shard is of a version that readers do not have, from the leases of one read."""
    row = row_of(leases, shard.stream_id)
    if row is None or row.beside is None or row.beside.state not in SHADOW:
        return False
    return row.beside.version == ShardId.parse(shard.status_value).version
