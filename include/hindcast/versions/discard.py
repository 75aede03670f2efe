"""Discard the version beside the active one, with everything that it made.

The steps, each of which may be taken again:

1. nobody wants its shards any more, in one commit: their owners end the batch in hand and let go;
2. wait until no live worker holds one of them. A dead worker's lease expires; nobody takes it;
3. delete its checkpoints and tables, which nobody writes any more;
4. one commit removes its shards and its place beside the active version. The ledger, its late rows and dead letters stay as history,
   so its number is never used again;
5. an event says so.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from hindcast.clock import Clock, SystemClock
from hindcast.errors import TryLaterError
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.expired_owners import Observer
from hindcast.processes.crash_points import reach
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.version_changes import Versions
from hindcast.shards.version_events import record_changes
from hindcast.tables.control_tables import ControlTables

POLL_SECONDS = 0.1
#: A batch in hand may take some seconds to end, beside the lease of a worker that died.
BATCH_SECONDS = 60.0


def discard(
    settings: Settings, name: str, version: int, *, who: str = "", clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Discard it; what an earlier try left is finished.

    :returns: {pipeline, version, active, deleted}
    :raises VersionRefusedError: where it is active, not there, or readers get windows from it; nothing was changed
    :raises TryLaterError: where a worker goes on holding one of its shards
    """
    store = LeaseTable(settings)
    versions = Versions(store)
    record_changes(ControlTables(settings), versions.of(name))
    reach("discard.1")
    standing = versions.leave(name, version)
    assert standing.beside is not None
    reach("discard.2")
    _wait_until_free(store, settings, name, version, clock or SystemClock(), sleep)
    reach("discard.3")
    deleted = [
        *_delete_checkpoints(settings, name, version),
        *(table for table in standing.beside.tables if _delete_table(settings, table)),
    ]
    reach("discard.4")
    gone = versions.remove(name, version, who=who) or versions.of(name)
    reach("discard.5")
    record_changes(ControlTables(settings), gone)
    return {"pipeline": name, "version": version, "active": gone.active, "deleted": deleted}


def _wait_until_free(store: LeaseTable, settings: Settings, name: str, version: int, clock: Clock, sleep: Callable[[float], None]) -> None:
    observer = Observer(clock, settings.lease_seconds)
    deadline = clock.monotonic() + settings.lease_seconds * 1.25 + BATCH_SECONDS
    while True:
        leases = store.leases()
        observer.observe(leases)
        held = [lease for lease in resharding.of_version(leases, name, version) if observer.alive(lease)]
        if not held:
            return
        if clock.monotonic() >= deadline:
            who = ", ".join(sorted({lease.lease_owner for lease in held}))
            raise TryLaterError(reason=f"{who} still holds shards of {name} version {version}. Discard it again: it goes on from there.")
        sleep(POLL_SECONDS)


def _delete_checkpoints(settings: Settings, name: str, version: int) -> list[str]:
    root = settings.checkpoint(name)
    if "://" in root:
        return []  # an object store expires folders by its own lifecycle rules
    folders = sorted(Path(root).glob(f"v{version}.*"))
    for folder in folders:
        shutil.rmtree(folder)
    return [f"checkpoints/{name}/{folder.name}" for folder in folders]


def _delete_table(settings: Settings, table: str) -> bool:
    """Delete the table's folder; on an object store its rows, of which its own lifecycle rules delete the files."""
    url = settings.table(*table.split("/"))
    if "://" in url:
        try:
            DeltaTable(url, storage_options=settings.storage_options or None).delete()
        except TableNotFoundError:
            return False
        return True
    there = Path(url).exists()
    shutil.rmtree(url, ignore_errors=True)
    return there
