"""The fence of a query that others run, on a real table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from hindcast.errors import StoreUnavailableError
from hindcast.foreign import fence
from hindcast.foreign.fence import fence_off, last_batch, last_in_table

QUERY = "8a6a0dd4-4bd7-4b9e-a3f1-0c9b8f0f9d11"


@pytest.fixture
def table(tmp_path: Path) -> str:
    """With the query's batches 0 to 2, and a hand's rows on top."""
    url = str(tmp_path / "table")
    for number in range(3):
        batch(url, number)
    write_deltalake(url, pa.table({"n": [99]}), mode="append")
    return url


def batch(url: str, number: int, query: str = QUERY) -> None:
    """What Delta's sink commits."""
    properties = CommitProperties(app_transactions=[Transaction(query, number)])
    write_deltalake(url, pa.table({"n": [number]}), mode="append", commit_properties=properties)


def test_a_fence_says_which_batch_was_the_last(table: str) -> None:
    """Once and for all, and of that query alone."""
    assert (last_in_table(table, {}, QUERY), last_batch(table, {}, QUERY)) == (2, None)
    assert fence_off(table, {}, QUERY) == 2
    version = DeltaTable(table).version()
    write_deltalake(table, pa.table({"n": [100]}), mode="append")
    assert fence_off(table, {}, QUERY) == 2
    assert DeltaTable(table).version() == version + 1
    assert (last_in_table(table, {}, QUERY), last_batch(table, {}, QUERY)) == (2, 2)
    batch(table, 7, "another")
    assert last_in_table(table, {}, "another") == 7
    assert last_batch(table, {}, "another") is None


def test_the_fences_number_is_above_any_batch(table: str) -> None:
    """Delta's sink leaves out a batch whose number is not above the recorded one."""
    fence_off(table, {}, QUERY)
    recorded = DeltaTable(table).transaction_version(QUERY)
    assert recorded is not None
    assert recorded > 10**15


def test_a_batch_that_lands_meanwhile_is_the_last(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence is decided on the version on which it lands."""
    opened = fence.open_table
    landed = []

    def open_and_commit(url: str, options: dict[str, str]) -> DeltaTable:
        found = opened(url, options)
        if not landed:
            landed.append(3)
            batch(url, 3)
        return found

    monkeypatch.setattr(fence, "open_table", open_and_commit)
    assert fence_off(table, {}, QUERY) == 3
    assert last_batch(table, {}, QUERY) == 3


def test_each_query_of_a_table_has_a_last_batch_of_its_own(table: str) -> None:
    """Two may have written it, and both may be fenced off."""
    batch(table, 7, "another")
    assert (fence_off(table, {}, QUERY), fence_off(table, {}, "another")) == (2, 7)
    assert (last_batch(table, {}, QUERY), last_batch(table, {}, "another")) == (2, 7)


def test_a_log_that_has_lost_the_fence_is_told(table: str) -> None:
    """What it said is then known to the ledger alone."""
    fence_off(table, {}, QUERY)
    for number in range(3):
        batch(table, number, "another")
    known = DeltaTable(table)
    known.create_checkpoint()
    for entry in sorted(Path(table, "_delta_log").glob("*.json"))[:-2]:
        entry.unlink()
    with pytest.raises(StoreUnavailableError, match="lost the commit"):
        last_batch(table, {}, QUERY)


def test_without_a_table_there_is_no_batch(tmp_path: Path) -> None:
    """Whoever asks says what is wrong."""
    url = str(tmp_path / "none")
    assert last_batch(url, {}, QUERY) is None
    assert last_in_table(url, {}, QUERY) is None
