"""Trades of ten tickers, as an exchange's feed sends them. Each price is a random walk.

Some rows are late, a few are poison.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count

from hindcast_sandbox.generators.flaws import json_record
from hindcast_sandbox.generators.record import Record

#: Under Kafka's own partitioner these fall on all of 4 partitions: 3, 2, 2 and 3 of them.
TICKERS = ("ACME", "BOLT", "CLAY", "DELT", "ECHO", "FLUX", "GRID", "HALO", "IBEX", "JADE")
TICK_SHARE = 0.0005  # the standard deviation of one step of a price, as a share of it
LOWEST_PRICE = 1.0
HIGHEST_PRICE = 10_000.0


def trades(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """``{"ticker", "ts", "ask", "bid", "size", "seq"}``, key = ticker."""
    rng = random.Random(seed)
    prices = {ticker: rng.uniform(20.0, 400.0) for ticker in TICKERS}
    for seq in count():
        due = seq / rows_per_second
        ticker = rng.choice(TICKERS)
        price = prices[ticker] * (1 + rng.gauss(0.0, TICK_SHARE))
        price = max(price, LOWEST_PRICE)
        price = min(price, HIGHEST_PRICE)
        prices[ticker] = price
        ask = round(price, 2)
        fields = {
            "ticker": ticker,
            "ts": start + timedelta(seconds=due),
            "ask": ask,
            "bid": round(ask * 0.999, 2),
            "size": rng.randint(1, 50) * 10,
            "seq": seq,
        }
        yield json_record(rng, due, ticker.encode(), fields)
