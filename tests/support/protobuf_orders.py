"""Messages of Protobuf for tests: an order and its parts."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2


def _field(name: str, number: int, kind: str, **more: Any) -> descriptor_pb2.FieldDescriptorProto:
    label = "LABEL_REPEATED" if more.pop("repeated", False) else "LABEL_OPTIONAL"
    return descriptor_pb2.FieldDescriptorProto(
        name=name, number=number, type=f"TYPE_{kind}", label=label, **more
    )


def protobuf_files() -> descriptor_pb2.FileDescriptorSet:
    """What ``protoc --include_imports --descriptor_set_out`` writes for two messages: an order and a part."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    part = file.message_type.add(name="Part")
    part.field.extend([_field("number", 1, "INT64"), _field("blob", 2, "BYTES")])
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TotalsEntry")
    entry.options.map_entry = True
    entry.field.extend([_field("key", 1, "STRING"), _field("value", 2, "SINT64")])
    order.field.extend(
        [
            _field("id", 1, "STRING"),
            _field("ts", 2, "MESSAGE", type_name=".google.protobuf.Timestamp"),
            _field("amount", 3, "UINT64"),
            _field("part", 4, "MESSAGE", type_name=".shop.Part"),
            _field("parts", 5, "MESSAGE", type_name=".shop.Part", repeated=True),
            _field("sizes", 6, "INT64", repeated=True),
            _field("totals", 7, "MESSAGE", type_name=".shop.Order.TotalsEntry", repeated=True),
        ]
    )
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    return descriptor_pb2.FileDescriptorSet(file=[known, file])


def order(**fields: Any) -> bytes:
    """A message ``shop.Order``."""
    classes = message_factory.GetMessages(protobuf_files().file)
    content: bytes = classes["shop.Order"](**fields).SerializeToString()
    return content
