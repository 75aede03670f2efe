"""What a log says is read from its last checkpoint on, by the names of its entries."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from hindcast.delta.log_state import LogState, entry_path, read_state
from hindcast.errors import StoreUnavailableError

APPS = ["a", "b"]


def write(url: str, app: str, number: int) -> None:
    properties = CommitProperties(app_transactions=[Transaction(app, number)])
    write_deltalake(url, pa.table({"n": [number], "m": ["x"]}), mode="append", commit_properties=properties)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A table with ten entries and two checkpoints, at versions 3 and 6."""
    made = str(tmp_path / "t")
    for number in range(10):
        write(made, "abc"[number % 3], number)
        if number in (3, 6):
            DeltaTable(made).create_checkpoint()
    return made


def folder(url: str) -> Path:
    return Path(url, "_delta_log")


def entries_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the entries that are read from now on."""
    names: list[str] = []
    read = Path.read_bytes

    def noted(self: Path) -> bytes:
        if self.suffix == ".json":
            names.append(self.name)
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", noted)
    return names


def test_it_says_what_deltas_own_reader_says(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And reads the entries after the last checkpoint alone."""
    own = LogState.of_table(DeltaTable(url), APPS)
    names = entries_read(monkeypatch)
    assert read_state(folder(url), APPS) == own
    assert own == LogState(APPS, 9, {"a": 9, "b": 7}, ("n", "m"), {}, 2)
    assert names == [f"{version:020d}.json" for version in (7, 8, 9, 10)]


def test_a_table_without_a_checkpoint_is_read_from_its_first_entry(tmp_path: Path) -> None:
    """It has the protocol and the columns."""
    url = str(tmp_path / "t")
    write(url, "a", 5)
    state = read_state(folder(url), APPS)
    assert state == LogState(APPS, 0, {"a": 5}, ("n", "m"), {}, 2)
    assert read_state(tmp_path / "none" / "_delta_log", APPS) is None


def test_a_hint_at_an_old_checkpoint_is_followed_as_far_as_entries_go(url: str) -> None:
    """Two writers of checkpoints may leave it so. If what came after that checkpoint is deleted, only a listing
    tells.
    """
    (folder(url) / "_last_checkpoint").write_text(json.dumps({"version": 3, "size": 1}))
    state = read_state(folder(url), APPS)
    assert state is not None
    assert (state.version, state.numbers) == (9, {"a": 9, "b": 7})
    for version in range(6):
        entry_path(folder(url), version).unlink()
    assert read_state(folder(url), APPS) is None


def test_a_checkpoint_is_the_newest_version_if_its_own_entry_is_there(tmp_path: Path) -> None:
    """Nothing was committed since."""
    url = str(tmp_path / "t")
    write(url, "a", 5)
    DeltaTable(url).create_checkpoint()
    state = read_state(folder(url), APPS)
    assert state is not None
    assert state.version == 0
    entry_path(folder(url), 0).unlink()
    assert read_state(folder(url), APPS) is None


def test_a_checkpoint_of_another_form_is_left_to_deltas_own_reader(url: str) -> None:
    """Of several parts, or with a name of its own."""
    checkpoint = folder(url) / f"{6:020d}.checkpoint.parquet"
    checkpoint.rename(folder(url) / f"{6:020d}.checkpoint.{1:010d}.{1:010d}.parquet")
    assert read_state(folder(url), APPS) is None


def test_an_entry_that_was_lost_is_no_end_of_the_log(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it held would be skipped, and the next writer would make it anew. An entry that another process makes
    right then, before the one after it, is read.
    """
    lost = entry_path(folder(url), 8)
    text = lost.read_bytes()
    lost.unlink()
    with pytest.raises(StoreUnavailableError, match=f"the commit {lost.name} of its log is missing"):
        read_state(folder(url), APPS)
    exists = Path.exists

    def made_meanwhile(path: Path) -> bool:
        if path.name == f"{9:020d}.json":
            lost.write_bytes(text)
        return exists(path)

    monkeypatch.setattr(Path, "exists", made_meanwhile)
    state = read_state(folder(url), APPS)
    assert state is not None
    assert state.version == 9


def test_several_entries_that_were_lost_are_no_end_of_the_log(url: str) -> None:
    """As far as it looks ahead."""
    for number in range(10, 18):
        write(url, "a", number)
    for version in range(8, 16):
        entry_path(folder(url), version).unlink()
    with pytest.raises(StoreUnavailableError, match=f"{url} could not be read: the commit {8:020d}.json"):
        read_state(folder(url), APPS)


def test_a_transaction_may_stand_anywhere_in_its_entry(url: str) -> None:
    """The protocol has no order of actions."""
    other = json.dumps({"commitInfo": {"operation": "WRITE"}})
    transaction = json.dumps({"txn": {"appId": "a", "version": 77}})
    entry_path(folder(url), 10).write_text(f"{transaction}\n{other}\n")
    entry_path(folder(url), 11).write_text("\n".join([other, other, transaction.replace("77", "78")]))
    state = read_state(folder(url), APPS)
    assert state is not None
    assert (state.version, state.numbers["a"]) == (11, 78)
    entry_path(folder(url), 11).unlink()
    state = read_state(folder(url), APPS)
    assert state is not None
    assert (state.version, state.numbers["a"]) == (10, 77)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
def test_a_torn_entry_is_an_error(url: str, share: float) -> None:
    """Wherever it ends: the transaction that comes last is not taken for one that was never made."""
    entry = entry_path(folder(url), 8)
    text = entry.read_text()
    entry.write_text(text[: int(len(text) * share)])
    with pytest.raises(ValueError, match=r".+"):
        read_state(folder(url), APPS)


def test_what_is_torn_is_an_error(url: str) -> None:
    """An empty entry is named; a torn checkpoint cannot be read."""
    entry = entry_path(folder(url), 8)
    text = entry.read_text()
    entry.write_text("")
    with pytest.raises(
        StoreUnavailableError, match=f"{url} could not be read: the commit {entry.name} of its log is empty"
    ):
        read_state(folder(url), APPS)
    entry.write_text(text)
    checkpoint = folder(url) / f"{6:020d}.checkpoint.parquet"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:9])
    with pytest.raises(ValueError, match=r".+"):
        read_state(folder(url), APPS)
    checkpoint.write_bytes(whole)
    assert read_state(folder(url), APPS) is not None


@pytest.mark.parametrize("hint", ["", '{"version', "[]", "{}"])
def test_a_torn_hint_is_none(url: str, hint: str) -> None:
    """A machine that lost its power may leave one. Delta's own reader does without it, too: the log is read from
    its first entry, or by that reader if the first entry is gone.
    """
    before = read_state(folder(url), APPS)
    (folder(url) / "_last_checkpoint").write_text(hint)
    assert read_state(folder(url), APPS) == before
    entry_path(folder(url), 0).unlink()
    assert read_state(folder(url), APPS) is None
    assert DeltaTable(url).version() == 9
