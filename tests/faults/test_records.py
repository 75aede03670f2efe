"""What producers do to a stream: poison, duplicates, disorder, late and future stamps, transactions,
compaction, another schema.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.check_all_oracles import CheckAllOracles
from support.fleet import Worker
from support.live_stream import ends, ledger
from support.shapes import OF_ONE_TOPIC, iso
from support.simulated_stream import BASE_MS, Record
from support.waiting import wait_until
from support.warm_fleet import WarmStream

from hindcast.kafka.offsets import TopicOffsets
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from conftest import Broker

TEN_MEGABYTES = 10 * 1024 * 1024
SOON = (datetime.now(UTC) + timedelta(hours=20)).isoformat()
POISON: dict[str, tuple[bytes | None, str]] = {
    "bad JSON": (b'{"ticker": "T0", "ts": ', "does not parse"),
    "wrong type": (b'{"ticker": "T0", "ts": "2026-01-01T00:00:00Z", "ask": "twelve"}', "does not parse"),
    "not an object": (b"[1, 2, 3]", "does not parse"),
    "no value": (None, "no value"),
    "empty": (b"", ""),
    "NUL": (b"\x00\x00\x00", "does not parse"),
    "bad UTF-8": (b'{"ticker": "\xff\xfe", "ts": \xc3\x28}', "does not parse"),
    "deep nesting": (b'{"ticker": ' + b"[" * 2000 + b"]" * 2000 + b"}", ""),
    "no time": (b'{"ticker": "T0", "ask": 1.0}', "no ts"),
    "a null time": (b'{"ticker": "T0", "ts": null, "ask": 1.0}', "no ts"),
    "a time that is none": (b'{"ticker": "T0", "ts": "yesterday", "ask": 1.0}', ""),
    "far in the future": (json.dumps({"ticker": "T0", "ts": SOON, "ask": 1.0}).encode(), "in the future"),
}


class Partitions:
    """Gives records their next offsets, after those that the stream has sent."""

    def __init__(self, stream: WarmStream) -> None:
        self._next = Counter(ends(stream.sent))

    def place(self, record: Record, partition: int | None = None) -> Record:
        partition = record.partition if partition is None else partition
        self._next[partition] += 1
        return replace(record, partition=partition, offset=self._next[partition] - 1)


def later(stream: WarmStream, number: int) -> int:
    """An event time after all that was sent, in milliseconds."""
    return max(record.event_ms or 0 for record in stream.sent) + 20 * (number + 1)


@pytest.mark.shapes("append", "late_sink")
@pytest.mark.row("F19")
def test_poison_is_filed_with_its_reason_and_harms_no_neighbour(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """Each kind of poison, between good records: a dead letter with offset and reason; every neighbour is in
    the result.
    """
    places, rng, kinds = Partitions(stream), random.Random(seed), {}
    records = []
    for number, (kind, (value, _)) in enumerate(POISON.items()):
        bad = places.place(Record(rng.randrange(4), 0, "T0", None, poison=value))
        kinds[bad.place] = kind
        good = [
            places.place(Record(bad.partition, 0, f"T{bad.partition}", later(stream, number), 2.0))
            for _ in range(3)
        ]
        records += [good[0], bad, *good[1:]]
    # The order within a partition is the order of the offsets.
    stream.send(sorted(records, key=lambda record: record.offset))
    prove(stream)
    rows = stream.fleet.rows(ControlTable.DEAD_LETTERS, ("pipeline", "=", stream.name))
    reasons = {(row["partition"], row["offset"]): row["reason"] for row in rows}
    for place, kind in kinds.items():
        assert POISON[kind][1] in reasons[place], f"{kind}: {reasons[place]}"
    assert all(reasons.values())


@pytest.mark.shapes("append", "upsert", "join", "late_sink")
@pytest.mark.row("F19")
def test_a_record_of_ten_megabytes_is_read_like_any_other(
    broker: Broker, stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """Where the topic allows it, a huge record that does not parse is a dead letter with all its bytes, and
    the stream goes on.
    """
    from kafka import KafkaAdminClient, KafkaProducer
    from kafka.admin import ConfigResource, ConfigResourceType

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.alter_configs(
        [
            ConfigResource(
                ConfigResourceType.TOPIC, stream.topic, {"max.message.bytes": str(2 * TEN_MEGABYTES)}
            )
        ]
    )
    admin.close()
    value = b"x" * TEN_MEGABYTES
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, acks="all", max_request_size=2 * TEN_MEGABYTES
    )
    offset = producer.send(stream.topic, value, key=b"T0", partition=0).get(timeout=60).offset
    producer.close()
    huge = Partitions(stream).place(Record(0, 0, "T0", None, poison=value))
    assert huge.offset == offset
    stream.sent.append(huge)
    places = Partitions(stream)
    stream.send([places.place(Record(p, 0, f"T{p}", later(stream, p), 2.0)) for p in range(4)])
    prove(stream, sends=False)
    (row,) = stream.fleet.rows(
        ControlTable.DEAD_LETTERS,
        ("pipeline", "=", stream.name),
        ("offset", "=", offset),
        ("partition", "=", 0),
    )
    assert len(row["value"]) == TEN_MEGABYTES


@pytest.mark.row("F21")
def test_duplicates_and_disorder_of_the_producer(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """5 % are sent again and neighbours change places: each offset counts once, whatever it holds."""
    rng, places = random.Random(seed), Partitions(stream)
    records = stream.more(500)
    for index in range(len(records) - 1):
        if rng.random() < 0.2:
            records[index], records[index + 1] = records[index + 1], records[index]
    again = [copy for record in records for copy in ([record, record] if rng.random() < 0.05 else [record])]
    stream.send([places.place(record) for record in again])
    prove(stream, sends=False)


@pytest.mark.shapes("append", "late_sink")
@pytest.mark.row("F22")
def test_rows_one_millisecond_around_the_watermark(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """A row is late for a window iff the window's end is at or before the watermark; a far-future stamp does
    not move the watermark.
    """
    places = Partitions(stream)
    top = (max(record.event_ms or 0 for record in stream.sent) // 1000 + 5) * 1000
    future = json.dumps({"ticker": "T1", "ts": SOON, "ask": 1.0}).encode()
    stream.send([places.place(Record(p, 0, f"T{p}", top, 1.0)) for p in range(4)])
    stream.send([places.place(Record(p, 0, f"T{p}", None, poison=future)) for p in range(4)])
    stream.wait_read()
    # A batch without data comes once the watermark has moved; from then on it is the threshold.
    watermark = top - 10_000
    wait_until(
        lambda: _watermarks(stream) == {watermark},
        30.0,
        "the watermark stands ten seconds before the newest row",
    )
    edge = [watermark + shift for shift in (-5001, -5000, -4999, -1001, -1000, -999, -1, 0, 1)]
    stream.send([places.place(Record(p, 0, f"T{p}", event_ms, 3.0)) for p in range(4) for event_ms in edge])
    stream.wait_read()
    prove(stream, sends=False)
    late = {
        (row["partition"], row["offset"]): row["windows_late"]
        for row in stream.fleet.rows(ControlTable.LATE_ROWS, ("pipeline", "=", stream.name))
    }
    found = [late.get(record.place, 0) for record in stream.sent[-len(edge) :]]
    assert found == [5, 5, 5, 2, 1, 1, 1, 0, 0]


def _watermarks(stream: WarmStream) -> set[int]:
    return {
        row.watermark_ms for row in {row.shard: row for row in ledger(stream.settings, stream.name)}.values()
    }


@pytest.mark.shapes(*OF_ONE_TOPIC)
@pytest.mark.row("F18")
def test_aborted_transactions_leave_holes_and_no_rows(
    broker: Broker, stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """Of transactions only the committed records count; the holes of aborted ones and of markers stop
    nothing.
    """
    from kafka import KafkaProducer

    rng = random.Random(seed)
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, acks="all", transactional_id=f"{stream.topic}-{seed}"
    )
    producer.init_transactions()
    newest = later(stream, 0)
    for number in range(8):
        committed = number % 2 == 0
        producer.begin_transaction()
        futures = []
        for _ in range(rng.randrange(5, 20)):
            partition = rng.randrange(4)
            event_ms, ask = newest + number * 500 + rng.randrange(500), rng.randrange(64, 6400) / 64
            value = stream.shape.value(Record(partition, 0, f"T{partition}", event_ms, ask))
            futures.append(
                (partition, event_ms, ask, producer.send(stream.topic, value, key=b"k", partition=partition))
            )
        producer.flush()
        places = [
            (partition, future.get(timeout=30).offset, event_ms, ask)
            for partition, event_ms, ask, future in futures
        ]
        if committed:
            producer.commit_transaction()
            stream.sent += [Record(p, offset, f"T{p}", event_ms, ask) for p, offset, event_ms, ask in places]
        else:
            producer.abort_transaction()
    producer.close()
    with TopicOffsets(stream.settings) as offsets:
        wait_until(
            lambda: stream.committed() == offsets.latest(stream.topic),
            60.0,
            "the stream stands at the end of the topic",
        )
        prove(stream, sends=False, to=offsets.latest(stream.topic))


@pytest.mark.shapes(*OF_ONE_TOPIC)
@pytest.mark.row("F18")
def test_a_compacted_topic_with_tombstones(
    broker: Broker, stream: WarmStream, prove: CheckAllOracles, seed: int
) -> None:
    """Of a compacted topic the stream reads what is left; offsets that compaction removed are no loss,
    tombstones are dead letters.
    """
    from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    quick = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "200",
    }
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, stream.topic, quick)])
    admin.close()
    places = Partitions(stream)
    for part in range(4):
        records = [
            Record(p, 0, f"T{p}", BASE_MS + part * 5_000 + n * 100, 1.0 + n)
            for n in range(40)
            for p in range(4)
        ]
        stream.send([places.place(record) for record in records])
        stream.send([places.place(Record(p, 0, f"X{part}-{p}", None, poison=None)) for p in range(4)])

    def left() -> set[tuple[int, int]]:
        consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, enable_auto_commit=False, consumer_timeout_ms=1500
        )
        consumer.assign([TopicPartition(stream.topic, p) for p in range(4)])
        consumer.seek_to_beginning()
        found = {(record.partition, record.offset) for record in consumer}
        consumer.close()
        return found

    wait_until(lambda: len(left()) < len(stream.sent) // 2, 90.0, "the cleaner has compacted the topic")
    ends_at = ends(stream.sent)
    kept = left()
    stream.fleet.whole()
    stream.want()
    stream.wait_shared()
    wait_until(lambda: stream.committed() == ends_at, 60.0, "the stream stands at the end of the topic")
    stream.sent = [record for record in stream.sent if record.place in kept]
    assert left() == kept, "the cleaner made no other pass while the stream read"
    prove(stream, sends=False, to=ends_at)


@pytest.mark.shapes("append", "upsert", "late_sink")
@pytest.mark.row("F20")
@pytest.mark.parametrize("change", ["added", "widened", "dropped", "renamed"])
def test_a_producer_changes_its_schema(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int, change: str
) -> None:
    """A new field and an integer for a double change nothing. A NOT NULL field that is gone makes dead
    letters: no null in silence.
    """
    from kafka import KafkaProducer

    def value(record: Record) -> dict[str, Any]:
        whole = {"ticker": record.ticker, "ts": iso(record.event_ms or 0), "ask": record.ask}
        return {
            "added": {**whole, "venue": {"name": "X"}},
            "widened": {**whole, "ask": int(record.ask)},
            "dropped": {name: field for name, field in whole.items() if name != "ask"},
            "renamed": {
                **{name: field for name, field in whole.items() if name != "ask"},
                "ask_price": record.ask,
            },
        }[change]

    places = Partitions(stream)
    records = [
        places.place(
            Record(
                number % 4,
                0,
                f"T{number % 4}",
                later(stream, number),
                float(random.Random(number).randrange(1, 100)),
            )
        )
        for number in range(200)
    ]
    producer = KafkaProducer(bootstrap_servers=stream.settings.bootstrap_servers, acks="all", linger_ms=5)
    for record in records:
        producer.send(
            stream.topic,
            json.dumps(value(record)).encode(),
            key=record.ticker.encode(),
            partition=record.partition,
        )
    producer.flush()
    producer.close()
    if change in {"added", "widened"}:
        stream.sent += records
        prove(stream, sends=False)
        return
    stream.wait_read(to=ends([*stream.sent, *records]))
    stream.pause()
    dead = {(row["partition"], row["offset"]): row["reason"] for row in _dead_letters(stream)}
    assert {dead.get(record.place) for record in records} == {"no ask"}, (
        "each record without the field is told of"
    )
    assert all(least is not None for _, (least, _, _) in stream.results())
    stream.sent += [replace(record, event_ms=None) for record in records]
    prove(stream, sends=False)


def _dead_letters(stream: WarmStream) -> list[dict[str, Any]]:
    return stream.fleet.rows(ControlTable.DEAD_LETTERS, ("pipeline", "=", stream.name))
