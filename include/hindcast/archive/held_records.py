"""Ask the broker and the archives what can still be read of a pipeline's topics. It starts no JVM."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from hindcast.archive.archive_or_live import HeldRecords, Ranges
from hindcast.archive.snapshot import ArchiveSnapshot, read_snapshot
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.partitions import Offsets
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.settings import Settings


def held_records(
    settings: Settings, pipeline: Pipeline, topics: TopicOffsets, needed: Mapping[int, int] | None = None
) -> HeldRecords:
    """What the pipeline's topics and their archives hold now.

    :param needed: ask the archives only if a topic has dropped what comes at one of these offsets
    :raises UnknownTopicError, BrokerUnavailableError, StoreUnavailableError: if one is missing or away
    :raises ArchiveDamagedError: if an archive lacks records that it held
    """
    earliest = across(pipeline, topics.earliest)
    latest = across(pipeline, topics.latest)
    of_topics = HeldRecords(earliest, latest, {})
    if needed is not None and not of_topics.dropped(needed):
        return of_topics
    archives = archives_of(settings, pipeline, topics, earliest)
    return HeldRecords(earliest, latest, archived_ranges(pipeline, archives))


def archives_of(
    settings: Settings, pipeline: Pipeline, topics: TopicOffsets, earliest: Mapping[int, int]
) -> dict[str, ArchiveSnapshot]:
    """By topic what its archive holds, for the topics that have dropped records and have an archive.

    :param earliest: the topics' first offsets, by the pipeline's partitions
    """
    dropped = set()
    for partition, offset in earliest.items():
        if offset > 0:
            dropped.add(pipeline.topics[partition // TOPIC_STRIDE].name)
    archives = {}
    for name in dropped:
        held = read_snapshot(settings, name)
        if held is not None and held.is_of(topics.identity(name)):
            archives[name] = held
    return archives


def archived_ranges(pipeline: Pipeline, archives: Mapping[str, ArchiveSnapshot]) -> dict[int, Ranges]:
    """The ranges that these archives hold, by the pipeline's partitions."""

    def ranges(topic: str) -> Mapping[int, Ranges]:
        held = archives.get(topic)
        if held is None:
            return {}
        return held.ranges

    return across(pipeline, ranges)


def offsets_at(
    at: datetime, pipeline: Pipeline, topics: TopicOffsets, archives: Mapping[str, ArchiveSnapshot]
) -> Offsets:
    """The first offset of each partition whose broker timestamp is ``at`` or later, of what the topics and
    these archives hold.
    """

    def in_one(topic: str) -> Offsets:
        found = topics.at_time(topic, at)
        held = archives.get(topic)
        if held is None:
            return found
        return {**found, **held.at_time(at, topics.earliest(topic))}

    return across(pipeline, in_one)
