"""Late and poison rows of shards that were given up are filed, pass after pass."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake.exceptions import TableNotFoundError
from support.shard_stand_ins import FailingAudit, ShardQuery, SlowAudit

from hindcast.errors import JvmBrokenError, LeaseLostError, StoreUnavailableError
from hindcast.installation import Installation
from hindcast.shards import resharding
from hindcast.shards.held_leases import HeldLeases
from hindcast.stream.audit_passes import AuditPasses
from hindcast.stream.running_shard import RunningShard
from hindcast.stream.shard_events import ShardEvents
from hindcast.tables.event_log import EventLog
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock, MemoryStore


class Settling:
    """The passes of a worker that has given a shard up, with rows still to be filed."""

    def __init__(self, installation: Installation, audit: FailingAudit) -> None:
        (self._lease,) = resharding.create(MemoryStore(), "p", 1, 1, {0: 0})
        held = HeldLeases(FakeClock(), owner="w", lease_seconds=10)
        self.gave_way = 0
        self.passes = AuditPasses({}, held, ShardEvents(EventLog(installation.tables), "w"), self._give_way)
        self.give_up(audit)

    def give_up(self, audit: FailingAudit, **of_the_query: Any) -> ShardQuery:
        query = ShardQuery(self._lease, **of_the_query)
        runner: Any = query
        stand_in: Any = audit
        self.passes.settle(RunningShard(runner, stand_in))
        return query

    def _give_way(self) -> None:
        self.gave_way += 1


def test_rows_of_a_shard_that_was_given_up_are_filed_by_a_later_pass(installation: Installation) -> None:
    """A pass that fails is told once and tried again, until it goes well: nobody else may ever take a paused
    shard.
    """
    audit = FailingAudit(
        RuntimeError("Stream closed"), RuntimeError("Stream closed"), StoreUnavailableError(table="t")
    )
    worker = Settling(installation, audit)
    for _ in range(6):
        worker.passes.run()
    assert audit.passes == 4
    (event,) = installation.tables.rows(ControlTable.EVENTS)
    assert (event["kind"], bool(event["cure"])) == ("audit_failed", True)


def test_a_pass_in_a_broken_jvm_ends_the_worker(installation: Installation) -> None:
    """Each further pass would fail, too, and a shard that was given up might never be taken again."""
    worker = Settling(installation, FailingAudit(RuntimeError("java.lang.UnsatisfiedLinkError: no zstd")))
    with pytest.raises(JvmBrokenError):
        worker.passes.run()


def test_a_shard_that_is_given_up_again_and_again_costs_one_pass(installation: Installation) -> None:
    """Its last life files the rows of those before, too. A query that fails each minute, while its rows
    cannot be filed, would else cost one more after each failure.
    """
    older, newer = FailingAudit(RuntimeError("one")), FailingAudit(RuntimeError("two"))
    worker = Settling(installation, older)
    worker.passes.run()
    worker.give_up(newer)
    for _ in range(3):
        worker.passes.run()
    assert (older.passes, newer.passes) == (1, 2)


def test_the_last_ledger_rows_of_a_shard_that_was_given_up_are_written(installation: Installation) -> None:
    """The store was away when it stopped, and its pipeline stays paused: no next owner will write them."""
    away = [StoreUnavailableError(table="checkpoints"), StoreUnavailableError(table="checkpoints")]

    def flush() -> None:
        if away:
            raise away.pop()

    worker = Settling(installation, FailingAudit())
    audit = SlowAudit()
    query = worker.give_up(audit, batch=1, on_flush=flush)
    for _ in range(4):
        worker.passes.run()
    assert (query.flushes, audit.at) == (3, 1)


@pytest.mark.parametrize(
    "error",
    [LeaseLostError(owner="w"), TableNotFoundError("late rows of a version that was discarded")],
    ids=["a new owner", "a discarded version"],
)
def test_rows_of_a_shard_that_has_a_new_owner_are_left_to_it(
    installation: Installation, error: Exception
) -> None:
    """Whoever has sealed the tables files the rest. Of a version that was discarded nobody files any."""
    audit = FailingAudit(error)
    worker = Settling(installation, audit)
    worker.passes.run()
    worker.passes.run()
    assert audit.passes == 1


def test_each_shard_gives_way_to_one_that_is_taken_over(installation: Installation) -> None:
    """The filing of rows waits before each shard, for it takes the cores that a take-over needs."""
    worker = Settling(installation, FailingAudit(RuntimeError("Stream closed")))
    for _ in range(3):
        worker.passes.run()
    assert worker.gave_way == 2


def test_a_pass_takes_up_what_was_due(installation: Installation) -> None:
    """The audit thread then waits until something else is due."""
    worker = Settling(installation, FailingAudit())
    worker.passes.due.set()
    worker.passes.run()
    assert not worker.passes.due.is_set()
