"""Records of a few bytes that say they are huge: each is a dead letter, and the worker that reads them lives
on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from support.fleet import START_SECONDS, Fleet, Stream, fleet_settings
from support.waiting import wait_until

from hindcast.settings import Settings
from hindcast.tables.table_names import ControlTable
from hindcast_sandbox.load import ensure_topic

if TYPE_CHECKING:
    from conftest import Broker

#: Pipelines that name each usable record, by its offset.
MODULE = '''
from pyspark.sql import functions as F
from hindcast import Table, Topic, pipeline

AVRO = """{avro}"""

@pipeline(
    source=Topic("avro-records", schema="{columns}", key="name", format="avro", avro_schema=AVRO),
    event_time="ts", watermark="10 seconds", sink=Table("avro_records", keys=["offset"]), version=1,
)
def avro_records(rows):
    return rows.select(F.col("_offset").alias("offset"), "name")

@pipeline(
    source=Topic("json-records", schema="{columns}", key="name"),
    event_time="ts", watermark="10 seconds", sink=Table("json_records", keys=["offset"]), version=1,
)
def json_records(rows):
    return rows.select(F.col("_offset").alias("offset"), "name")
'''
COLUMNS = (
    "name string, ts timestamp, amount decimal(10,2), tags array<string>, more map<string, int>, raw binary"
)
AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "name", "type": "string"},
        {"name": "raw", "type": "bytes"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "int"}},
        {
            "name": "amount",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
        },
    ],
}
NOON_MS = 1_767_614_400_000  # 2026-01-05
HUGE = 1_500_000_000


def number(value: int) -> bytes:
    """An int or a long as Avro writes it: zigzag, seven bits a byte."""
    rest, written = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*written, rest])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


TS, NAME, RAW, NONE = number(NOON_MS), text(b"a"), text(b""), number(0)
GOOD_AVRO = TS + NAME + RAW + number(1) + text(b"tag") + NONE + NONE + NONE
#: What is wrong with a record -> its bytes.
AVRO_POISON = {
    "a string of 1.5 GB": TS + number(HUGE),
    "bytes of 1.5 GB": TS + NAME + number(HUGE),
    "a string of a negative length": TS + number(-5) + b"aaaaa",
    "an array of 1.5 G items": TS + NAME + RAW + number(HUGE),
    "an array whose block has a size": TS + NAME + RAW + number(-HUGE) + number(3),
    "an array of the least number of items": TS + NAME + RAW + number(-(1 << 63)) + number(3),
    "a map of 1.5 G entries": TS + NAME + RAW + NONE + number(HUGE),
    "a decimal of 1.5 GB": TS + NAME + RAW + NONE + NONE + number(1) + number(HUGE),
    "a choice that there is not": TS + NAME + RAW + NONE + NONE + number(70),
    "cut off": TS + number(40) + b"a",
}
GOOD_JSON = b'{"name": "a", "ts": "2026-01-05T12:00:00Z", "amount": 1.25}'
JSON_POISON = {
    "1,001 levels": b'{"tags": ' + b"[" * 1001 + b"]" * 1001 + b"}",
    "100,000 levels": b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a number of 5,000 digits": b'{"name": "a", "ts": "2026-01-05T12:00:00Z", "amount": '
    + b"1" * 5000
    + b"}",
    "a decimal of 300,000,000 digits": b'{"name": "a", "ts": "2026-01-05T12:00:00Z", "amount": 1e300000000}',
    "a decimal of 300,000,000 places": b'{"name": "a", "ts": "2026-01-05T12:00:00Z", "amount": 1E-300000000}',
    "a decimal of 300,000,000 digits in a string": b'{"name": "a", "ts": "2026-01-05T12:00:00Z", "amount": "1e300000000"}',
    "a decimal of 300,000,000 places in a string": b'{"name": "a", "ts": "2026-01-05T12:00:00Z", "amount": "1,e-3000\\u00300,000"}',
    "a decimal of 1,000,000 digits in a string": b'{"name": "a", "ts": "2026-01-05T12:00:00Z", "amount": "'
    + b"1" * 1_000_000
    + b'"}',
    "a decimal whose exponent is hidden": b'{"name": "\\" 1e5", "ts": "2026-01-05T12:00:00Z", "amount": -1.5e+0300000000}',
}
#: Usable records beside the poison, which look a little like it.
JSON_NEIGHBOURS = [
    GOOD_JSON,
    b'{"name": "1e300000000 \\" 1e300000000", "ts": "2026-01-05T12:00:00Z", "amount": 2e3}',
    b'{"name": "1e300000000", "ts": "2026-01-05T12:00:00Z", "tags": ["1e300000000"], "amount": "2e3"}',
]


@pytest.fixture(scope="module")
def fleet(broker: Broker, tmp_path_factory: pytest.TempPathFactory, jars_dir: Path) -> Iterator[Fleet]:
    """One worker, and a pipeline of each format."""
    made = Fleet(
        fleet_settings(
            Settings(home=tmp_path_factory.mktemp("records"), jars_dir=jars_dir), broker.bootstrap_servers
        )
    )
    made.settings.pipelines_dir.mkdir(parents=True)
    (made.settings.pipelines_dir / "records.py").write_text(
        MODULE.format(avro=json.dumps(AVRO), columns=COLUMNS)
    )
    for format_ in ("avro", "json"):
        ensure_topic(broker.bootstrap_servers, f"{format_}-records", 1)
    yield made
    made.end()


@pytest.fixture
def send(broker: Broker) -> Callable[[str, list[bytes]], None]:
    """Send values to a topic's one partition, in order."""
    from kafka import KafkaProducer

    def produce(topic: str, values: list[bytes]) -> None:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
        for value in values:
            producer.send(topic, value=value, partition=0)
        producer.flush()
        producer.close()

    return produce


@pytest.mark.row("F19")
@pytest.mark.parametrize(
    ("format_", "poison", "neighbours"),
    [("avro", AVRO_POISON, [GOOD_AVRO]), ("json", JSON_POISON, JSON_NEIGHBOURS)],
    ids=["avro", "json"],
)
def test_a_record_that_says_it_is_huge_is_a_dead_letter(
    fleet: Fleet,
    send: Callable[[str, list[bytes]], None],
    format_: str,
    poison: dict[str, bytes],
    neighbours: list[bytes],
) -> None:
    """Each is filed with its reason, between neighbours that are all in the result; the worker that read them
    is the one that began.
    """
    stream = Stream(fleet, f"{format_}-records", name=f"{format_}_records", partitions=1)
    values: list[bytes] = []
    for value in poison.values():
        values += [*neighbours, value]
    values += neighbours
    bad = {values.index(value): kind for kind, value in poison.items()}
    send(stream.topic, values)
    (worker,) = fleet.whole(1)
    stream.want()
    stream.wait_read(to={0: len(values)})
    wait_until(lambda: len(filed(stream)) >= len(poison), START_SECONDS, "the poison is filed")
    assert {bad[offset]: reason for offset, reason in filed(stream).items()} == dict.fromkeys(
        poison, "does not parse as the topic's schema"
    )
    rows = DeltaTable(stream.settings.table("sinks", stream.name)).to_pyarrow_table().to_pylist()
    assert sorted(row["offset"] for row in rows) == [
        offset for offset in range(len(values)) if offset not in bad
    ]
    assert worker.poll() is None
    assert fleet.alive() == [worker]


def filed(stream: Stream) -> dict[int, str]:
    rows = stream.fleet.rows(ControlTable.DEAD_LETTERS, ("pipeline", "=", stream.name))
    return {row["offset"]: row["reason"] for row in rows}
