"""The generator of trades, without a broker."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice

from kafka.partitioner.default import murmur2

from hindcast_sandbox.generators.flaws import LATE_SECONDS, LATE_SHARE, POISON, POISON_SHARE
from hindcast_sandbox.generators.record import Record
from hindcast_sandbox.generators.trades import TICKERS, trades

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
MANY = 30_000


def _take(count: int, *, seed: int = 7, rate: float = 2000.0, start: datetime = START) -> list[Record]:
    return list(islice(trades(seed, rate, start), count))


def test_the_same_seed_gives_the_same_rows() -> None:
    """Two runs of one seed are equal; another seed's are not."""
    assert _take(2000) == _take(2000)
    assert _take(2000) != _take(2000, seed=8)


def test_only_instants_follow_the_start() -> None:
    """Started an hour later, each row is the same but for its event time, which is an hour later."""
    hour = timedelta(hours=1)
    for first, second in zip(_take(3000), _take(3000, start=START + hour), strict=True):
        assert (first.key, first.late, first.poison, first.due_seconds) == (
            second.key,
            second.late,
            second.poison,
            second.due_seconds,
        )
        if not first.poison:
            assert first.value is not None
            assert second.value is not None
            a, b = json.loads(first.value), json.loads(second.value)
            assert datetime.fromisoformat(b.pop("ts")) - datetime.fromisoformat(a.pop("ts")) == hour
            assert a == b


def test_rows_are_due_at_an_even_pace() -> None:
    """Row i is due i / rate seconds after the start, however long the run."""
    assert [record.due_seconds for record in _take(5, rate=4.0)] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert _take(MANY)[-1].due_seconds == (MANY - 1) / 2000.0


def test_the_shares_of_late_and_poison_rows() -> None:
    """About 2 % are late and 0.1 % poison, of every kind; none is both."""
    records = _take(MANY)
    late, poison = (
        sum(record.late for record in records),
        Counter(record.poison for record in records if record.poison),
    )
    assert abs(late / MANY - LATE_SHARE) < 0.003
    assert abs(poison.total() / MANY - POISON_SHARE) < 0.0007
    assert poison.keys() == POISON.keys()
    assert not any(record.late and record.poison for record in records)


def test_late_rows_are_set_back_by_up_to_a_minute() -> None:
    """A good row happens when it is due; a late one up to 60 seconds before, and some by most of that."""
    backs = []
    for record in _take(MANY):
        if record.poison:
            continue
        assert record.value is not None
        back = (
            START
            + timedelta(seconds=record.due_seconds)
            - datetime.fromisoformat(json.loads(record.value)["ts"])
        ).total_seconds()
        if record.late:
            backs.append(back)
        else:
            assert -0.001 <= back <= 0.001
    assert min(backs) >= -0.001
    assert LATE_SECONDS * 0.95 < max(backs) <= LATE_SECONDS + 0.001


def test_a_good_row_is_what_a_feed_sends() -> None:
    """Key and ticker agree, the time is ISO 8601 in UTC to the millisecond, prices are above 0, the ask is
    not below the bid.
    """
    for record in _take(5000):
        if record.poison:
            continue
        assert record.value is not None
        row = json.loads(record.value)
        assert row["ticker"].encode() == record.key
        assert row["ts"].endswith("Z")
        assert len(row["ts"]) == len("2026-01-31T12:00:00.000Z")
        assert row["ask"] >= row["bid"] > 0


def test_the_tickers_cover_four_partitions() -> None:
    """Ten tickers, and Kafka's own partitioner gives each of four partitions at least two."""
    assert len(set(TICKERS)) == 10
    counts = Counter((murmur2(ticker.encode()) & 0x7FFFFFFF) % 4 for ticker in TICKERS)
    assert counts.keys() == {0, 1, 2, 3}
    assert min(counts.values()) >= 2
