"""What every generator keeps, without a broker."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise

import pytest
from kafka.partitioner.default import murmur2

from hindcast_sandbox.generators import GENERATORS, flaws, web_log
from hindcast_sandbox.generators.flaws import FAR_FUTURE, LATE_SECONDS, LATE_SHARE, POISON_SHARE
from hindcast_sandbox.generators.record import Record

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
MANY = 30_000
RATE = 2000.0
#: How far a row that is not late may be behind the moment it is due: a payment's step is held up, an access
#: log has whole seconds.
BEHIND_SECONDS = {"payments": 3.1, "access_log": 1.0, "page_views": 0.1}
#: What no row of the topic can be spoilt by: a string column takes any JSON, and a profile without value is
#: deleted.
SPARED = {
    "words": {"wrong type"},
    "page_views": {"wrong type"},
    "searches": {"wrong type"},
    "profiles": {"no value"},
}

each = pytest.mark.parametrize("topic", GENERATORS)
each_of_json = pytest.mark.parametrize("topic", [topic for topic in GENERATORS if topic != "access_log"])


@cache
def sent(topic: str, seed: int = 7, start: datetime = START) -> list[Record]:
    return list(islice(GENERATORS[topic].make(seed, RATE, start), MANY))


@cache
def happened(record: Record) -> datetime:
    """The event time of a row that is no poison."""
    assert record.value is not None
    if record.value.startswith(b"{"):
        return datetime.fromisoformat(json.loads(record.value)["ts"])
    text = record.value.partition(b"[")[2].partition(b"]")[0].decode()
    return datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z")


@each
def test_the_same_seed_gives_the_same_rows(topic: str) -> None:
    """Two runs of one seed are equal to the byte; another seed's are not."""
    make = GENERATORS[topic].make
    assert list(islice(make(7, RATE, START), 5000)) == sent(topic)[:5000]
    assert list(islice(make(8, RATE, START), 5000)) != sent(topic)[:5000]


@each
def test_only_instants_follow_the_start(topic: str) -> None:
    """Started an hour later, each row is the same but for its event time, which is an hour later."""
    hour = timedelta(hours=1)
    for first, second in zip(
        sent(topic)[:5000], islice(GENERATORS[topic].make(7, RATE, START + hour), 5000), strict=True
    ):
        assert (first.key, first.late, first.poison, first.topic) == (
            second.key,
            second.late,
            second.poison,
            second.topic,
        )
        if not first.poison:
            assert happened(second) - happened(first) == hour


@each
def test_rows_are_due_at_an_even_pace(topic: str) -> None:
    """Row i is due i / rate seconds after the start, whatever the pace and however long the run."""
    assert [record.due_seconds for record in islice(GENERATORS[topic].make(1, 4.0, START), 5)] == [
        0.0,
        0.25,
        0.5,
        0.75,
        1.0,
    ]
    dues = [record.due_seconds for record in sent(topic)]
    assert dues[-1] == (MANY - 1) / RATE
    assert all(first < second for first, second in pairwise(dues))


@each
def test_the_shares_of_late_and_poison_rows(topic: str) -> None:
    """About 2 % are late, but no spoken word and no profile, and 0.1 % poison; none is both."""
    records = sent(topic)
    may_be_late = [record for record in records if topic != "spoken" and record.topic != "profiles"]
    assert sum(record.late for record in records) == sum(record.late for record in may_be_late)
    if may_be_late:
        assert abs(sum(record.late for record in may_be_late) / len(may_be_late) - LATE_SHARE) < 0.003
    assert abs(sum(bool(record.poison) for record in records) / MANY - POISON_SHARE) < 0.0007
    assert not any(record.late and record.poison for record in records)


@each
def test_a_row_happens_when_it_is_due_unless_it_is_late(topic: str) -> None:
    """A late row is set back by up to a minute, and some by most of that; the others are not behind, or as
    little as is stated.
    """
    late, others = [], []
    for record in sent(topic):
        if not record.poison:
            behind = START + timedelta(seconds=record.due_seconds) - happened(record)
            (late if record.late else others).append(behind.total_seconds())
    allowed = BEHIND_SECONDS.get(topic, 0.0) + 0.001
    assert -0.001 <= min(others) <= max(others) <= allowed
    if topic != "spoken":
        assert LATE_SECONDS * 0.9 < max(late) <= LATE_SECONDS + allowed


@each
def test_each_topic_has_its_rows(topic: str) -> None:
    """Each record goes to one of the generator's topics, the main one by the empty name; all of them get
    rows.
    """
    main, *others = GENERATORS[topic].topics
    assert main == topic
    assert {record.topic for record in sent(topic)} == {"", *others}


@each
def test_the_keys_cover_four_partitions(topic: str) -> None:
    """Every record has a key, and Kafka's own partitioner gives each of four partitions of each topic a fair
    part of the rows.
    """
    assert all(record.key for record in sent(topic))
    counts = Counter((record.topic, (murmur2(record.key) & 0x7FFFFFFF) % 4) for record in sent(topic))
    totals = Counter(record.topic for record in sent(topic))
    assert counts.keys() == {(name, partition) for name in totals for partition in range(4)}
    assert all(count > 0.05 * totals[name] for (name, _), count in counts.items())


@each_of_json
def test_a_good_row_has_its_fields_and_its_key(topic: str) -> None:
    """Good rows of a topic have the same fields of the same types, one of them the key, and a time in UTC to
    the millisecond.
    """
    shapes: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for record in sent(topic):
        if not record.poison:
            assert record.value is not None
            row = json.loads(record.value)
            shapes.setdefault(record.topic, set()).add(
                tuple((name, type(value).__name__) for name, value in row.items())
            )
            assert record.key.decode() in row.values()
            assert row["ts"].endswith("Z")
            assert len(row["ts"]) == len("2026-01-31T12:00:00.000Z")
    assert all(len(found) == 1 for found in shapes.values()), shapes


@each_of_json
def test_every_reason_spoils_a_row_of_the_topic(topic: str) -> None:
    """Each reason that a topic's rows may be poison by makes bytes that are no row, for a reason that can be
    seen in them.
    """
    samples = {record.topic: record for record in sent(topic) if not record.poison}
    for name, record in samples.items():
        fields = json.loads(record.value or b"")
        fields["ts"] = happened(record)
        tombstones = name == "profiles"
        reasons = flaws.reasons(fields, tombstones=tombstones)
        assert set(reasons) == flaws.POISON.keys() - SPARED.get(name or topic, set())
        for reason in reasons:
            assert _is_unusable(flaws.POISON[reason](fields), fields), (name, reason)


def _is_unusable(value: bytes | None, fields: dict[str, object]) -> bool:
    """By the rules of the stream's source, as far as Python's own JSON shows them."""
    try:
        row = json.loads((value or b"").decode())
        instant = datetime.fromisoformat(row["ts"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return True
    assert isinstance(fields["ts"], datetime)
    return instant - fields["ts"] >= FAR_FUTURE - timedelta(seconds=1) or any(
        type(row[name]) is not type(fields[name]) for name in fields.keys() - {"ts"}
    )


@each
def test_poison_is_named_by_a_known_reason(topic: str) -> None:
    """What is sent as poison is of the topic's reasons, and of many of them."""
    known = web_log.POISON.keys() if topic == "access_log" else flaws.POISON.keys()
    for name in {record.topic for record in sent(topic)}:
        found = {record.poison for record in sent(topic) if record.poison and record.topic == name}
        assert found <= known - SPARED.get(name or topic, set())
    assert len({record.poison for record in sent(topic) if record.poison}) >= 7
