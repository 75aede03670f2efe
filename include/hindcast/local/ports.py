"""Free ports on the loopback interface, kept over a restart so that clients find a service where it was."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from hindcast.local.detach import write_atomically

_FREED_SECONDS = (
    3.0  # a killed process may hold its ports for a moment after it has gone from the process table
)


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens, all different."""
    with ExitStack() as held:
        bound = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]


def listens(port: int) -> bool:
    """Whether something accepts connections on the port."""
    with socket.socket() as attempt:
        attempt.settimeout(1.0)
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def kept_ports(file: Path, names: Sequence[str]) -> dict[str, int]:
    """The ports that the file names where they are free, else new ones, which are then kept in the file."""
    with suppress(FileNotFoundError, ValueError):
        known: dict[str, int] = json.loads(file.read_text())
        if set(known) == set(names) and _freed(known.values()):
            return known
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    write_atomically(file, json.dumps(ports))
    return ports


def _freed(ports: Collection[int]) -> bool:
    deadline = time.monotonic() + _FREED_SECONDS
    while any(listens(port) for port in ports):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True
