"""What an operator wants of a pipeline. Commands write it here; workers and the supervising DAG make it so."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from hindcast.control.leases import Lease, LeaseKey, StatusType
from hindcast.control.store import LeaseStore, Snapshot, swap
from hindcast.errors import UnknownPipelineError
from hindcast.pipeline import Pipeline

#: The one row of a pipeline that says what is wanted of its active version.
ACTIVE = "active"
#: Marks in a shard's detail: why its worker refused to consume it; that it was drained. Wanting the pipeline running clears both.
REFUSED, DRAINED = "refused", "drained"
#: In the wanted row's detail: shard -> the request to rebuild it. In a shard's detail: the request that was met.
REBUILD = "rebuild"
_MARKS = frozenset({REFUSED, DRAINED})


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
    return {
        lease.stream_id: Desired.from_lease(lease)
        for lease in leases
        if lease.status_type is StatusType.PIPELINE and lease.status_value == ACTIVE
    }


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
        """Want the pipeline running, unless something is already wanted of it. Any number of callers may do it at once."""
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
                    state=DesiredState.RUNNING,
                    detail=detail,
                    updated_at=datetime.now(UTC),
                )
            ]

        swap(self._store, decide)
        return self.get(pipeline.name)

    def set_state(self, name: str, state: DesiredState, version: int | None = None) -> Desired:
        """Want another state, and another version where one is given.

        :raises UnknownPipelineError: where nothing was ever wanted of it
        """
        key = desired_key(name)
        self.get(name)

        def decide(snapshot: Snapshot) -> list[Lease]:
            row = snapshot.leases[key]
            detail: dict[str, Any] = {**row.detail, **({"version": version} if version is not None else {})}
            # Wanting it anew gives shards that were refused or drained another try.
            marked = [lease for lease in snapshot.leases.values() if lease.stream_id == name and _MARKS & lease.detail.keys()]
            cleared = [
                lease.evolve(detail={k: v for k, v in lease.detail.items() if k not in _MARKS})
                for lease in marked
                if state is DesiredState.RUNNING
            ]
            if row.state == state and row.detail == detail:
                return cleared
            return [row.renewed(state=state, detail=detail, updated_at=datetime.now(UTC)), *cleared]

        swap(self._store, decide)
        return self.get(name)

    def set_shards(self, name: str, shards: int) -> Desired:
        """Want the pipeline dealt into so many shards. Its workers write the new generation.

        :raises UnknownPipelineError: where nothing was ever wanted of it
        """
        return self._change(name, lambda detail: {**detail, "shards": shards})

    def request_rebuild(self, name: str, shards: Iterable[str]) -> str:
        """Want these shards' state made anew from the topic; return the request's id, which each shard's detail repeats once it is done.

        :raises UnknownPipelineError: where nothing was ever wanted of it
        """
        request = uuid.uuid4().hex[:12]
        asked = dict.fromkeys(shards, request)
        self._change(name, lambda detail: {**detail, REBUILD: {**detail.get(REBUILD, {}), **asked}}, unmark=asked)
        return request

    def _change(self, name: str, change: Callable[[dict[str, Any]], dict[str, Any]], unmark: Iterable[str] = ()) -> Desired:
        """Change the detail; shards named in ``unmark`` get another try where they were refused."""
        key = desired_key(name)
        self.get(name)
        cleared = {LeaseKey(name, StatusType.SHARD, shard) for shard in unmark}

        def decide(snapshot: Snapshot) -> list[Lease]:
            row = snapshot.leases[key]
            detail = change(row.detail)
            if detail == row.detail:
                return []
            refused = [lease for shard, lease in snapshot.leases.items() if shard in cleared and REFUSED in lease.detail]
            tried = [lease.evolve(detail={k: v for k, v in lease.detail.items() if k != REFUSED}) for lease in refused]
            return [row.renewed(detail=detail, updated_at=datetime.now(UTC)), *tried]

        swap(self._store, decide)
        return self.get(name)
