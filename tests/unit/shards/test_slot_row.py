"""What the lease of a slot says of the worker that holds it."""

from __future__ import annotations

import json

from hindcast.leases.lease import Lease, StatusType
from hindcast.shards.slot_row import SlotHolder

WORKER = SlotHolder(
    pid=7, host="a", started_at="2026-01-05T12:00:00+00:00", starting=True, lease_seconds=10.0
)


def slot(detail: str) -> Lease:
    return Lease(
        stream_id="f",
        status_type=StatusType.SLOT,
        status_value="0",
        lease_owner="w",
        detail=json.loads(detail),
    )


def test_a_slot_says_who_holds_it() -> None:
    """After its way through the table, as JSON."""
    assert SlotHolder.of(slot(json.dumps(WORKER.to_json()))) == WORKER


def test_a_slot_of_an_older_hindcast_says_less() -> None:
    """Its worker can consume; how long its leases last is not known."""
    assert SlotHolder.of(slot('{"pid": 7}')) == SlotHolder(pid=7)
    assert SlotHolder.of(slot("{}")) == SlotHolder()
    assert not SlotHolder().starting
    assert SlotHolder().lease_seconds is None
