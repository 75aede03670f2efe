"""What the example pipelines are sent, interval by interval.

Each interval goes on with what the one before left: words that were said before, an unfinished sentence, a
payment that waits for its retry, a load that has trucks, a profile that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from support.workload_harness import Value, at

#: The topics' numbers and what each gets in an interval.
Rows = Mapping[int, list[Value]]
#: How far apart the intervals are, in seconds of event time.
APART = 60.0


def words(interval: int) -> Rows:
    spoken = ["to", "be", f"word{interval}", "to"]
    return {0: [{"word": word, "ts": at(interval * APART)} for word in spoken]}


def ski_days(interval: int) -> Rows:
    skiers = ["often", "often", "often", f"once{interval}"]
    return {0: [{"skier": skier, "day": interval, "ts": at(interval * APART)} for skier in skiers]}


def spoken(interval: int) -> Rows:
    """Ends the sentence that the interval before began, and begins another."""
    said = ["end.", f"whole{interval}.", "begun"]
    return {0: [{"speaker": "ann", "word": word, "ts": at(interval * APART)} for word in said]}


def parcels(interval: int) -> Rows:
    sizes = [("north", 40), ("north", 60), (f"load{interval}", 70)]
    return {
        0: [
            {"truck_load": load, "parcel": number, "size": size, "ts": at(interval * APART)}
            for number, (load, size) in enumerate(sizes)
        ]
    }


def clicks(interval: int) -> Rows:
    """A view with the profile of the interval before; then the profile changes."""
    now = interval * APART
    return {
        0: [{"view": f"v{interval}", "user": "u", "page": "/a", "ts": at(now + 1)}],
        1: [{"search": f"s{interval}", "user": "u", "words": f"boats {interval}", "ts": at(now + 0.5)}],
        2: [{"user": "u", "city": f"city{interval}", "age": interval, "ts": at(now + 2)}],
    }


def payments(interval: int) -> Rows:
    """The retry comes an interval later, in the same window; what lets go of it comes two intervals later."""

    def event(payment: str, seq: int, second: float, *, ok: bool) -> dict[str, Any]:
        return {"payment": payment, "seq": seq, "attempt": seq, "amount": 1.0, "ok": ok, "ts": at(second)}

    now = interval * APART
    first = event(f"p{interval}", 1, now + 29, ok=False)
    again = event(f"p{interval}", 2, now + 29.5, ok=True)
    return {0: [first, event(f"q{interval}", 1, now, ok=True)], 1: [again]}


def trades(interval: int) -> Rows:
    now = interval * APART
    return {0: [{"ticker": "T", "ts": at(now + second), "ask": 10.0 + second} for second in (1, 2, 3, 20)]}


def requests(interval: int) -> Rows:
    lines = [
        f'host - - [05/Jan/2026:{12 + interval:02}:{minute:02}:30 +0000] "GET /a.html HTTP/1.0" 200 100'
        for minute in (1, 2, 30)
    ]
    return {0: [line.encode() for line in lines]}


#: The examples with windows. What a range needs of the records before it are those of open windows.
WINDOWED: dict[str, Callable[[int], Rows]] = {"stock_stats": trades, "web_log": requests}
#: The examples whose results depend on all that came before.
EXAMPLES: dict[str, Callable[[int], Rows]] = {
    "word_count": words,
    "rent_or_buy": ski_days,
    "sentences": spoken,
    "bin_packing": parcels,
    "click_enrichment": clicks,
    "retries": payments,
}
