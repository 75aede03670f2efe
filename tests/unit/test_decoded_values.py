"""Values with the number of their schema in front, and messages of Protobuf: what is made of them.

The values are written by the serializers of Confluent's own client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st
from support.protobuf_orders import order, protobuf_files
from support.registry_server import FIRST, RegistryServer, registry_server

from hindcast.errors import RegistryUnavailableError
from hindcast.kafka.schema_registry import SchemaRegistry, divided
from hindcast.pipeline import Format
from hindcast.spark.decoded_values import ValueForm, decode_values

OWN = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "amount", "type": ["null", {"type": "long"}], "default": None},
        {"name": "channel", "type": "string", "default": "web"},
    ],
}
NOON_US = 1_767_614_400_000_000  # 2026-01-05
IN_VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as made:
        yield made


def form(registry: RegistryServer | None, format_: Format = Format.AVRO, **fields: Any) -> ValueForm:
    settings = {**registry.settings, "max.retries": 0} if registry else {}
    given = {"avro_schema": json.dumps(OWN), "descriptor": b"", "message": "", **fields}
    return ValueForm(format_, registry=json.dumps(settings) if settings else "", **given)


def decode(how: ValueForm, *values: bytes | None) -> list[tuple[bytes | None, str | None]]:
    """The payload and the refusal of each value."""
    rows = decode_values(pa.array(values, pa.binary()), how).to_pylist()
    return [(row["payload"], row["refusal"]) for row in rows]


def written(registry: RegistryServer, schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    client = SchemaRegistryClient(registry.settings)
    content: bytes = AvroSerializer(client, json.dumps(schema))(record, IN_VALUE)
    return content


def read(payload: bytes | None) -> Any:
    """A payload as a reader of the topic's own schema has it."""
    assert payload is not None
    return fastavro.schemaless_reader(BytesIO(payload), fastavro.parse_schema(OWN), None)


def with_fields(*fields: dict[str, Any]) -> dict[str, Any]:
    return {**OWN, "fields": list(fields)}


def test_a_record_of_the_topics_own_schema_stays_as_it_is(registry: RegistryServer) -> None:
    """Only the number goes. One question serves all records."""
    value = written(registry, OWN, {"id": "a", "ts": NOON_US, "amount": 3, "channel": "desk"})
    registry.asked.clear()
    assert decode(form(registry), value, value, None) == [(value[5:], None), (value[5:], None), (None, None)]
    assert registry.asked == [f"/schemas/ids/{FIRST}"]


def test_a_record_of_another_schema_is_written_again_in_the_topics_own(registry: RegistryServer) -> None:
    """A column that is new has its default, one that is gone is left out, an int becomes a long."""
    id_, ts, amount, _ = OWN["fields"]
    older = with_fields(id_, {"name": "note", "type": "string"}, ts, {"name": "amount", "type": "int"})
    value = written(registry, older, {"id": "a", "note": "x", "ts": NOON_US, "amount": 3})
    newer = with_fields(ts, amount, id_, {"name": "channel", "type": "string"})
    other = written(registry, newer, {"id": "b", "ts": NOON_US, "amount": None, "channel": "shop"})
    (first, _), (second, _) = decode(form(registry), value, other)
    assert {**read(first), "ts": None} == {"id": "a", "ts": None, "amount": 3, "channel": "web"}
    assert {**read(second), "ts": None} == {"id": "b", "ts": None, "amount": None, "channel": "shop"}
    assert read(first)["ts"] == read(second)["ts"]


def test_logical_types_change_no_byte(registry: RegistryServer) -> None:
    """A decimal stays the bytes that it is, and a time the number that it is."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    day = {"type": "int", "logicalType": "date"}
    id_, *_ = OWN["fields"]
    own = with_fields(
        id_,
        {"name": "price", "type": price},
        {"name": "day", "type": ["null", day], "default": None},
        {"name": "logicalType", "type": "string", "default": "date"},
    )
    older = with_fields({"name": "price", "type": price}, id_)
    value = written(registry, older, {"id": "a", "price": Decimal("12.34")})
    ((payload, _),) = decode(form(registry, avro_schema=json.dumps(own)), value)
    assert payload is not None
    found = fastavro.schemaless_reader(BytesIO(payload), fastavro.parse_schema(own), None)
    assert found == {"id": "a", "price": Decimal("12.34"), "day": None, "logicalType": "date"}


def test_a_schema_may_refer_to_others(registry: RegistryServer) -> None:
    """A type that is named in one subject is used in another."""
    city = {"name": "city", "type": "string"}
    place = {"type": "record", "name": "Place", "namespace": "shop", "fields": [city]}
    registry.register("place", json.dumps(place))
    refers = with_fields(OWN["fields"][0], {"name": "at", "type": "shop.Place"})
    reference = {"name": "shop.Place", "subject": "place", "version": 1}
    number = registry.register("orders-value", json.dumps(refers), references=[reference])
    own = with_fields(OWN["fields"][0], {"name": "at", "type": place})
    content = BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(own), {"id": "a", "at": {"city": "Bonn"}})
    value = b"\0" + number.to_bytes(4, "big") + content.getvalue()
    assert decode(form(registry, avro_schema=json.dumps(own)), value) == [(content.getvalue(), None)]


def test_a_value_is_refused_for_one_reason(registry: RegistryServer) -> None:
    """The letter says what to look at: the producer, the registry, or the schemas."""
    incompatible = written(registry, with_fields({"name": "ts", "type": "string"}), {"ts": "noon"})
    good = written(registry, OWN, {"id": "a", "ts": NOON_US, "amount": None, "channel": "web"})
    of_json = registry.register("orders-value", '{"type": "object"}', "JSON")
    torn = good[:8]
    framed = b"\0" + of_json.to_bytes(4, "big") + b"{}"
    refusals = [refusal for _, refusal in decode(form(registry), b"{}", b"\0\0\0\0\7x", framed, incompatible)]
    assert refusals[:3] == [
        "no schema's number in front of the value",
        "the schema registry knows no schema 7",
        f"schema {of_json} is of the kind JSON, not AVRO",
    ]
    assert refusals[3] is not None
    assert refusals[3].startswith(f"schema {FIRST} cannot be read as the topic's: ")
    older = written(registry, with_fields(*OWN["fields"][:3]), {"id": "a", "ts": 1, "amount": None})
    assert decode(form(registry), older[:8]) == [(None, None)]
    assert decode(form(registry), torn) == [(torn[5:], None)], "Spark's parser refuses it"


def test_an_unknown_number_is_asked_for_again_after_a_minute(registry: RegistryServer) -> None:
    """A million records with one unknown number are one question, and not for ever one answer."""
    now = 0.0
    asked = SchemaRegistry(registry.settings, lambda: now)
    assert asked.schema(FIRST) is None
    registry.register("orders-value", json.dumps(OWN))
    now = 59.0
    assert asked.schema(FIRST) is None
    now = 61.0
    assert asked.schema(FIRST) is not None
    assert len(registry.asked) == 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, {"error_code": 40101, "message": "nobody knows this account"}), "nobody knows this account"),
        ((503, {"error_code": 50302, "message": "no leader"}), "no leader"),
    ],
)
def test_a_registry_that_refuses_is_no_reason_to_refuse_a_record(
    registry: RegistryServer, answer: Any, says: str
) -> None:
    """The batch fails with the registry's words; when it answers again the records are rows."""
    value = written(registry, OWN, {"id": "a", "ts": NOON_US, "amount": None, "channel": "web"})
    registry.answer = answer
    with pytest.raises(RegistryUnavailableError, match=says):
        decode(form(registry), value)
    registry.answer = None
    assert decode(form(registry), value) == [(value[5:], None)]


def test_a_registry_that_is_not_there_is_named() -> None:
    """A person sees which address to check."""
    with registry_server() as gone:
        how = form(gone)
    with pytest.raises(RegistryUnavailableError, match=r"http://127\.0\.0\.1:\d+ was asked for schema 7"):
        decode(how, b"\0\0\0\0\7x")


def test_settings_that_the_client_refuses_are_named() -> None:
    """A misspelt setting must not look like an outage of the network."""
    with pytest.raises(RegistryUnavailableError, match="Unrecognized properties: bootstrap"):
        SchemaRegistry({"url": "http://registry", "bootstrap": "x"})


def test_the_account_goes_along() -> None:
    """The registry answers it alone, and no text shows it."""
    with registry_server(account="ann:secret") as made:
        value = written(made, OWN, {"id": "a", "ts": NOON_US, "amount": None, "channel": "web"})
        assert decode(form(made), value) == [(value[5:], None)]
        assert "secret" not in repr(form(made))


def test_json_stays_as_it_is_without_the_number(registry: RegistryServer) -> None:
    """Its columns and NOT NULL are the check, as of any JSON."""
    number = registry.register("orders-value", '{"type": "object"}', "JSON")
    value = b"\0" + number.to_bytes(4, "big") + b'{"id": "a"}'
    assert decode(form(registry, Format.JSON), value) == [(b'{"id": "a"}', None)]


@given(st.binary(max_size=40))
def test_no_bytes_stop_the_division(value: bytes) -> None:
    """Whatever a producer sends is divided or is not."""
    found = divided(value)
    if found is not None:
        number, rest = found
        assert b"\0" + number.to_bytes(4, "big") + rest == value


def protobuf_form(registry: RegistryServer | None) -> ValueForm:
    descriptor = protobuf_files().SerializeToString()
    return form(registry, Format.PROTOBUF, avro_schema="", descriptor=descriptor, message="shop.Order")


def test_a_message_becomes_json_whose_numbers_are_numbers() -> None:
    """In lists, maps and messages inside, too."""
    value = order(
        id="a",
        amount=2**60,
        part={"number": -(2**50)},
        parts=[{"number": 1, "blob": b"\xff"}, {}],
        sizes=[1, 2**55],
        totals={"x": -3},
        ts={"seconds": NOON_US // 1_000_000, "nanos": 5_000},
    )
    ((payload, refusal),) = decode(protobuf_form(None), value)
    assert refusal is None
    assert json.loads(payload or b"") == {
        "id": "a",
        "ts": "2026-01-05T12:00:00.000005Z",
        "amount": 2**60,
        "part": {"number": -(2**50), "blob": ""},
        "parts": [{"number": 1, "blob": "/w=="}, {"number": 0, "blob": ""}],
        "sizes": [1, 2**55],
        "totals": {"x": -3},
    }


def test_a_field_without_a_value_has_its_default_unless_it_has_presence() -> None:
    """As any reader of the third syntax has it."""
    ((payload, _),) = decode(protobuf_form(None), b"")
    assert json.loads(payload or b"") == {"id": "", "amount": 0, "parts": [], "sizes": [], "totals": {}}


@pytest.mark.parametrize("indexes", [b"\0", b"\x02\x02", b"\x04\x02\x00"], ids=["first", "second", "nested"])
def test_the_path_to_a_messages_type_is_passed_over(registry: RegistryServer, indexes: bytes) -> None:
    """It is a count and so many numbers; a single zero stands for the file's first type."""
    number = registry.register("orders-value", 'syntax = "proto3";', "PROTOBUF")
    head = b"\0" + number.to_bytes(4, "big") + indexes
    ((payload, refusal),) = decode(protobuf_form(registry), head + order(id="a"))
    assert (json.loads(payload or b"")["id"], refusal) == ("a", None)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_message_have_neither_payload_nor_refusal(value: bytes) -> None:
    """No bytes stop the batch."""
    ((payload, refusal),) = decode(protobuf_form(None), value)
    assert refusal is None
    assert payload is None or json.loads(payload)


def test_a_torn_path_is_no_message(registry: RegistryServer) -> None:
    """No bytes stop the batch."""
    number = registry.register("orders-value", 'syntax = "proto3";', "PROTOBUF")
    head = b"\0" + number.to_bytes(4, "big")
    how = protobuf_form(registry)

    @given(st.binary(max_size=20))
    def check(path: bytes) -> None:
        ((payload, refusal),) = decode(how, head + path)
        assert refusal is None
        assert payload is None or json.loads(payload)

    check()
    assert decode(how, head + b"\x02") == [(None, None)]
    assert decode(how, head + b"\x01") == [(None, None)], "no path has a number of steps below 0"
