"""The access log of a site, as its web servers write it: plain lines of the Common Log Format, not JSON.

The lines are as dirty as real ones. Some are odd and good all the same: quotes inside the request, no
protocol, no number of bytes, bytes that are not ASCII, in UTF-8 or in Latin-1. Some are late. A few are
poison: cut off, without a time, or not a line of a log at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import count, product

from hindcast_sandbox.generators.flaws import FAR_FUTURE, LATE_SHARE, POISON_SHARE, set_back
from hindcast_sandbox.generators.record import Record

_ADDRESSES = tuple(f"10.{number % 7}.{number % 11}.{number}" for number in range(1, 41))
_MACHINES = ("ada", "dial7", "proxy-2", "www", "lib")
_PLACES = ("north", "south", "isp", "school")
_NAMED_HOSTS = tuple(f"{machine}.{place}.example" for machine, place in product(_MACHINES, _PLACES))
#: The first comes most often, the n-th one n-th as often.
HOSTS = _ADDRESSES + _NAMED_HOSTS
USERS = ("-", "-", "-", "-", "-", "-", "ines", "hugo")
#: One server writes the time of its zone, the other UTC. The same server always serves a host.
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
        """The line; ``time`` replaces the text of its time if it is given."""
        if time is None:
            time = clf_time(self.ts)
        head = f"{self.host} - {self.user} [{time}] "
        tail = f"{self.status} {self.size}"
        return head.encode() + b'"' + self.request + b'" ' + tail.encode()


def web_log(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """Lines ``host identity user [time zone] "request" status bytes``, times to the second; key = host."""
    rng = random.Random(seed)
    weights = [1 / rank for rank in range(1, len(HOSTS) + 1)]
    for number in count():
        due = number / rows_per_second
        (host,) = rng.choices(HOSTS, weights)
        key = host.encode()
        line = _line(rng, host, start + timedelta(seconds=due))
        draw = rng.random()
        if draw < POISON_SHARE:
            reason = rng.choice(list(POISON))
            spoil = POISON[reason]
            yield Record(due, key, spoil(line), poison=reason)
        elif draw < POISON_SHARE + LATE_SHARE:
            late_line = replace(line, ts=set_back(rng, line.ts))
            yield Record(due, key, late_line.encode(), late=True)
        else:
            yield Record(due, key, line.encode())


def _line(rng: random.Random, host: str, ts: datetime) -> _Line:
    (status,) = rng.choices(list(STATUSES), list(STATUSES.values()))
    paths: tuple[str, ...] = CONTENT
    if rng.random() < DECORATION_SHARE:
        paths = DECORATION
    path = rng.choice(paths)
    request = f"GET {path} HTTP/1.0".encode()
    if rng.random() < ODD_SHARE:
        request = rng.choice(list(ODD.values()))
    size = "-"
    if status not in WITHOUT_BYTES:
        size = str(rng.randint(40, 60_000))
    user = rng.choice(USERS)
    zone = ZONES[HOSTS.index(host) % len(ZONES)]
    return _Line(host, user, ts.astimezone(zone), request, str(status), size)


def clf_time(instant: datetime) -> str:
    """``10/Oct/2000:13:55:36 -0700``; the months are English in every locale."""
    month = MONTHS[instant.month - 1]
    return f"{instant.day:02}/{month}/{instant:%Y:%H:%M:%S %z}"


def _cut_off(line: _Line) -> bytes:
    return line.encode().partition(b'"')[0] + b'"GET /ind'


def _no_time(line: _Line) -> bytes:
    head = line.encode().partition(b"[")[0]
    return head + b'"' + line.request + b'" ' + line.status.encode() + b" 0"


#: What is wrong -> the value of a row that is wrong in this way. Each lacks a host, a request, a status, or
#: a time that is not far away.
POISON: dict[str, Callable[[_Line], bytes | None]] = {
    "no value": lambda _: None,
    "empty": lambda _: b"",
    "not a log line": lambda _: b"java.lang.OutOfMemoryError: Java heap space",
    "nul bytes": lambda _: b"\0" * 16,
    "cut off": _cut_off,
    "no time": _no_time,
    "bad time": lambda line: line.encode(time="31/Foo/2026:25:61:61 +0000"),
    "bad status": lambda line: replace(line, status="OK").encode(),
    "far future": lambda line: replace(line, ts=line.ts + FAR_FUTURE).encode(),
}
