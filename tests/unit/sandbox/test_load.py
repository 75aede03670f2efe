"""What the load gives to a producer and how it counts what comes back, without a broker: the producer keeps
the records.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest
from kafka.future import Future
from kafka.partitioner.default import murmur2

from hindcast.errors import BadInputError
from hindcast.pipeline import TOPIC_STRIDE, Topic
from hindcast_sandbox.file_records import file_records
from hindcast_sandbox.generators import GENERATORS, Generator
from hindcast_sandbox.generators.record import Record
from hindcast_sandbox.load import Load, LoadReport

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Placed:
    """Where a record came to lie, as the producer's answer says it."""

    partition: int
    offset: int


@dataclass
class MemoryProducer:
    """Keeps what is sent, and acknowledges it at once."""

    partitions: dict[str, int]
    kept: dict[tuple[str, int], list[tuple[bytes | None, bytes | None]]] = field(default_factory=dict)

    def partitions_for(self, topic: str) -> set[int]:
        return set(range(self.partitions[topic]))

    def send(self, topic: str, *, value: bytes | None, key: bytes | None, partition: int | None) -> Future:
        if partition is None:  # the producer's own choice
            partition = 0
        assert partition < self.partitions[topic]
        records = self.kept.setdefault((topic, partition), [])
        records.append((key, value))
        return Future().success(Placed(partition, len(records) - 1))


@pytest.fixture
def load_factory(tmp_path: Path) -> Callable[..., Load]:
    """Make a load that sends as fast as it can."""

    def make(topic: str, rate: float = 1e9, **given: object) -> Load:
        return Load("nowhere:1", topic, tmp_path / "report.json", rows_per_second=rate, **given)  # type: ignore[arg-type]

    return make


def _sent(rows: list[Record]) -> Callable[[int, float, datetime], Iterator[Record]]:
    return lambda seed, rows_per_second, start: iter(rows)


def test_the_partitions_of_all_topics_have_one_numbering(load_factory: Callable[..., Load]) -> None:
    """Partition p of the k-th topic is k * 10,000 + p; each one's count and offsets are those that the
    producer holds.
    """
    load = load_factory("page_views", rows=5000)
    topics = ("page_views", "searches", "profiles")
    producer = MemoryProducer({"page_views": 4, "searches": 4, "profiles": 3})
    load._send_all(producer, START)
    assert load.report.sent == 5000
    held = {
        topics.index(topic) * TOPIC_STRIDE + partition: len(records)
        for (topic, partition), records in producer.kept.items()
    }
    assert held.keys() == {0, 1, 2, 3, 10_000, 10_001, 10_002, 10_003, 20_000, 20_001, 20_002}
    assert {number: part.sent for number, part in load.report.partitions.items()} == held
    assert load.report.end_offsets == dict(sorted(held.items()))
    assert set(load.report.start_offsets.values()) == {0}


def test_a_record_goes_where_its_own_topic_and_key_say(load_factory: Callable[..., Load]) -> None:
    """The main topic may have another name; each record lies in the partition of Kafka's own partitioner, in
    the order of sending.
    """
    load = load_factory("views-of-a-test", generator="page_views", rows=2000)
    producer = MemoryProducer({"views-of-a-test": 4, "searches": 2, "profiles": 1})
    load._send_all(producer, START)
    expected: dict[tuple[str, int], list[tuple[bytes | None, bytes | None]]] = {}
    for record in islice(GENERATORS["page_views"].make(1, 1e9, START), 2000):
        topic = record.topic or "views-of-a-test"
        place = (topic, (murmur2(record.key) & 0x7FFFFFFF) % producer.partitions[topic])
        expected.setdefault(place, []).append((record.key, record.value))
    assert producer.kept == expected


def test_tombstones_late_rows_and_poison_are_counted_exactly(
    load_factory: Callable[..., Load], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without value counts as a row, and as poison only where the generator says so."""
    rows = [
        Record(0.0, b"a", b"1"),
        Record(0.0, b"a", None, topic="side"),
        Record(0.0, b"a", None, poison="no value"),
        Record(0.0, b"b", b"2", late=True, topic="side"),
        Record(0.0, b"b", b"?", poison="not json", topic="side"),
        Record(0.0, b"b", b"?", poison="not json"),
    ]
    monkeypatch.setitem(GENERATORS, "main", Generator("main", ("main", "side"), _sent(rows)))
    load = load_factory("main")
    producer = MemoryProducer({"main": 1, "side": 1})
    load._send_all(producer, START)
    report = load.report
    assert (report.sent, report.late, report.poison) == (6, 1, {"no value": 1, "not json": 2})
    assert {number: part.sent for number, part in report.partitions.items()} == {0: 3, TOPIC_STRIDE: 3}
    assert producer.kept["side", 0][0] == (b"a", None)


def test_an_account_of_many_topics_is_read_as_it_was_written(
    load_factory: Callable[..., Load], tmp_path: Path
) -> None:
    """The numbers of partitions and all counts survive the file."""
    load = load_factory("payments", rate=2000.0, rows=50)
    load._send_all(MemoryProducer({"payments": 4, "payments-retry": 4}), START)
    load.report.write(tmp_path / "report.json")
    assert LoadReport.read(tmp_path / "report.json") == load.report


def test_progress_is_told_each_second_also_between_rare_rows(
    load_factory: Callable[..., Load], tmp_path: Path
) -> None:
    """At one row in ten seconds the report is told and written each second, and `stop` ends the wait for the
    next row.
    """
    told = threading.Event()
    counts: list[int] = []

    def progress(report: LoadReport) -> None:
        counts.append(report.sent)
        told.set()

    load = load_factory("trades", rate=0.1, progress=progress)
    sending = threading.Thread(target=load._send_all, args=(MemoryProducer({"trades": 4}), START))
    sending.start()
    try:
        assert told.wait(5)
        assert LoadReport.read(tmp_path / "report.json").sent == 1
    finally:
        load.stop()
        sending.join(5)
    assert not sending.is_alive()
    assert set(counts) == {1}


def test_it_ends_after_its_seconds(load_factory: Callable[..., Load]) -> None:
    """With `seconds` the load ends in time although no row is due, and sends what was due before."""
    load = load_factory("trades", rate=4.0, seconds=0.6)
    load._send_all(MemoryProducer({"trades": 4}), START)
    assert load.report.sent == 3


@pytest.mark.parametrize("topic", ["quotes", "searches", "payments-retry"])
def test_only_a_main_topic_has_a_generator(load_factory: Callable[..., Load], topic: str) -> None:
    """Another topic is refused, and those that can be sent are named."""
    with pytest.raises(
        BadInputError, match="trades, words, spoken, access_log, payments, ski_days, parcels, page_views"
    ):
        load_factory(topic)


def test_no_topic_has_two_generators() -> None:
    """Loads of different generators never write to the same topic, and each is registered under its main
    one.
    """
    counts = Counter(topic for generator in GENERATORS.values() for topic in generator.topics)
    assert set(counts.values()) == {1}
    assert all(name == generator.topics[0] for name, generator in GENERATORS.items())


def test_a_load_ends_with_its_file(load_factory: Callable[..., Load], tmp_path: Path) -> None:
    """Rows with a key go where the key says; the producer places the others."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"ticker": "A"}\nno row\n{"ticker": "B"}\n')
    topic = Topic("trades", schema="ticker string", key="ticker")
    load = load_factory("trades", generator=file_records(path, topic))
    producer = MemoryProducer({"trades": 4})
    load._send_all(producer, START)
    assert load.report.sent == 3
    for key in (b"A", b"B"):
        place = ("trades", (murmur2(key) & 0x7FFFFFFF) % 4)
        assert (key, b'{"ticker": "%s"}' % key) in producer.kept[place]
