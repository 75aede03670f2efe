"""What in the text of a plan differs from run to run."""

from __future__ import annotations

import pytest

from hindcast.spark.nondeterminism import suspects


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        ("Project [uuid(Some(1)) AS id]", ["uuid() draws a random value"]),
        ("Project [rand(42), current_timestamp()]", ["current_timestamp() reads a clock", "rand() draws a random value"]),
        ("Aggregate [first(ask#1, false)]", ["first() depends on the order of rows"]),
        ("Aggregate [collect_list(ask#1, 0, 0)]", ["collect_list() depends on the order of rows"]),
        ("Project [spark_partition_id()]", ["spark_partition_id() depends on how rows are dealt out"]),
        ("Aggregate [array_sort(collect_list(ask#1, 0, 0), lambda)]", []),
        ("Aggregate [sort_array(collect_list(ask#1, 0, 0), true)]", []),
        ("Aggregate [min(ask#1), count(1)] first_ask brand(", []),
    ],
)  # fmt: skip
def test_each_kind_is_named(plan: str, found: list[str]) -> None:
    """By the function that is called; a name that only contains it is none."""
    assert suspects(plan) == found
