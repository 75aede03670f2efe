"""Commit offsets for a consumer group without being a member of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError, NoError
from kafka.structs import OffsetAndMetadata

from hindcast.kafka.connected import connected
from hindcast.kafka.offsets import ANSWER_SECONDS
from hindcast.kafka.security import client_options
from hindcast.kafka.why_unavailable import explained
from hindcast.settings import Settings


class GroupOffsets:
    """Stays connected from one commit to the next. Not for threads."""

    def __init__(self, settings: Settings, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._settings = settings
        self._answer_ms = int(answer_seconds * 1000)
        self._open: KafkaAdminClient | None = None

    def close(self) -> None:
        """Close the connection; the next commit opens another."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def commit(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Commit for a group.

        :param offsets: by topic and partition, the offset after the last record that was read
        :raises BrokerUnavailableError: if the brokers do not answer
        :raises BrokerRefusesError: if the account may not commit for the group
        """
        places = {}
        for topic, partitions in offsets.items():
            for partition, offset in partitions.items():
                places[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, "", -1)
        with explained(self._settings.bootstrap_servers, f"the consumer group {group}"):
            try:
                answers = self._admin().alter_group_offsets(group, places)
                for error in answers.values():
                    if error is not NoError:
                        raise error
            except (KafkaError, OSError):
                self.close()
                raise

    def _admin(self) -> Any:
        if self._open is None:
            self._open = connected(
                KafkaAdminClient,
                **client_options(self._settings),
                request_timeout_ms=self._answer_ms,
                bootstrap_timeout_ms=self._answer_ms,
            )
        return self._open
