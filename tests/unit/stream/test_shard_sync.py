"""What a worker says of a shard that it gives back, and when."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast.errors import CheckpointRefusedError, LeaseLostError, OffsetGapError, StoreUnavailableError
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.shard_row import REFUSED
from hindcast.stream import shard_sync
from hindcast.stream.shard_sync import Backoff, ShardSync
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventLog
from hindcast.tables.schema import ControlTable
from hindcast.testing import FakeClock, MemoryStore


def renew_once_closed(coordinator: LeaseCoordinator, patch: pytest.MonkeyPatch) -> None:
    """A renewal runs at the very moment a lease is closed: the renewal thread at its most unlucky."""
    mark_closed = coordinator.held.mark_closed

    def eager(key: LeaseKey, epoch: int) -> None:
        mark_closed(key, epoch)
        coordinator.renew()

    patch.setattr(coordinator.held, "mark_closed", eager)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shard's take-over is refused."""

    class Refusing:
        app = "p/v1/v1.g0.s0"

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def start(self, _: str, *, allowed: Callable[[], object]) -> None:
            allowed()
            raise CheckpointRefusedError(
                pipeline="p", shard="v1.g0.s0", path="somewhere", problem="it is torn", cure="Mend it."
            )

        def prepare(self) -> None: ...

    monkeypatch.setattr(shard_sync, "ShardTakeover", Refusing)
    monkeypatch.setattr(shard_sync, "_check_retained", lambda *_: None)


@pytest.mark.usefixtures("refusing")
def test_a_refused_shard_is_marked_before_anybody_may_take_it(
    settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal that frees the lease also says why: else the next worker would take the shard and be
    refused, for ever.
    """
    settings, clock, store = settings_factory(), FakeClock(), MemoryStore()
    (lease,) = resharding.create(store, "p", 1, 1, {0: 0})
    coordinator = LeaseCoordinator(
        store, clock, owner="w", fleet="f", slots=1, lease_seconds=10, wanted=_not_refused
    )
    renew_once_closed(coordinator, monkeypatch)
    assert coordinator.acquire_slot(clock.advance)
    (gained,) = coordinator.renew().gained
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None))
    deployed: Any = SimpleNamespace(of=lambda name, _: SimpleNamespace(name=name))
    ShardSync(
        spark, settings, deployed, coordinator.held, EventLog(ControlTables(settings)), clock, Backoff()
    ).start(gained)
    row = store.read().leases[lease.key]
    assert (row.lease_owner, "it is torn" in row.detail[REFUSED]) == ("", True)
    assert coordinator.renew().gained == []


def _not_refused(lease: Lease, _: object) -> bool:
    return not lease.detail.get(REFUSED)


class Failing:
    """An audit whose first passes fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.passes = 0

    def filed(self) -> int:
        return 0

    def run(self, _: object) -> int:
        self.passes += 1
        if self.failures:
            raise self.failures.pop(0)
        return 0


def settling(settings: Settings, audit: Failing) -> ShardSync:
    """A worker that has given a shard up, with rows still to be filed."""
    clock, store = FakeClock(), MemoryStore()
    (lease,) = resharding.create(store, "p", 1, 1, {0: 0})
    coordinator = LeaseCoordinator(
        store, clock, owner="w", fleet="f", slots=1, lease_seconds=10, wanted=_not_refused
    )
    made = ShardSync(
        SimpleNamespace(), settings, {}, coordinator.held, EventLog(ControlTables(settings)), clock, Backoff()
    )  # type: ignore[arg-type]
    made._settling.append(shard_sync._Running(SimpleNamespace(lease=lease, unfiled=lambda _: []), audit))  # type: ignore[arg-type]
    return made


def test_rows_of_a_shard_that_was_given_up_are_filed_by_a_later_pass(settings: Settings) -> None:
    """A pass that fails is told once and tried again, until it goes well: nobody else may ever take a paused
    shard.
    """
    audit = Failing(
        RuntimeError("Stream closed"), RuntimeError("Stream closed"), StoreUnavailableError(table="t")
    )
    worker = settling(settings, audit)
    for _ in range(6):
        worker.audit()
    assert audit.passes == 4
    (event,) = ControlTables(settings).rows(ControlTable.EVENTS)
    assert (event["kind"], bool(event["cure"])) == ("audit_failed", True)


@pytest.mark.parametrize(
    "failures",
    [[], [RuntimeError("Stream closed")], [StoreUnavailableError(table="t")]],
    ids=["none", "an error", "a store that is away"],
)
def test_a_superseded_shard_ends_once_all_is_filed_and_not_before(
    settings: Settings, failures: list[Exception]
) -> None:
    """Its children could be consumed, and a verdict given, while late and poison rows of its last batches are
    in no table.
    """

    class Slow(Failing):
        """Files one batch a pass."""

        at = 0

        def filed(self) -> int:
            return self.at

        def run(self, batches: object) -> int:
            super().run(batches)
            self.at += 1
            return self.at

    audit = Slow(*failures)
    worker = settling(settings, audit)
    (running,) = worker._settling
    worker._settling.clear()
    lease = running.runner.lease
    batches = [SimpleNamespace(batch=number) for number in (1, 2, 3)]
    stopped: list[int] = []
    running.runner.__dict__.update(
        stop=lambda: stopped.append(1),
        failure=None,
        progressed=True,
        drained=True,
        batch=3,
        end_offsets={0: 3},
        unfiled=lambda after: [one for one in batches if one.batch > after],
    )
    running.draining = True
    worker._running[lease.key] = running
    ends: list[tuple[int, bool]] = []
    held: Any = SimpleNamespace(
        owner="w", holds=lambda *_: True, mark_closed=lambda *_, ended: ends.append((audit.at, ended))
    )
    worker._held, worker.superseded = held, frozenset({lease.key})
    worker.tick()
    assert (ends, worker.any, worker.audit_due.is_set()) == ([], True, True)
    for _ in range(len(failures)):
        worker.audit()
        assert (ends, worker.any) == ([], True)
    worker.audit()
    assert (ends, worker.any) == ([(3, True)], False)
    assert stopped


@pytest.mark.parametrize(
    "how", ["its lease ran out", "somebody took it", "its query failed", "it is refused"]
)
def test_rows_of_a_shard_that_was_lost_are_filed_too(settings: Settings, how: str) -> None:
    """Its pipeline may have been paused in that moment, and then nobody takes it. What waits for an operator
    is left to whoever goes on.
    """
    audit = Failing()
    worker = settling(settings, audit)
    (running,) = worker._settling
    worker._settling.clear()
    key = running.runner.lease.key
    worker._running[key] = running
    failure = {"its query failed": RuntimeError("no"), "it is refused": OffsetGapError(pipeline="p")}.get(how)
    running.runner.__dict__.update(stop=lambda: None, failure=failure, progressed=True)
    held: Any = SimpleNamespace(
        owner="w",
        holds=lambda *_: failure is not None,
        mark_closed=lambda *_: None,
        report=lambda *_, **__: None,
    )
    worker._held = held
    worker._diagnosed = lambda _, found: found  # type: ignore[method-assign]
    worker.lose(key) if how == "somebody took it" else worker.tick()
    worker.audit()
    assert audit.passes == (how != "it is refused")
    assert not worker.any


def test_rows_of_a_shard_that_has_a_new_owner_are_left_to_it(settings: Settings) -> None:
    """Whoever has sealed the tables files the rest."""
    audit = Failing(LeaseLostError(owner="w"))
    worker = settling(settings, audit)
    worker.audit()
    worker.audit()
    assert audit.passes == 1


@pytest.mark.parametrize(
    "error",
    [
        "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.",
        "[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart streaming query: the state directory is empty or missing.",
    ],
)
def test_what_spark_says_of_lost_state_is_known(error: str) -> None:
    """Torn state files and a state folder that is gone both mean: make the state anew, for no retry would
    mend it.
    """
    assert shard_sync._STATE_LOST.search(error)


def test_a_cause_fits_into_an_event() -> None:
    """However long Spark's sentence is."""
    assert len(shard_sync._cause(ValueError("x" * 10_000))) == 300
