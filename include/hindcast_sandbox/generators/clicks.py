"""The clicks of a site's users, for joins: what a user views, what the user searched just before, and who
the user is.

There are three topics:

- views, the main one;
- searches, many of which lead to a view of the same user within one second;
- profiles, a changelog: a later record replaces an earlier one of the same user.

Some views and searches are late. In each topic a few rows are poison. A profile without value would delete
the profile, so it is not poison; no such record is sent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import count

from hindcast_sandbox.generators.flaws import json_record
from hindcast_sandbox.generators.record import Record

SEARCHES_TOPIC = "searches"
PROFILES_TOPIC = "profiles"
USERS = tuple(f"u{number:03}" for number in range(100))
SEARCH_SHARE = 0.15
PROFILE_SHARE = 0.01
FOUND_SHARE = 0.6  # of the searches lead to a view
FOUND_SECONDS = (0.05, 0.95)
PAGES = ("/", "/skis", "/boots", "/poles", "/helmets", "/gloves", "/goggles", "/sale", "/basket", "/help")
WORDS = (
    "red",
    "light",
    "used",
    "junior",
    "skis",
    "boots",
    "poles",
    "helmet",
    "gloves",
    "goggles",
    "wax",
    "bag",
)
CITIES = ("Bergen", "Graz", "Grenoble", "Innsbruck", "Kyoto", "Oslo", "Sapporo", "Torino")


def clicks(seed: int, rows_per_second: float, start: datetime) -> Iterator[Record]:
    """Records of the three topics, with the user as the key. The profiles of all users come first.

    - views: ``{"view", "user", "page", "ts"}``
    - searches: ``{"search", "user", "words", "ts"}``
    - profiles: ``{"user", "city", "age", "ts"}``
    """
    rng = random.Random(seed)
    without_profile = list(reversed(USERS))
    views_to_come: list[tuple[float, str]] = []  # heap of (due seconds, user): views that follow a search
    for number in count():
        due = number / rows_per_second
        ts = start + timedelta(seconds=due)
        draw = rng.random()
        if without_profile:
            record = _profile(rng, due, without_profile[-1], ts)
            yield record
            if not record.poison:
                without_profile.pop()
        elif draw < PROFILE_SHARE:
            yield _profile(rng, due, rng.choice(USERS), ts)
        elif views_to_come and views_to_come[0][0] <= due:
            viewed_seconds, user = heappop(views_to_come)
            yield _view(rng, number, due, user, start + timedelta(seconds=viewed_seconds))
        elif draw < PROFILE_SHARE + SEARCH_SHARE:
            user = rng.choice(USERS)
            yield _search(rng, number, due, user, ts)
            if rng.random() < FOUND_SHARE:
                viewed_seconds = due + rng.uniform(*FOUND_SECONDS)
                heappush(views_to_come, (viewed_seconds, user))
        else:
            yield _view(rng, number, due, rng.choice(USERS), ts)


def _profile(rng: random.Random, due: float, user: str, ts: datetime) -> Record:
    city = rng.choice(CITIES)
    age = rng.randint(16, 80)
    fields = {"user": user, "city": city, "age": age, "ts": ts}
    return json_record(rng, due, user.encode(), fields, topic=PROFILES_TOPIC, late_share=0.0, tombstones=True)


def _search(rng: random.Random, number: int, due: float, user: str, ts: datetime) -> Record:
    length = rng.randint(1, 3)
    words = rng.sample(WORDS, length)
    fields = {"search": f"q{number:08}", "user": user, "words": " ".join(words), "ts": ts}
    return json_record(rng, due, user.encode(), fields, topic=SEARCHES_TOPIC)


def _view(rng: random.Random, number: int, due: float, user: str, ts: datetime) -> Record:
    page = rng.choice(PAGES)
    fields = {"view": f"v{number:08}", "user": user, "page": page, "ts": ts}
    return json_record(rng, due, user.encode(), fields)
