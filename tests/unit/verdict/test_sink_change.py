"""What the commits of a sink brought between two of its versions: rows that were only moved are not new."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.errors import VersionLostError
from hindcast.pipeline import Table
from hindcast.settings import Settings
from hindcast.tables.compaction import compact
from hindcast.tables.sink_files import SinkFiles
from hindcast.verdict.sink_change import SinkChange

PIPELINE: Any = SimpleNamespace(sink=Table("s"))


def append(settings: Settings, *rows: dict[str, Any]) -> int:
    """Append rows to the sink; return its version."""
    url = settings.table("sinks", "s")
    write_deltalake(url, pa.Table.from_pylist(list(rows)), mode="append", schema_mode="merge")
    return DeltaTable(url).version()


def row(number: int) -> dict[str, Any]:
    return {"n": number, "more": [number], "part": {"of": str(number)}}


def test_rows_that_a_compaction_moved_are_not_new(settings: Settings) -> None:
    """Of equal rows as many are new as were added, and the new ones are whole."""
    append(settings, row(1), row(2))
    before = append(settings, row(2))
    append(settings, row(2), row(3))
    compact(DeltaTable(settings.table("sinks", "s")), {})
    after = DeltaTable(settings.table("sinks", "s")).version()
    change = SinkChange.between(SinkFiles(settings, PIPELINE), before, after)
    assert sorted(change.new_pandas(None)["n"]) == [2, 3]
    assert sorted(change.new_pandas(["n", "unknown"])["n"]) == [2, 3]
    moved_alone = SinkChange.between(SinkFiles(settings, PIPELINE), after - 1, after)
    assert moved_alone.new_pandas(None).empty
    assert sorted(SinkChange.between(SinkFiles(settings, PIPELINE), -1, after).new_pandas(["n"])["n"]) == [
        1,
        2,
        2,
        2,
        3,
    ]


def test_a_column_that_was_added_is_null_in_older_files(settings: Settings) -> None:
    """They were written before it was there."""
    before = append(settings, row(1))
    append(settings, row(2))
    after = append(settings, {**row(3), "late": 7})
    found = SinkChange.between(SinkFiles(settings, PIPELINE), before, after).new_pandas(["n", "late"])
    assert found.sort_values("n")["late"].isna().tolist() == [True, False]


def test_a_version_without_log_and_list_is_named(settings: Settings) -> None:
    """The error says which, and what to do."""
    after = append(settings, row(1))
    with pytest.raises(VersionLostError, match="its version 99 is gone") as caught:
        SinkChange.between(SinkFiles(settings, PIPELINE), 99, after)
    assert "begin where an earlier replay ended" in str(caught.value)
