"""The port behind which leases are kept: read a snapshot, decide, and commit on that same snapshot or not at
all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hindcast.errors import CommitConflictError, CommitUnknownError
from hindcast.leases.lease import (
    CALLED_OFF,
    FIRST_STATES,
    REMOVED,
    TRANSITIONS,
    Lease,
    LeaseKey,
    ShardState,
    StatusType,
)

#: So often a change is decided, at most, before the last conflict is raised. Of n writers one wins each
#: round, so this serves dozens of workers that all write at once.
ATTEMPTS = 30


@dataclass(frozen=True)
class Snapshot:
    """All leases as of one version of the table. ``token`` is the store's own handle on that version."""

    leases: Mapping[LeaseKey, Lease]
    token: Any = field(default=None, repr=False, compare=False)


class LeaseStore(Protocol):
    """Compare-and-swap over all leases at once."""

    def read(self) -> Snapshot:
        """:raises StoreUnavailableError: if the store does not answer"""
        ...

    def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
        """Add, replace or remove these leases (see :func:`after`), if nothing was committed since the
        snapshot was read.

        :raises CommitConflictError: if something was committed since; nothing is written
        :raises CommitUnknownError: if it may have been written or not; read before you retry
        :raises StoreUnavailableError: if the store does not answer; nothing is written
        """
        ...


def after(leases: Mapping[LeaseKey, Lease], changes: Iterable[Lease]) -> dict[LeaseKey, Lease]:
    """The leases once these changes are committed. Every store commits what this returns, so this checks
    each step of a shard's life.

    :raises ValueError: if a shard would take a step that :data:`hindcast.leases.lease.TRANSITIONS` does not
        have
    """
    committed = list(changes)
    followed = _parents_of_removed(committed)
    merged = dict(leases)
    for lease in committed:
        if lease.status_type is StatusType.SHARD:
            _check_step(leases.get(lease.key), lease, called_off=lease.key in followed)
        if lease.state == REMOVED:
            merged.pop(lease.key, None)
        else:
            merged[lease.key] = lease
    return merged


def _parents_of_removed(committed: Iterable[Lease]) -> set[LeaseKey]:
    """The shards whose follower is removed in this commit."""
    parents: set[LeaseKey] = set()
    for lease in committed:
        if lease.state == REMOVED:
            for parent in lease.parent_shard_ids:
                parents.add(LeaseKey(lease.stream_id, lease.status_type, parent))
    return parents


def _check_step(before: Lease | None, lease: Lease, *, called_off: bool) -> None:
    """:param called_off: whether the shard that was to follow this one is removed in the same commit"""
    state = "no row"
    allowed = FIRST_STATES | {REMOVED}  # a shard that is gone may be removed again
    if before is not None:
        state = before.state
        allowed = TRANSITIONS[state] | {state}
        if called_off and state == ShardState.TERMINATED:
            allowed |= CALLED_OFF
    if lease.state not in allowed:
        raise ValueError(f"the shard {lease.key} cannot go from {state} to {lease.state}")


Decide = Callable[[Snapshot], Iterable[Lease]]


def swap(
    store: LeaseStore,
    decide: Decide,
    *,
    attempts: int = ATTEMPTS,
    sleep: Callable[[float], None] | None = None,
) -> list[Lease]:
    """Read, decide and commit, until the changes are written; return the changes.

    ``decide`` may be called many times and must be pure. A conflict and an unknown outcome are treated alike:
    read again and decide again. ``decide`` then sees what an unknown commit wrote, so it must recognise its
    own work (by owner, counter and epoch) and return nothing.

    :param sleep: how to wait between two attempts; None to let the time pass
    """

    def attempt() -> list[Lease]:
        snapshot = store.read()
        changes = list(decide(snapshot))
        if changes:
            store.commit(snapshot, changes)
        return changes

    retrying = Retrying(
        retry=retry_if_exception_type((CommitConflictError, CommitUnknownError)),
        wait=wait_random_exponential(multiplier=0.01, max=0.5),
        stop=stop_after_attempt(attempts),
        sleep=sleep or time.sleep,
        reraise=True,
    )
    return retrying(attempt)


def shuffled(leases: Iterable[Lease], seed: str) -> list[Lease]:
    """The leases in an order that differs between workers, so that two workers do not ask for the same one
    first.
    """
    ordered = sorted(leases, key=lambda lease: lease.key)
    random.Random(seed).shuffle(ordered)
    return ordered
