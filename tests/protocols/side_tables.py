"""The tables of late and poison rows: their logs are real, their rows are kept by the name of the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protocols.simulated_spark import SimulatedSpark
from protocols.topic import places, raises, window_end

from hindcast.tables.ledger import LedgerRow

#: A late row, or a dead one: shard, batch, partition, offset.
SideRow = tuple[str, int, int, int]


class Rows:
    """A frame of rows."""

    def __init__(self, rows: Sequence[SideRow]) -> None:
        self._rows = rows

    def where(self, wanted: Callable[[SideRow], bool]) -> Rows:
        return Rows([row for row in self._rows if wanted(row)])

    def run(self) -> list[Any]:
        return list(self._rows)


class Batch:
    """The column of the batch's number."""

    def __gt__(self, number: int) -> Callable[[SideRow], bool]:
        return lambda row: row[1] > number


def unaccounted(batches: Sequence[LedgerRow]) -> Rows:
    """The late and the dead rows of these batches, as the ledger says which are."""
    found = []
    for row in batches:
        for partition, offset in places(row.start_offsets, row.end_offsets):
            is_late = window_end(partition, offset) <= row.late_ms(partition)
            if is_late or offset in row.excluded.get(partition, {}):
                found.append((row.shard, row.batch, partition, offset))
    return Rows(found)


def late_rows(rows: Rows) -> Rows:
    """Those on which the function does not raise."""
    return rows.where(lambda row: not raises(row[2], row[3]))


def dead_rows(rows: Rows) -> Rows:
    """Those on which it does."""
    return rows.where(lambda row: raises(row[2], row[3]))


def filed_rows(url: str, spark: SimulatedSpark) -> list[SideRow]:
    """The rows of a table, from its log."""
    rows: list[Any] = []
    for path in sorted(Path(url, "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            added = json.loads(line).get("add")
            if added is not None:
                rows += spark.files[added["path"]]
    return rows


def delete_after(url: str, spark: SimulatedSpark, shard: str, kept: int) -> None:
    """Delete the rows of a shard's batches after ``kept``."""
    files: Mapping[str, list[Any]] = spark.files
    for path in sorted(Path(url, "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            added = json.loads(line).get("add")
            if added is not None:
                rows = files[added["path"]]
                rows[:] = [row for row in rows if row[0] != shard or row[1] <= kept]
