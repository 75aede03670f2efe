"""The comparison of a verdict on frames made by hand: Spark, but no broker and no table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.verdict.compare import Comparison, Sides, compare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Sequence[tuple[Any, ...]]
Compare = Callable[..., Comparison]


@pytest.fixture
def compared(spark: SparkSession) -> Compare:
    """Compare the rows of a stream with those of both answers; hindsight says what the online answer says if
    it is not given.
    """

    def make(
        schema: str,
        keys: Sequence[str],
        stream: Rows,
        online: Rows,
        hindsight: Rows | None = None,
        late: Rows | None = None,
    ) -> Comparison:
        if hindsight is None:
            hindsight = online
        late_rows = None
        if late is not None:
            late_rows = spark.createDataFrame(list(late), "end_ms long, late_rows long")
        sides = Sides(
            stream=spark.createDataFrame(list(stream), schema),
            online=spark.createDataFrame(list(online), schema),
            hindsight=spark.createDataFrame(list(hindsight), schema),
            keys=keys,
            late=late_rows,
        )
        return compare(sides, 20)

    return make


def rows_that_differ(found: Comparison) -> dict[str, int]:
    """The counts of unexplained rows that are not 0."""
    counts = {
        "missing": found.missing,
        "extra": found.extra,
        "changed": found.changed,
        "doubled": found.doubled,
        "nondeterministic": found.nondeterministic,
    }
    return {kind: count for kind, count in counts.items() if count}


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        pytest.param("map<string, int>", {"x": 1, "y": 2}, {"x": 1, "y": 3}, id="a map"),
        pytest.param("struct<m map<string, int>>", ({"x": 1, "y": 2},), ({"x": 1},), id="in a struct"),
        pytest.param("array<map<string, int>>", [{"x": 1}, {"y": 2}], [{"x": 1}, None], id="in an array"),
        pytest.param(
            "array<struct<n int, m map<string, array<map<int, int>>>>>",
            [(1, {"a": [{1: 2}]}), None],
            [(1, {"a": [{1: 3}]}), None],
            id="deep inside",
        ),
    ],
)
def test_maps_are_compared_wherever_they_stand(compared: Compare, kind: str, value: Any, other: Any) -> None:
    """As a value and as a part of a key, with nulls on the way to them."""
    schema = f"key int, value {kind}"
    as_value = compared(
        schema, ["key"], [(1, value), (2, None), (3, value)], [(1, value), (2, None), (3, other)]
    )
    assert rows_that_differ(as_value) == {"changed": 1}
    as_key = compared(schema, [], [(1, value), (2, None), (3, value)], [(1, value), (2, None), (3, other)])
    assert rows_that_differ(as_key) == {"missing": 1, "extra": 1}
