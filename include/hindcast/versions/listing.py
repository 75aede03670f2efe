"""The versions of each pipeline: which there are, what becomes of them, how far they are."""

from __future__ import annotations

from typing import Any

from hindcast import catalog
from hindcast.leases.delta_store import read_leases
from hindcast.leases.lease import Lease
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.active_version import Rollout, rollouts, tables_of

ACTIVE, DISCARDING, OLDER, DECLARED = "active", "discarding", "older", "declared"
COLUMNS = ["pipeline", "version", "state", "lag_records", "watermark_ms", "table", "warm_until", "seam_ms", "readers_to_ms"]


def list_versions(settings: Settings, name: str = "") -> list[dict[str, Any]]:
    """A row for each version that is declared or wanted: {pipeline, version, state, lag_records, offsets, watermark_ms, table, warm_until,
    seam_ms, readers_to_ms}. ``state`` is active, catching_up, live, warm, discarding, older (than the active one) or declared.
    ``readers_to_ms``: readers get windows that end by then from it, although another is active.

    :raises UnknownPipelineError: where there is no pipeline of that name
    """
    found = catalog.load(settings.pipelines_dir)
    leases = read_leases(settings)
    known = rollouts(leases)
    declared = {(one.name, one.version): tables_of(one)[0] for one in found.every()}
    if name:
        found.versions(name)
    wanted = {(one.pipeline, one.active) for one in known.values()}
    wanted |= {(one.pipeline, one.beside.version) for one in known.values() if one.beside}
    every = sorted(declared.keys() | wanted)
    return [_row(leases, known.get(one), one, version, declared.get((one, version), "")) for one, version in every if name in ("", one)]


def _row(leases: list[Lease], standing: Rollout | None, name: str, version: int, table: str) -> dict[str, Any]:
    own = resharding.newest_of_version(leases, name, version)
    beside = standing.beside if standing and standing.beside and standing.beside.version == version else None
    lags = [int(lease.detail.get("lag_records") or 0) for lease in own]
    offsets = {partition: end for lease in own for partition, end in resharding.ends(lease).items()}
    readers_to = [one.to_ms for one in standing.earlier if one.version == version] if standing else []
    return {
        "pipeline": name,
        "version": version,
        "state": _state(standing, version),
        "lag_records": sum(lags) if own else None,
        "offsets": offsets or None,
        "watermark_ms": min((int(lease.checkpoint.get("watermark_ms") or 0) for lease in own), default=None),
        "table": table or (beside.tables[0] if beside else ""),
        "warm_until": beside.until if beside else None,
        "seam_ms": beside.seam_ms if beside else None,
        "readers_to_ms": readers_to[-1] if readers_to else None,
    }


def _state(standing: Rollout | None, version: int) -> str:
    if standing is None:
        return DECLARED
    if version == standing.active:
        return ACTIVE
    if standing.beside is not None and standing.beside.version == version:
        return DISCARDING if standing.beside.leaving else standing.beside.state.value
    return OLDER if version < standing.active else DECLARED
