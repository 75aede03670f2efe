"""The load of a run: encoded before anything is measured, and the answer that every side must give."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

TICKERS = 100
WINDOW_MS = 5_000
SLIDE_MS = 1_000
#: Before a record: its partition, the length of its key and that of its value. :mod:`benchmarks.speed.send`
#: reads it.
HEAD = struct.Struct("<BBH")

#: Ticker, and the end of a window in epoch milliseconds.
Key = tuple[str, int]
#: Of a window: trades, the least ask, and the sum of all asks in sixty-fourths, so that it is exact.
Answer = tuple[int, float, int]


@dataclass(frozen=True)
class Trade:
    """One record. Events are in order, so no record is late."""

    due_seconds: float
    partition: int
    ticker: str
    event_ms: int
    sixty_fourths: int

    def value(self) -> bytes:
        at = datetime.fromtimestamp(self.event_ms / 1000, UTC).isoformat(timespec="milliseconds")
        fields = {"ticker": self.ticker, "ts": at.replace("+00:00", "Z"), "ask": self.sixty_fourths / 64}
        return json.dumps(fields, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Workload:
    """``rate`` trades a second for ``seconds``, then ``burst`` more all at once, on so many partitions. They happen
    at the rate, the burst's too. The same seed gives the same trades.
    """

    rate: float
    seconds: float
    partitions: int = 4
    seed: int = 1
    burst: int = 0

    @property
    def steady(self) -> int:
        """How many come at the rate."""
        return int(self.rate * self.seconds)

    @property
    def rows(self) -> int:
        return self.steady + self.burst

    def trades(self, start_ms: int) -> Iterator[Trade]:
        """All of them; the first one happens at ``start_ms``."""
        rng = random.Random(self.seed)
        for number in range(self.rows):
            ticker = rng.randrange(TICKERS)
            happens = number / self.rate
            yield Trade(
                min(happens, self.seconds),
                ticker % self.partitions,
                f"T{ticker:03}",
                start_ms + int(happens * 1000),
                rng.randint(64, 6_400),
            )

    def encode(self, path: Path, start_ms: int) -> None:
        """Write all of them into a file, as they are sent."""
        with path.open("wb", buffering=1 << 20) as file:
            for trade in self.trades(start_ms):
                key = trade.ticker.encode()
                value = trade.value()
                file.write(HEAD.pack(trade.partition, len(key), len(value)) + key + value)

    def answers(self, start_ms: int) -> dict[Key, Answer]:
        """The answer of each window."""
        found: dict[Key, Answer] = {}
        for trade in self.trades(start_ms):
            first = trade.event_ms // SLIDE_MS * SLIDE_MS + SLIDE_MS
            for end in range(first, first + WINDOW_MS, SLIDE_MS):
                key = (trade.ticker, end)
                count, least, total = found.get(key, (0, float("inf"), 0))
                least = min(least, trade.sixty_fourths / 64)
                found[key] = (count + 1, least, total + trade.sixty_fourths)
        return found


def epoch_ms(instant: datetime) -> int:
    """Of an instant in UTC, with or without a zone."""
    return round(instant.replace(tzinfo=UTC).timestamp() * 1000)
