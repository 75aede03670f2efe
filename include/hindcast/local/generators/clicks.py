"""The clicks of a site's users, for joins: what a user views, what the user searched just before it, and who the user is.

Three topics: views (the main one), searches, many of which lead to a view of the same user within one second, and profiles, a
changelog in which a later record replaces an earlier one of the same user. Some views and searches are late; in each topic a few rows
are poison. A profile without value would delete it, which is no poison: no such record is sent for now.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import count

from hindcast.local.generators.flaws import json_record
from hindcast.local.generators.record import Record

SEARCHES_TOPIC = "searches"
PROFILES_TOPIC = "profiles"
USERS = tuple(f"u{number:03}" for number in range(100))
SEARCH_SHARE = 0.15
PROFILE_SHARE = 0.01
FOUND_SHARE = 0.6  # of the searches lead to a view
FOUND_SECONDS = (0.05, 0.95)
PAGES = ("/", "/skis", "/boots", "/poles", "/helmets", "/gloves", "/goggles", "/sale", "/basket", "/help")
WORDS = ("red", "light", "used", "junior", "skis", "boots", "poles", "helmet", "gloves", "goggles", "wax", "bag")
CITIES = ("Bergen", "Graz", "Grenoble", "Innsbruck", "Kyoto", "Oslo", "Sapporo", "Torino")


def clicks(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """Views ``{"view", "user", "page", "ts"}``, searches ``{"search", "user", "words", "ts"}``, profiles ``{"user", "city", "age", "ts"}``.

    The key is the user. The profiles of all users come first.
    """
    rng = random.Random(seed)
    unknown = list(reversed(USERS))
    found: list[tuple[float, str]] = []  # when a view follows a search, and whose
    for number in count():
        due = number / rows_per_second
        ts = start + timedelta(seconds=due)
        draw = rng.random()
        if unknown or draw < PROFILE_SHARE:
            user = unknown[-1] if unknown else rng.choice(USERS)
            fields = {"user": user, "city": rng.choice(CITIES), "age": rng.randint(16, 80), "ts": ts}
            record = json_record(rng, due, user.encode(), fields, topic=PROFILES_TOPIC, late_share=0.0, tombstones=True)
            yield record
            if unknown and not record.poison:
                unknown.pop()
        elif found and found[0][0] <= due:
            at, user = heappop(found)
            yield _view(rng, number, due, user, start + timedelta(seconds=at))
        elif draw < PROFILE_SHARE + SEARCH_SHARE:
            user = rng.choice(USERS)
            fields = {"search": f"q{number:08}", "user": user, "words": " ".join(rng.sample(WORDS, rng.randint(1, 3))), "ts": ts}
            yield json_record(rng, due, user.encode(), fields, topic=SEARCHES_TOPIC)
            if rng.random() < FOUND_SHARE:
                heappush(found, (due + rng.uniform(*FOUND_SECONDS), user))
        else:
            yield _view(rng, number, due, rng.choice(USERS), ts)


def _view(rng: random.Random, number: int, due: float, user: str, ts: datetime) -> Record:
    return json_record(rng, due, user.encode(), {"view": f"v{number:08}", "user": user, "page": rng.choice(PAGES), "ts": ts})
