"""Great Expectations in whatever process a verdict runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hindcast import catalog
from hindcast.settings import project_root
from hindcast.verdict import expectations
from hindcast.verdict.bounds import BoundFound, of_columns
from hindcast.verdict.expectations import DOCS, validate

BY_ITSELF = """
from pathlib import Path
from hindcast.verdict.expectations import _context
_context(Path({home!r}))
print("validated")
"""
MEANWHILE = """
import sys
from hindcast.verdict.expectations import import_meanwhile
import_meanwhile().join()
assert "great_expectations" in sys.modules
assert not hasattr(sys.modules["__main__"], "__file__")
print("validated")
"""


@pytest.mark.parametrize("program", [BY_ITSELF, MEANWHILE], ids=["by itself", "meanwhile"])
def test_a_verdict_in_a_process_without_a_file_goes_on(tmp_path: Path, program: str) -> None:
    """Spark Connect, which Great Expectations imports, ends a process whose main module has no file, with
    exit code 0 (``python -c``), or the thread that imports it.
    """
    program = program.format(home=str(tmp_path))
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=project_root() / "include",
    )
    assert (run.returncode, run.stdout.strip().splitlines()[-1:]) == (0, ["validated"]), run.stderr


@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_the_page_of_a_verdict_shows_its_bounds(tmp_path: Path) -> None:
    """Figure, bound and count, whether it is kept or not. What failed is said elsewhere, with its cure. A
    figure that exceeds its bound by rounding alone is kept on the page, too.
    """
    pipeline = catalog.load(project_root() / "include" / "pipelines")["stock_stats"]
    verdict = dict.fromkeys(expectations._VERDICT_COLUMNS, 1.0) | {"unexplained": 0}
    kept = BoundFound(bound=1.7, greatest=1.7000000000000002, beyond=0)
    beyond = BoundFound(bound=1.5, greatest=1.625, beyond=3)
    unknown = BoundFound(bound=2.25, greatest=None, beyond=1, without_figure=1)
    bounds = of_columns({"trucks": kept, "fuel": beyond}, {"avg_ask": unknown})
    outcome = validate(tmp_path, pipeline, "r", verdict, None, bounds)
    assert outcome.failed == []
    page = (tmp_path / DOCS / outcome.page).read_text()
    for shown in (
        "ratio_bound trucks",
        "ratio_bound fuel: rows beyond",
        "tolerance avg_ask",
        "1.625",
        "2.25",
    ):
        assert shown in page
    results = next((tmp_path / "gx" / "results").rglob("*.json")).read_text()
    broken = [one for one in json.loads(results)["results"] if not one["success"]]
    assert [one["expectation_config"]["kwargs"]["column"] for one in broken] == [
        "ratio_bound fuel",
        "ratio_bound fuel: rows beyond",
        "tolerance avg_ask: rows beyond",
    ]


@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_a_verdict_reads_a_few_earlier_results_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts of all pipelines wait for each other here. After a month there are tens of thousands."""
    expectations._great_expectations()  # as a verdict does: its import may end a process
    from great_expectations.data_context.store import ValidationResultsStore

    reads: list[Any] = []
    get = ValidationResultsStore.get

    def counted(store: ValidationResultsStore, key: Any) -> Any:
        reads.append(key)
        return get(store, key)

    monkeypatch.setattr(ValidationResultsStore, "get", counted)
    pipeline = catalog.load(project_root() / "include" / "pipelines")["stock_stats"]
    verdict = dict.fromkeys(expectations._VERDICT_COLUMNS, 1.0) | {"unexplained": 0}
    counts = []
    monkeypatch.setattr(expectations, "_IN_INDEX", 2)
    for number in range(5):
        reads.clear()
        outcome = validate(tmp_path, pipeline, f"run-{number}", verdict, None)
        assert outcome.failed == []
        assert (tmp_path / DOCS / outcome.page).is_file()
        counts.append(len(reads))
    assert len(set(counts[2:])) == 1
