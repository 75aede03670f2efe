"""Discard a pipeline's inactive version, with everything that it made.

The steps. Each of them may be repeated:

1. in one commit its shards are wanted no more: their owners end the batch in hand and give the leases back;
2. wait until no live worker holds one of them. A dead worker's lease expires, and nobody takes it;
3. delete its checkpoints and tables, which nobody writes any more;
4. one commit removes its shards and its place as the inactive version. The ledger, its late rows and its dead
   letters stay as history, so its number is never used again;
5. an event says so.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hindcast.clock import Clock, SystemClock
from hindcast.delta.open_table import find_table
from hindcast.errors import StoreUnavailableError, TryLaterError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import Lease
from hindcast.processes.crash_points import reach
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.version_changes import Versions
from hindcast.shards.version_events import record_changes

POLL_SECONDS = 0.1
#: How long a batch in hand may take to end. The lease of a worker that died takes its own time in addition.
BATCH_SECONDS = 60.0
#: In units of ``lease_seconds``: a lease that does not change has expired after one; the rest is for the
#: polls.
_EXPIRY_LEASES = 1.25


def discard(
    installation: Installation,
    name: str,
    version: int,
    *,
    who: str = "",
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Discard the version. If an earlier call was killed, this one finishes its work.

    :param who: who discards it, for the event
    :returns: {pipeline, version, active, deleted}
    :raises VersionRefusedError: if it is active, not there, or readers get windows from it; nothing was
        changed
    :raises TryLaterError: if a worker keeps holding one of its shards
    :raises StoreUnavailableError: if some of its data cannot be deleted
    """
    settings = installation.settings
    tables = installation.tables
    versions = Versions(installation.lease_table)
    record_changes(tables, versions.of(name))
    reach("discard.1")  # 1. its shards are wanted no more
    rollout = versions.leave(name, version)
    assert rollout.beside is not None
    reach("discard.2")  # 2. no live worker holds one
    _wait_until_free(installation, name, version, clock or SystemClock(), sleep)
    reach("discard.3")  # 3. the data
    deleted = _delete_checkpoints(settings, name, version)
    for table in rollout.beside.tables:
        if _delete_table(settings, table):
            deleted.append(table)
    reach("discard.4")  # 4. its shards and its place
    removed = versions.remove(name, version, who=who)
    if removed is None:  # another call was faster
        removed = versions.of(name)
    reach("discard.5")  # 5. the event
    record_changes(tables, removed)
    return {"pipeline": name, "version": version, "active": removed.active, "deleted": deleted}


def _wait_until_free(
    installation: Installation, name: str, version: int, clock: Clock, sleep: Callable[[float], None]
) -> None:
    lease_seconds = installation.settings.lease_seconds
    observer = Observer(clock, lease_seconds)
    deadline = clock.monotonic() + lease_seconds * _EXPIRY_LEASES + BATCH_SECONDS
    while True:
        held = _held_shards(installation.lease_table, observer, name, version)
        if not held:
            return
        if clock.monotonic() >= deadline:
            owners = ", ".join(sorted({lease.lease_owner for lease in held}))
            reason = f"Shards of {name} version {version} are still held by {owners}."
            raise TryLaterError(reason=f"{reason} Discard it again: that resumes where this ended.")
        sleep(POLL_SECONDS)


def _held_shards(store: LeaseTable, observer: Observer, name: str, version: int) -> list[Lease]:
    """The version's shards that a worker holds, as far as the observer can tell."""
    leases = store.leases()
    observer.observe(leases)
    own = resharding.of_version(leases, name, version)
    return [lease for lease in own if observer.alive(lease)]


def _delete_checkpoints(settings: Settings, name: str, version: int) -> list[str]:
    # The address of an object store names no folder, so nothing is found here: such a store expires
    # checkpoints by its own lifecycle rules.
    deleted = []
    for folder in sorted(Path(settings.checkpoint(name)).glob(f"v{version}.*")):
        _delete_folder(folder)
        deleted.append(f"checkpoints/{name}/{folder.name}")
    return deleted


def _delete_table(settings: Settings, table: str) -> bool:
    """Delete the table's folder; on an object store its rows, whose files the store's own rules delete later.

    :returns: False if there was none
    """
    url = settings.table(*table.split("/"))
    if "://" in url:
        stored = find_table(url, settings.storage_options)
        if stored is None:
            return False
        stored.delete()
        return True
    folder = Path(url)
    found = folder.exists()
    _delete_folder(folder)
    return found


def _delete_folder(folder: Path) -> None:
    """Another call may be deleting it at the same time: then a file is gone before this call comes to it.

    :raises StoreUnavailableError: if a file cannot be deleted
    """
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreUnavailableError(table=folder, action="deleted", reason=error) from error
