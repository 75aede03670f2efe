"""Wait until workers have reached a desired state. Progress goes to stderr, a line for each change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

from hindcast.errors import BadInputError, WaitedInVainError
from hindcast.installation import Installation
from hindcast.leases.lease import Lease, LeaseKey, StatusType

_POLL_SECONDS = 0.25

#: Polls the leases: returns what is still missing, or an empty text.
Look = Callable[[], str]


def until(
    look: Look, what: str, timeout_seconds: float, cure: str = "`hindcast events` may say why."
) -> None:
    """Poll until nothing is missing.

    :param what: what is waited for, as the subject of a sentence
    :raises WaitedInVainError: if something is still missing after the timeout
    """
    deadline = time.monotonic() + timeout_seconds
    printed = ""
    while True:
        missing = look()
        if not missing:
            return
        if missing != printed:
            print(f"Waiting: {missing}", file=sys.stderr, flush=True)
            printed = missing
        if time.monotonic() >= deadline:
            raise WaitedInVainError(what=what, seconds=timeout_seconds, seen=missing, cure=cure)
        time.sleep(_POLL_SECONDS)


def let_go(installation: Installation, pipeline: str) -> Look:
    """No live worker holds a shard of the pipeline. The lease of a dead owner expires on our own clock."""
    from hindcast.clock import SystemClock
    from hindcast.leases.expired_owners import Observer

    store = installation.lease_table
    observer = Observer(SystemClock(), installation.settings.lease_seconds)

    def look() -> str:
        leases = store.leases_if_any()
        observer.observe(leases)
        held = []
        for lease in leases:
            own = lease.status_type is StatusType.SHARD and lease.stream_id == pipeline
            if own and lease.lease_owner and observer.alive(lease):
                held.append(f"{lease.status_value} is held by {lease.lease_owner}")
        return _first(held)

    return look


def consumed(installation: Installation, pipeline: str) -> Look:
    """Each shard of the desired versions has an owner.

    The returned function raises :class:`BadInputError` if a shard is refused.
    """
    store = installation.lease_table

    def look() -> str:
        missing, shards = _newest_shards(store.read().leases, pipeline)
        for lease in shards:
            missing.append(_without_owner(pipeline, lease))
        return _first(missing)

    return look


def _without_owner(pipeline: str, lease: Lease) -> str:
    """Why the shard has no owner; empty if it has one or needs none.

    :raises BadInputError: if the shard is refused
    """
    from hindcast.leases.lease import ShardState
    from hindcast.shards.shard_row import ShardDetail

    shard = lease.status_value
    refusal = ShardDetail.of(lease).refused
    if refusal:
        problem = f"{pipeline}/{shard} is refused: {refusal}"
        raise BadInputError(problem=problem, cure="See `hindcast events`.")
    if lease.state == ShardState.WAIT:
        parents = ", ".join(lease.parent_shard_ids) or "its parents"
        return f"{shard} waits for {parents}"
    if not lease.lease_owner and lease.state != ShardState.TERMINATED:
        return f"{shard} has no owner yet"
    return ""


def drained(installation: Installation, pipeline: str) -> Look:
    """Each shard has reached the end of its topic, and no live worker holds it any more."""
    from hindcast.shards.shard_row import ShardDetail

    store = installation.lease_table
    find_holder = let_go(installation, pipeline)

    def look() -> str:
        missing, shards = _newest_shards(store.read().leases, pipeline)
        for lease in shards:
            detail = ShardDetail.of(lease)
            if not detail.drained:
                lag = "an unknown number of" if detail.lag_records is None else detail.lag_records
                missing.append(f"{lease.status_value} lags by {lag} records")
        return _first(missing) or find_holder()

    return look


def _newest_shards(leases: Mapping[LeaseKey, Lease], pipeline: str) -> tuple[list[str], list[Lease]]:
    """Which desired versions have no shards yet, and the newest shards of the others."""
    from hindcast.shards import resharding
    from hindcast.shards.pipeline_row import PipelineRow, desired_key

    missing: list[str] = []
    found: list[Lease] = []
    for version in PipelineRow.of(leases[desired_key(pipeline)]).wanted_versions:
        own = resharding.newest_of_version(leases.values(), pipeline, version)
        if not own:
            missing.append(f"version {version} has no shards yet: a worker makes them")
        found.extend(own)
    return missing, found


def dealt(installation: Installation, pipeline: str, version: int, count: int) -> Look:
    """The version's newest generation has so many shards, none waits for its parents, and all have owners."""
    from hindcast.shards import resharding

    store = installation.lease_table
    find_unowned = consumed(installation, pipeline)

    def look() -> str:
        found = len(resharding.newest_of_version(store.leases(), pipeline, version))
        if found != count:
            problem = f"its number of shards is {found}"
            return f"{problem}: a worker of the running pipeline writes the {count} new ones"
        return find_unowned()

    return look


def rebuilt(installation: Installation, pipeline: str, request: str, asked: list[str]) -> Look:
    """Each of these shards has met the request."""
    from hindcast.shards.shard_row import ShardDetail

    store = installation.lease_table

    def look() -> str:
        met = set()
        for lease in store.leases():
            if lease.stream_id == pipeline and ShardDetail.of(lease).rebuilt == request:
                met.add(lease.status_value)
        missing = [f"{shard} is not rebuilt yet" for shard in asked if shard not in met]
        return _first(missing)

    return look


def caught_up(installation: Installation, pipeline: str, version: int) -> Look:
    """The inactive version has read up to the end of its topic, or is the active one already.

    The answer's function raises a BadInputError if the version was discarded.
    """
    from hindcast.shards.active_version import rollouts
    from hindcast.shards.pipeline_row import InactiveState

    store = installation.lease_table

    def look() -> str:
        rollout = rollouts(store.leases())[pipeline]
        if rollout.active == version:
            return ""
        inactive = rollout.beside
        if inactive is None or inactive.version != version or inactive.leaving:
            problem = f"Version {version} of {pipeline} was discarded before it had caught up"
            raise BadInputError(
                problem=problem, cure=f"`hindcast versions --pipeline {pipeline}` lists them."
            )
        if inactive.state is InactiveState.LIVE:
            return ""
        return f"version {version} is catching up"

    return look


def _first(missing: list[str]) -> str:
    """The first thing that is missing, and how many more; empty texts do not count."""
    filled = [text for text in missing if text]
    if len(filled) <= 1:
        return "".join(filled)
    return f"{filled[0]}, and {len(filled) - 1} more"
