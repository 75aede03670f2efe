"""What a worker commits to consumer groups, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast import Table, Topic, pipeline
from hindcast.errors import BrokerUnavailableError
from hindcast.leases.lease import LeaseKey, StatusType
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.settings import Settings
from hindcast.stream.group_commits import GroupCommits

Factory = Callable[..., Settings]


@pipeline(
    source=Topic("clicks", schema="ts timestamp"),
    joined=[Topic("views", schema="ts timestamp")],
    event_time="ts",
    watermark="1 second",
    re_execute=True,
    sink=Table("both"),
    version=3,
)
def both(clicks: Any, views: Any) -> Any:
    """Never run."""
    return clicks.join(views)


class Groups:
    """Keeps what is committed, or refuses it."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Mapping[str, Mapping[int, int]]]] = []
        self.away = False

    def commit(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        if self.away:
            raise BrokerUnavailableError(servers="nowhere", topic=group, reason="it is away")
        self.made.append((group, offsets))


class Deployed:
    """One pipeline, whatever the shard."""

    def of_shard(self, _: LeaseKey) -> Pipeline:
        return both


def shard(number: int, **ends: int) -> Any:
    """A shard that has read to these offsets, given as ``p0=5``."""
    key = LeaseKey("both", StatusType.SHARD, f"v3.g0.s{number}")
    offsets = {int(name[1:]): end for name, end in ends.items()}
    return SimpleNamespace(runner=SimpleNamespace(lease=SimpleNamespace(key=key), end_offsets=offsets))


@pytest.fixture
def groups() -> Groups:
    return Groups()


def commits(settings: Settings, groups: Groups) -> GroupCommits:
    deployed: Any = Deployed()
    offsets: Any = groups
    return GroupCommits(settings, deployed, offsets)


def test_shards_of_a_version_are_one_group(settings_factory: Factory, groups: Groups) -> None:
    """By topic and the topic's own partitions, once for each place."""
    worker = commits(settings_factory(kafka_group_prefix="hindcast."), groups)
    second = f"p{TOPIC_STRIDE + 1}"
    worker.commit([shard(0, p0=5), shard(1, p1=7, **{second: 9})])
    worker.commit([shard(0, p0=5), shard(1, p1=7, **{second: 9})])
    assert groups.made == [("hindcast.both.v3", {"clicks": {0: 5, 1: 7}, "views": {1: 9}})]
    worker.commit([shard(0, p0=6)])
    assert groups.made[1:] == [("hindcast.both.v3", {"clicks": {0: 6}})]


def test_a_broker_that_is_away_is_asked_again(settings_factory: Factory, groups: Groups) -> None:
    """The stream does not depend on it."""
    worker = commits(settings_factory(kafka_group_prefix="hindcast."), groups)
    groups.away = True
    worker.commit([shard(0, p0=5)])
    groups.away = False
    worker.commit([shard(0, p0=5)])
    assert [group for group, _ in groups.made] == ["hindcast.both.v3"]


def test_without_a_prefix_nothing_is_committed(settings: Settings, groups: Groups) -> None:
    """An account needs no right to any group then."""
    commits(settings, groups).commit([shard(0, p0=5)])
    assert groups.made == []
