"""Promote a pipeline's inactive version, and back out of that.

The steps. A kill between any two of them leaves readers with one version:

1. a *barrier*: the offsets up to which the active version has committed, read from its own table. A reshard
   of either version must end first: while a shard waits for its parents, some partitions are between two
   shards;
2. wait until the new version has committed them too, and has closed every window that the old one had closed
   by then;
3. check that it was proved since it caught up: its newest verdict passed, and so did the newest comparison of
   both;
4. one compare-and-swap makes it the active version. Readers switch at once. The old version runs on as the
   inactive one and is kept warm;
5. an event says so. If the command is killed before, the next command of that pipeline writes the event;
6. the served table follows, if there is one. If the command is killed before, a worker does it.

Backing out is steps 4 to 6 alone: it must never wait for the version that one backs out of.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hindcast.clock import utc_from_ms
from hindcast.errors import VersionRefusedError
from hindcast.installation import Installation
from hindcast.leases.lease import Lease
from hindcast.partitions import as_json_object
from hindcast.processes.crash_points import reach
from hindcast.serving.served_table import follow
from hindcast.shards.active_version import Rollout, tables_at
from hindcast.shards.pipeline_row import ChangeKind, InactiveState, InactiveVersion
from hindcast.shards.version_changes import Refusal, Versions, check_no_reshard, check_shadow
from hindcast.shards.version_events import record_changes
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable
from hindcast.versions.catch_up import VersionPosition, position
from hindcast.versions.compare_versions import newest_comparison

#: How long a version that has caught up may take to read what the active one had read: some batches of each.
WAIT_SECONDS = 15.0
POLL_SECONDS = 0.1
_DESPITE = 'give --despite "reason"'

T = TypeVar("T")


def promote(
    installation: Installation,
    name: str,
    version: int,
    *,
    despite: str = "",
    who: str = "",
    since: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Make the version the active one. Nothing changes if the last change did that.

    :param despite: why it is promoted although it was not proved, or has not caught up; kept in the event
    :param who: who promotes it, for the event
    :param since: the id of the change after which it was approved: none may have come in between
    :returns: {pipeline, version, before, promoted, barrier, behind_records, warm_until, seconds,
        swap_seconds}
    :raises VersionRefusedError: if it is no shadow of the active version, not proved or behind; nothing was
        changed
    """
    started = time.monotonic()
    settings = installation.settings
    tables = installation.tables
    store = installation.lease_table
    versions = Versions(store)
    rollout = record_changes(tables, versions.of(name))
    if is_promoted(rollout, version):
        seconds = _seconds_since(started)
        return {"pipeline": name, "version": version, "promoted": False, "seconds": seconds}
    shadow = check_shadow(rollout, version, "promoted")
    assert rollout.change is not None
    if since and rollout.change.id != since:
        cure = "Compare it again, and approve that."
        raise Refusal(name, version, "promoted")("something changed since it was approved", cure)
    active_tables = tables_at(installation.catalog, rollout)
    if not despite:
        check_proved(tables, rollout, shadow)

    def active_position() -> VersionPosition:
        return position_of(installation, store.leases(), rollout, rollout.active, active_tables)

    def new_position() -> VersionPosition:
        return position_of(installation, store.leases(), rollout, version, shadow.tables)

    reach("promote.1")  # 1. the barrier
    deadline = time.monotonic() + WAIT_SECONDS
    if not despite:
        leases = _poll(store.leases, lambda leases: not _is_resharded(rollout, leases), deadline, sleep)
        check_no_reshard(rollout, leases)
    barrier = active_position()
    reach("promote.2")  # 2. the new version reads up to it
    if despite:
        reached = new_position()
    else:
        reached = _poll(new_position, lambda reached: reached.covers(barrier), deadline, sleep)
    reach("promote.3")  # 3. is it proved?
    if not despite:
        _check_caught_up(rollout, shadow, reached, barrier)
        check_proved(tables, rollout, shadow)
    reach("promote.4")  # 4. the swap
    swap_started = time.monotonic()
    promoted = versions.promote(
        name,
        version,
        active_tables,
        warm_seconds=settings.warm_seconds,
        barrier=barrier.offsets,
        since=rollout.change.id,
        who=who,
        despite=despite,
    )
    swap_seconds = _seconds_since(swap_started)
    reach("promote.5")  # 5. the event
    record_changes(tables, promoted)
    reach("promote.6")  # 6. the served table
    follow(installation, name)
    warm = promoted.beside
    assert warm is not None
    assert warm.until is not None
    return {
        "pipeline": name,
        "version": version,
        "before": rollout.active,
        "promoted": True,
        "barrier": as_json_object(barrier.offsets),
        "behind_records": reached.behind(barrier),
        "warm_until": warm.until.isoformat(),
        "seconds": _seconds_since(started),
        "swap_seconds": swap_seconds,
    }


def back_out(installation: Installation, name: str, *, who: str = "") -> dict[str, Any]:
    """Return to the version that was active before the last promotion. Nothing changes if the last change did
    that.

    :param who: who backs out, for the event
    :returns: {pipeline, version, before, backed_out, seconds}
    :raises VersionRefusedError: if no version is kept warm; nothing was changed
    """
    started = time.monotonic()
    tables = installation.tables
    versions = Versions(installation.lease_table)
    rollout = record_changes(tables, versions.of(name))
    done = is_backed_out(rollout)
    if not done:
        rollout = versions.back_out(name, who=who)
        reach("back_out.2")
        record_changes(tables, rollout)
        reach("back_out.3")
        follow(installation, name)
    assert rollout.beside is not None
    return {
        "pipeline": name,
        "version": rollout.active,
        "before": rollout.beside.version,
        "backed_out": not done,
        "seconds": _seconds_since(started),
    }


def is_promoted(rollout: Rollout, version: int) -> bool:
    """Whether the last change promoted the version."""
    change = rollout.change
    return change is not None and change.kind is ChangeKind.PROMOTED and change.version == version


def is_backed_out(rollout: Rollout) -> bool:
    """Whether the last change backed out of a promotion."""
    return rollout.change is not None and rollout.change.kind is ChangeKind.BACKED_OUT


def position_of(
    installation: Installation, leases: list[Lease], rollout: Rollout, version: int, tables: tuple[str, ...]
) -> VersionPosition:
    """How far one of the pipeline's versions has come.

    :param tables: what it writes; its sink is the first
    """
    sink = tables[0].removeprefix("sinks/")
    return position(installation.settings, installation.ledger, sink, leases, rollout.pipeline, version)


def check_proved(tables: ControlTables, rollout: Rollout, shadow: InactiveVersion) -> None:
    """Check what was found out about the version since it caught up.

    :raises VersionRefusedError: if its newest verdict or its newest comparison is missing or failed
    """
    refused = Refusal(rollout.pipeline, shadow.version, "promoted")
    if shadow.state is not InactiveState.LIVE:
        cure = f"`hindcast versions --pipeline {rollout.pipeline}` shows its lag; wait, or {_DESPITE}."
        raise refused("it has not caught up with its topic", cure)
    _check_verdict(tables, rollout, shadow.version, refused)
    _check_comparison(tables, rollout, shadow.version, refused)


def _check_verdict(tables: ControlTables, rollout: Rollout, version: int, refused: Refusal) -> None:
    judge = f"`hindcast validate {rollout.pipeline} --version {version} --all`"
    verdict = newest_verdict(tables, rollout.pipeline, version, rollout.changes)
    if verdict is None:
        raise refused("it has no verdict since it caught up", f"{judge} judges it, or {_DESPITE}.")
    if verdict["passed"]:
        return
    failed = "; ".join(json.loads(verdict["failed"]))
    if not failed:
        failed = f"{verdict['unexplained']} differences are unexplained"
    problem = f"its newest verdict, of run {verdict['run_id']}, failed: {failed}"
    raise refused(problem, f"Mend it and run {judge}, or {_DESPITE}.")


def _check_comparison(tables: ControlTables, rollout: Rollout, version: int, refused: Refusal) -> None:
    compared = newest_comparison(tables, rollout.pipeline, version, rollout.active, rollout.changes)
    if compared is None:
        cure = f"`hindcast versions compare {rollout.pipeline}` does that, or {_DESPITE}."
        raise refused(f"it was not compared with version {rollout.active}", cure)
    if compared["failed"]:
        problem = f"the comparison with version {rollout.active} failed: {'; '.join(compared['failed'])}"
        raise refused(problem, f"See the comparison's event in `hindcast events`, or {_DESPITE}.")


def newest_verdict(tables: ControlTables, name: str, version: int, change: int) -> dict[str, Any] | None:
    """The newest verdict of a version that was begun after the pipeline's change of that number.

    None if there is none. Verdicts are numbered. Two that were given at once have the same number: then the
    one that failed counts.
    """
    own = [("pipeline", "=", name), ("version", "=", version), ("change", ">=", change)]
    rows = tables.rows(ControlTable.VERDICTS, own)
    return max(rows, key=lambda row: (row["number"], not row["passed"]), default=None)


def _check_caught_up(
    rollout: Rollout, shadow: InactiveVersion, reached: VersionPosition, barrier: VersionPosition
) -> None:
    refused = Refusal(rollout.pipeline, shadow.version, "promoted")
    active = f"version {rollout.active}"
    cure = f"Wait until `hindcast versions --pipeline {rollout.pipeline}` shows no lag, or {_DESPITE}."
    behind_records = reached.behind(barrier)
    if behind_records:
        raise refused(f"it is {behind_records} records behind {active}", cure)
    if not reached.covers(barrier):
        own = f"its windows are final up to {_iso(reached.horizon_ms)}"
        raise refused(f"{own}, those of {active} up to {_iso(barrier.horizon_ms)}", cure)
    if shadow.seam_ms is not None and barrier.horizon_ms < shadow.seam_ms:
        windows = f"the windows that end by {_iso(shadow.seam_ms)}"
        raise refused(f"readers will get {windows} from {active}, and some of them are open there", cure)


def _iso(epoch_ms: int) -> str:
    return utc_from_ms(epoch_ms).isoformat()


def _is_resharded(rollout: Rollout, leases: list[Lease]) -> bool:
    try:
        check_no_reshard(rollout, leases)
    except VersionRefusedError:
        return True
    return False


def _poll(
    read: Callable[[], T], enough: Callable[[T], bool], deadline: float, sleep: Callable[[float], None]
) -> T:
    """Read until it is enough or the deadline is over; return what was read last."""
    found = read()
    while not enough(found) and time.monotonic() < deadline:
        sleep(POLL_SECONDS)
        found = read()
    return found


def _seconds_since(started: float) -> float:
    """To the millisecond."""
    return round(time.monotonic() - started, 3)
