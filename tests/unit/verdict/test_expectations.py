"""Great Expectations in whatever process a verdict runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hindcast import catalog
from hindcast.settings import project_root
from hindcast.verdict import expectations
from hindcast.verdict.expectations import DOCS, validate

PROGRAM = """
from pathlib import Path
from hindcast.verdict.expectations import _context
_context(Path({home!r}))
print("validated")
"""


def test_a_verdict_in_a_process_without_a_file_goes_on(tmp_path: Path) -> None:
    """Spark Connect, which Great Expectations imports, ends a process whose main module has no file, with
    exit code 0 (``python -c``).
    """
    program = PROGRAM.format(home=str(tmp_path))
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
