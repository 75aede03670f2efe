"""The writers of a table are read from its log, whatever form its checkpoint has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from hindcast.delta import application_ids as module
from hindcast.delta.application_ids import applications
from hindcast.errors import StoreUnavailableError

NOTHING_LISTENS = "http://127.0.0.1:9"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a table that has no commit yet."""
    folder = tmp_path / "table" / "_delta_log"
    folder.mkdir(parents=True)
    return folder


def writes(app: str) -> dict[str, Any]:
    return {"txn": {"appId": app, "version": 1}}


def commit(log: Path, version: int, *actions: dict[str, Any]) -> Path:
    file = log / f"{version:020d}.json"
    file.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return file


def checkpoint(log: Path, name: str, *apps: str | None) -> Path:
    """A checkpoint, or a part of one, as a Parquet file: a file of the table, and the applications. An
    application without a name is null in it.
    """
    rows = [{"add": {"path": "a"}, "txn": None}, *({"add": None, "txn": {"appId": app}} for app in apps)]
    schema = pa.schema(
        [("add", pa.struct([("path", pa.string())])), ("txn", pa.struct([("appId", pa.string())]))]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), log / name)
    return log / name


def found(log: Path) -> set[str]:
    return applications(str(log.parent), {})


def test_a_log_without_a_checkpoint_is_read_from_its_first_commit(log: Path) -> None:
    """Each application comes once. A commit may say other things about transactions, and a file with another
    name is no commit.
    """
    commit(log, 0, {"commitInfo": {"txn": 1}}, {"add": {"path": "x"}}, writes("a"))
    commit(log, 1, writes("b"), writes("a"))
    (log / "00000000000000000002.json.tmp").write_text(json.dumps(writes("c")))
    assert found(log) == {"a", "b"}


def test_the_newest_checkpoint_replaces_the_commits_before_it(log: Path) -> None:
    """Older checkpoints and commits are not read, even if they are torn. Later commits are read."""
    for version in range(12):
        (log / f"{version:020d}.json").write_text('{"txn": torn')
    commit(log, 12, writes("c"))
    (log / f"{2:020d}.checkpoint.parquet").write_text("torn")
    checkpoint(log, f"{11:020d}.checkpoint.parquet", "a", None, "b")
    assert found(log) == {"a", "b", "c"}


def test_a_checkpoint_may_be_in_parts(log: Path) -> None:
    """A checkpoint that lacks a part is still being written: the one before it counts."""
    commit(log, 0, writes("a"))
    commit(log, 1, writes("b"))
    checkpoint(log, f"{1:020d}.checkpoint.0000000001.0000000002.parquet", "a")
    last = checkpoint(log, f"{1:020d}.checkpoint.0000000002.0000000002.parquet", "old")
    commit(log, 2, writes("c"))
    unfinished = f"{2:020d}.checkpoint.0000000002.0000000003.parquet"
    (log / unfinished).write_text("torn")
    assert found(log) == {"a", "old", "c"}
    last.unlink()
    assert found(log) == {"a", "b", "c"}


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_checkpoint_may_have_a_name_of_its_own(log: Path, form: str) -> None:
    """Delta's newer form of checkpoints, in JSON or Parquet."""
    name = f"{3:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.{form}"
    if form == "json":
        (log / name).write_text(f"{json.dumps({'metaData': {}})}\n{json.dumps(writes('a'))}\n")
    else:
        checkpoint(log, name, "a")
    commit(log, 3, writes("a"))
    commit(log, 4, writes("b"))
    assert found(log) == {"a", "b"}


def test_a_checkpoint_without_applications_names_none(log: Path) -> None:
    """Its file then lacks the column. Nothing of the other columns is read."""
    pq.write_table(pa.table({"add": [{"path": "a"}]}), log / f"{1:020d}.checkpoint.parquet")
    commit(log, 2, writes("b"))
    assert found(log) == {"b"}


def test_a_table_that_does_not_exist_has_no_writers(tmp_path: Path) -> None:
    """A pipeline's table for late rows is created with the first late row."""
    assert applications(str(tmp_path / "nothing"), {}) == set()


@pytest.mark.parametrize(("times", "found_at_last"), [(4, True), (5, False)])
def test_a_file_that_is_deleted_meanwhile_is_read_no_more(
    log: Path, monkeypatch: pytest.MonkeyPatch, times: int, found_at_last: bool
) -> None:
    """The log is listed again. If a file disappears during each of five readings, the log cannot be read, and
    the error says so.
    """
    file = commit(log, 0, writes("a"))
    readings = []
    read: Callable[..., Iterator[str]] = module._of_json

    def read_while_it_is_deleted(store: Any, name: str) -> Iterator[str]:
        readings.append(name)
        if len(readings) > times:
            return read(store, name)
        hidden = file.rename(log / "hidden")
        try:
            return iter(list(read(store, name)))
        finally:
            hidden.rename(file)

    monkeypatch.setattr(module, "_of_json", read_while_it_is_deleted)
    if found_at_last:
        assert found(log) == {"a"}
        return
    with pytest.raises(StoreUnavailableError, match="could not be read") as caught:
        found(log)
    assert len(readings) == times
    assert caught.value.fields["table"] == str(log.parent)
    assert isinstance(caught.value.fields["reason"], FileNotFoundError)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize("name", [f"{1:020d}.json", f"{1:020d}.checkpoint.parquet"])
def test_a_torn_log_is_no_log_without_writers(log: Path, name: str) -> None:
    """It is not read again."""
    commit(log, 0, writes("a"))
    (log / name).write_text('{"txn": torn')
    with pytest.raises(StoreUnavailableError, match="could not be read") as caught:
        found(log)
    assert caught.value.fields["table"] == str(log.parent)
    assert str(caught.value.fields["reason"]) in str(caught.value)


def test_a_store_that_does_not_answer_is_named() -> None:
    """The error has the store's own reason."""
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "s", "region": "us-east-1"}
    options = {"aws_endpoint": NOTHING_LISTENS, "allow_http": "true", "max_retries": "0", **keys}
    with pytest.raises(StoreUnavailableError, match=NOTHING_LISTENS) as caught:
        applications("s3://bucket/table", options)
    assert caught.value.fields["table"] == "s3://bucket/table"


def test_every_access_has_the_stores_options(tmp_path: Path, options_seen: list[Any]) -> None:
    """The search for the table has them, and the reading of its log."""
    url = str(tmp_path / "t")
    write_deltalake(
        url, pa.table({"n": [1]}), commit_properties=CommitProperties(app_transactions=[Transaction("a", 1)])
    )
    DeltaTable(url).create_checkpoint()
    options_seen.clear()
    assert applications(url, {"allow_http": "true"}) == {"a"}
    assert options_seen == [{"allow_http": "true"}] * 2
