"""Parse the value of a record, and say why one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from hindcast.ddl import Type, columns_text, quoted
from hindcast.pipeline import Format, Pipeline, Topic

_CORRUPT = "_corrupt"

_LONG_EXPONENT = r"[0-9.][eE][+-]?0*[1-9][0-9]{3}"
#: A string in quotes of either kind, as Spark reads both. A string that does not end counts, too.
_STRING = r"""(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"?|'[^'\\]*+(?:\\.[^'\\]*+)*+'?)"""

# The pieces of a number in a string. Each of them may be an escape. Spark drops all commas, and takes the
# digits of every script. An escape beyond Latin-1 counts as a digit, whatever it is.
_DIGIT = r"(?:\p{Nd}|\\u003[0-9]|\\u(?!00)[0-9a-fA-F]{4})"
_ZERO = r"(?:0|\\u0030)"
_COMMA = r"(?:,|\\u002[cC])"
_POINT = r"(?:\.|\\u002[eE])"
_SIGN = r"(?:[+-]|\\u002[bBdD])"
_E = r"(?:[eE]|\\u00[46]5)"
_MANTISSA = f"(?:{_DIGIT}|{_COMMA}|{_POINT}|{_SIGN})*+"
_EXPONENT = f"(?:{_SIGN}|{_COMMA})*+(?:{_ZERO}|{_COMMA})*+(?:{_DIGIT}{_COMMA}*+){{4,}}+"
#: A number in a string has no limit of its own, as one outside has: Spark reads 1,000 digits there.
_LONG = f"(?:{_DIGIT}|{_COMMA}|{_POINT}|{_SIGN}|{_E}){{1001,}}+"
_ENDLESS = f"(?:{_MANTISSA}{_E}{_EXPONENT}|{_LONG})"
#: A string that is such a number and no more. It is a value: a colon would make it a name.
_ENDLESS_STRING = rf"""(?:"{_ENDLESS}"|'{_ENDLESS}')(?!\s*+:)"""
#: Nearly every record has nothing of the kind, and this pattern finds that out in much less time.
_MAYBE_ENDLESS = r"""["'](?:[-+.,\p{Nd}\\]++[eEu]|[-+.,\p{Nd}\\a-fA-Fu]{1001})"""
#: One of these strings and all between it and the one before. Strings are counted from the beginning, so that
#: nothing between two of them is taken for one.
_UP_TO_ENDLESS_STRING = rf"""(?s)\G((?:[^"']++|(?!{_ENDLESS_STRING}){_STRING})*+){_ENDLESS_STRING}"""
#: What replaces it: no number, but base64, which a binary column takes.
_NO_NUMBER = '$1"eeee"'

# Nothing in these patterns is tried in two ways, so a long record takes time in proportion to its length.


def _json(value: Column, topic: Topic) -> Column:
    text = value.cast("string")
    if _has_decimals(topic):
        text = _without_endless_decimals(text, topic)
    return _from_json(text, topic)


def _from_json(text: Column, topic: Topic) -> Column:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return F.from_json(text, f"{columns_text(topic.fields)}, {_CORRUPT} string", options)


def _has_decimals(topic: Topic) -> bool:
    """Whether a column is a decimal, or has one inside."""
    kinds: list[Type] = []
    for column in topic.fields:
        kinds.extend(column.type.every())
    return any(kind.name == "decimal" for kind in kinds)


def _without_endless_decimals(text: Column, topic: Topic) -> Column:
    """The text of a record; null if a decimal of it has an exponent of four digits or more, leading zeros
    aside, or more than 1,000 digits.

    Spark writes a decimal out, digit by digit, before it checks whether it fits its column. For 1e30000000
    that takes minutes, and with a few more zeros all memory. Such a number fits no decimal, and is no finite
    double either, so the record is refused wherever the number stands.

    Spark takes a decimal out of a string, too. There the same characters may be the text of another column.
    So the record is parsed once more, with another text in place of each of these strings. If it parses, none
    of them belongs to a decimal. Few records have such a string; no other is parsed twice.
    """
    harmless = F.regexp_replace(text, _UP_TO_ENDLESS_STRING, _NO_NUMBER)
    has_endless_string = text.rlike(_MAYBE_ENDLESS) & text.rlike(_ENDLESS_STRING)
    only_text = ~_torn(_from_json(harmless, topic), topic)
    return (
        F.when(_has_endless_number(text), None)
        .when(has_endless_string, F.when(only_text, text))
        .otherwise(text)
    )


def _has_endless_number(text: Column) -> Column:
    """Whether a number outside strings has an exponent of four digits or more, leading zeros aside."""
    outside_strings = F.regexp_replace(text, f"(?s){_STRING}", '""')
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
    Format.PROTOBUF: _json,  # which its decoder makes of it
}


def _struct(topic: Topic) -> str:
    return ", ".join(f"{quoted(name)}: {kind}" for name, kind in topic.columns.items())


def refusal_reason(pipeline: Pipeline, topic: Topic) -> Column:
    """Why the parsed record is poison; null if it is usable."""
    record = F.col("_record")
    event_time = pipeline.event_time_of(topic)
    limit_us = int(pipeline.future_limit.total_seconds() * 1_000_000)
    latest = F.timestamp_micros(F.unix_micros("_timestamp") + F.lit(limit_us))
    without_value = F.lit("no value")
    if topic.tombstones:
        without_value = F.when(F.col("_key").isNull(), "neither a key nor a value")
    reason = F.when(F.col("_value").isNull(), without_value)
    if topic.is_decoded:
        reason = reason.when(F.col("_refusal").isNotNull(), F.col("_refusal"))
    reason = (
        reason.when(_torn(record, topic), "does not parse as the topic's schema")
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
    if topic.format in {Format.JSON, Format.PROTOBUF}:
        return record.isNull() | record[_CORRUPT].isNotNull()
    if topic.format is Format.AVRO:
        fields = json.loads(topic.avro_schema)["fields"]
        return reduce(and_, [record[field["name"]].isNull() for field in fields])
    return record.isNull()
