"""Opening and creating a Delta table: one that exists, one that does not, and one that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from hindcast.delta.commit import KEEP_THE_LOG
from hindcast.delta.open_table import create_table, find_table, open_or_create, open_table
from hindcast.errors import SchemaVersionError, StoreUnavailableError

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A table of two versions."""
    place = tmp_path / "table"
    for value in (1, 2):
        write_deltalake(place, pa.table({"a": [value]}), mode="append")
    return str(place)


def test_a_table_is_opened_at_its_newest_version_or_an_older_one(url: str) -> None:
    """Without a version it is the newest one."""
    assert open_table(url, {}).version() == 1
    assert open_table(url, {}, 0).version() == 0
    found = find_table(url, {}, 0)
    assert found is not None
    assert found.version() == 0


def test_a_table_that_does_not_exist_is_none(tmp_path: Path) -> None:
    """A caller that needs it gets an error. The search creates nothing."""
    missing = str(tmp_path / "missing")
    assert find_table(missing, {}) is None
    with pytest.raises(StoreUnavailableError, match="could not be opened: there is no table") as caught:
        open_table(missing, {})
    assert caught.value.fields["table"] == missing
    assert not Path(missing).exists()


def test_a_version_that_is_gone_and_a_torn_log_have_one_form_of_error(url: str) -> None:
    """The error names the table, and has the store's own reason."""
    with pytest.raises(StoreUnavailableError, match="could not be opened") as no_version:
        open_table(url, {}, 7)
    (Path(url) / "_delta_log" / "00000000000000000001.json").write_text("{")
    with pytest.raises(StoreUnavailableError, match="could not be opened") as torn:
        find_table(url, {})
    for error in (no_version.value, torn.value):
        assert error.fields["table"] == url
        assert error.fields["reason"] is error.__cause__
        assert isinstance(error.__cause__, DeltaError)


def test_every_opening_has_the_stores_options(url: str, options_seen: list[Any]) -> None:
    """Without options there are none."""
    options = {"allow_http": "true"}
    find_table(url, options)
    open_table(url, options)
    find_table(url, {})
    open_table(url, {}, 0)
    assert options_seen == [options, options, None, None]


def test_a_table_of_other_columns_is_the_callers_to_check(url: str) -> None:
    """A table that exists is opened as it is."""
    found = open_or_create(url, SCHEMA, {}, "another name")
    assert [field.name for field in found.schema().fields] == ["a"]
    assert (found.version(), found.metadata().name) == (1, None)


def test_a_table_is_created_once(tmp_path: Path, options_seen: list[Any]) -> None:
    """It gets its name and configuration, by the store's options. A later caller opens it and changes
    nothing.
    """
    url = str(tmp_path / "t")
    made = create_table(url, SCHEMA, {"allow_http": "true"}, "", "the name", KEEP_THE_LOG)
    assert (made.metadata().name, made.metadata().configuration) == ("the name", KEEP_THE_LOG)
    assert len(options_seen) >= 3
    assert set(map(str, options_seen)) == {"{'allow_http': 'true'}"}
    options_seen.clear()
    again = create_table(url, SCHEMA, {}, "", "another name")
    assert options_seen == [None], "it is opened, and not made again"
    assert (again.version(), again.metadata().name) == (0, "the name")
    assert made.table_uri == again.table_uri


@pytest.mark.parametrize("refused", [True, False])
def test_a_table_that_another_creates_at_the_same_moment_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """One's own commit is refused, or it finds the other's table."""
    url = str(tmp_path / "t")
    make = DeltaTable.create

    def create_after_another(*arguments: Any, **options: Any) -> DeltaTable:
        make(url, SCHEMA, name="the other's")
        if refused:
            raise CommitFailedError("version 0 is there")
        return make(*arguments, **options)

    monkeypatch.setattr(DeltaTable, "create", create_after_another)
    found = create_table(url, SCHEMA, {}, "", "mine")
    assert (found.version(), found.metadata().name) == (0, "the other's")


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    """The error says which columns the table has, which are expected, and what to do."""
    url = str(tmp_path / "t")
    DeltaTable.create(url, pa.schema([("a", pa.string()), ("b", pa.string())]))
    with pytest.raises(SchemaVersionError, match="Move it away") as caught:
        create_table(url, SCHEMA, {}, "Move it away.")
    fields = {"table": url, "found": "with the columns a, b", "supported": "k, n", "cure": "Move it away."}
    assert caught.value.fields == fields


@pytest.mark.parametrize("error", [DeltaError("the disk is away"), OSError("the disk is away")])
def test_a_table_that_cannot_be_created_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The error has the store's own reason."""
    url = str(tmp_path / "t")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(DeltaTable, "create", fail)
    with pytest.raises(StoreUnavailableError, match="could not be created: the disk is away") as caught:
        create_table(url, SCHEMA, {}, "")
    assert caught.value.fields["table"] == url
