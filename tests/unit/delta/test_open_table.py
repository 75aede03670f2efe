"""Opening a Delta table: what is there, what is not, and what does not answer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from hindcast.delta.open_table import find_table, open_table
from hindcast.errors import StoreUnavailableError


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


def test_a_table_that_nobody_made_is_none(tmp_path: Path) -> None:
    """Whoever needs it hears that it is not there; looking for it makes nothing."""
    missing = str(tmp_path / "missing")
    assert find_table(missing, {}) is None
    with pytest.raises(StoreUnavailableError, match="there is no table"):
        open_table(missing, {})
    assert not Path(missing).exists()


def test_a_version_that_is_gone_and_a_torn_log_have_one_form_of_error(url: str) -> None:
    """The error names the table."""
    with pytest.raises(StoreUnavailableError, match="table"):
        open_table(url, {}, 7)
    (Path(url) / "_delta_log" / "00000000000000000001.json").write_text("{")
    with pytest.raises(StoreUnavailableError, match="table"):
        find_table(url, {})
