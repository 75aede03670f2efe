"""A client that cannot connect leaves no thread and no file handle behind."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from hindcast.errors import BrokerUnavailableError
from hindcast.kafka.group_offsets import GroupOffsets
from hindcast.kafka.offsets import TopicOffsets
from hindcast.kafka.why_unavailable import explained
from hindcast.settings import Settings
from hindcast_sandbox.ports import free_ports

ANSWER_SECONDS = 0.2


@pytest.fixture
def nobody(settings_factory: Callable[..., Settings]) -> Settings:
    """Settings that name a port at which nothing listens."""
    [port] = free_ports(1)
    return settings_factory(bootstrap_servers=f"127.0.0.1:{port}")


@pytest.fixture
def unlogged() -> Iterator[None]:
    """Pytest keeps what is logged, and with the errors in it the sockets of their frames."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def latest(settings: Settings) -> None:
    TopicOffsets(settings, answer_seconds=ANSWER_SECONDS).latest("t")


def identity(settings: Settings) -> None:
    offsets = TopicOffsets(settings, answer_seconds=ANSWER_SECONDS)
    offsets.partitions = lambda _: [0]  # type: ignore[method-assign]
    offsets.identity("t")


def commit(settings: Settings) -> None:
    GroupOffsets(settings, answer_seconds=ANSWER_SECONDS).commit("g", {"t": {0: 7}})


@pytest.mark.parametrize("ask", [latest, identity, commit])
def test_a_client_that_cannot_connect_leaves_nothing(
    nobody: Settings, unlogged: None, ask: Callable[[Settings], None]
) -> None:
    """A worker tries again for as long as the brokers are away."""
    with pytest.raises(BrokerUnavailableError):
        ask(nobody)  # what is loaded once is loaded by now
    gc.collect()
    handles = psutil.Process().num_fds()
    threads = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(BrokerUnavailableError):
            ask(nobody)
    assert set(threading.enumerate()) <= threads
    gc.collect()  # closed sockets stand in the frames of what was raised
    assert psutil.Process().num_fds() <= handles


def test_reasons_are_read_while_other_clients_add_some() -> None:
    """Several threads have a client while the brokers are away."""
    from hindcast.kafka import why_unavailable

    heard = why_unavailable._heard
    record = logging.LogRecord("kafka", logging.ERROR, __file__, 1, "%s", (OSError("gone"),), None)
    over = threading.Event()

    def add() -> None:
        while not over.is_set():
            heard.handle(record)

    adding = threading.Thread(target=add)
    adding.start()
    try:
        for _ in range(20_000):
            heard.since(0.0)
    finally:
        over.set()
        adding.join()
    with pytest.raises(BrokerUnavailableError, match="gone"), explained("servers", "t"):
        raise OSError("gone")
