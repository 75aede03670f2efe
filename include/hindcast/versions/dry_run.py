"""What a promotion, a back-out or a discard would do. Decided as the command itself decides it, on a store that keeps nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast import catalog
from hindcast.leases.delta_store import read_leases
from hindcast.leases.lease import Lease
from hindcast.leases.store import Snapshot
from hindcast.settings import Settings
from hindcast.shards.active_version import tables_at
from hindcast.shards.pipeline_row import ChangeKind, desired_key
from hindcast.shards.version_changes import Refusal, Versions, check_shadow
from hindcast.versions.catch_up import position
from hindcast.versions.promote import check_proved


@dataclass(frozen=True)
class _Rehearsal:
    """A lease store of one snapshot: what is committed to it is forgotten."""

    snapshot: Snapshot

    def read(self) -> Snapshot:
        return self.snapshot

    def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
        pass


@dataclass(frozen=True)
class DryRun:
    """``sentence`` says what would happen; ``done``: it has happened already, by the last change."""

    sentence: str
    row: dict[str, Any]
    done: bool = False


def plan_promotion(settings: Settings, name: str, version: int, *, despite: str = "") -> DryRun:
    """:raises VersionRefusedError: if it would be refused; whether it reads fast enough is seen when it is done"""
    snapshot, versions = _rehearse(settings, name, version, "promoted")
    standing = versions.of(name)
    row = {"pipeline": name, "version": version, "before": standing.active}
    if standing.active == version and standing.change is not None and standing.change.kind is ChangeKind.PROMOTED:
        return DryRun(f"{name}: version {version} is active already", {**row, "promoted": False}, done=True)
    beside = check_shadow(standing, version, "promoted")
    tables = tables_at(catalog.load(settings.pipelines_dir), standing)
    if not despite:
        check_proved(settings, standing, beside)
    leases = list(snapshot.leases.values())
    new, old = (
        position(settings, of[0].removeprefix("sinks/"), leases, name, number)
        for of, number in ((beside.tables, version), (tables, standing.active))
    )
    until = datetime.now(UTC) + timedelta(seconds=settings.warm_seconds)
    assert standing.change is not None
    versions.promote(
        name, version, tables, warm_seconds=settings.warm_seconds, barrier=old.offsets, since=standing.change.id, despite=despite
    )
    warm = f"version {standing.active} is kept warm for {settings.warm_seconds:g} s"
    sentence = f"{name}: version {version} becomes the active one, readers switch at once, {warm}"
    return DryRun(sentence, {**row, "promoted": True, "behind_records": new.behind(old), "warm_until": until.isoformat()})


def plan_back_out(settings: Settings, name: str) -> DryRun:
    """:raises VersionRefusedError: if it would be refused"""
    _, versions = _rehearse(settings, name, 0, "backed out")
    standing = versions.of(name)
    if standing.change is not None and standing.change.kind is ChangeKind.BACKED_OUT and standing.beside is not None:
        row = {"pipeline": name, "version": standing.active, "before": standing.beside.version, "backed_out": False}
        return DryRun(f"{name}: version {standing.active} is active again already", row, done=True)
    back = versions.back_out(name)
    sentence = f"{name}: readers return to version {back.active} at once, version {standing.active} goes on beside it"
    return DryRun(sentence, {"pipeline": name, "version": back.active, "before": standing.active, "backed_out": True})


def plan_discard(settings: Settings, name: str, version: int) -> DryRun:
    """:raises VersionRefusedError: if it would be refused"""
    _, versions = _rehearse(settings, name, version, "discarded")
    standing = versions.leave(name, version)
    assert standing.beside is not None
    tables = list(standing.beside.tables)
    sentence = f"{name}: the shards, checkpoints and tables of version {version} are deleted ({', '.join(tables)})"
    return DryRun(sentence, {"pipeline": name, "version": version, "active": standing.active, "deletes": tables})


def _rehearse(settings: Settings, name: str, version: int, action: str) -> tuple[Snapshot, Versions]:
    """:raises VersionRefusedError: if nothing was ever wanted of the pipeline, which is declared"""
    leases = {lease.key: lease for lease in read_leases(settings)}
    if desired_key(name) not in leases:
        declared = catalog.load(settings.pipelines_dir)[name]
        cure = f"`hindcast resume {name}` has version {declared.version} consumed."
        raise Refusal(name, version or declared.version, action)("nothing of the pipeline was ever consumed", cure)
    snapshot = Snapshot(leases)
    return snapshot, Versions(_Rehearsal(snapshot))
