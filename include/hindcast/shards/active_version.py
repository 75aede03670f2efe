"""Which versions of a pipeline are wanted at one moment, as the row says that says what is wanted of the pipeline.

A version that began later than the active one lacks windows, or parts of them, up to its *seam* (epoch milliseconds of window end).
Once it is promoted readers get those from the versions before it: ``earlier`` says from which, and up to which window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from hindcast.catalog import Catalog
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.partitions import Offsets, ShardId
from hindcast.pipeline import Pipeline
from hindcast.shards import resharding
from hindcast.shards.desired_state import BESIDE, desired_key, rows_of

EARLIER, CHANGE = "earlier", "change"


class InactiveState(StrEnum):
    """Why a version is consumed beside the active one."""

    CATCHING_UP = "catching_up"  # it has not read up to the topic's end yet
    LIVE = "live"  # it waits to be promoted
    WARM = "warm"  # it was active until the last promotion


#: A version beside the active one that readers have not had, or have no longer.
SHADOW = frozenset({InactiveState.CATCHING_UP, InactiveState.LIVE})


class ChangeKind(StrEnum):
    """What became of a pipeline's versions last."""

    STARTED = "reprocess_started"
    CAUGHT_UP = "reprocess_caught_up"
    PROMOTED = "version_promoted"
    BACKED_OUT = "version_backed_out"
    RETIRED = "version_retired"
    DISCARDED = "version_discarded"


@dataclass(frozen=True)
class ServedUntil:
    """Readers get the windows that end by ``to_ms``, and after the earlier ones', from this version's table."""

    version: int
    to_ms: int


@dataclass(frozen=True, kw_only=True)
class InactiveVersion:
    """The version beside the active one.

    :param tables: what it writes, as folder and name below the root, e.g. ``sinks/stock_stats_v2``
    :param seam_ms: its first complete window ends after it; None where it lacks nothing that the active version has
    :param until: when a warm version's time is over, for people: by the clock of whoever promoted. What decides is
        :attr:`Rollout.warm_seconds_left`
    :param warmed_seconds: for how long a warm version was seen to be warm, as far as it was noted (:mod:`hindcast.shards.warm_time`)
    :param earlier: where readers had older windows from while it was active, to go back to
    :param leaving: it is being discarded: nobody consumes it
    """

    version: int
    state: InactiveState
    shards: int
    tables: tuple[str, ...]
    seam_ms: int | None = None
    until: datetime | None = None
    warmed_seconds: float = 0.0
    earlier: tuple[ServedUntil, ...] = ()
    leaving: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "until": self.until.isoformat() if self.until else None, "tables": list(self.tables)}

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        return cls(
            **{
                **entry,
                "state": InactiveState(entry["state"]),
                "tables": tuple(entry["tables"]),
                "until": datetime.fromisoformat(entry["until"]) if entry["until"] else None,
                "earlier": tuple(ServedUntil(**one) for one in entry["earlier"]),
            }
        )


@dataclass(frozen=True, kw_only=True)
class Change:
    """The last change of a pipeline's versions. ``id`` tells whether its event was written; ``despite`` is the reason for which a person
    promoted a version that was not proved; ``offsets`` are those at which it began or, promoted, had read all that the old one had.

    ``number`` counts the pipeline's changes: what says that it knew of this change, or of a later one, came after it. ``at`` is for people.
    """

    id: str
    kind: ChangeKind
    version: int
    active: int
    at: datetime
    who: str = ""
    despite: str = ""
    offsets: Offsets | None = None
    number: int = 0

    def to_json(self) -> dict[str, Any]:
        offsets = None if self.offsets is None else {str(partition): offset for partition, offset in self.offsets.items()}
        return {**asdict(self), "at": self.at.isoformat(), "offsets": offsets}

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        offsets = None if entry["offsets"] is None else {int(partition): offset for partition, offset in entry["offsets"].items()}
        return cls(**{**entry, "kind": ChangeKind(entry["kind"]), "at": datetime.fromisoformat(entry["at"]), "offsets": offsets})

    @property
    def sentence(self) -> str:
        by = f" by {self.who}" if self.who else ""
        despite = f", although it was not proved: {self.despite}" if self.despite else ""
        return {
            ChangeKind.STARTED: f"Version {self.version} begins beside version {self.active}{by}, at the offsets {self.offsets}.",
            ChangeKind.CAUGHT_UP: f"Version {self.version} has caught up with its topic beside version {self.active}.",
            ChangeKind.PROMOTED: f"Version {self.version} is active{by} from the offsets {self.offsets} on{despite}.",
            ChangeKind.BACKED_OUT: f"Version {self.active} is active again{by}; version {self.version} goes on beside it.",
            ChangeKind.RETIRED: f"Version {self.version} is consumed no more; version {self.active} stays active.",
            ChangeKind.DISCARDED: f"Version {self.version} is discarded{by}: its shards, checkpoints and tables are gone.",
        }[self.kind]


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
    def of(cls, row: Lease) -> Self:
        beside, change = row.detail.get(BESIDE), row.detail.get(CHANGE)
        return cls(
            pipeline=row.stream_id,
            active=int(row.detail["version"]),
            shards=int(row.detail["shards"]),
            tables=tuple(row.detail.get("tables", ())),
            beside=InactiveVersion.of(beside) if beside else None,
            earlier=tuple(ServedUntil(**one) for one in row.detail.get(EARLIER, ())),
            change=Change.of(change) if change else None,
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

    def written(self, row: Lease) -> Lease:
        """The row, saying this."""
        detail = {
            **row.detail,
            "version": self.active,
            "shards": self.shards,
            "tables": list(self.tables),
            BESIDE: self.beside.to_json() if self.beside else None,
            EARLIER: [asdict(one) for one in self.earlier],
            CHANGE: self.change.to_json() if self.change else None,
        }
        return row.renewed(detail=detail, updated_at=self.change.at if self.change else row.updated_at)


def rollouts(leases: Iterable[Lease]) -> dict[str, Rollout]:
    """The versions of each pipeline, from the leases of one read."""
    return {row.stream_id: Rollout.of(row) for row in rows_of(leases)}


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
        read = {partition: end for lease in active for partition, end in resharding.ends(lease).items()}
        if own and all(lease.checkpoint.get("batch") and _at_the_end(lease, read) for lease in own):
            reached.append(standing)
    return reached


def _at_the_end(lease: Lease, read: Mapping[str, int]) -> bool:
    if lease.detail.get("lag_records") == 0:
        return True
    return bool(read) and all(end >= read.get(partition, 0) for partition, end in resharding.ends(lease).items())


def is_shadow(leases: Mapping[LeaseKey, Lease], shard: Lease) -> bool:
    """Whether a shard is of a version that readers do not have, from the leases of one read."""
    row = leases.get(desired_key(shard.stream_id))
    beside = Rollout.of(row).beside if row else None
    return beside is not None and beside.state in SHADOW and beside.version == ShardId.parse(shard.status_value).version
