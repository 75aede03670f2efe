"""The comparison of a verdict on frames made by hand: Spark, but no broker and no table."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hindcast.verdict.bounds import BoundFound
from hindcast.verdict.compare import Cause, Comparison, Kind, Sides, compare
from hindcast.verdict.compare_values import DOUBLE_ROUNDING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Sequence[tuple[Any, ...]]
Compare = Callable[..., Comparison]

#: A difference in the last place of 1.0.
ULP = 2.0**-52


@pytest.fixture
def compared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Compare the rows of a stream with those of both answers; hindsight is known to say what the online
    answer says if it is not given.

    As small tables and as large ones: both find the same.
    """

    def make(
        schema: str,
        keys: Sequence[str],
        stream: Rows,
        online: Rows,
        hindsight: Rows | None = None,
        late: Rows | None = None,
        **declared: Any,
    ) -> Comparison:
        late_rows = None
        if late is not None:
            late_rows = spark.createDataFrame(list(late), "end_ms long, late_rows long")
        answer = spark.createDataFrame(list(online), schema)
        sides = Sides(
            stream=spark.createDataFrame(list(stream), schema),
            online=answer,
            hindsight=answer if hindsight is None else spark.createDataFrame(list(hindsight), schema),
            keys=keys,
            late=late_rows,
            **declared,
        )
        monkeypatch.setattr("hindcast.verdict.compare.FINGERPRINTED_BYTES", math.inf)
        small = compare(sides, 20)
        monkeypatch.setattr("hindcast.verdict.compare.FINGERPRINTED_BYTES", 0)
        large = compare(sides, 20)
        assert replace(large, ratios={}) == replace(small, ratios={})
        assert _means(large) == pytest.approx(_means(small), nan_ok=True)
        return small

    return make


def _means(found: Comparison) -> dict[str, float]:
    return {name: ratio["mean"] for name, ratio in found.ratios.items()}


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


#: A key's values in the stream, those in the online answer, and how their rows differ.
SEVERAL: dict[str, tuple[list[int | None], list[int | None], dict[str, int]]] = {
    "one row each": ([7], [7], {}),
    "one row each, changed": ([7], [8], {"changed": 1}),
    "equal": ([1, 2, 3], [1, 2, 3], {}),
    "equal in another order": ([3, 1, 2, 2], [2, 3, 2, 1], {}),
    "between the least and the greatest": ([1, 2, 3], [1, 99, 3], {"changed": 1}),
    "one lost and another doubled": ([1, 1, 3], [1, 3, 3], {"changed": 1}),
    "one lost": ([1, 3], [1, 2, 3], {"missing": 1}),
    "one doubled": ([1, 2, 2, 3], [1, 2, 3], {"doubled": 1}),
    "the only one doubled": ([4, 4], [4], {"doubled": 1}),
    "all changed": ([1, 1, 1], [2, 2, 2], {"changed": 3}),
    "only in the stream": ([5, 5], [], {"extra": 2}),
    "not in the stream": ([], [5, 5], {"missing": 2}),
    "nulls are equal": ([None, 1, 2], [1, None, 2], {}),
    "a null is not a value": ([None, 1, 2], [1, 7, 2], {"changed": 1}),
}


def test_whole_rows_are_compared_if_a_key_has_several(compared: Compare) -> None:
    """A key that is too coarse hides no row. Keys that have one row are counted as ever beside it."""
    stream = []
    online = []
    expected = {}
    rows = 0
    for key, (here, there, differ) in SEVERAL.items():
        stream += [(key, value) for value in here]
        online += [(key, value) for value in there]
        expected |= {(key, kind): count for kind, count in differ.items()}
        rows += max(len(here), len(there))
    found = compared("key string, value int", ["key"], stream, online)
    assert compared("key string, value int", ["key"], stream, online, online) == found
    named = Counter((json.loads(sample.keys)["key"], sample.kind.value) for sample in found.samples)
    assert named == expected
    assert rows_that_differ(found) == {"changed": 7, "missing": 3, "doubled": 2, "extra": 2}
    assert (found.rounding, found.late_differences, found.rows_compared) == (0, 0, rows)


def test_columns_may_have_the_names_that_a_comparison_uses(compared: Compare) -> None:
    """Of keys and of values, where a key has one row and where it has several."""
    schema = "n_s string, _key string, _row int, missing int"
    keys = ["n_s", "_key", "_row"]
    stream = [("a", "b", 1, 1), ("c", "d", 2, 5), ("c", "d", 2, 6)]
    online = [("a", "b", 1, 2), ("c", "d", 2, 5), ("c", "d", 2, 7)]
    found = compared(schema, keys, stream, online)
    assert rows_that_differ(found) == {"changed": 2}
    assert found.by_column == {"missing": 2}
    named = {tuple(json.loads(sample.keys).items()) for sample in found.samples}
    assert named == {(("n_s", "a"), ("_key", "b"), ("_row", 1)), (("n_s", "c"), ("_key", "d"), ("_row", 2))}


def test_a_row_that_differs_among_others_is_named(compared: Compare) -> None:
    """The sample has the row that changed, not the least one of its key."""
    found = compared(
        "key string, ticker string, value int",
        ["key"],
        [("k", "A", 1), ("k", "B", 2), ("k", "C", 3)],
        [("k", "A", 1), ("k", "B", 99), ("k", "C", 3)],
    )
    (sample,) = found.samples
    assert (sample.kind, sample.cause, sample.column) == (Kind.CHANGED, Cause.UNEXPLAINED, "value")
    assert (json.loads(sample.keys), sample.stream_value, sample.hindcast_value) == ({"key": "k"}, "2", "99")
    assert found.by_column == {"value": 1}
    assert found.captured_results == pytest.approx(2 / 3)


def test_rows_that_are_torn_apart_and_put_together_anew_differ(compared: Compare) -> None:
    """Each column has the same values on both sides, and no row is the same."""
    found = compared("key int, a int, b int", ["key"], [(1, 1, 1), (1, 2, 2)], [(1, 1, 2), (1, 2, 1)])
    assert rows_that_differ(found) == {"changed": 2}


def test_floats_of_several_rows_keep_their_rounding(compared: Compare) -> None:
    """Rows match if they are the same but for rounding, in whatever order it puts them."""
    near = 1 + ULP
    found = compared(
        "key int, name string, a double, b double",
        ["key"],
        [(1, "x", 1.0, 5.0), (1, "x", near, 3.0), (1, "y", 2.0, nan), (1, "z", -0.0, 0.0)],
        [(1, "x", 1.0, 3.0), (1, "x", near, 5.0), (1, "y", 2.0 * near, nan), (1, "z", 0.0, 0.0)],
    )
    assert rows_that_differ(found) == {}
    assert found.rounding == 3
    assert ULP / 2 <= found.greatest_rounding <= ULP
    assert {(sample.cause, sample.column) for sample in found.samples} == {(Cause.ROUNDING, "a")}


def test_more_than_rounding_in_one_of_several_rows_is_unexplained(compared: Compare) -> None:
    """One row is lost beside rows that differ by rounding: these still find each other."""
    found = compared(
        "key int, a double",
        ["key"],
        [(1, 0.5), (1, 1.0), (1, 2.0), (1, 3.0)],
        [(1, 0.5), (1, 1.0 + ULP), (1, 2.0 * (1 + 3 * DOUBLE_ROUNDING)), (1, 3.0 * (1 + ULP))],
    )
    assert rows_that_differ(found) == {"changed": 1}
    assert (found.rounding, found.rows_compared) == (2, 4)


def test_zero_beside_a_rounded_value_of_the_same_key(compared: Compare) -> None:
    """The least rows are equal and zero, the greatest differ by rounding: nothing is divided by zero."""
    found = compared("key int, a double", ["key"], [(1, 0.0), (1, 1.0)], [(1, 0.0), (1, 1.0 + ULP)])
    assert (found.unexplained, found.rounding) == (0, 1)
    assert found.greatest_rounding == pytest.approx(ULP)


def test_late_rows_explain_one_of_several_rows_of_a_window(compared: Compare) -> None:
    """Keys of windows alone: hindsight changes one row of a window that had a late row, and may do so; in the
    other window it may not.
    """

    def window(minute: int) -> tuple[datetime, datetime]:
        return (
            datetime(2026, 1, 5, 12, minute, tzinfo=UTC),
            datetime(2026, 1, 5, 12, minute + 1, tzinfo=UTC),
        )

    first = window(0)
    second = window(1)
    stream = [(first, "A", 1), (first, "B", 2), (first, "C", 3), (second, "A", 4), (second, "B", 5)]
    late = [(int(first[1].timestamp() * 1000), 6)]
    schema = "window struct<start timestamp, end timestamp>, ticker string, trades int"
    hindsight = [(first, "A", 1), (first, "B", 8), (first, "C", 3), (second, "A", 4), (second, "B", 5)]
    found = compared(schema, ["window"], stream, stream, hindsight, late)
    assert (found.unexplained, found.late_differences, found.windows_compared) == (0, 1, 2)
    assert found.captured_results == pytest.approx(4 / 5)
    (sample,) = found.samples
    assert (sample.cause, sample.late_rows) == (Cause.LATE_ROWS, 6)
    assert json.loads(sample.stream_value) == {"ticker": "B", "trades": 2}
    assert json.loads(sample.hindcast_value) == {"ticker": "B", "trades": 8}
    hindsight = [*stream[:4], (second, "B", 9)]
    assert rows_that_differ(compared(schema, ["window"], stream, stream, hindsight, late)) == {
        "nondeterministic": 1
    }


def test_keys_that_are_null_or_several_columns_tell_rows_apart(compared: Compare) -> None:
    """A null key has rows of its own."""
    found = compared(
        "a string, b double, value int",
        ["a", "b"],
        [(None, 1.0, 1), (None, 1.0, 2), (None, 1.0, 3), ("k", nan, 1), ("k", nan, 2), ("k", None, 3)],
        [(None, 1.0, 1), (None, 1.0, 9), (None, 1.0, 3), ("k", nan, 2), ("k", nan, 1), ("k", None, 3)],
    )
    assert rows_that_differ(found) == {"changed": 1}
    assert found.rows_compared == 6


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


#: A cost in the stream, the one in hindsight, and what the bound of 1.7 makes of the row.
COSTS: dict[str, tuple[float | None, float | None, str]] = {
    "less than hindsight": (3.0, 10.0, ""),
    "the bound met exactly": (17.0, 10.0, ""),
    "the bound met but for rounding": (0.51, 0.3, ""),  # 1.7000000000000002
    "nothing for nothing": (0.0, 0.0, ""),
    "nothing": (0.0, 10.0, ""),
    "both null": (None, None, ""),
    "both not-a-number": (nan, nan, ""),
    "a little more than the bound": (17.000001, 10.0, "beyond"),
    "something for nothing": (1.0, 0.0, "without"),
    "null in the stream": (None, 10.0, "without"),
    "null in hindsight": (10.0, None, "without"),
    "not-a-number in the stream": (nan, 10.0, "without"),
    "infinite in the stream": (inf, 10.0, "without"),
    "infinite in hindsight": (10.0, inf, "without"),
    "negative in the stream": (-1.0, 10.0, "without"),
    "negative in hindsight": (1.0, -10.0, "without"),
}


def test_a_ratio_is_held_against_its_bound_in_each_row(compared: Compare) -> None:
    """Each row is an input of its own. A row of which no ratio shows that it keeps the bound is beyond it."""
    stream = [(name, 1, cost[0]) for name, cost in COSTS.items()]
    hindsight = [(name, 1, cost[1]) for name, cost in COSTS.items()]
    found = compared(
        "input string, n int, cost double",
        ["input"],
        [*stream, ("only in the stream", 1, 9.0)],
        [*stream, ("only in the stream", 1, 9.0)],
        [*hindsight, ("only in hindsight", 1, 9.0)],
        foresight=True,
        ratio_bound={"cost": 1.7, "nope": 1.0},
    )
    expected = {name for name, cost in COSTS.items() if cost[2]}
    without = sum(cost[2] == "without" for cost in COSTS.values())
    assert found.ratio_bounds == {
        "cost": BoundFound(bound=1.7, greatest=1.7000001, beyond=len(expected), without_figure=without)
    }
    assert found.unexplained == 0
    samples = [sample for sample in found.samples if sample.cause is Cause.BOUND]
    assert {json.loads(sample.keys)["input"] for sample in samples} == expected
    assert {(sample.kind, sample.column) for sample in samples} == {(Kind.RATIO, "cost")}


def test_rows_beyond_a_bound_are_named_first(compared: Compare) -> None:
    """However many others hindsight changes."""
    stream = [(number, 1.0) for number in range(100)]
    hindsight = [(number, 0.9) for number in range(99)] + [(99, 0.5)]
    found = compared(
        "input int, cost double",
        ["input"],
        stream,
        stream,
        hindsight,
        foresight=True,
        ratio_bound={"cost": 1.5},
    )
    assert found.ratio_bounds["cost"].beyond == 1
    named = [json.loads(sample.keys)["input"] for sample in found.samples if sample.cause is Cause.BOUND]
    assert named == [99]


def test_without_rows_a_bound_has_no_figure(compared: Compare) -> None:
    """And nothing is beyond it."""
    found = compared(
        "input int, cost double", ["input"], [], [], [], ratio_bound={"cost": 2.0}, tolerance={"cost": 1.0}
    )
    nothing = BoundFound(bound=2.0, greatest=None, beyond=0)
    assert found.ratio_bounds == {"cost": nothing}
    assert found.tolerances == {"cost": BoundFound(bound=1.0, greatest=None, beyond=0)}


#: Two values, and what a tolerance of 0.5 makes of them.
NEAR: dict[str, tuple[str, Any, Any, str]] = {
    "equal": ("double", 1.0, 1.0, ""),
    "the tolerance met exactly": ("double", 1.0, 1.5, "rounding"),
    "just more": ("double", 1.0, 1.5000001, "changed"),
    "about zero": ("double", -0.2, 0.2, "rounding"),
    "a null": ("double", None, 0.1, "changed"),
    "both null": ("double", None, None, ""),
    "not-a-number": ("double", nan, 0.1, "changed"),
    "both not-a-number": ("double", nan, nan, ""),
    "infinite": ("double", inf, 1.0, "changed"),
    "infinite on both sides": ("double", inf, -inf, "changed"),
    "relative rounding is rounding beside it": ("double", 1e300, 1e300 * (1 + ULP), "rounding"),
    "floats": ("float", 1.0, 1.5, "rounding"),
    "decimals": ("decimal(38,18)", Decimal(1), Decimal("1.5"), "rounding"),
    "decimals that no double tells apart": (
        "decimal(38,18)",
        Decimal(1),
        Decimal("1.500000000000000001"),
        "rounding",
    ),
    "decimals at both ends": ("decimal(38,0)", Decimal(-10) ** 37, Decimal(10) ** 37 * 9, "changed"),
    "integers": ("long", 1, 2, "changed"),
    "integers at both ends": ("long", -(2**63), 2**63 - 1, "changed"),
    "large integers that no double tells apart": ("long", 2**60, 2**60 + 1, "changed"),
}


@pytest.mark.parametrize("case", NEAR, ids=str)
def test_a_tolerance_is_absolute(compared: Compare, case: str) -> None:
    """Values that differ by no more are rounding, in both answers. What is not a number is never near."""
    kind, here, there, state = NEAR[case]
    found = compared(
        f"key int, value {kind}", ["key"], [(1, here)], [(1, there)], tolerance={"value": 0.5, "nope": 1.0}
    )
    assert (found.changed, found.rounding) == (int(state == "changed"), int(state == "rounding"))
    assert found.unexplained == found.changed
    assert found.tolerances["value"].beyond == int(state == "changed")
    assert found.greatest_rounding == 0.0, "which is of columns without a tolerance"
    greatest = found.tolerances["value"].greatest
    assert greatest is None or (greatest > 0.5) == (state == "changed"), "the figure says what the count says"


def test_a_tolerance_holds_for_several_rows_of_a_key(compared: Compare) -> None:
    """Rows that are near each other are paired, in whatever order they stand; one that is not has changed."""
    found = compared(
        "key int, name string, value double",
        ["key"],
        [(1, "a", 1.0), (1, "a", 2.0), (1, "b", 5.0), (1, "c", 0.3)],
        [(1, "a", 2.4), (1, "b", 5.0), (1, "a", 0.6), (1, "c", -0.3)],
        tolerance={"value": 0.5},
    )
    assert (found.rounding, found.changed, found.unexplained) == (2, 1, 1)
    assert found.tolerances["value"] == BoundFound(bound=0.5, greatest=pytest.approx(0.6), beyond=1)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.tuples(st.integers(-100, 100), st.integers(-100, 100)), min_size=1, max_size=30, unique=True
    ),
    tolerance=st.integers(1, 50),
    bound=st.integers(1, 4),
)
def test_what_is_within_the_bounds_is_what_arithmetic_says(
    compared: Compare, values: list[tuple[int, int]], tolerance: int, bound: int
) -> None:
    """For whole numbers, of which plain Python knows difference and ratio exactly."""
    stream = [(number, float(here)) for number, (here, _) in enumerate(values)]
    other = [(number, float(there)) for number, (_, there) in enumerate(values)]
    found = compared(
        "key int, value double",
        ["key"],
        stream,
        other,
        foresight=True,
        tolerance={"value": float(tolerance)},
        ratio_bound={"value": float(bound)},
    )
    assert found.changed == found.tolerances["value"].beyond
    assert found.changed == sum(abs(here - there) > tolerance for here, there in values)
    assert found.tolerances["value"].greatest == max(abs(here - there) for here, there in values)
    kept = [
        here == there or (here >= 0 and there > 0 and here <= bound * there) or (here == there == 0)
        for here, there in values
    ]
    assert found.ratio_bounds["value"].beyond == kept.count(False)
