"""Wait until workers have done what was wanted of them. Progress goes to stderr, a line for each change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from hindcast.errors import WaitedInVainError
from hindcast.settings import Settings

_POLL_SECONDS = 0.25

#: Says what is still missing; empty once nothing is.
Look = Callable[[], str]


def until(look: Look, what: str, timeout_seconds: float, cure: str = "`hindcast events` may say why.") -> None:
    """Return once ``look`` misses nothing.

    :param what: what is waited for, as the subject of a sentence
    :raises WaitedInVainError: if it does not come in time
    """
    deadline = time.monotonic() + timeout_seconds
    said = ""
    while missing := look():
        if missing != said:
            print(f"Waiting: {missing}", file=sys.stderr, flush=True)
            said = missing
        if time.monotonic() >= deadline:
            raise WaitedInVainError(what=what, seconds=timeout_seconds, seen=missing, cure=cure)
        time.sleep(_POLL_SECONDS)


def let_go(settings: Settings, pipeline: str) -> Look:
    """Nobody who lives holds a shard of the pipeline. A dead owner's lease expires under our own clock."""
    from hindcast.clock import SystemClock
    from hindcast.control.lease_table import read_leases
    from hindcast.control.leases import StatusType
    from hindcast.control.observer import Observer

    observer = Observer(SystemClock(), settings.lease_seconds)

    def look() -> str:
        leases = read_leases(settings)
        observer.observe(leases)
        own = [lease for lease in leases if lease.status_type is StatusType.SHARD and lease.stream_id == pipeline]
        held = [f"{lease.status_value} is held by {lease.lease_owner}" for lease in own if lease.lease_owner and observer.alive(lease)]
        return _first(held)

    return look


def consumed(settings: Settings, pipeline: str) -> Look:
    """Each shard that is wanted has an owner."""
    from hindcast.control import shards
    from hindcast.control.desired import REFUSED, desired_key, wanted_versions
    from hindcast.control.lease_table import LeaseTable
    from hindcast.control.leases import ShardState
    from hindcast.errors import BadInputError

    store = LeaseTable(settings)

    def look() -> str:
        leases = store.read().leases
        missing = []
        for version in wanted_versions(leases[desired_key(pipeline)]):
            own = shards.newest_of_version(leases.values(), pipeline, version)
            if not own:
                missing.append(f"version {version} has no shards yet: a worker makes them")
            for lease in own:
                if problem := lease.detail.get(REFUSED):
                    raise BadInputError(problem=f"{pipeline}/{lease.status_value} is refused: {problem}", cure="See `hindcast events`.")
                if lease.state == ShardState.WAIT:
                    missing.append(f"{lease.status_value} waits for {', '.join(lease.parent_shard_ids) or 'its parents'}")
                elif not lease.lease_owner and lease.state != ShardState.TERMINATED:
                    missing.append(f"{lease.status_value} has no owner yet")
        return _first(missing)

    return look


def drained(settings: Settings, pipeline: str) -> Look:
    """Each shard has reached the end of its topic, and nobody holds it any more."""
    from hindcast.control import shards
    from hindcast.control.desired import DRAINED, desired_key, wanted_versions
    from hindcast.control.lease_table import LeaseTable

    store, free = LeaseTable(settings), let_go(settings, pipeline)

    def look() -> str:
        leases = store.read().leases
        missing = []
        for version in wanted_versions(leases[desired_key(pipeline)]):
            own = shards.newest_of_version(leases.values(), pipeline, version)
            if not own:
                missing.append(f"version {version} has no shards yet: a worker makes them")
            behind = [lease for lease in own if not lease.detail.get(DRAINED)]
            missing += [
                f"{lease.status_value} lags by {lease.detail.get('lag_records', 'an unknown number of')} records" for lease in behind
            ]
        return _first(missing) or free()

    return look


def dealt(settings: Settings, pipeline: str, version: int, count: int) -> Look:
    """The version's newest generation has so many shards, none of which waits for its parents, and all are consumed."""
    from hindcast.control import shards
    from hindcast.control.lease_table import LeaseTable

    store, taken = LeaseTable(settings), consumed(settings, pipeline)

    def look() -> str:
        own = shards.newest_of_version(store.leases(), pipeline, version)
        if len(own) != count:
            return f"its number of shards is {len(own)}: a worker of the running pipeline writes the {count} new ones"
        return taken()

    return look


def rebuilt(settings: Settings, pipeline: str, request: str, asked: list[str]) -> Look:
    """Each of these shards has met the request."""
    from hindcast.control.desired import REBUILD
    from hindcast.control.lease_table import LeaseTable

    store = LeaseTable(settings)

    def look() -> str:
        met = [lease.status_value for lease in store.leases() if lease.stream_id == pipeline and lease.detail.get(REBUILD) == request]
        return _first([f"{shard} is not rebuilt yet" for shard in asked if shard not in met])

    return look


def caught_up(settings: Settings, pipeline: str, version: int) -> Look:
    """The version beside the active one has read up to the end of its topic."""
    from hindcast.control.lease_table import LeaseTable
    from hindcast.control.standing import BesideState, standings

    store = LeaseTable(settings)

    def look() -> str:
        standing = standings(store.leases())[pipeline]
        beside = standing.beside
        if standing.active == version or (beside and beside.version == version and beside.state is BesideState.LIVE):
            return ""
        return f"version {version} is catching up"

    return look


def _first(missing: list[str]) -> str:
    """What is missing first, and how much more."""
    if len(missing) <= 1:
        return "".join(missing)
    return f"{missing[0]}, and {len(missing) - 1} more"
