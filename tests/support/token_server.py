"""Where clients exchange an account for an access token: the part of an identity provider that Kafka's brokers
and clients need.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from support.http_server import served

AUDIENCE = "kafka"
_KEY = "one"


@dataclass
class TokenServer:
    """Knows accounts, and signs tokens for them with a key that brokers read from a file.

    ``asked``: the forms that it was sent. ``answer``: what it answers instead, as status and body; ``sends_to``
    names another address in each answer.
    """

    keys: Path
    accounts: dict[str, str]
    seconds: float = 300.0
    asked: list[dict[str, str]] = field(default_factory=list)
    answer: tuple[int, bytes] | None = None
    sends_to: str = ""
    url: str = ""

    def __post_init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = self._key.public_key().public_numbers()
        described = {
            "kty": "RSA",
            "alg": "RS256",
            "use": "sig",
            "kid": _KEY,
            "n": _url_safe(public.n.to_bytes(256, "big")),
            "e": _url_safe(public.e.to_bytes(3, "big")),
        }
        self.keys.write_text(json.dumps({"keys": [described]}))

    def granted(self, name: str, scope: str) -> dict[str, Any]:
        """A signed token (RFC 7519)."""
        now = int(time.time())
        head = {"alg": "RS256", "kid": _KEY, "typ": "JWT"}
        claims = {
            "iss": "tests",
            "sub": name,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + int(self.seconds),
            "scope": scope,
        }
        signed = f"{_url_safe(json.dumps(head).encode())}.{_url_safe(json.dumps(claims).encode())}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), SHA256())
        return {
            "access_token": f"{signed}.{_url_safe(signature)}",
            "token_type": "Bearer",
            "expires_in": int(self.seconds),
        }

    def respond(self, authorization: str, form: dict[str, str]) -> tuple[int, bytes]:
        self.asked.append(form)
        if self.answer is not None:
            return self.answer
        kind, _, encoded = authorization.partition(" ")
        account = base64.b64decode(encoded).decode() if kind == "Basic" else ":"
        name, _, secret = account.partition(":")
        name, secret = unquote(name), unquote(secret)
        if form.get("grant_type") != "client_credentials" or self.accounts.get(name) != secret:
            refused = {"error": "invalid_client", "error_description": f"nobody knows {name}"}
            return 401, json.dumps(refused).encode()
        return 200, json.dumps(self.granted(name, form.get("scope", ""))).encode()


@contextmanager
def token_server(keys: Path, accounts: dict[str, str]) -> Iterator[TokenServer]:
    """Serve on a free port of this machine until the context ends."""
    made = TokenServer(keys, accounts)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            status, body = made.respond(self.headers.get("Authorization", ""), form)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if made.sends_to:
                self.send_header("Location", made.sends_to)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing to say."""

    with served(Handler) as address:
        made.url = f"{address}/token"
        yield made


def _url_safe(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
