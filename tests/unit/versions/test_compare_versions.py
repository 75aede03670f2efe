"""What a comparison of two versions comes to, from what Spark counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from support.ledger_rows import batch

from hindcast import catalog
from hindcast.errors import TryLaterError
from hindcast.installation import Installation
from hindcast.partitions import app_id
from hindcast.pipeline import Pipeline
from hindcast.settings import project_root
from hindcast.tables.fenced_sink import Fence, FencedTable
from hindcast.tables.ledger_history import History
from hindcast.verdict.compare import Comparison
from hindcast.versions.compare_versions import Barrier, _sink_version, changed_share, comparison_row

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


def test_a_batch_that_is_not_filed_yet_is_waited_for(installation: Installation, old: Pipeline) -> None:
    """Without windows the tables are compared as they are at these offsets, whatever comes meanwhile."""
    shard = "v1.g0.s0"
    url = installation.settings.sink(old)
    table = FencedTable(url, {}, app_id(old.name, shard))
    table.create(pa.schema([("n", pa.int64())]))
    table.commit(Fence(1, 1), [], after=None)
    history = History.of([batch(1, {0: 0}, {0: 1}, shard=shard)])
    assert _sink_version(installation, old, history) == table.version()
    table.commit(Fence(1, 2), [], after=Fence(1, 1))
    with pytest.raises(TryLaterError, match="has committed a batch just now"):
        _sink_version(installation, old, history)
