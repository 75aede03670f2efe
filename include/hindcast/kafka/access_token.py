"""Access tokens for brokers that take OAuth: an account's name and password are exchanged for a token that is
valid for minutes.

This is the client credentials grant (RFC 6749, section 4.4), which Kafka's own Java client speaks, too
(Kafka's improvement proposal 768). Here kafka-python gets its tokens.
"""

from __future__ import annotations

import base64
import json
import threading
from functools import lru_cache
from time import monotonic
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider

#: A token is used for this share of its life, so that none expires on its way.
_USED_SHARE = 0.8
#: Of a token whose answer does not say how long it lives.
_UNSAID_SECONDS = 60.0
_ANSWER_SECONDS = 10.0


class _NoRedirects(HTTPRedirectHandler):
    """An answer that names another address is an error: the account is for this one alone."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


_opener = build_opener(_NoRedirects)


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]
    """One account's tokens. Safe for threads; connections share a token while it lives."""

    def __init__(self, url: str, client: str, secret: str, scope: str) -> None:
        """:param url: of the token endpoint
        :param scope: what is asked for; empty to ask for nothing special
        """
        super().__init__()
        self._url = url
        self._client = client
        self._secret = secret
        self._scope = scope
        self._lock = threading.Lock()
        self._token = ""
        self._used_until = 0.0

    def token(self) -> str:
        """A token that lives on for a while.

        :raises SaslAuthenticationFailedError: if the endpoint refuses the account
        :raises KafkaConnectionError: if it does not answer, or makes no sense
        """
        with self._lock:
            if monotonic() >= self._used_until:
                asked_at = monotonic()
                self._token, seconds = self._granted()
                self._used_until = asked_at + seconds * _USED_SHARE
            return self._token

    def _granted(self) -> tuple[str, float]:
        """A new token, and for how many seconds it lives."""
        answer = self._answer()
        try:
            granted: dict[str, Any] = json.loads(answer)
            return str(granted["access_token"]), float(granted.get("expires_in", _UNSAID_SECONDS))
        except (ValueError, KeyError, TypeError) as error:
            raise KafkaConnectionError(f"the token endpoint {self._url} answers without a token") from error

    def _answer(self) -> bytes:
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        # Both are encoded before they are joined (RFC 6749, section 2.3.1).
        account = f"{quote(self._client, safe='')}:{quote(self._secret, safe='')}"
        headers = {
            "Authorization": f"Basic {base64.b64encode(account.encode()).decode()}",
            "Accept": "application/json",
        }
        # The setting takes addresses of http and https alone.
        request = Request(self._url, urlencode(form).encode(), headers)  # noqa: S310
        try:
            with _opener.open(request, timeout=_ANSWER_SECONDS) as answered:
                content: bytes = answered.read()
                return content
        except HTTPError as error:
            said = f"the token endpoint {self._url} answers {error.code} {error.reason}"
            if error.code in {400, 401, 403}:
                raise SaslAuthenticationFailedError(f"{said}: {_reason(error)}") from error
            raise KafkaConnectionError(said) from error
        except (URLError, OSError) as error:
            raise KafkaConnectionError(f"the token endpoint {self._url} does not answer: {error}") from error


def _reason(error: HTTPError) -> str:
    """What the endpoint says of a refusal (RFC 6749, section 5.2)."""
    try:
        said = json.loads(error.read())
        return str(said.get("error_description") or said["error"])
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return "it does not say why"


@lru_cache(maxsize=8)
def tokens_of(url: str, client: str, secret: str, scope: str) -> ClientCredentials:
    """The tokens of an account, which all connections of this process share."""
    return ClientCredentials(url, client, secret, scope)
