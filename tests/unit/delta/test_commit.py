"""Commits are read with their true versions, whatever lands during the reading."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from hindcast.delta import commit
from hindcast.delta.commit import commits_down, newest_commits, until_it_lands
from hindcast.errors import StoreUnavailableError


def append(url: str, number: int) -> None:
    properties = CommitProperties(custom_metadata={"number": str(number)})
    write_deltalake(url, pa.table({"n": [number]}), mode="append", commit_properties=properties)


def test_a_handle_that_lags_behind_gives_true_versions(tmp_path: Path) -> None:
    """Each commit's number is its version here. The handle was opened three commits ago."""
    url = str(tmp_path / "t")
    append(url, 0)
    handle = DeltaTable(url)
    for number in range(1, 4):
        append(url, number)
    assert [(row["version"], row["number"]) for row in newest_commits(handle)] == [
        (n, str(n)) for n in (3, 2, 1, 0)
    ]
    assert [row["version"] for row in newest_commits(handle, 2)[:2]] == [3, 2]


def test_a_commit_that_lands_meanwhile_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reads are disturbed by another writer. If every read is disturbed, the error says so."""
    url = str(tmp_path / "t")
    append(url, 0)
    handle = DeltaTable(url)
    landed = [0]
    read = DeltaTable.history

    def disturbed(table: DeltaTable, limit: int | None = None) -> list[dict[str, object]]:
        if landed[0] < disturbances:
            landed[0] += 1
            append(url, landed[0])
        return read(table, limit)

    monkeypatch.setattr(DeltaTable, "history", disturbed)
    disturbances = 2
    assert [(row["version"], row["number"]) for row in newest_commits(handle)] == [
        (2, "2"),
        (1, "1"),
        (0, "0"),
    ]
    monkeypatch.setattr(commit, "_READINGS", 3)
    disturbances = 100
    with pytest.raises(StoreUnavailableError, match="could not be read: its log grows faster") as caught:
        newest_commits(handle)
    assert caught.value.fields["table"] == handle.table_uri


def test_a_commit_comes_once_if_others_land_between_two_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read in steps of two. Each step is pushed on by one more commit, which is itself not among
    them.
    """
    url = str(tmp_path / "t")
    for number in range(5):
        append(url, number)
    monkeypatch.setattr(commit, "_FIRST", 2)
    found = []
    for entry in commits_down(DeltaTable(url)):
        found.append((entry["version"], entry["number"]))
        append(url, 100 + len(found))
    assert found == [(n, str(n)) for n in (4, 3, 2, 1, 0)]


def test_commits_are_read_from_a_version_down(tmp_path: Path) -> None:
    """Later commits are left out."""
    url = str(tmp_path / "t")
    for number in range(4):
        append(url, number)
    assert [entry["number"] for entry in commits_down(DeltaTable(url), 2)] == ["2", "1", "0"]


def test_no_more_of_the_log_is_read_than_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long log is read from its newest commit on, in steps that grow. A log as long as a step is read once
    more, and no further.
    """
    url = str(tmp_path / "t")
    for number in range(3):
        append(url, number)
    monkeypatch.setattr(commit, "_FIRST", 1)
    monkeypatch.setattr(commit, "_GROWTH", 3)
    asked = []
    read = DeltaTable.history

    def counted(table: DeltaTable, limit: int | None = None) -> list[dict[str, object]]:
        asked.append(limit)
        return read(table, limit)

    monkeypatch.setattr(DeltaTable, "history", counted)
    assert next(commits_down(DeltaTable(url)))["version"] == 2
    assert asked == [1]
    assert [entry["version"] for entry in commits_down(DeltaTable(url))] == [2, 1, 0]
    assert asked[1:] == [1, 3, 9]


class Attempts:
    """Fails with each of these errors in turn, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.left = list(errors)

    def __call__(self) -> str:
        if self.left:
            raise self.left.pop(0)
        return "landed"


CONFLICT = CommitFailedError("another was faster")
AWAY = StoreUnavailableError(table="t", action="written", reason="away")


def test_a_commit_is_tried_until_it_lands() -> None:
    """It is retried after conflicts, and after the failures that are named. Any other failure ends it at
    once.
    """
    assert until_it_lands("t", Attempts(CONFLICT, CONFLICT)) == "landed"
    assert until_it_lands("t", Attempts(CONFLICT, AWAY, CONFLICT), StoreUnavailableError) == "landed"
    attempts = Attempts(CONFLICT, AWAY, CONFLICT)
    with pytest.raises(StoreUnavailableError, match="away"):
        until_it_lands("t", attempts)
    assert len(attempts.left) == 1


def test_a_commit_that_never_lands_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last attempt its reason is raised."""
    monkeypatch.setattr(commit, "_ATTEMPTS", 3)
    attempts = Attempts(*[CONFLICT] * 4)
    with pytest.raises(StoreUnavailableError, match="The table t could not be written: another was faster"):
        until_it_lands("t", attempts)
    assert len(attempts.left) == 1
    with pytest.raises(StoreUnavailableError) as caught:
        until_it_lands("t", Attempts(*[AWAY] * 4), StoreUnavailableError)
    assert caught.value is AWAY


def test_attempts_of_a_commit_wait_longer_and_longer_but_never_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first waits are hundredths of a second and differ, so that writers do not meet again. None is
    longer than half a second.
    """
    first = []
    for _ in range(5):
        slept: list[float] = []
        monkeypatch.setattr("tenacity.nap.time.sleep", slept.append)
        with pytest.raises(StoreUnavailableError):
            until_it_lands("t", Attempts(*[CONFLICT] * 100))
        assert len(slept) == commit._ATTEMPTS - 1
        assert 0.1 < max(slept) <= 0.5
        first.append(slept[0])
    assert max(first) <= 0.01
    assert len(set(first)) == 5
