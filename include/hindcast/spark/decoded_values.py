"""Values that none of Spark's parsers takes as they are: those of a schema registry's serializers, and
Protobuf. Python makes of each what a parser takes.

A value becomes a *payload*: JSON stays as it is without the number of its schema; Avro is written again in
the topic's own schema, if it was written in another; a message of Protobuf becomes JSON. Or there is a
*refusal*, which says why there is no payload. Both are null of a value that does not decode.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.errors import PrerequisiteError, SettingsRefusedError
from hindcast.pipeline import Format, Topic
from hindcast.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

    from hindcast.kafka.schema_registry import SchemaRegistry

#: The columns of a decoded value, with Spark's types.
DECODED = {"payload": "binary", "refusal": "string"}
_DECODED_DDL = ", ".join(f"{name}: {kind}" for name, kind in DECODED.items())
#: The packages of the extra ``registry``, by what they are imported as.
_PACKAGES = ("confluent_kafka", "fastavro", "google.protobuf")
#: The names that a registry gives to the formats.
_KINDS = {Format.JSON: "JSON", Format.AVRO: "AVRO", Format.PROTOBUF: "PROTOBUF"}
#: Messages that stand for a whole number of 64 bits.
_LONG_WRAPPERS = frozenset({"google.protobuf.Int64Value", "google.protobuf.UInt64Value"})


@dataclass(frozen=True)
class ValueForm:
    """How a topic's values are decoded. It goes to the executors, whose processes keep a decoder for it."""

    format: Format
    avro_schema: str
    descriptor: bytes
    message: str
    #: The settings of the registry's client as JSON; empty if no number of a schema stands in front.
    registry: str = field(repr=False)


class _RefusedError(Exception):
    """Why a value has no payload."""


def decoded(value: Column, topic: Topic, settings: Settings | None) -> Column:
    """A struct of :data:`DECODED` for each value.

    :param settings: None if no number of a schema stands in front of the values
    :raises SettingsRefusedError: if the topic's values come from a registry, and no setting names it
    :raises PrerequisiteError: if the packages that decode are not there
    """
    registry = ""
    if topic.registry and settings is not None:
        registry = _registry_of(topic, settings)
    for package in _PACKAGES:
        if find_spec(package) is None:
            problem = f"{package} is not installed, which decodes the values of the topic {topic.name}"
            cure = 'Run `pip install "hindcast[registry]"`.'
            raise PrerequisiteError(what="Python's packages", problem=problem, cure=cure)
    form = ValueForm(topic.format, topic.avro_schema, topic.descriptor, topic.message, registry)

    def decode(values: pa.Array) -> pa.Array:
        return decode_values(values, form)

    arrow_udf: Any = F.arrow_udf  # its types know no functions of arrays
    column: Column = arrow_udf(decode, f"struct<{_DECODED_DDL}>")(value)
    return column


def _registry_of(topic: Topic, settings: Settings) -> str:
    if not settings.schema_registry:
        problem = (
            f"\n- HINDCAST_SCHEMA_REGISTRY: the topic {topic.name} has registry=True. "
            'Name the registry: \'{"url": "https://registry:8081"}\''
        )
        raise SettingsRefusedError(count=1, problems=problem)
    return json.dumps(settings.schema_registry, sort_keys=True)


def decode_values(values: pa.Array, form: ValueForm) -> pa.Array:
    """The payload and the refusal of each value, as a struct.

    :param values: binary
    :raises RegistryUnavailableError: if a schema is needed that the registry does not give
    """
    decoder = _decoder(form)
    payloads: list[bytes | None] = []
    refusals: list[str | None] = []
    for value in values.to_pylist():
        payload = refusal = None
        try:
            if value is not None:
                payload = decoder(value)
        except _RefusedError as error:
            refusal = str(error)
        payloads.append(payload)
        refusals.append(refusal)
    columns = [pa.array(payloads, pa.binary()), pa.array(refusals, pa.string())]
    return pa.StructArray.from_arrays(columns, names=list(DECODED))


@lru_cache(maxsize=64)
def _decoder(form: ValueForm) -> Callable[[bytes], bytes | None]:
    """What makes a payload of a value, None of one that does not decode. It may raise `_RefusedError`."""
    if not form.registry:
        return _Plain(form)
    return _Framed(form)


class _Plain:
    """Values without the number of a schema."""

    def __init__(self, form: ValueForm) -> None:
        self._message = _Message(form) if form.format is Format.PROTOBUF else None

    def __call__(self, value: bytes) -> bytes | None:
        if self._message is None:
            return value
        return self._message.as_json(value)


class _Framed:
    """Values with the number of their schema in front."""

    def __init__(self, form: ValueForm) -> None:
        from hindcast.kafka.schema_registry import SchemaRegistry, divided

        self._divided = divided
        self._kind = _KINDS[form.format]
        self._registry: SchemaRegistry = SchemaRegistry(json.loads(form.registry))
        self._payload: Callable[[int, Schema, bytes], bytes | None] = _as_it_is
        if form.format is Format.AVRO:
            self._payload = _Records(form.avro_schema, self._registry).in_own_schema
        elif form.format is Format.PROTOBUF:
            message = _Message(form)
            self._payload = lambda _, __, rest: message.as_json(_without_indexes(rest))

    def __call__(self, value: bytes) -> bytes | None:
        found = self._divided(value)
        if found is None:
            raise _RefusedError("no schema's number in front of the value")
        number, rest = found
        schema = self._registry.schema(number)
        if schema is None:
            raise _RefusedError(f"the schema registry knows no schema {number}")
        if schema.schema_type != self._kind:
            raise _RefusedError(f"schema {number} is of the kind {schema.schema_type}, not {self._kind}")
        return self._payload(number, schema, rest)


def _as_it_is(_: int, __: Schema, rest: bytes) -> bytes:
    return rest


class _Records:
    """Records of Avro, from the schemas in which they were written to the topic's own.

    Logical types are left out of both: they change no byte, and a record is resolved by its bytes (Avro's
    specification, section "Schema Resolution").
    """

    def __init__(self, avro_schema: str, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._own: Any = _parsed(avro_schema, {})
        self._written: dict[int, Any] = {}

    def in_own_schema(self, number: int, schema: Schema, rest: bytes) -> bytes | None:
        """The record in the topic's schema; None if it does not decode."""
        import fastavro
        from fastavro.read import SchemaResolutionError

        written = self._written_in(number, schema)
        if written is None:
            return rest
        try:
            record = fastavro.schemaless_reader(BytesIO(rest), written, self._own)
            content = BytesIO()
            fastavro.schemaless_writer(content, self._own, record)
        except SchemaResolutionError as error:
            raise _RefusedError(f"schema {number} cannot be read as the topic's: {error}") from error
        except Exception:  # noqa: BLE001 - bytes that are no record raise whatever they lead to
            return None
        return content.getvalue()

    def _written_in(self, number: int, schema: Schema) -> Any:
        """The writer's schema; None if it is the topic's own."""
        from fastavro.schema import to_parsing_canonical_form

        if number not in self._written:
            named: dict[str, Any] = {}
            referred = self._registry.referred(schema)
            for text in referred:
                _parsed(text, named)
            written = _parsed(str(schema.schema_str), named)
            if not referred and to_parsing_canonical_form(written) == to_parsing_canonical_form(self._own):
                written = None
            self._written[number] = written
        return self._written[number]


def _parsed(avro_schema: str, named: dict[str, Any]) -> Any:
    """A schema as fastavro takes it.

    :param named: the schemas that it may refer to, by their names; its own are added
    """
    import fastavro

    return fastavro.parse_schema(_without_logical_types(json.loads(avro_schema)), named_schemas=named)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for name, value in schema.items():
        if name == "logicalType":
            continue
        # A default is a value: what looks like a schema in it is none.
        kept[name] = value if name == "default" else _without_logical_types(value)
    return kept


class _Message:
    """A message of Protobuf."""

    def __init__(self, form: ValueForm) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        files = descriptor_pb2.FileDescriptorSet.FromString(form.descriptor)
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        self._descriptor = pool.FindMessageTypeByName(form.message)
        self._class = message_factory.GetMessageClass(self._descriptor)

    def as_json(self, value: bytes | None) -> bytes | None:
        """The message as a JSON object with the names of its fields; None if it does not decode.

        It is Protobuf's own mapping to JSON, but whole numbers of 64 bits are numbers: Spark takes no text
        for them. A field without presence has its default value if the message does not have it.
        """
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError

        if value is None:
            return None
        try:
            message = self._class.FromString(value)
        except DecodeError:
            return None
        fields = MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return json.dumps(_with_numbers(fields, self._descriptor)).encode()


def _with_numbers(fields: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    """The fields of a message with numbers in place of texts that are numbers of 64 bits."""
    if descriptor.full_name.startswith("google.protobuf."):
        return fields
    for name, one in descriptor.fields_by_name.items():
        if name not in fields:
            continue
        value = fields[name]
        kind = one.message_type
        if kind is not None and kind.GetOptions().map_entry:
            of_value = kind.fields_by_name["value"]
            fields[name] = {key: _as_number(item, of_value) for key, item in value.items()}
        elif isinstance(value, list):
            fields[name] = [_as_number(item, one) for item in value]
        else:
            fields[name] = _as_number(value, one)
    return fields


def _as_number(value: Any, described: Any) -> Any:
    kind = described.message_type
    if kind is not None and kind.full_name in _LONG_WRAPPERS:
        return int(value)
    if kind is not None and isinstance(value, dict):
        return _with_numbers(value, kind)
    if described.cpp_type in {described.CPPTYPE_INT64, described.CPPTYPE_UINT64}:
        return int(value)
    return value


def _without_indexes(rest: bytes) -> bytes | None:
    """The message after the path to its type in its file: a count and so many numbers, in varints of
    Protobuf's ``sint32``. A count of 0 is short for the file's first type. None if it breaks off.
    """
    count, place = _number_at(rest, 0)
    for _ in range(count):
        if place is None:
            return None
        _, place = _number_at(rest, place)
    if place is None or count < 0:
        return None
    return rest[place:]


def _number_at(content: bytes, place: int) -> tuple[int, int | None]:
    """The number that begins here, and the place after it; None for the place if it breaks off."""
    found = 0
    shift = 0
    for at in range(place, len(content)):
        byte = content[at]
        found |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint
            return (found >> 1) ^ -(found & 1), at + 1
        shift += 7
    return 0, None
