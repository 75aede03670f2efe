"""The embedded broker, for real."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from hindcast.errors import PrerequisiteError, ServiceError
from hindcast.processes.background_services import Services, members
from hindcast.settings import Settings
from hindcast_sandbox import broker as brokers
from hindcast_sandbox import jars
from hindcast_sandbox.load import ensure_topic


@pytest.fixture
def own(settings: Settings) -> Iterator[Settings]:
    """Settings whose broker is stopped after the test."""
    jars.fetch(settings)
    yield settings
    brokers.stop(settings)


def _end_offset(address: str, topic: str) -> int:
    consumer = KafkaConsumer(bootstrap_servers=address)
    try:
        place = TopicPartition(topic, 0)
        return int(consumer.end_offsets([place])[place])
    finally:
        consumer.close()


def test_comes_back_where_it_was_with_its_data(own: Settings) -> None:
    """After a stop and after a kill -9 a broker has its old address and every record it acknowledged."""
    service = brokers.start(own)
    address = brokers.address(service)
    ensure_topic(address, "kept", 1)
    for count in (1, 2):
        producer = KafkaProducer(bootstrap_servers=address, acks="all")
        producer.send("kept", b"x").get(timeout=30)
        producer.close()
        if count == 1:
            brokers.stop(own)
            assert members(service) == []
        else:
            os.kill(service.pid, signal.SIGKILL)
        service = brokers.start(own)
        assert brokers.address(service) == address
        assert _end_offset(address, "kept") == count


def test_starting_twice_starts_one(own: Settings) -> None:
    """A second start finds the running broker."""
    first = brokers.start(own)
    assert brokers.start(own).pid == first.pid


def test_refuses_without_jars(settings_factory: Callable[..., Settings], tmp_path: Path) -> None:
    """Without jars the error names the folder and the cure, and nothing is started."""
    settings = settings_factory(jars_dir=tmp_path / "none" / "spark")
    with pytest.raises(PrerequisiteError, match="hindcast jars"):
        brokers.start(settings)
    assert Services(settings.home).all() == []


def test_a_broker_that_cannot_start_says_why(own: Settings) -> None:
    """Damaged storage fails the start at once, with the log's path and its last lines."""
    brokers.start(own)
    brokers.stop(own)
    (own.home / "kafka" / "data" / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=7\n")
    with pytest.raises(ServiceError, match="ended while it was starting") as raised:
        brokers.start(own)
    assert str(own.logs_dir / "broker.log") in str(raised.value)
    assert "node" in str(raised.value)
