"""The times of a topic's records, as a real broker tells them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from support.live_stream import delete_records
from support.waiting import wait_until

from hindcast.errors import BrokerUnavailableError
from hindcast.kafka.group_offsets import GroupOffsets
from hindcast.kafka.offsets import TopicOffsets
from hindcast.settings import Settings

if TYPE_CHECKING:
    from conftest import Broker

pytestmark = pytest.mark.integration

AT_MS = 1_700_000_000_000


def test_a_group_has_what_was_committed_for_it(
    broker: Broker, topic_factory: Callable[..., str], settings_factory: Callable[..., Settings]
) -> None:
    """Where any dashboard of lag looks. A later commit takes the place of an earlier one. The first of a broker's
    life is refused until it has made its topic of groups, and is tried again.
    """
    topic = topic_factory(partitions=2)
    groups = GroupOffsets(settings_factory(bootstrap_servers=broker.bootstrap_servers))

    def committed() -> bool:
        with suppress(BrokerUnavailableError):
            groups.commit(f"{topic}.v1", {topic: {0: 3, 1: 4}})
            return True
        return False

    try:
        wait_until(committed, 60.0, "the broker has a coordinator of the group")
        groups.commit(f"{topic}.v1", {topic: {1: 9}})
    finally:
        groups.close()
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        (found,) = admin.list_group_offsets(f"{topic}.v1").values()
    assert {place.partition: committed.offset for place, committed in found.items()} == {0: 3, 1: 9}


def test_a_group_of_no_broker_is_told(settings_factory: Callable[..., Settings]) -> None:
    """As any question that no broker answers."""
    groups = GroupOffsets(settings_factory(bootstrap_servers="127.0.0.1:1"), answer_seconds=1.0)
    with pytest.raises(BrokerUnavailableError, match="the consumer group g"):
        groups.commit("g", {"t": {0: 1}})


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(AT_MS / 1000 + seconds, UTC)


def test_the_time_of_the_first_record_from_an_offset_on(
    broker: Broker, topic_factory: Callable[..., str], settings_factory: Callable[..., Settings]
) -> None:
    """Past what the topic has dropped, and past records of a transaction that was aborted; none at its end."""
    topic = topic_factory(partitions=3)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for partition in (0, 1):
        for second in range(5):
            producer.send(topic, b"v", partition=partition, timestamp_ms=AT_MS + 1000 * second)
            producer.flush()  # a batch of its own: the broker sends whole batches
    producer.close()
    failed = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"{topic}-failed")
    failed.init_transactions()
    failed.begin_transaction()
    failed.send(topic, b"never", partition=2, timestamp_ms=AT_MS)
    failed.flush()
    failed.abort_transaction()
    failed.close()
    delete_records(broker.bootstrap_servers, topic, {1: 3})
    settings = settings_factory(bootstrap_servers=broker.bootstrap_servers)
    with TopicOffsets(settings) as offsets:
        assert offsets.first_times(topic, {0: 2, 1: 0, 2: 0}) == {0: at(2), 1: at(3)}
        assert offsets.first_times(topic, {0: 5, 1: 4}) == {1: at(4)}
        assert offsets.first_times(topic, {}) == {}
