"""The lease row: who owns what, how far it is, and which epoch of ownership this is.

The columns are those of the classic stream-client lease (Alibaba Tablestore's and Amazon's KCL have the same idea): the owner
proves that it lives by raising ``lease_counter``; nobody compares clocks between hosts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, Self

from hindcast.errors import SchemaVersionError
from hindcast.tables.schema import SCHEMA_VERSION


class StatusType(StrEnum):
    """What a row leases."""

    SHARD = "shard"
    SLOT = "slot"
    PIPELINE = "pipeline"


class ShardState(StrEnum):
    """The life of a shard. See :data:`TRANSITIONS`."""

    WAIT = "WAIT"
    OPEN = "OPEN"
    CLOSING = "CLOSING"
    CLOSED = "CLOSED"
    TERMINATED = "TERMINATED"


#: A row that is committed in this state is taken out of the table, for good.
REMOVED = "REMOVED"
#: The one table of a shard's life. Every commit of leases is checked against it (:func:`hindcast.leases.store.after`).
#:
#: - WAIT until the parents are TERMINATED, or until a rewind has restored the tables.
#: - OPEN to be taken and consumed.
#: - CLOSING while its owner finishes the batch in hand to give it up. An owner that dies then leaves a lease that expires, and
#:   the next owner opens it.
#: - CLOSED once it is given up, until the next owner opens it. An owner whose query has failed, or who gives up between two
#:   renewals, goes there without CLOSING.
#: - TERMINATED once it is consumed to its end and its late and poison rows are filed, or once a rewind puts others in its place.
#: - REMOVED once its version is discarded, or its rewind is called off.
#:
#: A rewind that is called off is the only way out of TERMINATED: see :data:`CALLED_OFF`.
TRANSITIONS: Mapping[str, frozenset[str]] = {
    ShardState.WAIT: frozenset({ShardState.OPEN, REMOVED}),
    ShardState.OPEN: frozenset({ShardState.CLOSING, ShardState.CLOSED, ShardState.TERMINATED, REMOVED}),
    ShardState.CLOSING: frozenset({ShardState.OPEN, ShardState.CLOSED, ShardState.TERMINATED, REMOVED}),
    ShardState.CLOSED: frozenset({ShardState.OPEN, ShardState.TERMINATED, REMOVED}),
    ShardState.TERMINATED: frozenset({REMOVED}),
}
#: A shard begins in one of these.
FIRST_STATES = frozenset({ShardState.WAIT, ShardState.OPEN})
#: To where a shard goes back that a rewind had ended, in the commit that removes the shard which was to follow it.
CALLED_OFF = frozenset({ShardState.OPEN, ShardState.CLOSING, ShardState.CLOSED})
#: States of a shard that nobody holds: it has not begun, or it is at its end.
NOT_HELD = frozenset({ShardState.WAIT, ShardState.TERMINATED})
#: States in which a lease that is free or expired may be taken.
TAKEABLE = frozenset({ShardState.OPEN, ShardState.CLOSING, ShardState.CLOSED})


class LeaseKey(NamedTuple):
    """The three columns that name a lease."""

    stream_id: str
    status_type: str
    status_value: str

    def __str__(self) -> str:
        return f"{self.stream_id}/{self.status_value}"


_NAME = frozenset(LeaseKey._fields)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """One row. ``lease_owner`` and ``lease_stealer`` are worker ids, empty where there is none; ``epoch`` is the fencing token.

    Never changed, and nothing in ``checkpoint`` and ``detail`` either: snapshots share leases, and those share what is in them.
    """

    stream_id: str
    status_type: StatusType
    status_value: str
    checkpoint: Mapping[str, Any] = field(default_factory=dict)
    lease_counter: int = 0
    lease_owner: str = ""
    lease_stealer: str = ""
    parent_shard_ids: list[str] = field(default_factory=list)
    epoch: int = 0
    state: str = ShardState.OPEN
    detail: Mapping[str, Any] = field(default_factory=dict)
    updated_at: datetime | None = None

    @cached_property
    def key(self) -> LeaseKey:
        return LeaseKey(self.stream_id, self.status_type, self.status_value)

    @property
    def free(self) -> bool:
        return not self.lease_owner

    def evolve(self, **changes: Any) -> Self:
        """A copy with these fields changed.

        :raises TypeError: where there is no such field
        """
        return self._with({**self.__dict__, **changes}, changes)

    def renewed(self, **changes: Any) -> Self:
        """A copy with the counter raised: proof of life."""
        return self._with({**self.__dict__, "lease_counter": self.lease_counter + 1, **changes}, changes)

    def given_to(self, owner: str, **changes: Any) -> Self:
        """A copy under a new owner and so in the next epoch."""
        return self.renewed(lease_owner=owner, lease_stealer="", epoch=self.epoch + 1, **changes)

    def moved(self, state: ShardState) -> Self:
        """A copy in another state. Staying is always allowed.

        :raises ValueError: if :data:`TRANSITIONS` has no such step
        """
        if state != self.state and state not in TRANSITIONS[self.state]:
            raise ValueError(f"a shard cannot go from {self.state} to {state}")
        return self.evolve(state=state)

    def _with(self, values: dict[str, Any], changes: Mapping[str, Any]) -> Self:
        """A copy that has these values. dataclasses.replace sets a frozen object's fields one by one, at eight times the price."""
        if len(values) != len(self.__dict__):
            raise TypeError(f"a lease has no {', '.join(sorted(values.keys() - self.__dict__.keys()))}")
        if not _NAME.isdisjoint(changes):
            values.pop("key", None)  # it was computed from the old name
        copy = object.__new__(type(self))
        object.__setattr__(copy, "__dict__", values)
        return copy

    @classmethod
    def from_row(cls, row: Mapping[str, Any], table: str) -> Self:
        """:param table: its address, for errors
        :raises SchemaVersionError: where a newer Hindcast wrote the row
        """
        if row["schema_version"] > SCHEMA_VERSION:
            raise SchemaVersionError(table=table, found=row["schema_version"], supported=SCHEMA_VERSION, cure="Upgrade this Hindcast.")
        values = {name: row[name] for name in cls.__dataclass_fields__}
        values |= {
            "status_type": StatusType(row["status_type"]),
            "checkpoint": json.loads(row["checkpoint"] or "{}"),
            "detail": json.loads(row["detail"] or "{}"),
        }
        values |= {"parent_shard_ids": list(row["parent_shard_ids"] or [])}
        return cls(**values)
