"""What a worker says of a shard that failed, and when the shard may be tried again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.shard_stand_ins import FailingAudit

from hindcast.errors import JvmBrokenError, LeaseLostError, OffsetsLostError
from hindcast.installation import Installation
from hindcast.shards.shard_row import REFUSED, ShardDetail
from hindcast.stream.shard_topics import ShardTopics
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock, MemoryStore


def kinds(installation: Installation) -> list[str]:
    """The kinds of events that were recorded, in the order of the alphabet."""
    return sorted(row["kind"] for row in installation.tables.rows(ControlTable.EVENTS))


def test_a_shard_whose_start_fails_is_tried_again_after_a_while(
    shard_factory: Callable[..., Any], installation: Installation, clock: FakeClock
) -> None:
    """Its lease is free for others at once."""
    shard = shard_factory(FailingAudit(), RuntimeError("no such column"))
    shard.start()
    assert kinds(installation) == ["query_failed"]
    assert not shard.coordinator.held.holds(shard.lease.key, shard.lease.epoch)
    assert not shard.backoff.over(shard.lease.key, clock.monotonic())
    assert shard.backoff.over(shard.lease.key, clock.monotonic() + 1)


def test_a_batch_that_was_committed_ends_the_back_off(
    shard_factory: Callable[..., Any], clock: FakeClock
) -> None:
    """The next failure waits for a second, and not for two."""
    shard = shard_factory(FailingAudit())
    shard.backoff.failed(shard.lease.key, clock.monotonic())
    shard.start()
    shard.sync.flush()
    assert not shard.backoff.over(shard.lease.key, clock.monotonic())
    shard.query.progressed = True
    shard.sync.flush()
    assert shard.backoff.over(shard.lease.key, clock.monotonic())


def test_a_shard_whose_state_is_lost_is_marked_as_damaged(
    shard_factory: Callable[..., Any], store: MemoryStore
) -> None:
    """Its next owner rebuilds the state instead of failing for ever."""
    shard = shard_factory(FailingAudit(), RuntimeError("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] torn"))
    shard.start()
    shard.coordinator.renew()
    row = store.read().leases[shard.lease.key]
    assert "CANNOT_LOAD_STATE_STORE" in ShardDetail.of(row).damaged


def test_a_worker_whose_jvm_is_broken_ends(
    shard_factory: Callable[..., Any], installation: Installation
) -> None:
    """Its shards would fail for ever in it. It says so, and their leases are free for others."""
    shard = shard_factory(FailingAudit())
    shard.start()
    shard.query.failure = RuntimeError(
        "java.lang.NoClassDefFoundError: Could not initialize class org.xerial.snappy.Snappy"
    )
    with pytest.raises(JvmBrokenError, match="snappy"):
        shard.sync.tick()
    assert kinds(installation) == ["query_failed", "shard_taken"]
    assert not shard.coordinator.held.holds(shard.lease.key, shard.lease.epoch)


def test_a_shard_that_another_worker_has_is_only_said_to_be_lost(
    shard_factory: Callable[..., Any], installation: Installation, clock: FakeClock
) -> None:
    """That is no failure of its query."""
    shard = shard_factory(FailingAudit(), LeaseLostError(owner="w"))
    shard.start()
    assert kinds(installation) == ["lease_lost"]
    assert shard.backoff.over(shard.lease.key, clock.monotonic())


def test_a_query_that_has_read_what_the_topic_has_dropped_is_only_tried_again(
    shard_factory: Callable[..., Any], installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken over days ago. What it had read then is gone by now, and it needs none of that."""
    asked: list[dict[int, int]] = []
    shard = shard_factory(FailingAudit())
    shard.start()
    shard.query.end_offsets = {0: 100}
    shard.query.failure = RuntimeError("a passing error")
    monkeypatch.setattr(ShardTopics, "check_retained", lambda _, __, reached: asked.append(reached))
    shard.sync.tick()
    assert asked == [{0: 100}]
    assert kinds(installation) == ["query_failed", "shard_taken"]


def test_a_query_that_fails_since_its_offsets_are_gone_is_refused(
    shard_factory: Callable[..., Any],
    installation: Installation,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark's error does not name the loss. An operator decides what to do about it."""
    shard = shard_factory(FailingAudit())
    shard.start()
    shard.query.failure = RuntimeError("org.apache.kafka")
    lost = OffsetsLostError(
        topic="t", partition=0, pipeline="p", shard="v1.g0.s0", start=1, end=2, problem="the topic is new"
    )

    def check_retained(*_: object) -> None:
        raise lost

    monkeypatch.setattr(ShardTopics, "check_retained", check_retained)
    shard.sync.tick()
    assert kinds(installation) == ["offsets_lost", "shard_taken"]
    shard.coordinator.renew()
    assert store.read().leases[shard.lease.key].detail[REFUSED] == str(lost)
