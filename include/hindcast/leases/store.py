"""The port behind which leases are kept: read a snapshot, decide, commit on that same snapshot or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hindcast.errors import CommitConflictError, CommitUnknownError
from hindcast.leases.lease import CALLED_OFF, FIRST_STATES, REMOVED, TRANSITIONS, Lease, LeaseKey, ShardState, StatusType


@dataclass(frozen=True)
class Snapshot:
    """All leases as of one version of the table. ``token`` is the store's own handle on that version."""

    leases: Mapping[LeaseKey, Lease]
    token: Any = field(default=None, repr=False, compare=False)


class LeaseStore(Protocol):
    """Compare-and-swap over all leases at once."""

    def read(self) -> Snapshot:
        """:raises StoreUnavailableError: where the store does not answer"""
        ...

    def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
        """Add, replace or remove these leases (see :func:`after`), provided that nothing was committed since the snapshot was read.

        :raises CommitConflictError: something was; nothing is written
        :raises CommitUnknownError: it may or may not have been written; read before any retry
        :raises StoreUnavailableError: nothing is written
        """
        ...


def after(leases: Mapping[LeaseKey, Lease], changes: Iterable[Lease]) -> dict[LeaseKey, Lease]:
    """The leases once these changes are committed. Every store commits what this returns, so each step of a shard's life
    passes here.

    :raises ValueError: if a shard would take a step that :data:`hindcast.leases.lease.TRANSITIONS` does not have
    """
    committed = list(changes)
    followed = {
        LeaseKey(lease.stream_id, lease.status_type, parent)
        for lease in committed
        if lease.state == REMOVED
        for parent in lease.parent_shard_ids
    }
    merged = dict(leases)
    for lease in committed:
        if lease.status_type is StatusType.SHARD:
            _check_step(leases.get(lease.key), lease, called_off=lease.key in followed)
        if lease.state == REMOVED:
            merged.pop(lease.key, None)
        else:
            merged[lease.key] = lease
    return merged


def _check_step(before: Lease | None, lease: Lease, *, called_off: bool) -> None:
    """:param called_off: whether the shard that was to follow this one is removed in the same commit"""
    state = "no row"
    allowed = FIRST_STATES | {REMOVED}  # what is gone may be removed again
    if before is not None:
        state = before.state
        allowed = TRANSITIONS[state] | {state}
        if called_off and state == ShardState.TERMINATED:
            allowed |= CALLED_OFF
    if lease.state not in allowed:
        raise ValueError(f"the shard {lease.key} cannot go from {state} to {lease.state}")


#: How often a change is decided anew on conflicts before the conflict is raised: with n writers a round has one winner, so this
#: serves dozens of workers that all write at once.
ATTEMPTS = 30

Decide = Callable[[Snapshot], Iterable[Lease]]


def swap(store: LeaseStore, decide: Decide, *, attempts: int = ATTEMPTS, sleep: Callable[[float], None] | None = None) -> list[Lease]:
    """Read, decide and commit until it is written; return what was. ``decide`` may be called many times and must be pure.

    A conflict and an unknown outcome are treated alike: read again and decide again. ``decide`` sees what an unknown commit
    wrote, so it must recognise its own work (by owner, counter and epoch) and then return nothing.
    """
    waits: dict[str, Any] = {"sleep": sleep} if sleep else {}
    for attempt in Retrying(
        retry=retry_if_exception_type((CommitConflictError, CommitUnknownError)),
        wait=wait_random_exponential(multiplier=0.01, max=0.5),
        stop=stop_after_attempt(attempts),
        reraise=True,
        **waits,
    ):
        with attempt:
            snapshot = store.read()
            changes = list(decide(snapshot))
            if changes:
                store.commit(snapshot, changes)
            return changes
    raise AssertionError("tenacity re-raises the last error")  # pragma: no cover


def shuffled(leases: Iterable[Lease], seed: str) -> list[Lease]:
    """The leases in an order that differs between workers, so that they do not all reach for the same one."""
    ordered = sorted(leases, key=lambda lease: lease.key)
    if len(ordered) > 1:
        random.Random(seed).shuffle(ordered)
    return ordered
