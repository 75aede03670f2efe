"""A schema registry for tests: the part of the REST interface of Confluent's Schema Registry that serializers
and deserializers call.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.http_server import served

Answer = tuple[int, dict[str, Any]]
#: The first of the numbers that it gives.
FIRST = 101


@dataclass
class RegistryServer:
    """Knows schemas by their number, and by subject and version.

    ``asked``: the paths that it was asked for. ``answer``: what it answers instead, as status and body.
    ``account``: name and password, with a colon between them, without which it answers nothing.
    """

    account: str = ""
    asked: list[str] = field(default_factory=list)
    answer: Answer | None = None
    url: str = ""
    _schemas: list[dict[str, Any]] = field(default_factory=list)
    _subjects: dict[str, list[int]] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """What Confluent's client needs for it."""
        if not self.account:
            return {"url": self.url}
        return {"url": self.url, "basic.auth.user.info": self.account}

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Keep a schema as the subject's next version, and return its number."""
        kept = {"schema": schema, "schemaType": kind, "references": list(references)}
        if kept not in self._schemas:
            self._schemas.append(kept)
        number = FIRST + self._schemas.index(kept)
        versions = self._subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def respond(self, authorization: str, method: str, path: str, body: dict[str, Any]) -> Answer:
        self.asked.append(path)
        if self.answer is not None:
            return self.answer
        wanted = f"Basic {base64.b64encode(self.account.encode()).decode()}"
        if self.account and authorization != wanted:
            return 401, {"error_code": 40101, "message": "nobody knows this account"}
        parts = path.partition("?")[0].strip("/").split("/")
        if method == "POST" and parts[0] == "subjects":
            kind = body.get("schemaType", "AVRO")
            number = self.register(parts[1], body["schema"], kind, body.get("references", ()))
            return 200, {"id": number, "version": self._subjects[parts[1]].index(number) + 1, **body}
        if parts[:2] == ["schemas", "ids"]:
            return self._by_number(int(parts[2]))
        if parts[0] == "subjects" and parts[1] in self._subjects:
            number = self._subjects[parts[1]][int(parts[3]) - 1]
            found = {"subject": parts[1], "version": int(parts[3]), "id": number}
            return 200, {**found, **self._schemas[number - FIRST]}
        return 404, {"error_code": 40401, "message": "Subject not found"}

    def _by_number(self, number: int) -> Answer:
        if 0 <= number - FIRST < len(self._schemas):
            return 200, self._schemas[number - FIRST]
        return 404, {"error_code": 40403, "message": f"Schema {number} not found"}


@contextmanager
def registry_server(account: str = "") -> Iterator[RegistryServer]:
    """Serve on a free port of this machine until the context ends."""
    made = RegistryServer(account)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._respond("GET", {})

        def do_POST(self) -> None:
            self._respond("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _respond(self, method: str, body: dict[str, Any]) -> None:
            authorization = self.headers.get("Authorization", "")
            status, answer = made.respond(authorization, method, self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing to say."""

    with served(Handler) as address:
        made.url = address
        yield made
