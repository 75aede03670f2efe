"""The generator of trades: ten tickers, some rows late, a few that no stream can use. Pure: no clock, no broker.

The same seed gives the same rows; only their instants follow ``start``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

#: Under Kafka's own partitioner these fall on all of 4 partitions: 3, 2, 2 and 3 of them.
TICKERS = ("ACME", "BOLT", "CLAY", "DELT", "ECHO", "FLUX", "GRID", "HALO", "IBEX", "JADE")
LATE_SHARE = 0.02
LATE_SECONDS = 60.0  # a late row is late by up to this
POISON_SHARE = 0.001
FAR_FUTURE = timedelta(days=2)  # past every pipeline's max_future, which is one hour by default
TICK_SHARE = 0.0005  # the standard deviation of one step of a price, as a share of it
DEEPER_THAN_PARSERS_GO = 1100  # Jackson stops at 1,000 levels


@dataclass(frozen=True, slots=True)
class Record:
    """One record to send, ``due_seconds`` after the start. ``poison`` names what is wrong with it, "" for a good row."""

    due_seconds: float
    key: bytes
    value: bytes | None
    late: bool = False
    poison: str = ""


@dataclass(slots=True)
class _Trade:
    seq: int
    ticker: str
    ts: datetime
    ask: float
    size: int

    def fields(self) -> dict[str, object]:
        return {
            "ticker": self.ticker,
            "ts": _iso(self.ts),
            "ask": self.ask,
            "bid": round(self.ask * 0.999, 2),
            "size": self.size,
            "seq": self.seq,
        }

    def json(self) -> bytes:
        return json.dumps(self.fields(), separators=(",", ":")).encode()


def trades(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """Endless trades at an even pace, the first one due at ``start``.

    :param start: the event time of the first row, aware
    """
    rng = random.Random(seed)
    prices = {ticker: rng.uniform(20.0, 400.0) for ticker in TICKERS}
    seq = 0
    while True:
        due = seq / rows_per_second
        ticker = rng.choice(TICKERS)
        prices[ticker] = min(max(prices[ticker] * (1 + rng.gauss(0.0, TICK_SHARE)), 1.0), 10_000.0)
        trade = _Trade(seq, ticker, start + timedelta(seconds=due), round(prices[ticker], 2), rng.randint(1, 50) * 10)
        key, draw = ticker.encode(), rng.random()
        if draw < POISON_SHARE:
            reason = rng.choice(list(POISON))
            yield Record(due, key, POISON[reason](trade), poison=reason)
        elif draw < POISON_SHARE + LATE_SHARE:
            trade.ts -= timedelta(seconds=rng.uniform(0.0, LATE_SECONDS))
            yield Record(due, key, trade.json(), late=True)
        else:
            yield Record(due, key, trade.json())
        seq += 1


def _with(**changed: object) -> Callable[[_Trade], bytes]:
    return lambda trade: json.dumps({**trade.fields(), **changed}, separators=(",", ":")).encode()


def _without_ts(trade: _Trade) -> bytes:
    return json.dumps({name: value for name, value in trade.fields().items() if name != "ts"}, separators=(",", ":")).encode()


def _nested(_: _Trade) -> bytes:
    return b'{"ticker":' + b"[" * DEEPER_THAN_PARSERS_GO + b"]" * DEEPER_THAN_PARSERS_GO + b"}"


#: What is wrong -> how a trade becomes so. Each must be poison by the rules of hindcast.stream.source: an integration test
#: holds them to it.
POISON: dict[str, Callable[[_Trade], bytes | None]] = {
    "cut off": lambda trade: trade.json()[:-9],
    "not json": lambda trade: f"{trade.ticker};{trade.ask}".encode(),
    "not an object": lambda trade: json.dumps([trade.ticker, trade.ask]).encode(),
    "empty": lambda _: b"",
    "no value": lambda _: None,
    "wrong type": _with(ask="n/a"),
    "nested": _nested,
    "nul bytes": lambda _: b"\0" * 16,
    "bad utf-8": lambda trade: b"\xc3\x28\x80" + trade.json(),
    "no ts": _without_ts,
    "null ts": _with(ts=None),
    "bad ts": _with(ts="yesterday"),
    "far future": lambda trade: json.dumps({**trade.fields(), "ts": _iso(trade.ts + FAR_FUTURE)}).encode(),
}


def _iso(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
