"""The shards of a lease store, for tests of its coordinators."""

from __future__ import annotations

from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.leases.store import LeaseStore
from hindcast.shards import resharding


def add_shards(store: LeaseStore, count: int) -> list[LeaseKey]:
    """Shards of one pipeline that nobody owns yet, each with a partition."""
    return [lease.key for lease in resharding.create(store, "p", 1, count, dict.fromkeys(range(count), 0))]


def row(store: LeaseStore, key: LeaseKey) -> Lease:
    return store.read().leases[key]


def owners(store: LeaseStore) -> dict[str, str]:
    """Shard -> its owner, empty where it is free."""
    return {
        row.status_value: row.lease_owner
        for row in store.read().leases.values()
        if row.status_type is StatusType.SHARD
    }
