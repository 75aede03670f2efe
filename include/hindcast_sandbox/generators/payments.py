"""Payments of a few steps each, processed one by one; a step that fails is sent again to a retry topic
until it succeeds.

Each payment's steps are numbered from 1. Now and then a step is held up: it comes up to 3 seconds after the
step that follows it, with the event time at which it happened. Some rows are late. A few are poison: a
spoilt copy that comes before the event itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from math import ceil

from hindcast_sandbox.generators.flaws import json_record
from hindcast_sandbox.generators.record import Record

RETRY_TOPIC = "payments-retry"
MOST_STEPS = 4
STEP_SECONDS = 2.0  # between two steps of a payment, in the mean
FAILS_SHARE = 0.05  # of first attempts and of later ones
RETRY_SECONDS = (1.0, 10.0)
HELD_SHARE = 0.03  # of the steps that are not a payment's last
HELD_SECONDS = (0.2, 3.0)
BEFORE_SECONDS = 0.001  # a step that is held up happened so long before the one that overtakes it
MOST_GOING = 10_000  # payments at a time, however fast the load is: opening them is what its start costs


@dataclass(slots=True)
class _Payment:
    name: str
    steps: int
    seq: int = 0  # of its newest step


@dataclass(frozen=True, slots=True)
class _Event:
    payment: str
    seq: int
    attempt: int
    amount: float
    happened_seconds: float


class _Events:
    """The payments that are going on, and the events that wait to be sent: held-up steps and retries."""

    def __init__(self, rng: random.Random, going: int) -> None:
        self._rng = rng
        self._numbers = count()
        self._ties = count()  # orders events that wait until the same moment
        self._waiting: list[tuple[float, int, _Event]] = []
        self._going = [self._open() for _ in range(going)]

    def next(self, due: float) -> _Event:
        """The event to send now: one that has waited until now, else the next step of any payment."""
        if self._waiting and self._waiting[0][0] <= due:
            return heappop(self._waiting)[2]
        place = self._rng.randrange(len(self._going))
        payment = self._going[place]
        has_later_step = payment.seq + 1 < payment.steps
        if has_later_step and self._rng.random() < HELD_SHARE:
            held_until = due + self._rng.uniform(*HELD_SECONDS)
            held = self._step(payment, due - BEFORE_SECONDS)
            self.wait(held_until, held)
        event = self._step(payment, due)
        if payment.seq == payment.steps:
            self._going[place] = self._open()
        return event

    def wait(self, until_seconds: float, event: _Event) -> None:
        """Send the event once ``until_seconds`` have passed since the start."""
        heappush(self._waiting, (until_seconds, next(self._ties), event))

    def retry(self, due: float, event: _Event) -> None:
        """Send the step again, some seconds after its attempt failed."""
        again = due + self._rng.uniform(*RETRY_SECONDS)
        self.wait(again, _Event(event.payment, event.seq, event.attempt + 1, event.amount, again))

    def _open(self) -> _Payment:
        name = f"p{next(self._numbers):07}"
        return _Payment(name, steps=self._rng.randint(1, MOST_STEPS))

    def _step(self, payment: _Payment, happened_seconds: float) -> _Event:
        payment.seq += 1
        amount = round(self._rng.lognormvariate(3.0, 1.0), 2)
        return _Event(payment.name, payment.seq, 1, amount, happened_seconds)


def payments(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """``{"payment", "seq", "attempt", "amount", "ok", "ts"}``, key = payment.

    First attempts go to the main topic, later ones to :data:`RETRY_TOPIC`.
    """
    rng = random.Random(seed)
    going = max(1, ceil(rows_per_second * STEP_SECONDS))
    events = _Events(rng, min(going, MOST_GOING))
    for number in count():
        due = number / rows_per_second
        event = events.next(due)
        ok = rng.random() >= FAILS_SHARE
        fields = {
            "payment": event.payment,
            "seq": event.seq,
            "attempt": event.attempt,
            "amount": event.amount,
            "ok": ok,
            "ts": start + timedelta(seconds=event.happened_seconds),
        }
        topic = ""
        if event.attempt > 1:
            topic = RETRY_TOPIC
        record = json_record(rng, due, event.payment.encode(), fields, topic=topic)
        yield record
        if record.poison:
            events.wait(due, event)
        elif not ok:
            events.retry(due, event)
