"""What a worker says of a shard that it gives back, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.shard_stand_ins import FailingAudit, SlowAudit

from hindcast.errors import CheckpointRefusedError, OffsetGapError, SchemaVersionError, StoreUnavailableError
from hindcast.installation import Installation
from hindcast.leases.lease import LeaseKey
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.shard_row import REFUSED
from hindcast.stream import shard_starter
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock, MemoryStore


def renew_once_closed(coordinator: LeaseCoordinator, patch: pytest.MonkeyPatch) -> None:
    """A renewal runs at the very moment a lease is closed: the renewal thread at its most unlucky."""
    mark_closed = coordinator.held.mark_closed

    def eager(key: LeaseKey, epoch: int) -> None:
        mark_closed(key, epoch)
        coordinator.renew()

    patch.setattr(coordinator.held, "mark_closed", eager)


def test_a_refused_shard_is_marked_before_anybody_may_take_it(
    shard_factory: Callable[..., Any], store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal that frees the lease also says why: else the next worker would take the shard and be
    refused, for ever.
    """
    refusal = CheckpointRefusedError(
        pipeline="p", shard="v1.g0.s0", path="somewhere", problem="it is torn", cure="Mend it."
    )
    shard = shard_factory(FailingAudit(), refusal)
    renew_once_closed(shard.coordinator, monkeypatch)
    shard.sync.start(shard.lease)
    row = store.read().leases[shard.lease.key]
    assert (row.lease_owner, "it is torn" in row.detail[REFUSED]) == ("", True)
    assert shard.coordinator.renew().gained == []


@pytest.mark.parametrize(
    "failures",
    [[], [RuntimeError("Stream closed")], [StoreUnavailableError(table="t")]],
    ids=["none", "an error", "a store that is away"],
)
def test_a_superseded_shard_ends_once_all_is_filed_and_not_before(
    shard_factory: Callable[..., Any], failures: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its children could be consumed, and a verdict given, while late and poison rows of its last batches are
    in no table.
    """
    audit = SlowAudit(*failures)
    shard = shard_factory(audit)
    ends: list[tuple[int, bool]] = []
    mark_closed = shard.coordinator.held.mark_closed

    def noted(key: LeaseKey, epoch: int, *, ended: bool) -> None:
        ends.append((audit.at, ended))
        mark_closed(key, epoch, ended=ended)

    monkeypatch.setattr(shard.coordinator.held, "mark_closed", noted)
    shard.sync.superseded = frozenset({shard.lease.key})
    shard.start()
    shard.query.progressed = True
    shard.query.drained = True
    shard.query.batch = 3
    shard.query.end_offsets = {0: 3}
    shard.sync.tick()
    assert (ends, shard.sync.any, shard.sync.audit.due.is_set()) == ([], True, True)
    for _ in range(len(failures)):
        shard.sync.audit.run()
        assert (ends, shard.sync.any) == ([], True)
    shard.sync.audit.run()
    assert (ends, shard.sync.any) == ([(3, True)], False)
    assert shard.query.stops


@pytest.mark.parametrize(
    ("error", "kind", "marked"),
    [
        (StoreUnavailableError(table="t", action="opened", reason="away"), "query_failed", False),
        (SchemaVersionError(table="t", found="a", supported="b", cure="Move it."), "shard_refused", True),
    ],
    ids=["the store is away", "the table has other columns"],
)
def test_a_shard_whose_rows_could_not_be_filed_is_given_back(
    shard_factory: Callable[..., Any],
    installation: Installation,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: str,
    marked: bool,
) -> None:
    """Its query runs already when the tables for its late and poison rows cannot be opened. It ends, and the
    worker goes on.
    """
    shard = shard_factory(FailingAudit())

    def away(*_: object) -> FailingAudit:
        raise error

    monkeypatch.setattr(shard_starter, "Audit", away)
    shard.start()
    assert (shard.query.stops, shard.sync.any) == (1, False)
    rows = installation.tables.rows(ControlTable.EVENTS)
    assert [row["kind"] for row in rows] == [kind]
    assert shard.backoff.over(shard.lease.key, clock.monotonic()) is marked, "it is tried again after a while"
    assert not shard.coordinator.held.holds(shard.lease.key, shard.lease.epoch)
    lease = shard.coordinator.renew().leases[shard.lease.key]
    assert bool(lease.detail.get(REFUSED)) is marked


@pytest.mark.parametrize(
    "how", ["its lease ran out", "somebody took it", "its query failed", "it is refused"]
)
def test_rows_of_a_shard_that_was_lost_are_filed_too(
    shard_factory: Callable[..., Any], clock: FakeClock, how: str
) -> None:
    """Its pipeline may have been paused in that moment, and then nobody takes it. What waits for an operator
    is left to whoever goes on.
    """
    audit = FailingAudit()
    shard = shard_factory(audit)
    shard.start()
    shard.query.progressed = True
    if how == "its lease ran out":
        clock.advance(10)
    if how == "its query failed":
        shard.query.failure = RuntimeError("no")
    if how == "it is refused":
        shard.query.failure = OffsetGapError(pipeline="p")
    if how == "somebody took it":
        shard.sync.lose(shard.lease.key)
    else:
        shard.sync.tick()
    shard.sync.audit.run()
    assert audit.passes == (how != "it is refused")
    assert not shard.sync.any


def test_a_shard_that_is_to_be_rebuilt_is_started_again_after_the_batch_in_hand(
    shard_factory: Callable[..., Any],
) -> None:
    """A request that its query has met, or that came while it drains, changes nothing."""
    shard = shard_factory(FailingAudit())
    shard.start()
    shard.sync.rebuild(shard.lease, "")
    assert not shard.query.draining
    shard.sync.rebuild(shard.lease, "r1")
    assert shard.query.draining
    shard.sync.tick()
    assert shard.sync.running()
    shard.query.drained = True
    shard.sync.tick()
    (waiting,) = shard.sync.waiting()
    assert (waiting.lease, waiting.request, shard.query.stops) == (shard.lease, "r1", 1)
    shard.query.draining = False
    assert shard.sync.start_next()
    assert shard.takeover.started == ["", "it was asked for"]
    shard.sync.rebuild(shard.lease, "r1")
    assert not shard.query.draining
    assert shard.coordinator.held.holds(shard.lease.key, shard.lease.epoch)


def test_a_worker_that_stops_leaves_a_superseded_shard_to_the_next_owner(
    shard_factory: Callable[..., Any],
) -> None:
    """Its lease is given away after the batch in hand, and it has not ended. So its rows are filed."""
    audit = FailingAudit()
    shard = shard_factory(audit)
    shard.sync.superseded = frozenset({shard.lease.key})
    shard.start()
    shard.query.drained = True
    assert shard.coordinator.held.drain() == [shard.lease.key]
    shard.sync.close(shard.lease.key)
    shard.sync.tick()
    assert not shard.sync.any
    assert not shard.coordinator.held.holds(shard.lease.key, shard.lease.epoch)
    assert not shard.sync.audit.due.is_set()
    shard.sync.audit.run()
    assert audit.passes == 1


@pytest.mark.parametrize("doing", ["it writes the ledger", "it looks after its queries"])
def test_a_shard_that_the_audit_ends_meanwhile_is_left_alone(
    shard_factory: Callable[..., Any], installation: Installation, doing: str
) -> None:
    """The audit thread ends a superseded shard at any time, also while the main thread goes through all
    shards: that is no loss, and no error which would end the worker.
    """
    shard = shard_factory(SlowAudit())
    shard.sync.superseded = frozenset({shard.lease.key})
    shard.start()
    shard.query.drained = True
    shard.sync.tick()
    (running,) = shard.sync.running()
    assert running.ending
    if doing == "it writes the ledger":
        shard.query.on_flush = shard.sync.audit.run
        shard.sync.flush()
    else:
        shard.on_beat = shard.sync.audit.run
        shard.sync.tick()
    assert not shard.sync.any
    events = installation.tables.rows(ControlTable.EVENTS)
    assert {row["kind"] for row in events} == {"shard_taken", "shard_ended"}
