"""How the control tables are read."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from hindcast.control.schema import ControlTable
from hindcast.control.tables import ControlTables, arrow_dataset
from hindcast.settings import Settings


def test_only_rows_that_meet_every_condition_are_read(settings: Settings) -> None:
    """Conditions are joined by AND, whatever their operators, and only the asked columns come."""
    tables = ControlTables(settings)
    now = datetime.now(UTC)
    rows = [{"event_id": str(number), "at": now, "pipeline": f"p{number % 2}", "kind": "k"} for number in range(6)]
    tables.append(ControlTable.EVENTS, rows)
    where = [("pipeline", "=", "p1"), ("event_id", "in", ["1", "2", "5"])]
    assert Counter(row["event_id"] for row in tables.rows(ControlTable.EVENTS, where)) == {"1": 1, "5": 1}
    assert tables.read(ControlTable.EVENTS, where, ["kind"]).to_pylist() == [{"kind": "k"}] * 2
    assert len(tables.rows(ControlTable.EVENTS)) == len(rows)


def test_local_files_are_read_wherever_they_lie(tmp_path: Path) -> None:
    """Arrow's own file system finds the files of a folder, and of partitions, whose names need quoting in an address.

    deltalake's own would do, too, but a process that ends as soon as it has read through it is aborted now and then.
    """
    folder = tmp_path / "a folder, ü"
    folder.mkdir()
    rows = [{"x": 1, "p": "a b:c"}, {"x": 2, "p": "ü/%20"}, {"x": 3, "p": "plain"}]
    write_deltalake(str(folder), pa.Table.from_pylist(rows), partition_by=["p"])
    dataset = arrow_dataset(DeltaTable(str(folder)))
    assert isinstance(dataset.filesystem, SubTreeFileSystem) and isinstance(dataset.filesystem.base_fs, LocalFileSystem)
    assert sorted(dataset.to_table().to_pylist(), key=lambda row: row["x"]) == rows
