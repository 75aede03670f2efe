"""Commits are read with their true versions, whatever lands during the reading."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from deltalake.exceptions import CommitFailedError

from hindcast.delta import commit
from hindcast.delta.commit import commits_down, commits_up, read_commit, until_it_lands
from hindcast.errors import StoreUnavailableError


def append(url: str, number: int) -> None:
    properties = CommitProperties(custom_metadata={"number": str(number)})
    write_deltalake(url, pa.table({"n": [number]}), mode="append", commit_properties=properties)


def numbers(entries: Iterable[dict[str, Any]]) -> list[tuple[int, str]]:
    """Each commit's version and number. They are the same here."""
    return [(entry["version"], entry["number"]) for entry in entries]


def log_of(url: str) -> Path:
    return Path(url) / "_delta_log"


def test_commits_have_their_true_versions_while_others_land(tmp_path: Path) -> None:
    """Each commit read is followed by another that lands. The newer ones are not among them."""
    url = str(tmp_path / "t")
    for number in range(5):
        append(url, number)
    found = []
    for entry in commits_down(url, {}, 4):
        found.append((entry["version"], entry["number"]))
        append(url, 100 + len(found))
    assert found == [(n, str(n)) for n in (4, 3, 2, 1, 0)]


def test_commits_are_read_from_a_version_down(tmp_path: Path) -> None:
    """Later commits are left out, and so is what the log has lost."""
    url = str(tmp_path / "t")
    for number in range(4):
        append(url, number)
    assert numbers(commits_down(url, {}, 2)) == [(2, "2"), (1, "1"), (0, "0")]
    (log_of(url) / f"{0:020d}.json").unlink()
    assert numbers(commits_down(url, {}, 2)) == [(2, "2"), (1, "1")]


def test_commits_are_read_from_a_version_up(tmp_path: Path) -> None:
    """Up to the newest; none if the first is not in the log."""
    url = str(tmp_path / "t")
    for number in range(4):
        append(url, number)
    assert numbers(commits_up(url, {}, 2)) == [(2, "2"), (3, "3")]
    assert numbers(commits_up(url, {}, 4)) == []
    (log_of(url) / f"{1:020d}.json").unlink()
    assert numbers(commits_up(url, {}, 1)) == []


def test_one_commit_is_read_by_its_version(tmp_path: Path) -> None:
    """None if the log does not have it, nothing but its version if it says nothing of itself."""
    url = str(tmp_path / "t")
    append(url, 0)
    append(url, 1)
    found = read_commit(url, {}, 1)
    assert found is not None
    assert (found["version"], found["number"]) == (1, "1")
    assert read_commit(url, {}, 2) is None
    (log_of(url) / f"{2:020d}.json").write_text('{"txn": {"appId": "commitInfo", "version": 1}}\n')
    assert read_commit(url, {}, 2) == {"version": 2}
    (log_of(url) / f"{2:020d}.json").write_text('{"commitInfo": {"numb')
    with pytest.raises(StoreUnavailableError, match="could not be read") as caught:
        read_commit(url, {}, 2)
    assert caught.value.fields["table"] == url


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
        monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=slept.append))
        with pytest.raises(StoreUnavailableError):
            until_it_lands("t", Attempts(*[CONFLICT] * 100))
        assert len(slept) == commit._ATTEMPTS - 1
        assert 0.1 < max(slept) <= 0.5
        first.append(slept[0])
    assert max(first) <= 0.01
    assert len(set(first)) == 5
