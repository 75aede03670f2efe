"""Payments of a few steps each, processed one by one; a step that fails comes again on a retry topic until it succeeds.

Each payment's steps are numbered from 1. Now and then a step is held up and comes up to 3 seconds after the one that follows it, with
the event time at which it happened. Some rows are late; a few are poison, a spoilt copy that comes before the event itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from math import ceil

from hindcast.local.generators.flaws import json_record
from hindcast.local.generators.record import Record

RETRY_TOPIC = "payments-retry"
MOST_STEPS = 4
STEP_SECONDS = 2.0  # between two steps of a payment, in the mean
FAILS_SHARE = 0.05  # of first attempts and of later ones
RETRY_SECONDS = (1.0, 10.0)
HELD_SHARE = 0.03  # of the steps that are not a payment's last
HELD_SECONDS = (0.2, 3.0)
BEFORE_SECONDS = 0.001  # a step that is held up happened so long before the one that overtakes it
MOST_GOING = 10_000  # payments at a time, however fast the load: opening them is what its start costs


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


def payments(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """``{"payment", "seq", "attempt", "amount", "ok", "ts"}``, key = payment, on the main topic (attempt 1) and :data:`RETRY_TOPIC`."""
    rng = random.Random(seed)
    numbers, ties = count(), count()

    def opened() -> _Payment:
        return _Payment(f"p{next(numbers):07}", rng.randint(1, MOST_STEPS))

    def wait(until_seconds: float, event: _Event) -> None:
        heappush(waiting, (until_seconds, next(ties), event))

    def step(payment: _Payment, happened_seconds: float) -> _Event:
        payment.seq += 1
        return _Event(payment.name, payment.seq, 1, round(rng.lognormvariate(3.0, 1.0), 2), happened_seconds)

    waiting: list[tuple[float, int, _Event]] = []
    going = [opened() for _ in range(min(max(1, ceil(rows_per_second * STEP_SECONDS)), MOST_GOING))]
    for number in count():
        due = number / rows_per_second
        if waiting and waiting[0][0] <= due:
            event = heappop(waiting)[2]
        else:
            place = rng.randrange(len(going))
            payment = going[place]
            if payment.seq + 1 < payment.steps and rng.random() < HELD_SHARE:
                wait(due + rng.uniform(*HELD_SECONDS), step(payment, due - BEFORE_SECONDS))
            event = step(payment, due)
            if payment.seq == payment.steps:
                going[place] = opened()
        ok = rng.random() >= FAILS_SHARE
        fields = {
            "payment": event.payment,
            "seq": event.seq,
            "attempt": event.attempt,
            "amount": event.amount,
            "ok": ok,
            "ts": start + timedelta(seconds=event.happened_seconds),
        }
        record = json_record(rng, due, event.payment.encode(), fields, topic=RETRY_TOPIC if event.attempt > 1 else "")
        yield record
        if record.poison:
            wait(due, event)
        elif not ok:
            again = due + rng.uniform(*RETRY_SECONDS)
            wait(again, _Event(event.payment, event.seq, event.attempt + 1, event.amount, again))
