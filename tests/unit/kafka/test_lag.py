"""How far shards are behind, from their leases and what a broker answers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from hindcast import catalog
from hindcast.kafka.lag import ShardLag, lag_of_shards
from hindcast.kafka.offsets import TopicOffsets
from hindcast.leases.lease import Lease
from hindcast.settings import project_root
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.testing import MemoryStore

NAME = "stock_stats"
NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


class Broker(TopicOffsets):
    """Answers from memory, by partition: where each ends, and the age of its first unread record."""

    def __init__(self, ends: Mapping[int, int], ages: Mapping[int, float]) -> None:
        self._ends = dict(ends)
        self._ages = ages
        self.asked: dict[int, int] = {}

    def latest(self, topic: str) -> dict[int, int]:
        """As set."""
        return self._ends

    def first_times(self, topic: str, offsets: Mapping[int, int]) -> dict[int, datetime]:
        """As set."""
        self.asked = dict(offsets)
        return {partition: NOW - timedelta(seconds=self._ages[partition]) for partition in offsets}


EXAMPLES = catalog.load(project_root() / "include" / "pipelines")


@pytest.fixture
def store() -> MemoryStore:
    """The pipeline is wanted, with two shards of two partitions each that have read nothing."""
    made = MemoryStore()
    DesiredStates(made).declare(EXAMPLES[NAME], 1)
    resharding.create(made, NAME, 1, 2, dict.fromkeys(range(4), 10))
    return made


def commit(store: MemoryStore, shard: str, **ends: int) -> None:
    """The shard has committed up to these offsets, given as ``p0=5``."""
    snapshot = store.read()
    (lease,) = [found for found in snapshot.leases.values() if found.status_value == shard]
    by_partition = {name.removeprefix("p"): offset for name, offset in ends.items()}
    store.commit(snapshot, [lease.evolve(checkpoint={**lease.checkpoint, "end_offsets": by_partition})])


def leases(store: MemoryStore) -> list[Lease]:
    return list(store.read().leases.values())


def lags(store: MemoryStore, broker: Broker, pipeline: str = "") -> list[ShardLag]:
    return lag_of_shards(leases(store), EXAMPLES, broker, pipeline)


def test_a_shard_is_as_late_as_its_oldest_record(store: MemoryStore) -> None:
    """Whether or not a worker holds it; only the partitions that are behind are asked for a time."""
    commit(store, "v1.g0.s0", p0=50, p2=20)
    broker = Broker({0: 50, 1: 12, 2: 25, 3: 110}, {1: 3.0, 2: 60.0, 3: 600.0})
    first, second = lags(store, broker)
    assert broker.asked == {1: 10, 2: 20, 3: 10}
    assert (first.shard, first.records, first.seconds(NOW), first.owner) == ("v1.g0.s0", 5, 60.0, "")
    assert (second.shard, second.records, second.seconds(NOW)) == ("v1.g0.s1", 102, 600.0)
    assert second.oldest_at == NOW - timedelta(minutes=10)


def test_a_shard_that_has_read_all_is_not_late(store: MemoryStore) -> None:
    """Nor is one whose partition the topic has lost: it was made again, shorter."""
    commit(store, "v1.g0.s0", p0=50, p2=20)
    first, _ = lags(store, Broker({0: 50, 1: 10, 2: 7, 3: 10}, {}))
    assert (first.records, first.seconds(NOW), first.oldest_at) == (0, 0.0, None)


def test_a_partition_counts_for_the_shard_that_reads_it(store: MemoryStore) -> None:
    """While children wait for their parents, the parents read."""
    commit(store, "v1.g0.s0", p0=40, p2=20)
    resharding.reshard(store, NAME, 1, 1, dict.fromkeys(range(4), 0))
    ages = dict.fromkeys(range(4), 1.0)
    found = {lag.shard: lag.records for lag in lags(store, Broker(dict.fromkeys(range(4), 50), ages))}
    assert found == {"v1.g0.s0": 40, "v1.g0.s1": 80, "v1.g1.s0": 0}


def test_other_pipelines_and_unknown_ones_are_left_out(store: MemoryStore) -> None:
    """The topics of a version that no file declares are not known."""
    broker = Broker({}, {})
    assert lags(store, broker, "word_count") == []
    assert lag_of_shards(leases(store), catalog.Catalog(), broker) == []
