"""What the load can send: one generator a module. Each is pure, reads no clock, knows no broker, and never
ends.

The same seed gives the same rows. Only their event times follow ``start``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from hindcast_sandbox.generators import clicks, parcels, payments, rentals, sentences, trades, web_log, words
from hindcast_sandbox.generators.record import Record

#: (seed, rows a second on all topics together, event time of the first row) -> endless records, ordered by
#: ``due_seconds``.
Make = Callable[[int, float, datetime], Iterator[Record]]


@dataclass(frozen=True)
class Generator:
    """A generator and the topics that it sends to, the main one first."""

    name: str
    topics: tuple[str, ...]
    make: Make


_PAYMENT_TOPICS = ("payments", payments.RETRY_TOPIC)
_CLICK_TOPICS = ("page_views", clicks.SEARCHES_TOPIC, clicks.PROFILES_TOPIC)

_ALL = (
    Generator("trades", ("trades",), trades.trades),
    Generator("words", ("words",), words.words),
    Generator("sentences", ("spoken",), sentences.sentences),
    Generator("web_log", ("access_log",), web_log.web_log),
    Generator("payments", _PAYMENT_TOPICS, payments.payments),
    Generator("rentals", ("ski_days",), rentals.rentals),
    Generator("parcels", ("parcels",), parcels.parcels),
    Generator("clicks", _CLICK_TOPICS, clicks.clicks),
)

#: By the name of the main topic.
GENERATORS: dict[str, Generator] = {generator.topics[0]: generator for generator in _ALL}
