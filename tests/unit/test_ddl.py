"""Spark's DDL read without Spark. That Spark agrees is in tests/integration/test_declared_types.py."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast import ddl
from hindcast.ddl import Column, Type
from hindcast.pipeline import Topic

_WORDS = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "date",
    "timestamp",
    "timestamp_ntz",
]
_WORDS += ["binary", "void", "variant", "string"]
_UNITS = ["", "year", "month", "year to month", "day", "hour", "day to second", "hour to minute", "second"]
_SIMPLE = st.one_of(
    st.sampled_from(_WORDS).map(Type),
    st.sampled_from(_UNITS).map(lambda unit: Type("interval", unit=unit)),
    st.integers(1, 38).flatmap(
        lambda precision: st.integers(0, precision).map(lambda scale: Type("decimal", (precision, scale)))
    ),
    st.builds(
        lambda name, length: Type(name, (length,)), st.sampled_from(["char", "varchar"]), st.integers(0, 1000)
    ),
    st.builds(lambda digits: Type("time", (digits,)), st.integers(0, 6)),
)


def _nested(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    return st.one_of(
        st.builds(lambda element: Type("array", elements=(element,)), inner),
        st.builds(lambda key, value: Type("map", elements=(key, value)), inner, inner),
        st.builds(
            lambda columns: Type("struct", columns=tuple(columns)), st.lists(_column(inner), max_size=3)
        ),
    )


def _column(kinds: st.SearchStrategy[Type]) -> st.SearchStrategy[Column]:
    return st.builds(Column, st.text(max_size=8), kinds, st.booleans())


COLUMNS = st.lists(_column(st.recursive(_SIMPLE, _nested, max_leaves=6)), min_size=1, max_size=4).map(tuple)


@given(COLUMNS, st.sampled_from([" ", ": "]))
def test_what_is_written_is_read_back(columns: tuple[Column, ...], between: str) -> None:
    """Columns of any name and type, as text with colons or without, are the same columns again."""
    assert ddl.parse(ddl.columns_text(columns, between)) == columns


@given(st.text(alphabet="ab1 `'\"\\<>(),:-.\né", max_size=30))
def test_any_text_is_columns_or_a_reason(text: str) -> None:
    """Nothing but ValueError comes of a text that is no DDL, and what is read can be read again."""
    try:
        columns = ddl.parse(text)
    except ValueError:
        return
    assert ddl.parse(ddl.columns_text(columns)) == columns


def test_columns_are_shown_as_spark_shows_them() -> None:
    """Names keep their case and types get Spark's own names; NOT NULL and comments are no part of a type."""
    schema = (
        "Ticker STRING NOT NULL COMMENT 'a, b', ts timestamp_ltz, ask: dec(10,2) not  null, `a``b c` Long, "
        "venue struct<x: integer NOT NULL COMMENT 'c', y map<string,array<byte>>>, took interval day to second -- the end"
    )
    topic = Topic("t", schema)
    assert topic.columns == {
        "Ticker": "string",
        "ts": "timestamp",
        "ask": "decimal(10, 2)",
        "a`b c": "bigint",
        "venue": "struct<x: int, y: map<string, array<tinyint>>>",
        "took": "interval day to second",
    }
    assert topic.required == ["Ticker", "ask"]
    assert ddl.columns_text(topic.fields).startswith(
        "Ticker string NOT NULL, ts timestamp, ask decimal(10, 2) NOT NULL, `a``b c` bigint,"
    )


def test_a_schema_that_spark_printed_is_read() -> None:
    """``df.schema.simpleString()`` may be pasted."""
    assert Topic("t", "struct<a:int,b:struct<c:string>>").columns == {"a": "int", "b": "struct<c: string>"}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("", "it ends where a column's name"),
        ("a int,", "it ends where a column's name"),
        ("a", "it ends where a type should follow"),
        ("a money", "'money' at character 3 is not a type of Spark's"),
        ("a int b string", "'b' at character 7 stands where a comma and the next column, or the end, should"),
        ("a array<int", "it ends where '>' should follow"),
        ("a decimal(39, 1)", "has a precision above 38"),
        ("a decimal(3, 4)", "or a scale above its precision"),
        ("a varchar", "it ends where '(' should follow"),
        (
            "a interval month to year",
            "'year' at character 21 stands where a unit that is smaller than month should",
        ),
        ("a int NOT", "it ends where NULL should follow"),
        ("a int COMMENT x", "'x' at character 15 stands where the comment, in quotes, should"),
        ("1 int", "'1' at character 1 stands where a column's name"),
        ("preço double", "'ç' at character 4 belongs to no name or type: put unusual names into back-ticks"),
        ("a string collate nonsense", "'nonsense' at character 18 is not a collation"),
        ("a time(7)", "the time's precision 7 at character 8 is above 6"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(schema: str, says: str) -> None:
    """A schema that Spark would refuse is refused with the character at which it is wrong."""
    with pytest.raises(ValueError, match=re.escape(says)):
        ddl.parse(schema)


def _calls_to_read(columns: int) -> int:
    """How many functions are called to read a schema of so many nested columns: a cost that no load changes."""
    schema = ", ".join(
        f"column_{number} struct<a: array<int>, b: map<string, decimal(10, 2)>>" for number in range(columns)
    )
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        ddl.parse(schema)
    finally:
        sys.setprofile(None)
    return calls


def test_the_cost_of_reading_a_schema_grows_with_its_columns_alone() -> None:
    """DAG files are parsed again and again: a column costs the same in a long schema as in a short one."""
    _calls_to_read(1)
    assert _calls_to_read(200) <= 2.1 * _calls_to_read(100)


def test_reading_a_schema_imports_no_heavy_library() -> None:
    """DAG files are parsed in processes that have no need of Spark."""
    program = "import sys; import hindcast.ddl; print([name for name in ('pyspark', 'pandas', 'pyarrow') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[]"
