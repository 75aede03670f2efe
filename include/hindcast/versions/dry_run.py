"""What a promotion, a back-out or a discard would do.

It is decided as the command itself decides it, on a store that keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast.installation import Installation
from hindcast.leases.lease import Lease
from hindcast.leases.store import Snapshot
from hindcast.shards.active_version import tables_at
from hindcast.shards.pipeline_row import desired_key
from hindcast.shards.version_changes import Refusal, Versions, check_shadow
from hindcast.versions.promote import check_proved, is_backed_out, is_promoted, position_of


@dataclass(frozen=True)
class _SnapshotStore:
    """A lease store of one snapshot. It forgets what is committed to it."""

    snapshot: Snapshot

    def read(self) -> Snapshot:
        return self.snapshot

    def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
        pass


@dataclass(frozen=True)
class DryRun:
    """What would happen, as a sentence and as the row that the command prints.

    :param done: nothing would change, because the last change did it already
    """

    sentence: str
    row: dict[str, Any]
    done: bool = False


def plan_promotion(installation: Installation, name: str, version: int, *, despite: str = "") -> DryRun:
    """Whether the version reads fast enough to be promoted is not decided: that shows in the promotion
    itself.

    :raises VersionRefusedError: if it would be refused
    """
    settings = installation.settings
    store = _read_store(installation, name, "promoted", version)
    versions = Versions(store)
    rollout = versions.of(name)
    row = {"pipeline": name, "version": version, "before": rollout.active}
    if is_promoted(rollout, version):
        row["promoted"] = False
        return DryRun(f"{name}: version {version} is active already", row, done=True)
    shadow = check_shadow(rollout, version, "promoted")
    active_tables = tables_at(installation.catalog, rollout)
    if not despite:
        check_proved(installation.tables, rollout, shadow)
    leases = list(store.snapshot.leases.values())
    reached = position_of(installation, leases, rollout, version, shadow.tables)
    barrier = position_of(installation, leases, rollout, rollout.active, active_tables)
    until = datetime.now(UTC) + timedelta(seconds=settings.warm_seconds)
    assert rollout.change is not None
    versions.promote(
        name,
        version,
        active_tables,
        warm_seconds=settings.warm_seconds,
        barrier=barrier.offsets,
        since=rollout.change.id,
        despite=despite,
    )
    row["promoted"] = True
    row["behind_records"] = reached.behind(barrier)
    row["warm_until"] = until.isoformat()
    warm = f"version {rollout.active} is kept warm for {settings.warm_seconds:g} s"
    return DryRun(f"{name}: version {version} becomes the active one, readers switch at once, {warm}", row)


def plan_back_out(installation: Installation, name: str) -> DryRun:
    """:raises VersionRefusedError: if it would be refused"""
    versions = Versions(_read_store(installation, name, "backed out"))
    rollout = versions.of(name)
    if is_backed_out(rollout):
        assert rollout.beside is not None
        before = rollout.beside.version
        row = {"pipeline": name, "version": rollout.active, "before": before, "backed_out": False}
        return DryRun(f"{name}: version {rollout.active} is active again already", row, done=True)
    back = versions.back_out(name)
    row = {"pipeline": name, "version": back.active, "before": rollout.active, "backed_out": True}
    readers = f"readers return to version {back.active} at once"
    return DryRun(f"{name}: {readers}, version {rollout.active} runs on as the inactive one", row)


def plan_discard(installation: Installation, name: str, version: int) -> DryRun:
    """:raises VersionRefusedError: if it would be refused"""
    versions = Versions(_read_store(installation, name, "discarded", version))
    rollout = versions.leave(name, version)
    assert rollout.beside is not None
    tables = list(rollout.beside.tables)
    row = {"pipeline": name, "version": version, "active": rollout.active, "deletes": tables}
    parts = f"the shards, checkpoints and tables of version {version}"
    return DryRun(f"{name}: {parts} are deleted ({', '.join(tables)})", row)


def _read_store(installation: Installation, name: str, action: str, version: int = 0) -> _SnapshotStore:
    """The leases of this moment.

    :param version: which one the action is for; 0 if none is named
    :raises VersionRefusedError: if the pipeline is declared and was never started
    :raises UnknownPipelineError: if it is not declared either
    """
    leases = {lease.key: lease for lease in installation.lease_table.leases_if_any()}
    if desired_key(name) not in leases:
        declared = installation.catalog[name].version
        cure = f"`hindcast resume {name}` starts version {declared}."
        raise Refusal(name, version or declared, action)("the pipeline was never started", cure)
    return _SnapshotStore(Snapshot(leases))
