"""The record of the matrix's runs: what counts, what the page says of it, and how a failure gets its
cause.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support import fault_runs
from support.fault_runs import Run

ROWS = {"F1": "kill -9", "F7": "many steal"}
CLEAN = Run(
    "F1",
    "test_kill",
    "upsert",
    3,
    "quick",
    "abc12345",
    dirty=False,
    state="passed",
    seconds=4.0,
    at="2026-01-01T00:00:00",
)
FAILED = replace(CLEAN, seed=4, state="failed", at="2026-01-02T00:00:00", why="I1: read | twice")


def test_clean_runs_of_all_commits_and_forms_add_up() -> None:
    """Quick and long runs, of different commits, are one number, and the bound is 3 over it."""
    found = [
        CLEAN,
        replace(CLEAN, seed=1, form="long", commit="def"),
        replace(CLEAN, seed=2),
        replace(CLEAN, seed=9, shape="append"),
    ]
    page = fault_runs.page(ROWS, found)
    assert "| F1 | kill -9 | 4 | 3 | 1 | 0 | 75 % |" in page
    assert "| F1 | upsert | 3 | 1-3 | abc12345, def |" in page
    assert "| F7 | many steal | 0 | 0 | 0 | 0 | - |" in page


def test_a_dirty_work_tree_does_not_count() -> None:
    """Neither its passes nor its failures are in the numbers; that there were some is told."""
    page = fault_runs.page(ROWS, [CLEAN, replace(CLEAN, dirty=True), replace(FAILED, dirty=True)])
    assert "| F1 | kill -9 | 1 | 1 | 0 | 0 | 100 % |" in page
    assert "2 more ran on a work tree with changes" in page


def test_a_failure_stays_and_the_bound_begins_again() -> None:
    """The runs before a failure are still counted as clean, but say nothing of what was made of it."""
    later = [replace(CLEAN, seed=seed, at="2026-01-03T00:00:00") for seed in range(10, 40)]
    page = fault_runs.page(ROWS, [CLEAN, FAILED, *later])
    assert "| F1 | kill -9 | 31 | 31 | 0 | 1 | 10 % |" in page
    assert "| F1 | test_kill | upsert | 4 | quick | abc12345 | I1: read \\| twice | not known yet |" in page


def test_a_cause_is_noted_once(tmp_path: Path) -> None:
    """It goes to the failures of that row and seed that have none; what is recorded otherwise stays as it
    was.
    """
    record = tmp_path / "runs.jsonl"
    fault_runs.append([CLEAN, FAILED, replace(FAILED, row="F7")], record)
    assert fault_runs.note_cause("the test's own", "F1", 4, record) == 1
    assert fault_runs.note_cause("another", "F1", 4, record) == 0
    assert fault_runs.read(record) == [
        CLEAN,
        replace(FAILED, cause="the test's own"),
        replace(FAILED, row="F7"),
    ]


@pytest.mark.parametrize(("changed", "dirty"), [("", False), ("include.py", True), ("docs/runs.md", False)])
def test_whether_the_work_tree_is_dirty(tmp_path: Path, changed: str, dirty: bool) -> None:
    """Any change makes it so, but those of the record and its page."""
    for name in ("include.py", "docs/runs.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    if changed:
        (tmp_path / changed).write_text("2")
    assert fault_runs.work_tree(tmp_path)[1] is dirty


def test_the_page_in_the_docs_is_that_of_the_record() -> None:
    """`make runs` was called after the last recorded run."""
    from support.fault_matrix import ROWS as MATRIX

    assert fault_runs.PAGE.read_text() == fault_runs.page(MATRIX, fault_runs.read())
