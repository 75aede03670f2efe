"""The lease row: who owns what, how far it is, and which epoch of ownership this is.

The columns are those of the classic stream-client lease (Alibaba Tablestore's and Amazon's KCL have the same
idea): the owner proves that it lives by raising ``lease_counter``, and the clocks of two hosts are never
compared.
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
from hindcast.tables.table_names import SCHEMA_VERSION


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


#: A row that is committed in this state is removed from the table, for good.
REMOVED = "REMOVED"
#: The one table of a shard's life. Every commit of leases is checked against it
#: (:func:`hindcast.leases.store.after`).
#:
#: - WAIT until the parents are TERMINATED, or until a rewind has restored the tables.
#: - OPEN to be taken and consumed.
#: - CLOSING while its owner finishes the current batch to give the shard up. If the owner dies then, its
#:   lease expires and the next owner opens the shard.
#: - CLOSED once the shard is given up, until the next owner opens it. An owner whose query has failed, or
#:   that gives up between two renewals, leaves CLOSING out.
#: - TERMINATED once the shard is consumed to its end and its late and poison rows are filed, or once a rewind
#:   puts others in its place.
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
#: States to which a shard returns whose rewind is called off, in the commit that removes its follower.
CALLED_OFF = frozenset({ShardState.OPEN, ShardState.CLOSING, ShardState.CLOSED})
#: States of a shard that has no owner: it has not begun, or it is at its end.
NOT_HELD = frozenset({ShardState.WAIT, ShardState.TERMINATED})
#: States in which a free or expired lease may be taken.
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
    """One row. ``lease_owner`` and ``lease_stealer`` are worker ids, empty if there is none; ``epoch`` is the
    fencing token.

    Neither a lease nor what is inside its ``checkpoint`` and ``detail`` is ever changed: snapshots share
    leases, and leases share these maps.
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

        :raises TypeError: if a lease has no such field
        """
        return self._with({**self.__dict__, **changes}, changes)

    def renewed(self, **changes: Any) -> Self:
        """A copy with the counter raised: proof of life."""
        return self._with({**self.__dict__, "lease_counter": self.lease_counter + 1, **changes}, changes)

    def given_to(self, owner: str, **changes: Any) -> Self:
        """A copy with a new owner, and so in the next epoch."""
        return self.renewed(lease_owner=owner, lease_stealer="", epoch=self.epoch + 1, **changes)

    def moved(self, state: ShardState) -> Self:
        """A copy in another state. Staying is always allowed.

        :raises ValueError: if :data:`TRANSITIONS` has no such step
        """
        if state != self.state and state not in TRANSITIONS[self.state]:
            raise ValueError(f"a shard cannot go from {self.state} to {state}")
        return self.evolve(state=state)

    def _with(self, values: dict[str, Any], changes: Mapping[str, Any]) -> Self:
        """A copy that has these values.

        Not by dataclasses.replace, which sets the fields of a frozen object one by one and takes eight times
        as long.
        """
        if len(values) != len(self.__dict__):
            raise TypeError(f"a lease has no {', '.join(sorted(values.keys() - self.__dict__.keys()))}")
        if not _NAME.isdisjoint(changes):
            values.pop("key", None)  # it is cached, and has the old name
        copy = object.__new__(type(self))
        object.__setattr__(copy, "__dict__", values)
        return copy

    @classmethod
    def from_row(cls, row: Mapping[str, Any], table: str) -> Self:
        """The lease that a row of the table says. Texts and lists that are null are empty.

        :param table: its address, for errors
        :raises SchemaVersionError: if a newer Hindcast wrote the row
        """
        found = row["schema_version"]
        if found > SCHEMA_VERSION:
            raise SchemaVersionError(
                table=table, found=found, supported=SCHEMA_VERSION, cure="Upgrade this Hindcast."
            )
        values = {name: row[name] for name in cls.__dataclass_fields__}
        values["status_type"] = StatusType(row["status_type"])
        values["checkpoint"] = json.loads(row["checkpoint"] or "{}")
        values["detail"] = json.loads(row["detail"] or "{}")
        values["parent_shard_ids"] = list(row["parent_shard_ids"] or [])
        return cls(**values)
