"""Why brokers did not answer, as a person is told: kafka-python's own client at a port that behaves badly."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hindcast.errors import BrokerRefusesError, BrokerUnavailableError
from hindcast.kafka import security, why_unavailable
from hindcast.kafka.offsets import TopicOffsets
from hindcast.settings import Settings

Factory = Callable[..., Settings]
#: Zero seconds of lingering: closing resets the connection.
_RESET = struct.pack("ii", 1, 0)
#: What a port with TLS answers to a client without: a fatal alert, "unexpected message".
_ALERT = bytes([21, 3, 3, 0, 2, 2, 10])


def _close(connection: socket.socket) -> None:
    connection.recv(4096)


def _reset(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _alert(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(_ALERT)


@contextmanager
def port(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a port at which each connection is treated so, and then closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    behave(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def told(settings: Settings) -> BrokerUnavailableError:
    """The error when the end of a topic is asked for."""
    with (
        TopicOffsets(settings, answer_seconds=1.0) as offsets,
        pytest.raises(BrokerUnavailableError) as raised,
    ):
        offsets.latest("trips")
    return raised.value


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
@pytest.mark.parametrize("behave", [_close, _reset, _alert], ids=["closed", "reset", "alert"])
def test_a_broker_that_takes_connections_and_ends_them_refuses(
    settings_factory: Factory, behave: Callable[[socket.socket], None], protocol: str
) -> None:
    """It is there, so the person is sent to the account and the certificates and not to its logs."""
    with port(behave) as address:
        error = told(settings_factory(bootstrap_servers=address, kafka_security_protocol=protocol))
    assert isinstance(error, BrokerRefusesError), error


def test_a_closed_connection_is_explained(settings_factory: Factory) -> None:
    """A person cannot know what "socket disconnected" means."""
    with port(_close) as address:
        error = told(settings_factory(bootstrap_servers=address))
    assert "as brokers do that want TLS or an account" in str(error)


CLOSED = "KafkaConnectionError: socket disconnected"
CUT_SHORT = "RequestTimedOutError: [Error 7] RequestTimedOutError: Request timed out after 178 ms"
AWAY = "KafkaConnectionError: 111 ECONNREFUSED"


@pytest.mark.parametrize(
    ("newest_first", "refuses"),
    [
        ([CUT_SHORT, CLOSED, CLOSED], True),
        ([CUT_SHORT, AWAY, CLOSED], False),
        ([CUT_SHORT, CUT_SHORT], False),
    ],
)
def test_the_last_try_may_have_had_too_little_time(newest_first: list[str], refuses: bool) -> None:
    """On a busy machine a login takes a while, and the time for an answer ends in the middle of the next. The
    try before it says what the brokers do.
    """
    told = why_unavailable._unavailable("a:1", "trades", newest_first)
    assert isinstance(told, BrokerRefusesError) is refuses


@pytest.mark.timeout(60)
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_port_that_says_nothing_is_not_waited_for_without_end(
    settings_factory: Factory, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """As a load balancer does whose brokers are gone, or a broker that is paused."""
    monkeypatch.setattr(security, "_HANDSHAKE_SECONDS", 0.5)
    given_up = threading.Event()
    with port(lambda _: given_up.wait()) as address:
        error = told(settings_factory(bootstrap_servers=address, kafka_security_protocol=protocol))
        given_up.set()
    assert not isinstance(error, BrokerRefusesError), error


def test_a_port_at_which_none_listens_is_of_a_broker_that_does_not_run(settings_factory: Factory) -> None:
    """Nothing is said about accounts."""
    with port(_close) as address:
        pass
    error = told(settings_factory(bootstrap_servers=address))
    assert not isinstance(error, BrokerRefusesError), error
    assert "Check that they run" in str(error)


def test_a_broker_that_closed_and_then_went_away_does_not_run(settings_factory: Factory) -> None:
    """As one does that is being stopped: only the newest try tells what it is now."""
    served = threading.Event()

    def once(connection: socket.socket) -> None:
        connection.recv(4096)
        served.set()

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                once(connection)
                server.close()

        threading.Thread(target=serve, daemon=True).start()
        error = told(settings_factory(bootstrap_servers=f"127.0.0.1:{server.getsockname()[1]}"))
    assert served.is_set()
    assert not isinstance(error, BrokerRefusesError), error
