"""The versions of each pipeline: which there are, their states, and how far they have read."""

from __future__ import annotations

from typing import Any

from hindcast.installation import Installation
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets, as_json_object
from hindcast.shards import resharding
from hindcast.shards.active_version import Rollout, rollouts, tables_of
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail

ACTIVE = "active"
DISCARDING = "discarding"
OLDER = "older"
DECLARED = "declared"
JUDGED = "judged"


def list_versions(installation: Installation, name: str = "") -> list[dict[str, Any]]:
    """A row for each version that is declared or has a state.

    The row: {pipeline, version, state, lag_records, offsets, watermark_ms, table, warm_until, seam_ms,
    readers_to_ms}. ``state`` is active, catching_up, live, warm, discarding, older (than the active one),
    declared, or judged (a stream that others run). ``readers_to_ms``: readers get windows that end by then
    from this version, although another is active.

    :raises UnknownPipelineError: if there is no pipeline of that name
    """
    found = installation.catalog
    leases = installation.lease_table.leases_if_any()
    known = rollouts(leases)
    table_of = {(one.name, one.version): one.sink.url or tables_of(one)[0] for one in found.every()}
    judged = {(one.name, one.version) for one in found.every() if one.is_foreign}
    if name:
        found.versions(name)  # raises if there is none
    every = set(table_of)
    for rollout in known.values():
        every.add((rollout.pipeline, rollout.active))
        if rollout.beside:
            every.add((rollout.pipeline, rollout.beside.version))
    rows = []
    for pipeline, version in sorted(every):
        if name in ("", pipeline):
            table = table_of.get((pipeline, version), "")
            row = _row(leases, known.get(pipeline), pipeline, version, table)
            if (pipeline, version) in judged:
                row["state"] = JUDGED
            rows.append(row)
    return rows


def _row(leases: list[Lease], rollout: Rollout | None, name: str, version: int, table: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "pipeline": name,
        "version": version,
        "state": _state(rollout, version),
        "lag_records": None,
        "offsets": None,
        "watermark_ms": None,
        "table": table,
        "warm_until": None,
        "seam_ms": None,
        "readers_to_ms": None,
    }
    own = resharding.newest_of_version(leases, name, version)
    if own:
        row["lag_records"] = sum(ShardDetail.of(lease).lag_records or 0 for lease in own)
        row["watermark_ms"] = min(ShardCheckpoint.of(lease).watermark_ms for lease in own)
    offsets: Offsets = {}
    for lease in own:
        offsets.update(ShardCheckpoint.of(lease).read_to)
    row["offsets"] = as_json_object(offsets) or None
    if rollout is None:
        return row
    if rollout.beside and rollout.beside.version == version:
        row["table"] = table or rollout.beside.tables[0]
        row["warm_until"] = rollout.beside.until
        row["seam_ms"] = rollout.beside.seam_ms
    for served in rollout.earlier:
        if served.version == version:
            row["readers_to_ms"] = served.to_ms  # the last one counts
    return row


def _state(rollout: Rollout | None, version: int) -> str:
    if rollout is None:
        return DECLARED
    if version == rollout.active:
        return ACTIVE
    inactive = rollout.beside
    if inactive is not None and inactive.version == version:
        if inactive.leaving:
            return DISCARDING
        return inactive.state.value
    if version < rollout.active:
        return OLDER
    return DECLARED
