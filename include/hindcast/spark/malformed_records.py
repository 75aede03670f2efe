"""Parse the value of a record, and say why one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from hindcast.ddl import columns_text, quoted
from hindcast.pipeline import Format, Pipeline, Topic

_CORRUPT = "_corrupt"

_LONG_EXPONENT = r"[0-9.][eE][+-]?0*[1-9][0-9]{3}"
#: A string in quotes of either kind, as Spark reads both. A string that does not end counts, too. The pattern
#: tries nothing in two ways, so a long record takes time in proportion to its length.
_JSON_STRING = r"""(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?|'[^'\\]*+(?:\\.[^'\\]*+)*+'?"""


def _json(value: Column, topic: Topic) -> Column:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    text = value.cast("string")
    if "decimal" in topic.schema.lower():
        text = F.when(~_has_endless_number(text), text)
    return F.from_json(text, f"{columns_text(topic.fields)}, {_CORRUPT} string", options)


def _has_endless_number(text: Column) -> Column:
    """Whether a number's exponent has four digits or more, leading zeros aside.

    Spark writes a decimal out, digit by digit, before it checks whether it fits its column. For 1e30000000
    that takes minutes, and with a few more zeros all memory. Such a number fits no decimal, and is no finite
    double either. What stands in a string does not count.
    """
    outside_strings = F.regexp_replace(text, _JSON_STRING, '""')
    endless = F.when(text.rlike(_LONG_EXPONENT), outside_strings.rlike(_LONG_EXPONENT))
    return F.coalesce(endless, F.lit(False))


def _text(value: Column, topic: Topic) -> Column:
    assert topic.parse is not None
    # Bytes that are no UTF-8 become the replacement character: one of them does not cost the whole line.
    line = F.make_valid_utf8(value.cast("string"))
    found = topic.parse(line).alias("_found")
    return F.when(found.isNotNull(), found).cast(f"struct<{_struct(topic)}>")


def _avro(value: Column, topic: Topic) -> Column:
    return from_avro(value, topic.avro_schema, {"mode": "PERMISSIVE"})


PARSERS: dict[Format, Callable[[Column, Topic], Column]] = {
    Format.JSON: _json,
    Format.TEXT: _text,
    Format.AVRO: _avro,
}


def _struct(topic: Topic) -> str:
    return ", ".join(f"{quoted(name)}: {kind}" for name, kind in topic.columns.items())


def refusal_reason(pipeline: Pipeline, topic: Topic) -> Column:
    """Why the parsed record is poison; null if it is usable."""
    record = F.col("_record")
    event_time = pipeline.event_time_of(topic)
    limit_us = int(pipeline.future_limit.total_seconds() * 1_000_000)
    latest = F.timestamp_micros(F.unix_micros("_timestamp") + F.lit(limit_us))
    reason = (
        F.when(F.col("_value").isNull(), "no value")
        .when(_torn(record, topic), "does not parse as the topic's schema")
        .when(record[event_time].isNull(), f"no {event_time}")
        .when(record[event_time] > latest, f"{event_time} is more than {pipeline.max_future} in the future")
    )
    for name in topic.required:
        reason = reason.when(record[name].isNull(), f"no {name}")
    return reason


def _torn(record: Column, topic: Topic) -> Column:
    """Whether the parser made nothing of the value.

    If Avro does not decode, Spark makes a record without any value.
    """
    if topic.format is Format.JSON:
        return record.isNull() | record[_CORRUPT].isNotNull()
    if topic.format is Format.AVRO:
        fields = json.loads(topic.avro_schema)["fields"]
        return reduce(and_, [record[field["name"]].isNull() for field in fields])
    return record.isNull()
