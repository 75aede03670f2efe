"""What an operator wants of a pipeline. Commands write it here; workers and the supervising DAG make it so."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from hindcast.errors import UnknownPipelineError
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.pipeline import Pipeline

#: The one row of a pipeline that says what is wanted of its active version.
ACTIVE = "active"
#: Marks in a shard's detail: why its worker refused to consume it; that it was drained. Wanting the pipeline running clears both.
REFUSED, DRAINED = "refused", "drained"
#: In the wanted row's detail: shard -> the request to rebuild it. In a shard's detail: the request that was met.
REBUILD = "rebuild"
_MARKS = frozenset({REFUSED, DRAINED})
#: In the wanted row's detail: the version beside the active one (:mod:`hindcast.shards.version_changes`), with its own number of shards.
BESIDE = "beside"


class DesiredState(StrEnum):
    """running: consume. paused: stop after the batch in hand. drained: consume to the topic's end of this moment, then stop."""

    RUNNING = "running"
    PAUSED = "paused"
    DRAINED = "drained"


@dataclass(frozen=True)
class Desired:
    """What is wanted of one pipeline."""

    pipeline: str
    version: int
    state: DesiredState
    shards: int
    workers: int

    @classmethod
    def from_lease(cls, lease: Lease) -> Desired:
        detail = lease.detail
        return cls(lease.stream_id, int(detail["version"]), DesiredState(lease.state), int(detail["shards"]), int(detail["workers"]))


def desired_key(pipeline: str) -> LeaseKey:
    return LeaseKey(pipeline, StatusType.PIPELINE, ACTIVE)


def desired_of(leases: Iterable[Lease]) -> dict[str, Desired]:
    """What is wanted, by pipeline, from the leases of one read."""
    return {lease.stream_id: Desired.from_lease(lease) for lease in rows_of(leases)}


def wanted_versions(row: Lease) -> dict[int, int]:
    """Version -> into how many shards it is dealt: what a wanted row wants consumed, the active version first."""
    wanted = {int(row.detail["version"]): int(row.detail["shards"])}
    beside = row.detail.get(BESIDE)
    if beside and not beside["leaving"]:
        wanted[int(beside["version"])] = int(beside["shards"])
    return wanted


def rows_of(leases: Iterable[Lease]) -> list[Lease]:
    """The wanted rows among the leases of one read."""
    return [lease for lease in leases if lease.status_type is StatusType.PIPELINE and lease.status_value == ACTIVE]


def rebuild_request(leases: Mapping[LeaseKey, Lease], shard: LeaseKey) -> str:
    """The newest request to rebuild a shard, from the leases of one read; empty where there is none."""
    row = leases.get(desired_key(shard.stream_id))
    return str(row.detail.get(REBUILD, {}).get(shard.status_value, "")) if row else ""


class DesiredStates:
    """Reads and writes desired states."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    def all(self) -> list[Desired]:
        return sorted(desired_of(self._store.read().leases.values()).values(), key=lambda desired: desired.pipeline)

    def get(self, name: str) -> Desired:
        """:raises UnknownPipelineError: where nothing was ever wanted of it"""
        known = desired_of(self._store.read().leases.values())
        if name not in known:
            raise UnknownPipelineError(pipeline=name, known=", ".join(sorted(known)) or "none")
        return known[name]

    def declare(self, pipeline: Pipeline, workers: int) -> Desired:
        """Want the pipeline running, or paused where it says so, unless something is already wanted of it. Any number may do it at once."""
        key = desired_key(pipeline.name)
        detail = {"version": pipeline.version, "shards": pipeline.shards, "workers": workers}

        def decide(snapshot: Snapshot) -> list[Lease]:
            if key in snapshot.leases:
                return []
            return [
                Lease(
                    stream_id=key.stream_id,
                    status_type=StatusType.PIPELINE,
                    status_value=ACTIVE,
                    state=DesiredState.PAUSED if pipeline.paused else DesiredState.RUNNING,
                    detail=detail,
                    updated_at=datetime.now(UTC),
                )
            ]

        swap(self._store, decide)
        return self.get(pipeline.name)

    def set_state(self, name: str, state: DesiredState) -> Desired:
        """Want another state. Wanting it running gives shards that were refused or drained another try.

        :raises UnknownPipelineError: where nothing was ever wanted of it
        """
        marks = _MARKS if state is DesiredState.RUNNING else frozenset()
        return self._change(name, lambda row: row.evolve(state=state), lambda _: marks)

    def set_shards(self, name: str, shards: int) -> Desired:
        """Want the pipeline dealt into so many shards. Its workers write the new generation.

        :raises UnknownPipelineError: where nothing was ever wanted of it
        """
        return self._change(name, lambda row: row.evolve(detail={**row.detail, "shards": shards}))

    def request_rebuild(self, name: str, shards: Iterable[str]) -> str:
        """Want these shards' state made anew from the topic; return the request's id, which each shard's detail repeats once it is done.
        Those that were refused get another try.

        :raises UnknownPipelineError: where nothing was ever wanted of it
        """
        request = uuid.uuid4().hex[:12]
        asked = dict.fromkeys(shards, request)

        def ask(row: Lease) -> Lease:
            return row.evolve(detail={**row.detail, REBUILD: {**row.detail.get(REBUILD, {}), **asked}})

        self._change(name, ask, lambda lease: frozenset({REFUSED}) if lease.status_value in asked else frozenset())
        return request

    def _change(
        self, name: str, change: Callable[[Lease], Lease], marks: Callable[[Lease], frozenset[str]] = lambda _: frozenset()
    ) -> Desired:
        """Change what is wanted of a pipeline and clear these marks of its shards, in one commit."""
        key = desired_key(name)
        self.get(name)

        def decide(snapshot: Snapshot) -> list[Lease]:
            row = snapshot.leases[key]
            wanted = change(row)
            marked = [lease for lease in snapshot.leases.values() if lease.stream_id == name and marks(lease) & lease.detail.keys()]
            cleared = [lease.evolve(detail={k: v for k, v in lease.detail.items() if k not in marks(lease)}) for lease in marked]
            return [*([] if wanted == row else [wanted.renewed(updated_at=datetime.now(UTC))]), *cleared]

        swap(self._store, decide)
        return self.get(name)
