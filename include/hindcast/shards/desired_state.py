"""Read and change what an operator wants of a pipeline. Workers and the supervising DAG make it so."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from hindcast.errors import UnknownPipelineError
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.pipeline import Pipeline
from hindcast.shards.pipeline_row import ACTIVE, DesiredState, PipelineRow, desired_key, row_of, rows_of
from hindcast.shards.shard_row import DRAINED, REFUSED, without_marks

#: Says which marks a shard's detail is to lose.
_Marks = Callable[[Lease], frozenset[str]]


def desired_of(leases: Iterable[Lease]) -> dict[str, PipelineRow]:
    """What is wanted, by pipeline, from the leases of one read."""
    return {row.pipeline: row for row in rows_of(leases)}


def rebuild_request(leases: Mapping[LeaseKey, Lease], shard: LeaseKey) -> str:
    """The newest request to rebuild a shard, from the leases of one read; empty if there is none."""
    row = row_of(leases, shard.stream_id)
    if row is None:
        return ""
    return row.rebuild.get(shard.status_value, "")


class DesiredStates:
    """Reads and changes what is wanted of pipelines. Each change is one compare-and-swap."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    def all(self) -> list[PipelineRow]:
        """What is wanted of each pipeline, in the order of their names."""
        rows = rows_of(self._store.read().leases.values())
        return sorted(rows, key=lambda row: row.pipeline)

    def get(self, name: str) -> PipelineRow:
        """:raises UnknownPipelineError: if nothing was ever wanted of it"""
        known = desired_of(self._store.read().leases.values())
        if name not in known:
            raise UnknownPipelineError(pipeline=name, known=", ".join(sorted(known)) or "none")
        return known[name]

    def declare(self, pipeline: Pipeline, workers: int) -> PipelineRow:
        """Want the pipeline running, or paused if its declaration says so.

        Nothing is changed if something is wanted of it already. Any number of processes may do it at once.
        """
        state = DesiredState.RUNNING
        if pipeline.paused:
            state = DesiredState.PAUSED
        row = PipelineRow(
            pipeline=pipeline.name,
            state=state,
            version=pipeline.version,
            shards=pipeline.shards,
            workers=workers,
        )
        key = desired_key(pipeline.name)

        def decide(snapshot: Snapshot) -> list[Lease]:
            if key in snapshot.leases:
                return []
            first = Lease(
                stream_id=row.pipeline,
                status_type=StatusType.PIPELINE,
                status_value=ACTIVE,
                state=row.state,
                detail=row.to_json(),
                updated_at=datetime.now(UTC),
            )
            return [first]

        swap(self._store, decide)
        return self.get(pipeline.name)

    def set_state(self, name: str, state: DesiredState) -> PipelineRow:
        """Want another state. Wanting it running gives shards that were refused or drained another try.

        :raises UnknownPipelineError: if nothing was ever wanted of it
        """
        marks: frozenset[str] = frozenset()
        if state is DesiredState.RUNNING:
            marks = frozenset({REFUSED, DRAINED})
        return self._change(name, lambda row: replace(row, state=state), lambda _: marks)

    def set_shards(self, name: str, shards: int) -> PipelineRow:
        """Want the pipeline dealt into so many shards. Its workers write the new generation.

        :raises UnknownPipelineError: if nothing was ever wanted of it
        """
        return self._change(name, lambda row: replace(row, shards=shards), lambda _: frozenset())

    def request_rebuild(self, name: str, shards: Iterable[str]) -> str:
        """Want the state of these shards rebuilt from the topic. Those that were refused get another try.

        :returns: the request's id, which each shard's detail repeats once it is done
        :raises UnknownPipelineError: if nothing was ever wanted of it
        """
        request = uuid.uuid4().hex[:12]
        asked = dict.fromkeys(shards, request)

        def ask(row: PipelineRow) -> PipelineRow:
            return replace(row, rebuild={**row.rebuild, **asked})

        def marks(shard: Lease) -> frozenset[str]:
            if shard.status_value in asked:
                return frozenset({REFUSED})
            return frozenset()

        self._change(name, ask, marks)
        return request

    def _change(self, name: str, change: Callable[[PipelineRow], PipelineRow], marks: _Marks) -> PipelineRow:
        """Change what is wanted of a pipeline, and clear marks of its shards, in one commit."""
        key = desired_key(name)
        self.get(name)

        def decide(snapshot: Snapshot) -> list[Lease]:
            lease = snapshot.leases[key]
            row = PipelineRow.of(lease)
            wanted = change(row)
            changed: list[Lease] = []
            if wanted != row:
                now = datetime.now(UTC)
                changed.append(lease.renewed(state=wanted.state, detail=wanted.to_json(), updated_at=now))
            own = [shard for shard in snapshot.leases.values() if shard.stream_id == name]
            marked = [shard for shard in own if marks(shard) & shard.detail.keys()]
            changed.extend(without_marks(shard, marks(shard)) for shard in marked)
            return changed

        swap(self._store, decide)
        return self.get(name)
