"""A broker that dies, stands still, or forgets: the stream waits and goes on, or stops and says what is
lost.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from support.check_all_oracles import CheckAllOracles
from support.fleet import HEALED_SECONDS, LEASE_SECONDS, START_SECONDS, Worker
from support.shapes import OF_ONE_TOPIC
from support.waiting import wait_until
from support.warm_fleet import WarmStream

from hindcast.processes.background_services import Services
from hindcast_sandbox import broker as broker_service
from hindcast_sandbox.load import ensure_topic

if TYPE_CHECKING:
    from conftest import Broker

HEALING_SECONDS = (
    3 * HEALED_SECONDS
)  # the back-off of a query that failed again and again is a minute at most


@pytest.mark.row("F14")
def test_a_broker_killed_and_restarted(
    broker: Broker, stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """It dies in the middle of the stream, then a restart on the same data: everything that was acknowledged
    is read once.
    """
    stream.send_more(600)
    service = Services(broker.settings.home).find(broker_service.NAME)
    assert service is not None
    psutil.Process(service.pid).kill()
    time.sleep(2 * LEASE_SECONDS)  # how long the broker is away is part of the fault
    broker_service.start(broker.settings)
    stream.fleet.whole()
    prove(stream, healing_seconds=HEALING_SECONDS)


@pytest.mark.minutes
@pytest.mark.row("F14")
def test_a_broker_that_stands_still_for_a_minute(
    broker: Broker, stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """The owners keep their leases meanwhile, or give them back and say so; nobody dies of it."""
    stream.send_more(300)
    service = Services(broker.settings.home).find(broker_service.NAME)
    assert service is not None
    process = psutil.Process(service.pid)
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(60.0)  # the minute is the fault
    finally:
        process.send_signal(signal.SIGCONT)
    assert [worker.poll() for worker in pair] == [None, None], "the workers live"
    prove(stream, live=False, healing_seconds=HEALING_SECONDS)


@pytest.mark.shapes(*OF_ONE_TOPIC)
@pytest.mark.row("F15")
def test_a_topic_created_again_with_fewer_offsets(
    broker: Broker, stream: WarmStream, pair: tuple[Worker, Worker], seed: int
) -> None:
    """Its shards stop with an event that names the topic, the offsets and the cure; nothing of the new topic
    is taken for the old.
    """
    from kafka import KafkaAdminClient

    stream.pause()
    before = stream.committed()
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.delete_topics([stream.topic])
    wait_until(lambda: stream.topic not in admin.list_topics(), START_SECONDS, "the topic is gone")
    admin.close()
    ensure_topic(broker.bootstrap_servers, stream.topic, 4)
    sent, stream.sent = stream.sent, []
    stream.send_more(40)
    stream.want()
    event = stream.wait_event("offsets_lost")
    assert stream.topic in event["message"]
    assert "hindcast resume" in event["cure"]
    wait_until(lambda: len(stream.events("offsets_lost")) == 2, START_SECONDS, "both shards say so")
    assert stream.committed() == before
    stream.sent = sent
    stream.check()
