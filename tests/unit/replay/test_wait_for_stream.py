"""How far a stream is on its way to what a replay awaits, read from the tables alone."""

from __future__ import annotations

import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from hindcast.installation import Installation
from hindcast.partitions import app_id
from hindcast.replay.wait_for_stream import Awaited, read_progress
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.schema import SCHEMAS
from hindcast.tables.table_names import ControlTable

NAME = "stock_stats"
AUDITED = (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS)
SHARDS = [f"v1.g0.s{number}" for number in range(4)]


def file_rows(tables: ControlTables, table: ControlTable, batches: dict[str, int]) -> None:
    """As the audit does: a commit that remembers the last batch of each shard."""
    done = []
    for shard, batch in batches.items():
        done.append(Transaction(app_id(NAME, shard), (1 << 32) | batch))
    write_deltalake(
        tables.open(table),
        SCHEMAS[table].empty_table(),
        mode="append",
        commit_properties=CommitProperties(app_transactions=done),
    )


def waited_for(installation: Installation, batches: dict[str, int]) -> str:
    progress = read_progress(installation, Awaited(pipeline=NAME, version=1, batches=batches))
    assert progress.met == ("no shard" in progress.text)
    return progress.text


def test_shards_whose_rows_are_not_in_both_tables_are_named(installation: Installation) -> None:
    """One of them is further in the one table, one in the other, and of one nothing is filed."""
    first, second, third, fourth = SHARDS
    file_rows(installation.tables, AUDITED[0], {first: 7, second: 9, third: 6})
    file_rows(installation.tables, AUDITED[1], {first: 7, second: 6, third: 9})
    shown = waited_for(installation, dict.fromkeys(SHARDS, 7))
    assert shown == f"late and poison rows of {second}, {third}, {fourth} are still to be filed"
    assert "no shard" in waited_for(installation, {first: 7, second: 6, third: 6})


def test_each_table_of_the_audit_is_opened_once_for_all_shards(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open reads the table's log, and on an object store takes several requests."""
    for table in AUDITED:
        file_rows(installation.tables, table, dict.fromkeys(SHARDS, 3))
    opened: list[ControlTable] = []
    open_ = ControlTables.open

    def note(tables: ControlTables, name: ControlTable) -> object:
        opened.append(name)
        return open_(tables, name)

    monkeypatch.setattr(ControlTables, "open", note)
    assert "no shard" in waited_for(installation, dict.fromkeys(SHARDS, 3))
    assert sorted(name for name in opened if name in AUDITED) == sorted(AUDITED)
