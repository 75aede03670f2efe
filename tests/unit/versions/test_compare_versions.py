"""What a comparison of two versions comes to, from what Spark counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hindcast import catalog
from hindcast.pipeline import Pipeline
from hindcast.settings import project_root
from hindcast.verdict.compare import Comparison
from hindcast.versions.compare_versions import Barrier, changed_share, comparison_row

ALIKE = Comparison(
    windows_compared=4,
    rows_compared=200,
    missing=0,
    extra=0,
    changed=0,
    doubled=0,
    late_differences=0,
    rounding=5,
    greatest_rounding=1e-16,
    nondeterministic=0,
    captured_results=1.0,
    ratios={},
    by_column={},
    unexplained_late=0,
    samples=(),
)


@pytest.fixture(scope="module")
def old() -> Pipeline:
    return catalog.load(project_root() / "include" / "pipelines")["stock_stats"]


def row(old: Pipeline, at_most: float | None, **counted: Any) -> dict[str, Any]:
    """The row of a comparison with a version 2 that declares this."""
    new = replace(old, version=2, changed_at_most=at_most)
    return comparison_row(new, old, Barrier({}, 0, 1000), replace(ALIKE, **counted), 0)


@pytest.mark.parametrize(
    "counted",
    [
        {"changed": 2},
        {"missing": 2},
        {"extra": 2},
        {"missing": 1, "extra": 1},
        {"changed": 2, "unexplained_late": 2},
    ],
)
def test_a_share_that_is_met_exactly_is_allowed_and_one_key_more_is_not(
    old: Pipeline, counted: dict[str, int]
) -> None:
    """A key has changed if its row differs, for whatever reason, or if only one version has it."""
    found = row(old, 0.01, **counted)
    assert (found["changed_share"], found["changed_at_most"]) == (0.01, 0.01)
    assert found["passed"]
    first = next(iter(counted))
    more = row(old, 0.01, **{**counted, first: counted[first] + 1})
    assert not more["passed"]
    (failed,) = more["failed"]
    assert failed.startswith("0.015 of the keys changed (3 of 200")
    assert "changed_at_most of version 2 is 0.01: find out whether each change is meant" in failed
    assert ("2 of them for rows that were late" in failed) == ("unexplained_late" in counted)


def test_without_a_declaration_any_share_may_change(old: Pipeline) -> None:
    """It is shown all the same."""
    found = row(old, None, changed=200)
    assert (found["passed"], found["changed_share"], found["changed_at_most"]) == (True, 1.0, None)


def test_nothing_may_change_if_the_share_is_zero(old: Pipeline) -> None:
    """Rounding is no change."""
    assert row(old, 0)["passed"]
    assert not row(old, 0, changed=1)["passed"]


def test_two_empty_versions_are_alike(old: Pipeline) -> None:
    """No key has changed, and none is divided by."""
    assert changed_share(0, 0) == 0.0
    assert row(old, 0, rows_compared=0)["passed"]
