"""A lease and the row that it is kept in."""

from __future__ import annotations

import pytest

from hindcast.errors import SchemaVersionError
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.settings import Settings
from hindcast.tables.table_names import SCHEMA_VERSION

KEY = LeaseKey("trades", "shard", "v1.g0.s0")


def lease(**changes: object) -> Lease:
    return Lease(**{"stream_id": KEY[0], "status_type": StatusType.SHARD, "status_value": KEY[2], **changes})


def test_a_lease_has_no_other_fields() -> None:
    """A change of a field that a lease does not have is refused, and a new name gives a new key."""
    with pytest.raises(TypeError, match=r"a lease has no lease_ownr, state_\Z"):
        lease().evolve(state_="OPEN", lease_ownr="a")
    assert lease().evolve(status_value="other").key == lease(status_value="other").key
    old = lease()
    assert old.key != old.evolve(status_value="other").key == lease(status_value="other").key


def test_a_lease_that_is_given_to_another_owner_is_in_its_next_epoch() -> None:
    """Nobody asks for it any more, and its counter has moved."""
    asked = lease(lease_owner="a", lease_stealer="b", epoch=3, lease_counter=7)
    given = asked.given_to("b")
    assert (given.lease_owner, given.lease_stealer, given.epoch) == ("b", "", 4)
    assert given == asked.evolve(
        lease_owner="b", lease_stealer="", epoch=4, lease_counter=given.lease_counter
    )
    assert given.lease_counter > 7


def test_a_row_of_a_newer_schema_is_refused(settings: Settings) -> None:
    """The error names the table, both schemas and the cure."""
    with pytest.raises(SchemaVersionError, match="Upgrade") as refused:
        Lease.from_row({"schema_version": 99}, "the table")
    fields = dict(refused.value.fields)
    assert fields.pop("cure")
    assert fields == {"table": "the table", "found": 99, "supported": SCHEMA_VERSION}


def test_a_row_without_texts_or_parents_has_empty_ones() -> None:
    """A row that was written by hand, with nulls, is a lease like any other."""
    row = dict(lease().__dict__, schema_version=SCHEMA_VERSION)
    row |= {"checkpoint": None, "detail": "", "parent_shard_ids": None}
    read = Lease.from_row(row, "the table")
    assert (read.checkpoint, read.detail, read.parent_shard_ids) == ({}, {}, [])
