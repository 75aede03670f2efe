"""The bounds that a pipeline declares on its columns: what was measured against each, and what to say if one
is exceeded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class BoundKind(StrEnum):
    """The argument of the declaration."""

    RATIO = "ratio_bound"  # of the stream to hindsight
    TOLERANCE = "tolerance"  # the absolute difference from the online answer


@dataclass(frozen=True, kw_only=True)
class BoundFound:
    """What was measured against the bound of one column.

    ``greatest``: over all rows; None if no row has a finite figure. ``beyond``: the rows that exceed the
    bound, and the ``without_figure`` of which nothing shows that they keep it.
    """

    bound: float
    greatest: float | None
    beyond: int
    without_figure: int = 0


@dataclass(frozen=True)
class ColumnBound:
    """A bound of one column, and what was measured against it."""

    kind: BoundKind
    column: str
    found: BoundFound


def of_columns(
    ratio_bounds: Mapping[str, BoundFound], tolerances: Mapping[str, BoundFound]
) -> list[ColumnBound]:
    """All bounds of a comparison in one list."""
    ratios = [ColumnBound(BoundKind.RATIO, column, found) for column, found in ratio_bounds.items()]
    return ratios + [ColumnBound(BoundKind.TOLERANCE, column, found) for column, found in tolerances.items()]


def as_text(bounds: Iterable[ColumnBound]) -> str:
    """JSON: {ratio_bound: {column: {bound, greatest, beyond, without_figure}}, tolerance: {...}}. A kind of
    bound that is not declared is left out.
    """
    kinds: dict[str, dict[str, Any]] = {}
    for bound in bounds:
        kinds.setdefault(bound.kind.value, {})[bound.column] = asdict(bound.found)
    return json.dumps(kinds, sort_keys=True)


def exceeded(bounds: Iterable[ColumnBound], run_id: str) -> Iterator[str]:
    """A sentence for each bound that is exceeded: the figure, the bound, and what to do."""
    rows = f"`hindcast verdicts --run {run_id} --differences` names them"
    for bound in bounds:
        found = bound.found
        if not found.beyond:
            continue
        measured = "the ratio to hindsight is up to"
        cure = f"{rows} (cause bound); correct the function, or declare a greater ratio_bound"
        if bound.kind is BoundKind.TOLERANCE:
            measured = "the stream differs from the batch by up to"
            cure = f"{rows}; find the cause, or declare a greater tolerance if both answers are right"
        figure = "no row has a finite figure"
        if found.greatest is not None:
            figure = f"{measured} {number(found.greatest)}"
        limit = f"its {bound.kind.value} is {number(found.bound)}"
        yield f"{bound.column}: {figure}, {limit}, and {_beyond(found)} beyond it. {cure}"


def _beyond(found: BoundFound) -> str:
    rows = f"{found.beyond} rows are"
    if found.beyond == 1:
        rows = "1 row is"
    if not found.without_figure:
        return rows
    without = f"{found.without_figure} without a ratio"
    why = "0 in hindsight alone, or a value that is null, negative or not finite"
    return f"{rows} ({without}: {why})"


def number(value: float) -> str:
    """Exact enough to tell a figure from its bound."""
    return f"{value:.12g}"
