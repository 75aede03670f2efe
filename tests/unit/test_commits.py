"""Commits are told by their true versions, whatever lands while the log is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from hindcast.control import commits
from hindcast.control.commits import commits_down, newest_commits
from hindcast.errors import StoreUnavailableError


def append(url: str, number: int) -> None:
    properties = CommitProperties(custom_metadata={"number": str(number)})
    write_deltalake(url, pa.table({"n": [number]}), mode="append", commit_properties=properties)


def test_a_handle_that_lags_behind_tells_true_versions(tmp_path: Path) -> None:
    """Each commit's number is its version here; the handle was opened three commits ago."""
    url = str(tmp_path / "t")
    append(url, 0)
    handle = DeltaTable(url)
    for number in range(1, 4):
        append(url, number)
    assert [(row["version"], row["number"]) for row in newest_commits(handle)] == [(n, str(n)) for n in (3, 2, 1, 0)]
    assert [row["version"] for row in newest_commits(handle, 2)[:2]] == [3, 2]


def test_a_commit_that_lands_meanwhile_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reads are disturbed by another writer; where every one is, that is said."""
    url = str(tmp_path / "t")
    append(url, 0)
    handle, landed, read = DeltaTable(url), [0], DeltaTable.history

    def disturbed(table: DeltaTable, limit: int | None = None) -> list[dict[str, object]]:
        if landed[0] < disturbances:
            landed[0] += 1
            append(url, landed[0])
        return read(table, limit)

    monkeypatch.setattr(DeltaTable, "history", disturbed)
    disturbances = 2
    assert [(row["version"], row["number"]) for row in newest_commits(handle)] == [(2, "2"), (1, "1"), (0, "0")]
    monkeypatch.setattr(commits, "_READINGS", 3)
    disturbances = 100
    with pytest.raises(StoreUnavailableError, match="grows faster"):
        newest_commits(handle)


def test_a_commit_comes_once_where_others_land_between_two_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is read in steps of two: each step is pushed on by one more commit, which is itself not among them."""
    url = str(tmp_path / "t")
    for number in range(5):
        append(url, number)
    monkeypatch.setattr(commits, "_FIRST", 2)
    found = []
    for entry in commits_down(DeltaTable(url)):
        found.append((entry["version"], entry["number"]))
        append(url, 100 + len(found))
    assert found == [(n, str(n)) for n in (4, 3, 2, 1, 0)]


def test_commits_are_told_from_a_version_down(tmp_path: Path) -> None:
    """Later ones are as if they were not there."""
    url = str(tmp_path / "t")
    for number in range(4):
        append(url, number)
    assert [entry["number"] for entry in commits_down(DeltaTable(url), 2)] == ["2", "1", "0"]
