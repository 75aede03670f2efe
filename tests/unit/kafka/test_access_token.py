"""Access tokens for kafka-python, from a server that exchanges accounts for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError
from support.token_server import TokenServer, token_server

from hindcast.kafka import access_token
from hindcast.kafka.access_token import ClientCredentials

ACCOUNT = ("me:too", "a word/with %")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TokenServer]:
    with token_server(tmp_path / "keys.json", dict([ACCOUNT])) as made:
        yield made


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, which a test moves."""
    moved = [1000.0]
    monkeypatch.setattr(access_token, "monotonic", lambda: moved[0])
    return moved


def test_connections_share_a_token_for_most_of_its_life(server: TokenServer, now: list[float]) -> None:
    """Then the next connection asks for another one."""
    tokens = ClientCredentials(server.url, *ACCOUNT, "read")
    first = tokens.token()
    assert first.count(".") == 2
    now[0] += 0.79 * server.seconds
    assert tokens.token() == first
    assert len(server.asked) == 1
    now[0] += 0.02 * server.seconds
    tokens.token()
    assert server.asked == [{"grant_type": "client_credentials", "scope": "read"}] * 2


def test_a_refused_account_is_told(server: TokenServer) -> None:
    """As the server words it, and without the secret."""
    tokens = ClientCredentials(server.url, ACCOUNT[0], "a guess", "")
    with pytest.raises(
        SaslAuthenticationFailedError, match="401 Unauthorized: nobody knows me:too"
    ) as refused:
        tokens.token()
    assert "guess" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((503, b""), "answers 503"),
        ((200, b"<html>"), "answers without a token"),
        ((200, b'{"expires_in": 3}'), "answers without a token"),
    ],
    ids=["busy", "no JSON", "no token"],
)
def test_a_server_in_trouble_is_asked_again(
    server: TokenServer, answer: tuple[int, bytes], says: str
) -> None:
    """The client takes it for a lost connection, and tries again."""
    server.answer = answer
    tokens = ClientCredentials(server.url, *ACCOUNT, "")
    with pytest.raises(KafkaConnectionError, match=says):
        tokens.token()
    server.answer = None
    assert tokens.token()


def test_the_account_is_sent_to_no_other_address(server: TokenServer, tmp_path: Path) -> None:
    """Whatever the server answers."""
    with token_server(tmp_path / "other.json", {}) as other:
        server.answer = (302, b"")
        server.sends_to = other.url
        with pytest.raises(KafkaConnectionError, match="answers 302"):
            ClientCredentials(server.url, *ACCOUNT, "").token()
        assert other.asked == []


def test_a_server_that_is_away_is_told(server: TokenServer) -> None:
    """By its address."""
    away = server.url.replace("/token", "").rsplit(":", 1)[0] + ":1/token"
    with pytest.raises(KafkaConnectionError, match=r":1/token does not answer"):
        ClientCredentials(away, *ACCOUNT, "").token()
