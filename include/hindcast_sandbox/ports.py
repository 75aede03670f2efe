"""Free ports on the loopback interface, kept over a restart so that clients find a service again."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from hindcast.processes.detach import write_atomically

#: A killed process may hold its ports for a moment after it has left the process table.
_FREED_SECONDS = 3.0
_POLL_SECONDS = 0.05
_CONNECT_SECONDS = 1.0


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens, all different."""
    with ExitStack() as held:
        ports: list[int] = []
        for _ in range(count):
            bound = held.enter_context(socket.socket())
            bound.bind(("127.0.0.1", 0))
            ports.append(bound.getsockname()[1])
        return ports


def listens(port: int) -> bool:
    """Whether something accepts connections on the port."""
    with socket.socket() as attempt:
        attempt.settimeout(_CONNECT_SECONDS)
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def kept_ports(file: Path, names: Sequence[str]) -> dict[str, int]:
    """The ports that the file names if they are free; otherwise new ones, which the file then keeps.

    :returns: name -> port
    """
    with suppress(FileNotFoundError, ValueError):
        known: dict[str, int] = json.loads(file.read_text())
        if set(known) == set(names) and _freed(known.values()):
            return known
    numbers = free_ports(len(names))
    ports = dict(zip(names, numbers, strict=True))
    write_atomically(file, json.dumps(ports))
    return ports


def _freed(ports: Collection[int]) -> bool:
    """Whether nothing listens on the ports, now or within some seconds."""
    deadline = time.monotonic() + _FREED_SECONDS
    while any(listens(port) for port in ports):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
