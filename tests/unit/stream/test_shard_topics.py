"""A shard resumes only if its topic still holds the offset at which it must."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from hindcast import catalog
from hindcast.errors import OffsetsLostError, UnknownVersionError
from hindcast.leases.lease import LeaseKey, StatusType
from hindcast.settings import Settings, project_root
from hindcast.stream import shard_topics
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.stream.shard_topics import ShardTopics

NAME = "stock_stats"
VERSION = catalog.load(project_root() / "include" / "pipelines")[NAME].version
KEY = LeaseKey(NAME, StatusType.SHARD, f"v{VERSION}.g0.s0")


@pytest.fixture
def topics_factory(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ShardTopics]:
    """Make the topics of the shards of ``stock_stats``, as a broker with these offsets would answer."""

    def make(earliest: dict[int, int], latest: dict[int, int]) -> ShardTopics:
        answers = SimpleNamespace(earliest=lambda _: earliest, latest=lambda _: latest)
        monkeypatch.setattr(shard_topics, "TopicOffsets", lambda _: answers)
        return ShardTopics(settings, LoadedPipelines(project_root() / "include" / "pipelines"))

    return make


@pytest.mark.parametrize("offset", [5, 7, 10])
def test_a_shard_within_its_topic_may_resume(topics_factory: Callable[..., ShardTopics], offset: int) -> None:
    """Its first record may be the oldest that is left, and its last the newest that was sent."""
    topics_factory({0: 5}, {0: 10}).check_retained(KEY, {0: offset})


@pytest.mark.parametrize(
    ("offset", "latest", "problem"),
    [
        (4, {0: 10}, "offsets 4 to 4 .* no longer holds them .* no archive does"),
        (11, {0: 10}, "the topic ends at 10: it was deleted and created again"),
        (7, {1: 10}, "no longer has that partition"),
    ],
    ids=["retention", "a shorter topic", "fewer partitions"],
)
def test_a_shard_whose_records_are_gone_does_not_resume(
    topics_factory: Callable[..., ShardTopics], offset: int, latest: dict[int, int], problem: str
) -> None:
    """Else it would skip them and say nothing."""
    topics = topics_factory({0: 5}, latest)
    with pytest.raises(OffsetsLostError, match=problem):
        topics.check_retained(KEY, {0: offset})


def test_the_end_is_that_of_the_topics_of_the_shards_version(
    topics_factory: Callable[..., ShardTopics],
) -> None:
    """A version that is not deployed here has no topics that are known."""
    topics = topics_factory({0: 5}, {0: 10, 1: 3})
    assert topics.latest(KEY) == {0: 10, 1: 3}
    with pytest.raises(UnknownVersionError):
        topics.latest(LeaseKey(NAME, StatusType.SHARD, "v999.g0.s0"))
