"""An object store that speaks S3's interface, on a port of this machine: moto behind a server of one thread.

One thread answers one request after the other, so a conditional put (``If-None-Match: *``) is decided in one
step, as S3 decides it. Between the client and moto stands what counts the requests and makes them fail.

It is a process of its own: deltalake's file system holds Python's lock while it waits for an answer.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from support.waiting import wait_until

from hindcast.settings import Settings

BUCKET = "lake"
_CONTROL = "/-/"
_START_SECONDS = 60.0
_REASONS = {409: "Conflict", 412: "Precondition Failed", 500: "Internal Server Error", 503: "Slow Down"}


@dataclass
class Fault:
    """Requests of this method, to a path with these texts in it, fail with this status: before anything is
    done, or after it was. The first ``times`` of them do; all with -1.
    """

    status: int
    method: str = ""
    path: tuple[str, ...] = ()
    done: bool = False
    times: int = 1

    def takes(self, method: str, path: str) -> bool:
        """Whether it makes this request fail; it counts those that it does."""
        if self.times == 0 or self.method not in {"", method}:
            return False
        if not all(part in path for part in self.path):
            return False
        self.times -= 1
        return True


@dataclass(frozen=True)
class S3Server:
    """A running store."""

    url: str

    @property
    def options(self) -> dict[str, str]:
        """The options of deltalake that lead to it."""
        return {
            "aws_endpoint": self.url,
            "aws_access_key_id": "tests",
            "aws_secret_access_key": "tests",
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }

    def folder(self, name: str) -> str:
        """The address of a folder."""
        return f"s3://{BUCKET}/{name}"

    def fail(self, *faults: Fault) -> None:
        """From now on these faults happen, and no others."""
        self._send("PUT", f"{_CONTROL}faults", json.dumps([asdict(fault) for fault in faults]).encode())

    def requests(self) -> dict[str, int]:
        """How many requests came so far, by method. Lists of objects are counted as LIST."""
        found: dict[str, int] = json.loads(self._send("GET", f"{_CONTROL}requests"))
        return found

    def _send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        # The address is of this machine.
        with urlopen(Request(self.url + path, body, method=method), timeout=30) as answer:  # noqa: S310
            content: bytes = answer.read()
            return content


def in_store(settings: Settings, store: S3Server) -> Settings:
    """The settings with their tables and checkpoints in the store, in folders of their own."""
    name = settings.home.name
    places = {
        "tables_url": store.folder(f"{name}/tables"),
        "checkpoints_url": store.folder(f"{name}/checkpoints"),
    }
    return settings.model_copy(update={**places, "storage_options": store.options})


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a store on a free port of this machine until the context ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "support.s3_server", str(port)]
    process = subprocess.Popen(command, cwd=tests, stdin=subprocess.DEVNULL)
    made = S3Server(f"http://127.0.0.1:{port}")
    try:

        def answers() -> bool:
            assert process.poll() is None, "the store has ended"
            try:
                made._send("PUT", f"/{BUCKET}")
            except OSError:
                return False
            return True

        wait_until(answers, _START_SECONDS, "the store answers")
        yield made
    finally:
        process.kill()
        process.wait()


class _Store:
    """Moto, the counts, and the faults."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self._moto = DomainDispatcherApplication(create_backend_app)
        self._requests: Counter[str] = Counter()
        self._faults: list[Fault] = []

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path.startswith(_CONTROL):
            return self._control(environ, start)
        kind = method
        if "list-type=" in environ.get("QUERY_STRING", ""):
            kind = "LIST"
        self._requests[kind] += 1
        for fault in self._faults:
            if fault.takes(method, path):
                return self._fail(fault, environ, start)
        answer: Iterable[bytes] = self._moto(environ, start)
        return answer

    def _control(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT":
            given = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            self._faults = [Fault(**fault) for fault in given]
        return _answered(start, "200 OK", json.dumps(self._requests).encode())

    def _fail(self, fault: Fault, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if fault.done:
            for _ in self._moto(environ, lambda *_: lambda _: None):
                pass
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = f"<Error><Code>{fault.status}</Code><Message>a test said so</Message></Error>"
        return _answered(start, f"{fault.status} {_REASONS[fault.status]}", body.encode())


def _answered(start: Any, status: str, body: bytes) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def main() -> None:
    from werkzeug.serving import WSGIRequestHandler, run_simple

    class Silent(WSGIRequestHandler):
        def log(self, *_: Any, **__: Any) -> None:
            """Nothing to say."""

    run_simple("127.0.0.1", int(sys.argv[1]), _Store(), threaded=False, request_handler=Silent)


if __name__ == "__main__":
    main()
