"""The first and the latest offsets of a topic, the offsets of an instant, and the times of offsets.

Spark reads the records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from hindcast.errors import BadRangeError, UnknownTopicError
from hindcast.kafka.connected import connected
from hindcast.kafka.security import client_options
from hindcast.kafka.why_unavailable import explained
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.settings import Settings

#: Longest wait for the broker's answer to one request; a healthy one answers in milliseconds.
ANSWER_SECONDS = 10.0
_POLL_MS = 200

_T = TypeVar("_T")


def across(pipeline: Pipeline, ask: Callable[[str], Mapping[int, _T]]) -> dict[int, _T]:
    """What ``ask`` answers for each topic of the pipeline, by the pipeline's own partitions.

    :param ask: from a topic's name to a value for each of its partitions
    """
    answers: dict[int, _T] = {}
    for index, topic in enumerate(pipeline.topics):
        for partition, found in ask(topic.name).items():
            answers[index * TOPIC_STRIDE + partition] = found
    return answers


class TopicOffsets:
    """Answers requests about a topic's offsets, counting committed records only. Use it as a context manager,
    or :meth:`close` it.

    Every method raises :class:`BrokerUnavailableError` if the broker does not answer,
    :class:`UnknownTopicError` if it has no such topic, and :class:`BadRangeError` if the topic lacks a
    partition that is asked for.
    """

    def __init__(self, settings: Settings, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._servers = settings.bootstrap_servers
        self._settings = settings
        self._answer_ms = int(answer_seconds * 1000)
        self._open: KafkaConsumer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._open is not None:
            self._open.close(autocommit=False)
            self._open = None

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions in order, asked of the broker each time: partitions may be added."""
        with self._answers(topic) as consumer:
            consumer.topics()  # refreshes the metadata: partitions_for_topic alone reads a cache
            found = sorted(consumer.partitions_for_topic(topic))
        if not found:
            raise UnknownTopicError(topic=topic, servers=self._servers)
        return found

    def earliest(self, topic: str) -> dict[int, int]:
        """The first offset that each partition still holds."""
        places = self._places(topic)
        with self._answers(topic) as consumer:
            found = consumer.beginning_offsets(places, timeout_ms=self._answer_ms)
        return _by_partition(found)

    def latest(self, topic: str) -> dict[int, int]:
        """The offset after each partition's last committed record."""
        places = self._places(topic)
        with self._answers(topic) as consumer:
            found = consumer.end_offsets(places, timeout_ms=self._answer_ms)
        return _by_partition(found)

    def identity(self, topic: str) -> str:
        """Kafka's own id of the topic; "" if the broker knows none. A topic that was deleted and created
        again under the same name has another id.
        """
        self.partitions(topic)
        with (
            explained(self._servers, topic),
            connected(
                KafkaAdminClient,
                **client_options(self._settings),
                request_timeout_ms=self._answer_ms,
                bootstrap_timeout_ms=self._answer_ms,
            ) as admin,
        ):
            described = admin.describe_topics([topic])
        topic_id = described[0].get("topic_id")
        if not topic_id or not str(topic_id).strip("0-"):
            return ""
        return str(topic_id)

    def at_time(self, topic: str, at: datetime) -> dict[int, int]:
        """The first offset of each partition whose broker timestamp is at or after ``at`` (aware); the latest
        offset if there is none.
        """
        if at.tzinfo is None or at.timestamp() < 0:
            problem = "the time is before 1970 or says no offset from UTC"
            raise BadRangeError(range=f"{topic} at {at}", problem=problem, cure="Give an aware time.")
        places = self._places(topic)
        at_ms = int(at.timestamp() * 1000)
        with self._answers(topic) as consumer:
            offsets = consumer.end_offsets(places, timeout_ms=self._answer_ms)
            found = consumer.offsets_for_times(dict.fromkeys(places, at_ms), timeout_ms=self._answer_ms)
        for place in places:
            first = found.get(place)
            if first is not None:
                offsets[place] = first.offset
        return {place.partition: offsets[place] for place in places}

    def first_times(self, topic: str, offsets: Mapping[int, int]) -> dict[int, datetime]:
        """The broker's time of the first record at each offset or after it, by partition.

        A partition is left out if it has no such record, or if the broker did not send one in time.
        """
        if not offsets:
            return {}
        ends, earliest = self.latest(topic), self.earliest(topic)
        waiting = {}
        for partition, offset in offsets.items():
            if offset < ends.get(partition, 0):
                waiting[TopicPartition(topic, partition)] = max(offset, earliest[partition])
        with explained(self._servers, topic):
            # The least that a broker sends of a partition is the batch of records that has the offset.
            consumer = connected(
                KafkaConsumer,
                **client_options(self._settings),
                isolation_level="read_committed",
                enable_auto_commit=False,
                max_partition_fetch_bytes=1,
                request_timeout_ms=self._answer_ms,
                bootstrap_timeout_ms=self._answer_ms,
            )
            try:
                return self._read_times(consumer, waiting, ends)
            finally:
                consumer.close(autocommit=False)

    def _read_times(
        self, consumer: Any, waiting: dict[TopicPartition, int], ends: Mapping[int, int]
    ) -> dict[int, datetime]:
        consumer.assign(list(waiting))
        for place, offset in waiting.items():
            consumer.seek(place, offset)
        found: dict[int, datetime] = {}
        deadline = time.monotonic() + self._answer_ms / 1000
        while waiting and time.monotonic() < deadline:
            for place, records in consumer.poll(timeout_ms=_POLL_MS).items():
                found[place.partition] = datetime.fromtimestamp(records[0].timestamp / 1000, UTC)
            for place in list(waiting):
                # Past the end without a record: what was left are aborted records, or markers.
                if place.partition in found or consumer.position(place) >= ends[place.partition]:
                    del waiting[place]
                    consumer.pause(place)
        return found

    def _places(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for partition in self.partitions(topic)]

    @contextmanager
    def _answers(self, topic: str) -> Iterator[Any]:
        with explained(self._servers, topic):
            try:
                if self._open is None:
                    self._open = connected(
                        KafkaConsumer,
                        **client_options(self._settings),
                        isolation_level="read_committed",
                        enable_auto_commit=False,
                        request_timeout_ms=self._answer_ms,
                        bootstrap_timeout_ms=self._answer_ms,
                    )
                yield self._open
            except (KafkaError, OSError):
                self.close()
                raise


def _by_partition(offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {place.partition: offset for place, offset in sorted(offsets.items())}
