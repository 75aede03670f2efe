"""Records whose values a schema registry's serializers wrote: Avro whose schema changes, JSON and Protobuf. The
stream, a replay, an archive and a rebuilt state make the same rows of them; a registry that is away costs
none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession
from support.intervals import Intervals
from support.protobuf_orders import order, protobuf_files
from support.registry_server import FIRST, RegistryServer, registry_server
from support.shard_harness import WAIT_SECONDS
from support.waiting import wait_until
from support.workload_harness import Workload, at

from hindcast import Format, Table, Topic, Window, pipeline
from hindcast.archive.copy_topic import archive_topic
from hindcast.errors import SettingsRefusedError
from hindcast.installation import Installation
from hindcast.spark import kafka_source
from hindcast.stream.query_errors import cause, may_be_of_a_record
from hindcast.tables.table_names import ControlTable
from hindcast.testing import run_pipeline

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

Make = Callable[..., Workload]
NOON_US = 1_767_614_400_000_000  # 2026-01-05
IN_VALUE = SerializationContext("orders", MessageField.VALUE)

NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "amount", "type": "long"},
        {"name": "channel", "type": "string", "default": "web"},
    ],
}
OLD = {**NEW, "fields": NEW["fields"][:3]}
COLUMNS = "id string NOT NULL, ts timestamp, amount bigint, channel string"


@pipeline(
    source=Topic("orders", schema=COLUMNS, format="avro", avro_schema=json.dumps(NEW), registry=True),
    event_time="ts",
    watermark="10 seconds",
    window=Window("10 seconds"),
    sink=Table("sales", keys=["window", "channel"]),
    version=1,
)
def sales(orders: DataFrame) -> DataFrame:
    """What each channel sold."""
    return orders.groupBy("window", "channel").agg({"amount": "sum"}).withColumnRenamed("sum(amount)", "sold")


def listed(name: str, **topic: Any) -> Any:
    """A pipeline that lists the orders of a topic."""

    def orders(rows: DataFrame) -> DataFrame:
        return rows.select("id", "ts", "amount")

    orders.__name__ = name
    source = Topic("orders", schema="id string NOT NULL, ts timestamp, amount bigint", **topic)
    declare = pipeline(source=source, event_time="ts", watermark="10 seconds", sink=Table(name), version=1)
    return declare(orders)


JSON_ORDERS = listed("json_orders", registry=True)
PROTOBUF_ORDERS = listed(
    "protobuf_orders",
    format=Format.PROTOBUF,
    message="shop.Order",
    descriptor=protobuf_files().SerializeToString(),
    registry=True,
)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server(account="ann:secret") as made:
        yield made


def with_registry(made: Workload, registry: RegistryServer) -> Workload:
    given = {**registry.settings, "max.retries": 0}
    made.settings = made.settings.model_copy(update={"schema_registry": given})
    return made


def sold(
    registry: RegistryServer, schema: dict[str, Any], number: int, second: float, channel: str = ""
) -> bytes:
    """An order of the amount 1, as a producer with this schema sends it."""
    record = {"id": str(number), "ts": NOON_US + int(second * 1e6), "amount": 1}
    if channel:
        record["channel"] = channel
    client = SchemaRegistryClient(registry.settings)
    content: bytes = AvroSerializer(client, json.dumps(schema))(record, IN_VALUE)
    return content


def sums(made: Workload) -> dict[str, int]:
    """What each channel sold in all windows."""
    found: dict[str, int] = {}
    for row in made.rows():
        found[row["channel"]] = found.get(row["channel"], 0) + row["sold"]
    return found


def test_a_schema_that_changes_and_one_that_nobody_knows(workload: Make, registry: RegistryServer) -> None:
    """Both schemas' records are rows. Those that cannot be read are dead letters that say why, with their
    bytes. The verdict agrees, from the topic and from the archive.
    """
    intervals = Intervals(with_registry(workload(sales), registry))
    made = intervals.made
    good = [sold(registry, OLD, number, number) for number in range(8)]
    good += [sold(registry, NEW, number, number, "desk") for number in range(8, 12)]
    other = sold(registry, {**NEW, "name": "Refund"}, 12, 12, "desk")
    bad = [b'{"id": "no number"}', b"\0\0\0\0\7x", other]
    intervals.stream({0: [*good, *bad, sold(registry, NEW, 13, 40, "desk")]})
    intervals.stream({0: [sold(registry, NEW, 14, 41, "desk")]})
    assert sums(made) == {"web": 8, "desk": 4}
    verdict = intervals.judge(everything=True)
    assert (verdict["unexplained"], verdict["dead_letters"]) == (0, 3), made.differences(verdict["run_id"])
    letters = sorted(made.filed(ControlTable.DEAD_LETTERS), key=lambda letter: letter["offset"])
    assert [bytes(letter["value"]) for letter in letters] == bad
    reasons = [letter["reason"] for letter in letters]
    assert reasons[:2] == [
        "no schema's number in front of the value",
        "the schema registry knows no schema 7",
    ]
    assert reasons[2].startswith(f"schema {FIRST + 2} cannot be read as the topic's: ")
    archive_topic(lambda: made.spark, Installation(made.settings), made.pipeline.source.name)
    intervals.lose_the_beginning()
    intervals.stream({0: [sold(registry, OLD, 15, 80)]})
    verdict = intervals.judge(everything=True)
    assert (verdict["unexplained"], verdict["input_rows"]) == (0, 18)


def test_a_registry_that_is_away_costs_no_record(workload: Make, registry: RegistryServer) -> None:
    """The batch fails with the registry's words, and is read again when it answers. No record is left out for
    that.
    """
    made = with_registry(workload(sales), registry)
    made.put([sold(registry, OLD, number, number) for number in range(3)])
    registry.answer = (503, {"error_code": 50302, "message": "no leader"})
    owner = made.start()

    def failed() -> bool:
        owner.go_on()
        return owner.failure is not None

    wait_until(failed, WAIT_SECONDS, "the batch has failed")
    assert owner.failure is not None
    assert not may_be_of_a_record(owner.failure)
    said = cause(owner.failure)
    assert said.startswith(f"hindcast.errors.RegistryUnavailableError: The schema registry at {registry.url}")
    assert "was asked for schema 101, and did not do it: no leader" in said
    made.retire(owner)
    registry.answer = None
    made.put([sold(registry, OLD, 9, 60)])
    made.read()
    made.put([sold(registry, OLD, 10, 61)])
    made.read()
    assert sums(made) == {"web": 3}
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["dead_letters"]) == (0, 0)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("declared", [JSON_ORDERS, PROTOBUF_ORDERS], ids=["json", "protobuf"])
def test_json_and_protobuf_with_a_number(workload: Make, registry: RegistryServer, declared: Any) -> None:
    """Whole numbers of 64 bits come through; what is torn or unknown does not."""
    made = with_registry(workload(declared), registry)
    if declared is JSON_ORDERS:
        client = SchemaRegistryClient(registry.settings)
        as_json = JSONSerializer(json.dumps({"type": "object", "title": "Order"}), client)
        values = [as_json({"id": "a", "ts": at(0), "amount": 2**60}, IN_VALUE)]
    else:
        number = registry.register("orders-value", 'syntax = "proto3";', "PROTOBUF")
        message = order(id="a", ts={"seconds": NOON_US // 1_000_000}, amount=2**60)
        values = [b"\0" + number.to_bytes(4, "big") + b"\0" + message]
    made.put([*values, values[0][:7], b"\0\0\0\0\7x"])
    made.read()
    assert [(row["id"], row["amount"]) for row in made.rows()] == [("a", 2**60)]
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["dead_letters"]) == (0, 2), made.differences()
    reasons = {letter["reason"] for letter in made.filed(ControlTable.DEAD_LETTERS)}
    assert reasons == {"does not parse as the topic's schema", "the schema registry knows no schema 7"}


def test_a_state_is_rebuilt_from_them(workload: Make, registry: RegistryServer) -> None:
    """The newest owner reads all records again, of both schemas."""
    made = with_registry(workload(sales), registry)
    made.put([sold(registry, OLD, number, number) for number in range(3)])
    made.read()
    made.put([sold(registry, NEW, 3, 4, "web"), sold(registry, NEW, 4, 60, "web")])
    made.read("it was asked for")
    made.put([sold(registry, NEW, 5, 61, "web")])
    made.read()
    assert sums(made) == {"web": 4}
    assert made.verdict()["unexplained"] == 0


def test_a_trial_takes_the_values_without_a_number(spark: SparkSession) -> None:
    """Without a registry, for an author's own tests."""
    message = order(id="a", ts={"seconds": NOON_US // 1_000_000}, amount=3)
    trial = run_pipeline(spark, PROTOBUF_ORDERS, [{"orders": [message, b"\xff"]}])
    assert [row["id"] for row in trial.rows.to_pylist()] == ["a"]
    assert [letter.reason for letter in trial.dead_letters] == ["does not parse as the topic's schema"]


def test_a_topic_of_a_registry_needs_the_setting(workload: Make, registry: RegistryServer) -> None:
    """Without it the first record would already fail; so the query does not begin."""
    made = workload(sales)
    with pytest.raises(
        SettingsRefusedError, match=r"HINDCAST_SCHEMA_REGISTRY: the topic .* has registry=True"
    ):
        kafka_source.stream(made.spark, made.settings, made.pipeline, made.pipeline.source, {0: 0})
