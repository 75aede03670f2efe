"""The one lease row of a pipeline that says what is wanted of it.

No other module knows the keys of its detail.

Commands write it, workers and the supervising DAG make it so. It says whether the pipeline is to run, in how
many shards, which of its versions readers get, and which other version is consumed at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.partitions import Offsets, as_json_object, by_partition

#: The row's ``status_value``.
ACTIVE = "active"


class DesiredState(StrEnum):
    """What workers do with a pipeline.

    - running: consume.
    - paused: stop after the batch in hand.
    - drained: consume to the topic's end of this moment, then stop.
    """

    RUNNING = "running"
    PAUSED = "paused"
    DRAINED = "drained"


class InactiveState(StrEnum):
    """Why a version is consumed that is not the active one."""

    CATCHING_UP = "catching_up"  # it has not read up to the topic's end yet
    LIVE = "live"  # it waits to be promoted
    WARM = "warm"  # it was active until the last promotion


#: States of an inactive version that readers have never had, or have no longer.
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
    """Readers get the windows that end by ``to_ms`` (epoch milliseconds) from this version's table.

    Of several in a row, each serves the windows that follow those of the one before.
    """

    version: int
    to_ms: int


@dataclass(frozen=True, kw_only=True)
class InactiveVersion:
    """The version that is consumed at the same time as the active one.

    :param shards: into how many shards its partitions are dealt
    :param tables: what it writes, as folder and name below the root, e.g. ``sinks/stock_stats_v2``
    :param seam_ms: its first complete window ends after this instant, in epoch milliseconds; None if it lacks
        nothing that the active version has
    :param until: when a warm version's time is over, for people: by the clock of the host that promoted. What
        decides is :attr:`hindcast.shards.active_version.Rollout.warm_seconds_left`
    :param warmed_seconds: for how long a warm version was seen to be warm, as far as it was noted
        (:mod:`hindcast.shards.warm_time`)
    :param earlier: from which versions readers had older windows while it was active
    :param leaving: it is being discarded, so no worker consumes it
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
        until = self.until.isoformat() if self.until else None
        return {**asdict(self), "until": until, "tables": list(self.tables)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        values = dict(entry)
        values["state"] = InactiveState(entry["state"])
        values["tables"] = tuple(entry["tables"])
        values["earlier"] = _served(entry["earlier"])
        if entry["until"]:
            values["until"] = datetime.fromisoformat(entry["until"])
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Change:
    """The last change of a pipeline's versions.

    :param id: says whether the change's event was written
    :param at: when, for people
    :param who: the person who did it; empty if it was a worker
    :param despite: why a person promoted a version that was not proved; empty if it was proved
    :param offsets: those at which the version began or, of a promotion, those up to which it had read when
        the old version had read no further
    :param number: counts the pipeline's changes. What knows of this change, or of a later one, came after it
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
        offsets = None if self.offsets is None else as_json_object(self.offsets)
        return {**asdict(self), "at": self.at.isoformat(), "offsets": offsets}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        values = dict(entry)
        values["kind"] = ChangeKind(entry["kind"])
        values["at"] = datetime.fromisoformat(entry["at"])
        if entry["offsets"] is not None:
            values["offsets"] = by_partition(entry["offsets"])
        return cls(**values)

    @property
    def sentence(self) -> str:
        """What an event of this change says."""
        by = ""
        if self.who:
            by = f" by {self.who}"
        match self.kind:
            case ChangeKind.STARTED:
                started = f"Version {self.version} is started{by} at the offsets {self.offsets}"
                return f"{started}; version {self.active} stays active."
            case ChangeKind.CAUGHT_UP:
                caught_up = f"Version {self.version} has caught up with its topic"
                return f"{caught_up}; version {self.active} stays active."
            case ChangeKind.PROMOTED:
                despite = ""
                if self.despite:
                    despite = f", although it was not proved: {self.despite}"
                return f"Version {self.version} is active{by} from the offsets {self.offsets} on{despite}."
            case ChangeKind.BACKED_OUT:
                return f"Version {self.active} is active again{by}; version {self.version} is still consumed."
            case ChangeKind.RETIRED:
                return f"Version {self.version} is no longer consumed; version {self.active} stays active."
            case ChangeKind.DISCARDED:
                gone = "its shards, checkpoints and tables are gone"
                return f"Version {self.version} is discarded{by}: {gone}."


@dataclass(frozen=True, kw_only=True)
class PipelineRow:
    """What is wanted of one pipeline.

    :param version: the active version, which readers get
    :param shards: into how many shards the active version is dealt
    :param workers: how many workers the supervising DAG keeps for it
    :param tables: what the active version writes, if a promotion wrote it down; else empty
    :param beside: the version that is consumed at the same time
    :param earlier: from which versions readers get older windows
    :param rebuild: by the name of a shard, the newest request to rebuild it
    :param written_by: a token of the last change of versions. A writer finds out by it whether a commit of
        unknown outcome has landed
    """

    pipeline: str
    state: DesiredState
    version: int
    shards: int
    workers: int
    tables: tuple[str, ...] = ()
    beside: InactiveVersion | None = None
    earlier: tuple[ServedUntil, ...] = ()
    change: Change | None = None
    rebuild: Mapping[str, str] = field(default_factory=dict)
    written_by: str = ""

    @classmethod
    def of(cls, lease: Lease) -> Self:
        recorded = lease.detail
        beside = recorded.get("beside")
        change = recorded.get("change")
        return cls(
            pipeline=lease.stream_id,
            state=DesiredState(lease.state),
            version=int(recorded["version"]),
            shards=int(recorded["shards"]),
            workers=int(recorded["workers"]),
            tables=tuple(recorded.get("tables", ())),
            beside=InactiveVersion.from_json(beside) if beside else None,
            earlier=_served(recorded.get("earlier", ())),
            change=Change.from_json(change) if change else None,
            rebuild=recorded.get("rebuild", {}),
            written_by=recorded.get("written_by", ""),
        )

    def to_json(self) -> dict[str, Any]:
        """The detail of the row. A key that would have its default value is left out."""
        detail: dict[str, Any] = {"version": self.version, "shards": self.shards, "workers": self.workers}
        if self.tables:
            detail["tables"] = list(self.tables)
        if self.beside is not None:
            detail["beside"] = self.beside.to_json()
        if self.earlier:
            detail["earlier"] = [asdict(one) for one in self.earlier]
        if self.change is not None:
            detail["change"] = self.change.to_json()
        if self.rebuild:
            detail["rebuild"] = dict(self.rebuild)
        if self.written_by:
            detail["written_by"] = self.written_by
        return detail

    @property
    def wanted_versions(self) -> dict[int, int]:
        """Version -> its number of shards, of all that are to be consumed; the active version first."""
        wanted = {self.version: self.shards}
        if self.beside is not None and not self.beside.leaving:
            wanted[self.beside.version] = self.beside.shards
        return wanted


def desired_key(pipeline: str) -> LeaseKey:
    return LeaseKey(pipeline, StatusType.PIPELINE, ACTIVE)


def rows_of(leases: Iterable[Lease]) -> list[PipelineRow]:
    """The rows of all pipelines, from the leases of one read."""
    return [PipelineRow.of(lease) for lease in leases if is_pipeline_row(lease)]


def is_pipeline_row(lease: Lease) -> bool:
    return lease.status_type is StatusType.PIPELINE and lease.status_value == ACTIVE


def row_of(leases: Mapping[LeaseKey, Lease], pipeline: str) -> PipelineRow | None:
    """What is wanted of a pipeline, from the leases of one read; None if nothing ever was."""
    lease = leases.get(desired_key(pipeline))
    return PipelineRow.of(lease) if lease is not None else None


def _served(entries: Iterable[Mapping[str, Any]]) -> tuple[ServedUntil, ...]:
    return tuple(ServedUntil(**entry) for entry in entries)
