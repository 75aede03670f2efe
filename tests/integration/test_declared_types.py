"""What a topic's schema may say is what Spark understands, and a record's field of each such type is read, or
is a dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, _parse_datatype_string

from hindcast import Format, Table, Topic, ddl, pipeline
from hindcast.pipeline import Pipeline
from hindcast.spark import kafka_source, parsed_records, transformation

AT = datetime(2026, 1, 5, 12, tzinfo=UTC)
LOCAL = AT.replace(tzinfo=None)

ACCEPTED = """
a int|a: int|a:int, b string|a INT NOT NULL COMMENT 'x'|a int comment "x"|a int comment 'it''s'|a int comment 'x' 'y'|a int comment r'x'
`a b` int|`a``b` int|`a,b` int|`a.b`: int|1a int|1_a int|_a int|select int|order int|date date|not int|null int|int int|interval int
a struct<>|a struct<x int>|a struct<x: int>|a struct<x:int NOT NULL COMMENT 'c', `y z`: string>|struct<a: int, b: string>|struct<a int>
a array<int>|a array <int>|a ARRAY<INT>|a array<array<int>>|a map<string,int>|a map<struct<x int>, array<map<int,int>>>
a timestamp|a timestamp_ntz|a timestamp_ltz|a timestamp without time zone|a date|a variant|a void|a binary|a boolean|a string
a interval|a interval year|a interval month|a interval year to month|a interval day|a interval hour|a interval minute|a interval second
a interval day to hour|a interval day to minute|a interval day to second|a interval hour to minute|a interval minute to second
a char(3)|a character(3)|a varchar(3)|a varchar (0)|a decimal|a dec(3)|a numeric(3,1)|a decimal( 38 , 38 )|a time|a time(3)
a real|a float|a double|a long|a bigint|a short|a smallint|a byte|a tinyint|a int|a integer|a geometry(4326)|a geography(any)
a string collate UTF8_LCASE|a string collate UNICODE_CI_AI|a string collate de_AI|a /* x */ int|a : int not null|a array<void>
""".strip()
REFUSED = """
a||,a int|a int,|a int b string|a int null|a.b int|a-b int|é int|a$ int|1 int|12 int|1L int|1e5 int|2d int|a::int|a int;
a int COMMENT 'x' NOT NULL|a int NOT NULL NOT NULL|a int comment 'x' comment 'y'|a int COMMENT|a int COMMENT x|a int NOT|`a int
a int comment 'x|a struct|a array|a map<string>|a map<int,int,int>|a array<int,int>|a struct<x>|a struct<x: int,>|a array<int not null>
a array<int>>|a timestamp with time zone|a null|a bool|a bytes|a text|a money|a double precision|a int(3)|a string(3)|a timestamp(3)
a interval month to year|a interval second to day|a interval year to year|a interval year to day|a interval week|a interval years
a char|a varchar|a decimal(39,1)|a decimal(3,4)|a decimal(3,-1)|a decimal()|a decimal(3,1,1)|a decimal(1e1)|a decimal(10.0)
a time(7)|a geometry|a string collate nonsense|a int default 1|a int generated always as (1)|a udt|a calendar_interval
""".strip()


def _cases(text: str) -> list[str]:
    return text.replace("\n", "|").split("|")


def _columns_of_spark(text: str) -> StructType | None:
    """The columns that Spark reads, None if it reads none."""
    try:
        found = _parse_datatype_string(text)
    except (
        PySparkException,
        Py4JJavaError,
    ):  # a time's precision and a collation are checked outside Spark's parser
        return None
    if not isinstance(found, StructType) or not found.fields:
        return None
    return found


def _without_comments(found: Any) -> Any:
    """The JSON of a type, without what the columns say of themselves."""
    if isinstance(found, dict):
        kept = {name: value for name, value in found.items() if name != "metadata"}
        return {name: _without_comments(value) for name, value in kept.items()}
    if isinstance(found, list):
        return [_without_comments(value) for value in found]
    return found


@pytest.mark.usefixtures("spark")
def test_spark_and_the_loader_accept_the_same_schemas() -> None:
    """What Spark reads is read, as the very same columns, and what Spark refuses is refused."""
    differ = []
    for text in _cases(ACCEPTED) + _cases(REFUSED):
        by_spark = _columns_of_spark(text)
        try:
            ours = ddl.columns_text(ddl.parse(text))
        except ValueError:
            ours = None
        if by_spark is None or ours is None:
            agree = by_spark is None and ours is None and text in _cases(REFUSED)
        else:
            again = _columns_of_spark(ours)
            agree = again is not None and _without_comments(again.jsonValue()) == _without_comments(
                by_spark.jsonValue()
            )
            agree = agree and text in _cases(ACCEPTED)
        if not agree:
            differ.append((text, by_spark, ours))
    assert differ == []


def _declared(topic: Topic) -> Pipeline:
    @pipeline(source=topic, event_time="ts", watermark="1 second", sink=Table("results"), version=1)
    def reads(rows: Any) -> Any:
        return rows

    return reads


def _parsed(spark: SparkSession, topic: Topic, values: Iterable[bytes]) -> list[Row]:
    """The records that have these values, as the stream parses them, intervals as text."""
    records = [(None, value, topic.name, 0, offset, AT) for offset, value in enumerate(values)]
    raw = spark.createDataFrame(records, kafka_source.record_ddl(topic))
    parsed = parsed_records.parse(raw, _declared(topic))
    column = F.col(ddl.quoted("the a"))
    kind = parsed.schema["the a"].dataType.simpleString()
    if "interval" in kind:
        column = column.cast("string")
    if "variant" in kind:
        column = F.to_json(F.struct(column.alias("v")))
    return parsed.select(column.alias("a"), "_reason").orderBy("_offset").collect()


JSON_TYPES = [
    ("timestamp_ntz", "2026-01-05T12:00:00", LOCAL, "2026-01-05T12:00:00Z"),
    ("timestamp without time zone", "2026-01-05T12:00:00", LOCAL, 12),
    ("timestamp_ltz", "2026-01-05T12:00:00Z", LOCAL, "noon"),
    ("variant", {"x": [1, "a"]}, '{"v":{"x":[1,"a"]}}', None),
    ("array<variant>", [1, "a"], '{"v":[1,"a"]}', 1),
    ("map<string, variant>", {"x": 1}, '{"v":{"x":1}}', 1),
    ("interval day to second", "1 02:03:04", "INTERVAL '1 02:03:04' DAY TO SECOND", "soon"),
    ("interval year to month", "1-2", "INTERVAL '1-2' YEAR TO MONTH", "soon"),
    ("interval hour", "INTERVAL '7' HOUR", "INTERVAL '07' HOUR", True),
    ("dec(3, 1)", 12.3, Decimal("12.3"), 1234.5),
    ("numeric", 12, Decimal(12), "many"),
    ("real", 1.5, 1.5, "much"),
    ("string collate UTF8_LCASE", "Ab", "Ab", None),
    ("struct<x: int, `y z`: string>", {"x": 1, "y z": "b"}, Row(x=1, **{"y z": "b"}), "x"),
    ("int COMMENT 'of some, kind'", 3, 3, "three"),
]


@pytest.mark.parametrize(
    ("kind", "value", "read", "wrong"), JSON_TYPES, ids=[kind for kind, *_ in JSON_TYPES]
)
def test_each_type_is_read_from_json(
    spark: SparkSession, kind: str, value: Any, read: Any, wrong: Any
) -> None:
    """A value of the type is read; a value of another kind makes the record a dead letter, and a missing one
    is null.
    """
    topic = Topic("t", f"ts timestamp, `the a` {kind}")
    lines: list[dict[str, Any]] = [{"the a": value}, {}]
    if wrong is not None:
        lines.append({"the a": wrong})
    good, missing, *bad = _parsed(
        spark, topic, [json.dumps({"ts": AT.isoformat(), **line}).encode() for line in lines]
    )
    assert (good.a, good._reason) == (read, None)
    assert (missing.a if "variant" not in kind else None, missing._reason) == (None, None)
    assert [row._reason for row in bad] == ["does not parse as the topic's schema"] * len(bad)


TORN = "does not parse as the topic's schema"
#: Spark would take each of these numbers for 0, and without a wait: so they show that nothing else was asked.
ENDLESS_ZERO = "0e300000000"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("decimal(10, 2)", "#"),
        ("DEC(10, 2)", "#"),
        ("numeric(10, 2)", "#"),
        ("numeric", "#"),
        ("array<dec(3, 1)>", "[1, #]"),
        ("map<string, numeric(3, 1)>", '{"x": #}'),
        ("struct<x: array<struct<y: dec>>>", '{"x": [{"y": 1}, {"y": #}]}'),
    ],
)
def test_an_endless_number_is_no_decimal_of_any_name(spark: SparkSession, kind: str, value: str) -> None:
    """Spark would write it out, digit by digit. A number that ends is read; a string may hold either."""
    topic = Topic("t", f"ts timestamp, `the a` {kind}")
    lines = []
    for number in ("0e300", '"0e300"', ENDLESS_ZERO, f'"{ENDLESS_ZERO}"'):
        of_a = value.replace("#", number)
        lines.append(f'{{"ts": "2026-01-05T12:00:00Z", "the a": {of_a}}}'.encode())
    assert [row._reason for row in _parsed(spark, topic, lines)] == [None, None, TORN, TORN]


@pytest.mark.parametrize(
    "written",
    [
        ENDLESS_ZERO,
        "0E-300000000",
        "-0.00e+00300000000",
        "0e3,00,000000",
        "0,e,3000",
        ",0e,1000",
        ".0e9999",
        r"\u0030\u0065\u0033000",
        r"0\u0045\u002b300\u002C0",
        "0e\u0663\u0660\u0660\u0660",
        r"\u0660e\u0663\u0660\u0660\u0660",
        "0" * 1001,
        "0." + "0" * 1001,
    ],
    ids=lambda written: ascii(written[:30]),
)
def test_an_endless_number_in_a_string_is_no_decimal(spark: SparkSession, written: str) -> None:
    """Spark reads a decimal out of a string, too, in all of these forms. Each is a dead letter wherever the
    record has it, and in a column of text it is text.
    """
    topic = Topic("t", "ts timestamp, name string, raw binary, `the a` numeric(10, 2)")
    records = [
        f'{{"ts": "2026-01-05T12:00:00Z", "the a": "{written}", "name": "x"}}',
        f"{{'ts': '2026-01-05T12:00:00Z', 'name': 'x', 'the a': '{written}'}}",
        f'{{"the a": "{written}", "the a": 1, "ts": "2026-01-05T12:00:00Z"}}',
        f'{{"ts": "2026-01-05T12:00:00Z", "name": "{written}", "{written}": "", "the a": 1.5, "raw": "1e999999"}}',
        f'{{"{written}": 1, "ts": "2026-01-05T12:00:00Z", "other": "{written}", "the a": "1,000.5"}}',
    ]
    found = _parsed(spark, topic, [record.encode() for record in records])
    assert [row._reason for row in found] == [TORN, TORN, TORN, None, None]
    assert [row.a for row in found[3:]] == [Decimal("1.50"), Decimal("1000.50")]


def test_a_number_that_ends_is_a_decimal_in_a_string(spark: SparkSession) -> None:
    """A leading zero of an exponent is none of its digits. What only looks like an endless number, in a record
    that has strings on both sides of numbers, hides nothing.
    """
    topic = Topic(
        "t", "ts timestamp, name string, others array<string>, sizes array<int>, `the a` dec(10, 2)"
    )
    at = '"ts": "2026-01-05T12:00:00Z"'
    sizes = ", ".join(["1"] * 1001).replace(" ", "")
    records = [
        f'{{{at}, "the a": "12.5e-0000001"}}',
        f'{{{at}, "the a": "\\u0031\\u002e5"}}',
        f'{{"others": ["a", "1e9999", "b"], "sizes": [{sizes}], {at}, "name": "\\"1e9999", "the a": "2e3"}}',
        f'{{{at}, "others": ["{"1" * 1001}"], "name": \'"1e9999"\', "the a": "7"}}',
    ]
    found = _parsed(spark, topic, [record.encode() for record in records])
    assert [row._reason for row in found] == [None] * 4
    assert [row.a for row in found] == [Decimal("1.25"), Decimal("1.5"), Decimal(2000), Decimal(7)]


def test_a_required_column_in_back_ticks_makes_dead_letters(spark: SparkSession) -> None:
    """NOT NULL holds for a column of any name and type."""
    topic = Topic("t", "ts: timestamp, `the a`: variant NOT NULL")
    lines = [b'{"ts": "2026-01-05T12:00:00Z", "the a": 1}', b'{"ts": "2026-01-05T12:00:00Z"}']
    assert [row._reason for row in _parsed(spark, topic, lines)] == [None, "no the a"]


@pytest.mark.parametrize(
    ("kind", "expression", "read"),
    [
        ("timestamp_ntz", "'2026-01-05T12:00:00'", LOCAL),
        ("interval day to second", "'1 02:03:04'", "INTERVAL '1 02:03:04' DAY TO SECOND"),
        ("variant", "parse_json('[1]')", '{"v":[1]}'),
        ("struct<x: int NOT NULL>", "named_struct('x', 1)", Row(x=1)),
    ],
)
def test_each_type_is_read_from_text(spark: SparkSession, kind: str, expression: str, read: Any) -> None:
    """What a parse function finds is cast to the declared types; a line that it does not know is a dead
    letter.
    """

    def from_line(line: Any) -> Any:
        at = F.to_timestamp(F.split_part(line, F.lit(" "), F.lit(1)))
        return F.when(F.length(line) > 5, F.struct(at.alias("ts"), F.expr(expression).alias("the a")))

    topic = Topic("t", f"ts timestamp, `the a` {kind}", format=Format.TEXT, parse=from_line)
    good, bad = _parsed(spark, topic, [b"2026-01-05T12:00:00Z x", b"?"])
    assert (good.a, good._reason) == (read, None)
    assert bad._reason == "does not parse as the topic's schema"


def test_a_local_timestamp_is_read_from_avro(spark: SparkSession) -> None:
    """Avro's local-timestamp-micros is a timestamp_ntz."""
    micros = int((AT - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
    kinds = {"ts": "timestamp-micros", "a": "local-timestamp-micros"}
    fields = [{"name": name, "type": {"type": "long", "logicalType": kind}} for name, kind in kinds.items()]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    topic = Topic("t", "ts timestamp, a timestamp_ntz", format=Format.AVRO, avro_schema=schema)
    raw = spark.createDataFrame([(None, _long(micros) * 2, "t", 0, 0, AT)], kafka_source.record_ddl(topic))
    (row,) = parsed_records.parse(raw, _declared(topic)).select("a", "_reason").collect()
    assert (row.a, row._reason) == (LOCAL, None)


def _long(number: int) -> bytes:
    """Avro's zig-zag variable-length form of a number that is not negative."""
    number *= 2
    digits = bytearray()
    while number >= 128:
        digits.append(number % 128 + 128)
        number //= 128
    return bytes([*digits, number])


def test_an_event_time_of_an_unusual_name_moves_the_watermark(spark: SparkSession) -> None:
    """A name in back-ticks serves as event time, in windows and watermarks."""
    topic = Topic("t", "`the ts`: timestamp, `the a` int")
    declared = replace(_declared(Topic("t", "ts timestamp")), source=topic, event_time="the ts")
    (frame,) = parsed_records.unread(spark, declared)
    kept = transformation.result([frame], declared, {})
    assert kept.columns == ["_partition", "_offset", "_timestamp", "the ts", "the a"]
