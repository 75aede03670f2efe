"""The access log of a site, as its web servers write it: plain lines of the Common Log Format, not JSON.

The lines are as dirty as real ones. Some are odd and good all the same: quotes inside the request, no protocol, no number of bytes,
bytes that are not ASCII, in UTF-8 or in Latin-1. Some are late. A few are poison: cut off, without a time, or no line of a log at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import count

from hindcast.local.generators.flaws import FAR_FUTURE, LATE_SHARE, POISON_SHARE, set_back
from hindcast.local.generators.record import Record

HOSTS = tuple(f"10.{number % 7}.{number % 11}.{number}" for number in range(1, 41)) + tuple(
    f"{name}.{place}.example" for name in ("ada", "dial7", "proxy-2", "www", "lib") for place in ("north", "south", "isp", "school")
)
USERS = ("-", "-", "-", "-", "-", "-", "ines", "hugo")
#: One server writes the time of its zone, the other UTC. A host is always served by the same one.
ZONES = (UTC, timezone(timedelta(hours=-7)))
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
CONTENT = (
    "/",
    "/index.html",
    "/history/apollo.html",
    "/shuttle/countdown",
    "/news/today.htm",
    "/docs/faq.html",
    "/people/",
    "/search?q=moon",
)
DECORATION = ("/images/logo.gif", "/images/launch.jpg", "/images/icons/back.png", "/style/main.css")
DECORATION_SHARE = 0.6
ODD_SHARE = 0.03
#: Requests that are odd, and good all the same.
ODD: dict[str, bytes] = {
    "quotes": b'GET /search?q="moon landing" HTTP/1.0',
    "no protocol": b"GET /index.html",
    "utf-8": "GET /people/zoë.html HTTP/1.0".encode(),
    "latin-1": "GET /news/caf\u00e9.htm HTTP/1.0".encode("latin-1"),
}
STATUSES = {200: 0.88, 304: 0.06, 302: 0.02, 404: 0.03, 403: 0.005, 500: 0.005}
WITHOUT_BYTES = frozenset({304, 404})


@dataclass(frozen=True, slots=True)
class _Line:
    host: str
    user: str
    ts: datetime
    request: bytes
    status: str
    size: str

    def encode(self, time: str | None = None) -> bytes:
        """The line, with another text in the place of its time where one is given."""
        head = f"{self.host} - {self.user} [{clf_time(self.ts) if time is None else time}] "
        return head.encode() + b'"' + self.request + b'" ' + f"{self.status} {self.size}".encode()


def web_log(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """Lines ``host identity user [time zone] "request" status bytes``, to the second; key = host."""
    rng = random.Random(seed)
    weights = [1 / rank for rank in range(1, len(HOSTS) + 1)]
    for number in count():
        due = number / rows_per_second
        (host,) = rng.choices(HOSTS, weights)
        line = _line(rng, host, start + timedelta(seconds=due))
        key, draw = host.encode(), rng.random()
        if draw < POISON_SHARE:
            reason = rng.choice(list(POISON))
            yield Record(due, key, POISON[reason](line), poison=reason)
        elif draw < POISON_SHARE + LATE_SHARE:
            yield Record(due, key, replace(line, ts=set_back(rng, line.ts)).encode(), late=True)
        else:
            yield Record(due, key, line.encode())


def _line(rng: random.Random, host: str, ts: datetime) -> _Line:
    (status,) = rng.choices(list(STATUSES), list(STATUSES.values()))
    path = rng.choice(DECORATION if rng.random() < DECORATION_SHARE else CONTENT)
    request = rng.choice(list(ODD.values())) if rng.random() < ODD_SHARE else f"GET {path} HTTP/1.0".encode()
    size = "-" if status in WITHOUT_BYTES else str(rng.randint(40, 60_000))
    return _Line(host, rng.choice(USERS), ts.astimezone(ZONES[HOSTS.index(host) % len(ZONES)]), request, str(status), size)


def clf_time(instant: datetime) -> str:
    """``10/Oct/2000:13:55:36 -0700``: the months are English whatever the locale."""
    return f"{instant.day:02}/{MONTHS[instant.month - 1]}/{instant:%Y:%H:%M:%S %z}"


#: What is wrong -> how a line becomes so. None of them has a host, a time that is not far away, a request and a status.
POISON: dict[str, Callable[[_Line], bytes | None]] = {
    "no value": lambda _: None,
    "empty": lambda _: b"",
    "not a log line": lambda _: b"java.lang.OutOfMemoryError: Java heap space",
    "nul bytes": lambda _: b"\0" * 16,
    "cut off": lambda line: line.encode().partition(b'"')[0] + b'"GET /ind',
    "no time": lambda line: line.encode().partition(b"[")[0] + b'"' + line.request + b'" ' + line.status.encode() + b" 0",
    "bad time": lambda line: line.encode(time="31/Foo/2026:25:61:61 +0000"),
    "bad status": lambda line: replace(line, status="OK").encode(),
    "far future": lambda line: replace(line, ts=line.ts + FAR_FUTURE).encode(),
}
