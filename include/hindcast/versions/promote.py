"""Promote the version beside the active one, and back out of that.

The steps; a kill between any two leaves readers with one version:

1. a *barrier*: the offsets up to which the active version has committed, read from its own table. A reshard of either version is
   waited for: while a shard waits for its parents, some partitions are between two shards;
2. wait until the new version has committed them too, and has closed every window that the old one had closed by then;
3. it was proved since it caught up: its newest verdict passed, and so did the newest comparison of both;
4. one compare-and-swap makes it the active version. Readers switch at once; the old version goes on beside it, warm;
5. an event says so. Whoever is killed before it is finished by the next command of that pipeline.

Backing out is steps 4 and 5 alone: it must never wait for the version that one backs out of.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from hindcast import catalog
from hindcast.errors import VersionRefusedError
from hindcast.leases.delta_store import LeaseTable
from hindcast.processes.crash_points import reach
from hindcast.settings import Settings
from hindcast.shards.active_version import Rollout, tables_at
from hindcast.shards.pipeline_row import ChangeKind, InactiveState, InactiveVersion
from hindcast.shards.version_changes import Refusal, Versions, check_no_reshard, check_shadow
from hindcast.shards.version_events import record_changes
from hindcast.tables.control_tables import ControlTables, utc_from_ms
from hindcast.tables.schema import ControlTable
from hindcast.versions.catch_up import VersionPosition, position
from hindcast.versions.compare_versions import newest_comparison

#: How long a version that has caught up may take to read what the active one had read: some batches of each.
WAIT_SECONDS = 15.0
POLL_SECONDS = 0.1


def promote(
    settings: Settings,
    name: str,
    version: int,
    *,
    despite: str = "",
    who: str = "",
    since: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Make the version the active one; one that is already, by the last change, is left so.

    :param despite: why it is promoted although it was not proved, or has not caught up; kept in the event
    :param since: the id of the change after which it was approved: none may have come in between
    :returns: {pipeline, version, before, promoted, barrier, behind_records, warm_until, seconds, swap_seconds}
    :raises VersionRefusedError: where it is no shadow of the active version, not proved or behind; nothing was changed
    """
    began = time.monotonic()
    store = LeaseTable(settings)
    versions = Versions(store)
    standing = record_changes(ControlTables(settings), versions.of(name))
    if standing.active == version and standing.change is not None and standing.change.kind is ChangeKind.PROMOTED:
        return {"pipeline": name, "version": version, "promoted": False, "seconds": round(time.monotonic() - began, 3)}
    beside = check_shadow(standing, version, "promoted")
    if since and (standing.change is None or standing.change.id != since):
        raise Refusal(name, version, "promoted")("something changed since it was approved", "Compare it again, and approve that.")
    tables = tables_at(catalog.load(settings.pipelines_dir), standing)
    if not despite:
        check_proved(settings, standing, beside)
    reach("promote.1")
    deadline = time.monotonic() + (0.0 if despite else WAIT_SECONDS)
    while not despite and _is_resharded(store, standing) and time.monotonic() < deadline:
        sleep(POLL_SECONDS)
    if not despite:
        check_no_reshard(standing, store.leases())
    barrier = _position(settings, store, name, standing.active, tables)
    reach("promote.2")
    while not (now := _position(settings, store, name, version, beside.tables)).covers(barrier) and time.monotonic() < deadline:
        sleep(POLL_SECONDS)
    reach("promote.3")
    if not despite:
        _check_caught_up(standing, beside, now, barrier)
        check_proved(settings, standing, beside)
    reach("promote.4")
    swapping = time.monotonic()
    assert standing.change is not None
    promoted = versions.promote(
        name,
        version,
        tables,
        warm_seconds=settings.warm_seconds,
        barrier=barrier.offsets,
        since=standing.change.id,
        who=who,
        despite=despite,
    )
    swapped = time.monotonic()
    reach("promote.5")
    record_changes(ControlTables(settings), promoted)
    assert promoted.beside is not None and promoted.beside.until is not None
    return {
        "pipeline": name,
        "version": version,
        "before": standing.active,
        "promoted": True,
        "barrier": {str(partition): offset for partition, offset in sorted(barrier.offsets.items())},
        "behind_records": now.behind(barrier),
        "warm_until": promoted.beside.until.isoformat(),
        "seconds": round(time.monotonic() - began, 3),
        "swap_seconds": round(swapped - swapping, 3),
    }


def back_out(settings: Settings, name: str, *, who: str = "") -> dict[str, Any]:
    """Return to the version that was active before the last promotion; where that was done by the last change, it is left so.

    :returns: {pipeline, version, before, backed_out, seconds}
    :raises VersionRefusedError: where no version is kept warm; nothing was changed
    """
    began = time.monotonic()
    versions = Versions(LeaseTable(settings))
    standing = record_changes(ControlTables(settings), versions.of(name))
    done = standing.change is not None and standing.change.kind is ChangeKind.BACKED_OUT
    if not done:
        standing = versions.back_out(name, who=who)
        reach("back_out.2")
        record_changes(ControlTables(settings), standing)
    assert standing.beside is not None
    return {
        "pipeline": name,
        "version": standing.active,
        "before": standing.beside.version,
        "backed_out": not done,
        "seconds": round(time.monotonic() - began, 3),
    }


def check_proved(settings: Settings, standing: Rollout, beside: InactiveVersion) -> None:
    """:raises VersionRefusedError: where the version's newest verdict or comparison since it caught up is missing or failed"""
    name, version, change = standing.pipeline, beside.version, standing.change
    refused = Refusal(name, version, "promoted")
    despite = 'or give --despite "reason"'
    if change is None or beside.state is not InactiveState.LIVE:
        raise refused("it has not caught up with its topic", f"`hindcast versions --pipeline {name}` shows its lag; wait, {despite}.")
    tables = ControlTables(settings)
    verdict = newest_verdict(tables, name, version, change.number)
    judge = f"hindcast validate {name} --version {version} --all"
    if verdict is None:
        raise refused("it has no verdict since it caught up", f"`{judge}` judges it, {despite}.")
    if not verdict["passed"]:
        failed = "; ".join(json.loads(verdict["failed"])) or f"{verdict['unexplained']} differences are unexplained"
        raise refused(f"its newest verdict, of run {verdict['run_id']}, failed: {failed}", f"Mend it and `{judge}`, {despite}.")
    compared = newest_comparison(tables, name, version, standing.active, change.number)
    if compared is None:
        raise refused(f"it was not compared with version {standing.active}", f"`hindcast versions compare {name}` does, {despite}.")
    if compared["failed"]:
        cure = f"See the comparison's event in `hindcast events`, {despite}."
        raise refused(f"the comparison with version {standing.active} failed: {'; '.join(compared['failed'])}", cure)


def _is_resharded(store: LeaseTable, standing: Rollout) -> bool:
    try:
        check_no_reshard(standing, store.leases())
    except VersionRefusedError:
        return True
    return False


def newest_verdict(tables: ControlTables, name: str, version: int, change: int) -> dict[str, Any] | None:
    """The newest verdict of a version among those that were begun after the pipeline's change of that number; None where there is none.

    Verdicts are numbered. Two that were given at once have the same number: then the one that failed counts.
    """
    rows = tables.rows(ControlTable.VERDICTS, [("pipeline", "=", name), ("version", "=", version), ("change", ">=", change)])
    return max(rows, key=lambda row: (row["number"], not row["passed"]), default=None)


def _check_caught_up(standing: Rollout, beside: InactiveVersion, now: VersionPosition, barrier: VersionPosition) -> None:
    refused, name = Refusal(standing.pipeline, beside.version, "promoted"), standing.pipeline
    cure = f'Wait until `hindcast versions --pipeline {name}` shows no lag, or give --despite "reason".'
    if not now.covers(barrier):
        problem = f"it is {now.behind(barrier)} records behind version {standing.active}"
        if not now.behind(barrier):
            ends = [utc_from_ms(each.horizon_ms).isoformat() for each in (now, barrier)]
            problem = f"its windows are final up to {ends[0]}, those of version {standing.active} up to {ends[1]}"
        raise refused(problem, cure)
    if beside.seam_ms is not None and barrier.horizon_ms < beside.seam_ms:
        until = utc_from_ms(beside.seam_ms).isoformat()
        raise refused(f"readers will get the windows that end by {until} from version {standing.active}, where some are open", cure)


def _position(settings: Settings, store: LeaseTable, name: str, version: int, tables: tuple[str, ...]) -> VersionPosition:
    return position(settings, tables[0].removeprefix("sinks/"), store.leases(), name, version)
