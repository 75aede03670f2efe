"""A worker's side of a shard whose function raises on a record: search, go on without it, or give it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.shard_stand_ins import FailingAudit, Search

from hindcast.errors import JvmBrokenError, OffsetGapError, RaisingRecordsError
from hindcast.installation import Installation
from hindcast.leases.lease import LeaseKey
from hindcast.recovery.raising_records import FailedBatch, LeftOut
from hindcast.shards.shard_row import REFUSED
from hindcast.stream import shard_starter
from hindcast.stream.running_shard import RunningShard
from hindcast.stream.shard_topics import ShardTopics
from hindcast.tables.table_names import ControlTable
from hindcast.testing import MemoryStore

_FAILURE = RuntimeError("Caused by: java.lang.ArithmeticException: / by zero")


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FailedBatch, Search]]:
    """Each search that is begun, with the batch that it is for."""
    begun: list[tuple[FailedBatch, Search]] = []

    def search(
        _spark: object, _installation: object, _pipeline: object, batch: FailedBatch, _clock: object
    ) -> Search:
        begun.append((batch, Search(batch.error)))
        return begun[-1][1]

    monkeypatch.setattr(shard_starter, "RaisingRecords", search)
    return begun


def kinds(installation: Installation) -> list[str]:
    """The kinds of events that were recorded, in the order of the alphabet."""
    return sorted(row["kind"] for row in installation.tables.rows(ControlTable.EVENTS))


def failed(shard: Any, error: BaseException = _FAILURE) -> None:
    """The shard's query fails with the batch after offset 5."""
    shard.start()
    shard.query.planned = ({0: 5}, {0: 9})
    shard.query.failure = error
    shard.sync.tick()


def test_a_shard_goes_on_without_the_records_that_were_found(
    shard_factory: Callable[..., Any], installation: Installation, searches: list[tuple[FailedBatch, Search]]
) -> None:
    """It is held all the while, and its query is started again once they are known. What was found before
    stays left out.
    """
    shard = shard_factory(FailingAudit())
    failed(shard)
    ((batch, search),) = searches
    assert (batch.start, batch.end, batch.error) == ({0: 5}, {0: 9}, _FAILURE)
    assert shard.query.stops == 1
    shard.sync.tick()
    assert shard.coordinator.held.holds(shard.lease.key, shard.lease.epoch)
    assert shard.sync.waiting() == []
    search.found = LeftOut({0: {7: "KeyError"}}, {(0, 7): "Traceback of 7"})
    search.ended = True
    shard.query.failure = None
    shard.sync.tick()
    assert shard.sync.start_next()
    shard.query.failure = _FAILURE
    shard.sync.tick()
    assert [batch.excluded for batch, _ in searches] == [{}, {0: {7: "KeyError"}}]
    searches[1][1].found = LeftOut({0: {8: "KeyError"}}, {(0, 8): "Traceback of 8"})
    searches[1][1].ended = True
    shard.sync.tick()
    shard.query.failure = None
    assert shard.sync.start_next()
    assert shard.takeover.excluded == [{}, {0: {7: "KeyError"}}, {0: {7: "KeyError", 8: "KeyError"}}]
    assert shard.audit_tracebacks[-1] == {(0, 7): "Traceback of 7", (0, 8): "Traceback of 8"}
    assert shard.coordinator.held.holds(shard.lease.key, shard.lease.epoch)
    assert kinds(installation).count("records_excluded") == 2
    (row, _) = installation.tables.rows(ControlTable.EVENTS, [("kind", "=", "records_excluded")])
    assert "0/" in row["message"]
    assert "query_failed" not in kinds(installation)


def test_a_shard_goes_on_where_it_is_by_now(
    shard_factory: Callable[..., Any],
    searches: list[tuple[FailedBatch, Search]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic may have dropped by then what it had read when it was taken over."""
    asked: list[Any] = []
    shard = shard_factory(FailingAudit())
    failed(shard)
    monkeypatch.setattr(ShardTopics, "check_retained", lambda _, __, offsets: asked.append(offsets))
    shard.query.end_offsets = {0: 5}
    searches[0][1].found = LeftOut({0: {7: "KeyError"}}, {(0, 7): "Traceback of 7"})
    searches[0][1].ended = True
    shard.query.failure = None
    shard.sync.tick()
    assert shard.sync.start_next()
    assert asked == [{0: 5}]


def test_a_rebuild_that_was_met_is_not_met_again_after_a_search(
    shard_factory: Callable[..., Any], searches: list[tuple[FailedBatch, Search]]
) -> None:
    """Its new state was committed and reported before a record raised."""
    shard = shard_factory(FailingAudit())
    shard.start(request="please")
    shard.query.rebuilt = "it was asked for"
    (running,) = shard.sync.running()
    running.met = "please"
    shard.query.progressed = True
    shard.sync.flush()
    shard.query.planned = ({0: 5}, {0: 9})
    shard.query.failure = _FAILURE
    shard.sync.tick()
    searches[0][1].found = LeftOut({0: {7: "KeyError"}}, {(0, 7): "Traceback of 7"})
    searches[0][1].ended = True
    shard.query.failure = None
    shard.sync.tick()
    assert shard.sync.start_next()
    assert shard.takeover.started == ["it was asked for", ""]


def test_a_shard_is_given_back_if_no_record_is_to_blame(
    shard_factory: Callable[..., Any], installation: Installation, searches: list[tuple[FailedBatch, Search]]
) -> None:
    """As after any other error: somebody tries it again after a while."""
    shard = shard_factory(FailingAudit())
    failed(shard)
    searches[0][1].ended = True
    shard.sync.tick()
    assert not shard.sync.any
    assert not shard.coordinator.held.holds(shard.lease.key, shard.lease.epoch)
    assert "query_failed" in kinds(installation)


def test_a_search_in_a_broken_jvm_ends_the_worker(
    shard_factory: Callable[..., Any], searches: list[tuple[FailedBatch, Search]]
) -> None:
    """Every later search in it would fail as well, so the shard would stand still for ever."""
    shard = shard_factory(FailingAudit())
    failed(shard)
    searches[0][1].failure = RuntimeError("java.lang.UnsatisfiedLinkError: no snappyjava")
    searches[0][1].ended = True
    with pytest.raises(JvmBrokenError):
        shard.sync.tick()
    assert not shard.coordinator.held.holds(shard.lease.key, shard.lease.epoch)


def test_a_shard_waits_for_an_operator_if_too_many_raise(
    shard_factory: Callable[..., Any], store: MemoryStore, searches: list[tuple[FailedBatch, Search]]
) -> None:
    """And says why."""
    shard = shard_factory(FailingAudit())
    failed(shard)
    searches[0][1].refusal = RaisingRecordsError(limit=20)
    searches[0][1].ended = True
    shard.sync.tick()
    shard.coordinator.renew()
    assert "20 an hour" in store.read().leases[shard.lease.key].detail[REFUSED]


@pytest.mark.parametrize(
    "error",
    [OffsetGapError(pipeline="p"), RuntimeError("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] torn")],
    ids=["a refusal", "a lost state"],
)
def test_what_no_record_can_cause_is_not_searched(
    shard_factory: Callable[..., Any], searches: list[tuple[FailedBatch, Search]], error: BaseException
) -> None:
    """The shard is given back at once."""
    shard = shard_factory(FailingAudit())
    failed(shard, error)
    assert searches == []
    assert not shard.sync.any


@pytest.mark.parametrize("why", ["no batch was planned", "the setting says so"])
def test_nothing_is_searched_where_nothing_may_be_found(
    shard_factory: Callable[..., Any],
    installation: Installation,
    searches: list[tuple[FailedBatch, Search]],
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    """It fails before its first plan, or the operator wants no record to be left out."""
    shard = shard_factory(FailingAudit())
    shard.start()
    shard.query.failure = _FAILURE
    if why == "the setting says so":
        shard.query.planned = ({0: 5}, {0: 9})
        off = installation.settings.model_copy(update={"raising_records_per_hour": 0})
        monkeypatch.setattr(installation, "settings", off)
    shard.sync.tick()
    assert searches == []
    assert not shard.sync.any


def test_a_shard_that_is_to_be_given_up_ends_its_search(
    shard_factory: Callable[..., Any], installation: Installation, searches: list[tuple[FailedBatch, Search]]
) -> None:
    """No batch is in hand, so nothing waits for the search."""
    shard = shard_factory(FailingAudit())
    failed(shard)
    shard.sync.close(shard.lease.key)
    shard.query.failure = None  # it is no failure any more once the shard drains
    shard.query.drained = True
    shard.sync.tick()
    shard.sync.tick()
    assert searches[0][1].stops == 1
    assert not shard.sync.any
    assert "shard_released" in kinds(installation)


def test_a_shard_that_is_lost_ends_its_search(
    shard_factory: Callable[..., Any],
    searches: list[tuple[FailedBatch, Search]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its next owner searches for itself."""
    shard = shard_factory(FailingAudit())
    failed(shard)

    def holds(_key: LeaseKey, _epoch: int) -> bool:
        return False

    monkeypatch.setattr(shard.coordinator.held, "holds", holds)
    shard.sync.tick()
    assert searches[0][1].stops == 1
    assert not shard.sync.any


def test_a_request_that_the_query_has_met_is_not_met_again(shard_factory: Callable[..., Any]) -> None:
    """The lease does not say so before the next renewal; the shard that is started again must."""
    shard = shard_factory(FailingAudit())
    audit: Any = FailingAudit()
    running = RunningShard(shard.query, audit, met="r1")
    assert running.lease == shard.lease
    shard.query.progressed = True
    assert running.lease.detail == {**shard.lease.detail, "rebuild": "r1", "damaged": ""}
