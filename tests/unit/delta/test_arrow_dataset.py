"""A file is left out of a search if its bounds rule it out, and only then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaProtocolError
from deltalake.transaction import AddAction
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import filters_to_expression

from hindcast.delta.arrow_dataset import Condition, arrow_dataset

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])
AT = datetime(2026, 1, 1, 0, 0, 0, 1_999, UTC)


def add(url: str, rows: pa.Table, stats: dict[str, Any] | None) -> None:
    """Add a file with these statistics."""
    table = DeltaTable(url)
    path = f"{table.version()}.parquet"
    pq.write_table(rows, Path(url, path))
    text = json.dumps(stats) if stats else None
    action = AddAction(path, Path(url, path).stat().st_size, {}, 1, data_change=True, stats=text)
    table.create_write_transaction([action], "append", table.schema())


def bounds(least: dict[str, Any], greatest: dict[str, Any], rows: int) -> dict[str, Any]:
    return {
        "numRecords": rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": dict.fromkeys(least, 0),
    }


def found(url: str, *groups: Sequence[Condition]) -> tuple[int, int]:
    """The files that are read, and the rows that are found."""
    dataset = arrow_dataset(DeltaTable(url), groups)
    rows = dataset.to_table(filter=filters_to_expression([list(group) for group in groups]))
    return len(list(dataset.get_fragments())), rows.num_rows


def test_a_row_is_found_by_a_column_without_bounds(tmp_path: Path) -> None:
    """Also beside files that have bounds of it. deltalake's own reader finds none of them: this test says so
    if that changes.
    """
    url = str(tmp_path / "t")
    DeltaTable.create(url, SCHEMA)
    add(url, pa.table({"k": [1, 2], "s": ["a", "b"]}, schema=SCHEMA), bounds({"k": 1}, {"k": 2}, 2))
    write_deltalake(url, pa.table({"k": [9], "s": ["z"]}, schema=SCHEMA), mode="append")
    by_text = ("s", "=", "a")
    assert found(url, [by_text]) == (1, 1)
    assert found(url, [("s", ">", "")]) == (2, 3)
    assert found(url, [("k", "=", 1), by_text]) == (1, 1)
    own = DeltaTable(url).to_pyarrow_dataset()
    assert own.to_table(filter=filters_to_expression([by_text])).num_rows == 0


@pytest.mark.parametrize("stats", [None, {"numRecords": 2}])
def test_a_file_without_statistics_is_read(tmp_path: Path, stats: dict[str, Any] | None) -> None:
    """Another program may write none."""
    url = str(tmp_path / "t")
    DeltaTable.create(url, SCHEMA)
    add(url, pa.table({"k": [1, 2], "s": ["a", "b"]}, schema=SCHEMA), stats)
    assert found(url, [("k", "=", 2)]) == (1, 1)
    assert found(url, [("k", "=", 7)]) == (1, 0)


def test_a_null_is_found_beside_values(tmp_path: Path) -> None:
    """The bounds of a column say nothing of its nulls."""
    url = str(tmp_path / "t")
    write_deltalake(url, pa.table({"k": [1, None], "s": ["a", None]}, schema=SCHEMA))
    dataset = arrow_dataset(DeltaTable(url))
    assert dataset.to_table(filter=pc.field("k").is_null()).num_rows == 1


def test_an_instant_is_found_though_bounds_are_whole_milliseconds(tmp_path: Path) -> None:
    """Delta cuts them."""
    url = str(tmp_path / "t")
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC"))])
    DeltaTable.create(url, schema)
    cut = "2026-01-01T00:00:00.001Z"
    add(url, pa.table({"at": [AT]}, schema=schema), bounds({"at": cut}, {"at": cut}, 1))
    assert found(url, [("at", "=", AT)]) == (1, 1)
    assert found(url, [("at", ">", AT - timedelta(microseconds=1))]) == (1, 1)
    assert found(url, [("at", ">", AT + timedelta(milliseconds=1))]) == (0, 0)


def test_partitions_are_columns_and_paths_may_have_any_characters(tmp_path: Path) -> None:
    """A partition's value is in the log alone."""
    url = str(tmp_path / "t")
    rows = [{"k": 1, "s": "a b%c"}, {"k": 2, "s": None}, {"k": 3, "s": "ä/ö"}]
    write_deltalake(url, pa.Table.from_pylist(rows, schema=SCHEMA), partition_by=["s"])
    dataset = arrow_dataset(DeltaTable(url))
    assert sorted(dataset.to_table().to_pylist(), key=lambda row: row["k"]) == rows
    assert found(url, [("s", "=", "ä/ö")])[1] == 1


def test_what_arrow_does_not_read_is_refused(tmp_path: Path) -> None:
    """With deletion vectors the files have rows that the table has not."""
    url = str(tmp_path / "t")
    DeltaTable.create(url, SCHEMA, configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        arrow_dataset(DeltaTable(url))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three files: with bounds of all columns, of the number only, and of none."""
    url = str(tmp_path_factory.mktemp("files") / "t")
    DeltaTable.create(url, SCHEMA)
    rows = pa.table({"k": [1, 2, None], "s": ["a", None, "c"]}, schema=SCHEMA)
    add(url, rows, bounds({"k": 1, "s": "a"}, {"k": 2, "s": "c"}, 3))
    add(url, pa.table({"k": [4, 5], "s": ["d", "b"]}, schema=SCHEMA), bounds({"k": 4}, {"k": 5}, 2))
    add(url, pa.table({"k": [3, 9], "s": ["b", "e"]}, schema=SCHEMA), {"numRecords": 2})
    return url


NUMBERS = st.integers(0, 10)
TEXTS = st.sampled_from(["", "a", "b", "bb", "c", "d", "e", "f"])
OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
CONDITIONS = st.one_of(
    st.tuples(st.just("k"), OPERATORS, NUMBERS),
    st.tuples(st.just("s"), OPERATORS, TEXTS),
    st.tuples(st.just("k"), st.just("in"), st.lists(NUMBERS, min_size=1, max_size=3)),
    st.tuples(st.just("s"), st.just("in"), st.lists(TEXTS, min_size=1, max_size=3)),
)


@given(groups=st.lists(st.lists(CONDITIONS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_no_row_is_lost_by_leaving_files_out(files: str, groups: list[list[Condition]]) -> None:
    """Whatever is searched for: what is found in the files that are read is what all files have."""
    expression = filters_to_expression(groups)
    table = DeltaTable(files)
    everything = arrow_dataset(table).to_table().filter(expression)
    assert arrow_dataset(table, groups).to_table(filter=expression).num_rows == everything.num_rows
