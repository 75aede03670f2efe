"""What a verdict says of the bounds that a pipeline declares."""

from __future__ import annotations

import json

from hindcast.verdict.bounds import BoundFound, BoundKind, ColumnBound, as_text, exceeded, of_columns

KEPT = BoundFound(bound=1.7, greatest=1.7, beyond=0)


def test_a_bound_that_is_met_exactly_is_kept() -> None:
    """Nothing is said of it, and the verdict's row has its figure."""
    found = of_columns({"trucks": KEPT}, {})
    assert list(exceeded(found, "r")) == []
    figures = {"bound": 1.7, "greatest": 1.7, "beyond": 0, "without_figure": 0}
    assert json.loads(as_text(found)) == {"ratio_bound": {"trucks": figures}}


def test_a_pipeline_without_bounds_has_an_empty_object() -> None:
    """Its text is JSON, too."""
    assert as_text(of_columns({}, {})) == "{}"


def test_a_bound_that_is_exceeded_is_said_with_figure_bound_and_cure() -> None:
    """The figure and the bound are told apart, however near they are."""
    ratio = BoundFound(bound=1.7, greatest=1.70000001, beyond=3)
    tolerance = BoundFound(bound=1e-6, greatest=2.5e-6, beyond=1)
    found = of_columns({"trucks": ratio, "fuel": KEPT}, {"avg_ask": tolerance})
    of_ratio, of_tolerance = exceeded(found, "r-1")
    assert of_ratio == (
        "trucks: the ratio to hindsight is up to 1.70000001, its ratio_bound is 1.7, and 3 rows are beyond it. "
        "`hindcast verdicts --run r-1 --differences` names them (cause bound); correct the function, or declare "
        "a greater ratio_bound"
    )
    assert of_tolerance == (
        "avg_ask: the stream differs from the batch by up to 2.5e-06, its tolerance is 1e-06, and 1 row is "
        "beyond it. `hindcast verdicts --run r-1 --differences` names them; find the cause, or declare a "
        "greater tolerance if both answers are right"
    )


def test_rows_without_a_ratio_are_said_apart() -> None:
    """Also if no row has a figure at all."""
    found = BoundFound(bound=2, greatest=None, beyond=2, without_figure=2)
    (sentence,) = exceeded([ColumnBound(BoundKind.RATIO, "cost", found)], "r")
    assert sentence.startswith("cost: no row has a finite figure, its ratio_bound is 2, and 2 rows are (2 ")
    assert (
        "without a ratio: 0 in hindsight alone, or a value that is null, negative or not finite" in sentence
    )
