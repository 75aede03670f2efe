"""Payments, rentals, parcels and clicks: sequences whose order and completeness the pipelines live on."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime
from functools import cache
from itertools import islice, pairwise
from typing import Any

import pytest

from hindcast_sandbox.generators import flaws
from hindcast_sandbox.generators.clicks import FOUND_SHARE, PROFILES_TOPIC, SEARCHES_TOPIC, USERS, clicks
from hindcast_sandbox.generators.parcels import BAD_SIZES, CAPACITY, parcels
from hindcast_sandbox.generators.payments import FAILS_SHARE, MOST_STEPS, RETRY_SECONDS, RETRY_TOPIC, payments
from hindcast_sandbox.generators.record import Record
from hindcast_sandbox.generators.rentals import MOST_DAYS, rentals

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
RATE = 1000.0
MANY = 30_000

Rows = list[tuple[Record, dict[str, Any]]]


def _good(records: list[Record]) -> Rows:
    return [(record, json.loads(record.value or b"")) for record in records if not record.poison]


def _by(field: str, rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = defaultdict(list)
    for record, row in rows:
        found[row[field]].append((record, row))
    return found


@cache
def _payments() -> list[Record]:
    return list(islice(payments(7, RATE, START), MANY))


def test_every_failure_comes_again_on_the_retry_topic() -> None:
    """Each failed event is followed, 1 to 10 seconds later, by its next attempt, and nothing else is on the
    retry topic.
    """
    pending: dict[tuple[str, int, int], tuple[float, float]] = {}
    retries = 0
    for record in _payments():
        if record.poison:
            continue
        row = json.loads(record.value or b"")
        assert (record.topic == RETRY_TOPIC) == (row["attempt"] > 1)
        if row["attempt"] > 1:
            failed_at, amount = pending.pop((row["payment"], row["seq"], row["attempt"]))
            assert RETRY_SECONDS[0] <= record.due_seconds - failed_at <= RETRY_SECONDS[1] + 0.5
            assert row["amount"] == amount
            retries += 1
        if not row["ok"]:
            pending[row["payment"], row["seq"], row["attempt"] + 1] = (record.due_seconds, row["amount"])
    assert retries > 500
    assert all(failed_at > (MANY - 1) / RATE - RETRY_SECONDS[1] - 0.5 for failed_at, _ in pending.values())


def test_the_share_of_failures() -> None:
    """About 5 % of the events fail, of first attempts and of later ones; some fail more than once."""
    rows = [row for _, row in _good(_payments())]
    for later in (False, True):
        some = [row["ok"] for row in rows if (row["attempt"] > 1) == later]
        assert abs(some.count(False) / len(some) - FAILS_SHARE) < 0.02
    assert max(row["attempt"] for row in rows) >= 3


def test_a_payment_has_each_of_its_steps_once() -> None:
    """The first attempts of a payment that is over are numbered 1 to at most 4, each once; payments have
    every number of steps.
    """
    firsts = [(record, row) for record, row in _good(_payments()) if row["attempt"] == 1]
    lengths: Counter[int] = Counter()
    for rows in _by("payment", firsts).values():
        if all(record.due_seconds < (MANY / RATE) / 2 for record, _ in rows):
            found = sorted(row["seq"] for _, row in rows)
            assert found == list(range(1, len(found) + 1))
            lengths[len(found)] += 1
    assert lengths.keys() == set(range(1, MOST_STEPS + 1))


def test_some_steps_arrive_out_of_sequence() -> None:
    """A few steps come after their successor, by at most 3 seconds, with the earlier event time."""
    firsts = [(record, row) for record, row in _good(_payments()) if row["attempt"] == 1]
    swapped = 0
    for rows in _by("payment", firsts).values():
        arrived = {row["seq"]: (record, row) for record, row in rows}
        for seq in arrived.keys() & {seq - 1 for seq in arrived}:
            (record, row), (after, later) = arrived[seq], arrived[seq + 1]
            if record.due_seconds > after.due_seconds:
                swapped += 1
                assert record.due_seconds - after.due_seconds <= 3.1
                assert record.late or after.late or row["ts"] < later["ts"]
    assert 0.005 < swapped / len(firsts) < 0.03


def test_a_skier_skis_day_after_day() -> None:
    """A skier's days are numbered from 1 without a gap, up to 40; skiers come for one day, for all 40 and for
    most numbers between.
    """
    days = _by("skier", _good(list(islice(rentals(7, RATE, START), MANY))))
    for rows in days.values():
        assert [row["day"] for _, row in rows] == list(range(1, len(rows) + 1))
    lengths = Counter(len(rows) for rows in days.values())
    assert min(lengths) == 1
    assert max(lengths) == MOST_DAYS
    assert len(lengths) > 35
    assert len(days) > 500


@cache
def _sizes_of_loads() -> list[list[int]]:
    """The sizes of each load, in order, without the loads that the run ends in."""
    records = list(islice(parcels(7, RATE, START), MANY))
    loads = _by("truck_load", _good(records))
    for rows in loads.values():
        assert [row["parcel"] for _, row in rows] == list(range(1, len(rows) + 1))
    still_open = {row["truck_load"] for _, row in _good(records[-2000:])}
    return [[row["size"] for _, row in rows] for name, rows in loads.items() if name not in still_open]


def _first_fit(sizes: list[int]) -> int:
    trucks: list[int] = []
    for size in sizes:
        place = next((number for number, full in enumerate(trucks) if full + size <= CAPACITY), None)
        if place is None:
            trucks.append(size)
        else:
            trucks[place] += size
    return len(trucks)


def test_parcels_fit_a_truck() -> None:
    """Every size is a whole number from 1 to 100, and small and large ones come."""
    sizes = [size for load in _sizes_of_loads() for size in load]
    assert all(type(size) is int and 0 < size <= CAPACITY for size in sizes)
    assert set(sizes) == set(range(1, CAPACITY + 1))


def test_some_loads_are_the_bad_case_of_first_fit() -> None:
    """About a quarter of the loads: three sizes that fill one truck together, for which first fit needs 5/3
    as many trucks.
    """
    loads = _sizes_of_loads()
    bad = [load for load in loads if set(load) == set(BAD_SIZES)]
    assert 0.15 < len(bad) / len(loads) < 0.35
    assert sum(BAD_SIZES) == CAPACITY
    for load in bad:
        best = len(load) // 3
        assert load == sorted(load)
        assert Counter(load) == dict.fromkeys(BAD_SIZES, best)
        assert 3 * _first_fit(load) == 5 * best


@cache
def _clicks() -> Rows:
    return _good(list(islice(clicks(7, RATE, START), MANY)))


def _at(row: dict[str, Any]) -> float:
    return datetime.fromisoformat(row["ts"]).timestamp()


def test_every_user_has_a_profile_before_the_first_click() -> None:
    """The profiles of all users come first, then now and then a newer one, which replaces values."""
    rows = _clicks()
    first = next(number for number, (record, _) in enumerate(rows) if record.topic != PROFILES_TOPIC)
    assert [row["user"] for _, row in rows[:first]] == list(USERS)
    profiles = _by("user", [(record, row) for record, row in rows if record.topic == PROFILES_TOPIC])
    assert any(
        old["city"] != new["city"]
        for changes in profiles.values()
        for (_, old), (_, new) in pairwise(changes)
    )
    assert 0.005 < sum(map(len, profiles.values())) / len(rows) < 0.02


def test_no_profile_is_without_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where half of all rows are poison, views and searches without value come, but no profile: it would
    delete the user.
    """
    monkeypatch.setattr(flaws, "POISON_SHARE", 0.5)
    without = Counter(
        record.topic for record in islice(clicks(7, RATE, START), 10_000) if record.value is None
    )
    assert without.keys() == {"", SEARCHES_TOPIC}


def test_most_searches_lead_to_a_view_within_a_second() -> None:
    """About 60 % of the searches are followed by a view of the same user within one second; by chance hardly
    any would be.
    """
    rows = [
        (record, row)
        for record, row in _good(list(islice(clicks(7, 20.0, START), 20_000)))
        if not record.late
    ]
    searches = [row for record, row in rows if record.topic == SEARCHES_TOPIC]
    views: dict[str, list[float]] = defaultdict(list)
    for record, row in rows:
        if record.topic == "":
            views[row["user"]].append(_at(row))

    def followed(after_seconds: float) -> float:
        found = (
            any(after_seconds < at - _at(row) <= after_seconds + 1.0 for at in views[row["user"]])
            for row in searches
        )
        return sum(found) / len(searches)

    assert len(searches) / len(rows) > 0.1
    assert FOUND_SHARE - 0.03 < followed(0.0) < FOUND_SHARE + 0.15
    assert followed(20.0) < 0.3


def test_ids_are_unique() -> None:
    """No two views and no two searches share an id."""
    for field in ("view", "search"):
        ids = [row[field] for _, row in _clicks() if field in row]
        assert len(ids) == len(set(ids)) > 1000
