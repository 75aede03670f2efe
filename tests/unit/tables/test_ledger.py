"""The ledger: one row of each batch is read, even if it was recorded twice, measured later or taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.ledger_rows import AT, batch

from hindcast.recovery.rewind_point import reset_row
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger, LedgerRow, Undone
from hindcast.tables.table_names import ControlTable


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    return Ledger(ControlTables(settings))


def taken_back(shard: str, kept: int, *, sink_version: int, **fields: Any) -> LedgerRow:
    row = reset_row("p", 1, "t", shard, kept, 9, {0: 0}, sink_version)
    return replace(row, committed_at=AT, **fields)


def test_a_version_reads_its_own_batches_and_resets(ledger: Ledger) -> None:
    """Nothing of another version of the pipeline counts. Its shards may have the same names, as here."""
    mine = [batch(1, {0: 0}, {0: 5}), batch(2, {0: 5}, {0: 9})]
    others = [replace(mine[0], version=2, sink_version=7), replace(mine[1], version=2, batch=8)]
    kept = replace(mine[0], version=2, shard="s5", sink_version=8)
    ledger.append([*mine, *others, kept, taken_back("s0", 0, sink_version=20, version=2)])
    ledger.append([replace(mine[1], pipeline="q", batch=11)])
    assert ledger.batches("p", 1) == ledger.batches("p", 1, "s0") == mine
    assert ledger.batches("p", 1, "s9") == []
    assert ledger.batches("p", 1, after=1) == mine[1:]
    assert ledger.batches("p") == [*mine, kept]
    assert ledger.newest("p", 1) == mine[1:]
    assert ledger.newest("p", 2) == [kept]
    assert ledger.undone("p", 1) == []


def test_the_newest_batch_of_each_shard_was_not_taken_back(ledger: Ledger) -> None:
    """Batches that were taken back are skipped. A shard all of whose batches were taken back has none."""
    s0 = [batch(number, {0: number}, {0: number + 1}) for number in (1, 2, 3)]
    s1 = [replace(row, shard="s1", sink_version=row.sink_version + 10) for row in s0]
    undone = [replace(row, shard="s2") for row in s0]
    ledger.append([*s1, *undone, *s0])
    ledger.append([taken_back("s0", 2, sink_version=30), taken_back("s2", 0, sink_version=30)])
    assert ledger.newest("p", 1) == [s0[1], s1[2]]


def test_what_a_take_over_needs_is_near_the_last_batch(ledger: Ledger) -> None:
    """The shard's last batches and the one after, and whatever the sink's version does not reach: of all
    shards. Of a shard without batches nothing is needed.
    """
    s0 = [batch(number, {0: number}, {0: number + 1}, sink_version=2 * number) for number in range(1, 200)]
    s1 = [replace(row, shard="s1", sink_version=row.sink_version + 1) for row in s0]
    ledger.append([*s0, *s1])
    assert ledger.near("p", 1, "s0", 100, 398) == [*s0[36:101], s1[-1]]
    assert ledger.near("p", 1, "s0", 100, 399) == s0[36:101]
    assert ledger.near("p", 1, "s0", 199, 399) == s0[135:]
    assert ledger.near("p", 1, "s0", 0, 399) == s0[:1]
    assert ledger.near("p", 1, "s9", 0, 399) == []


def test_a_take_over_far_from_what_the_ledger_has_reads_all_of_it(ledger: Ledger) -> None:
    """Its worker died with many rows, or a reset took the last batches back."""
    rows = [batch(number, {0: number}, {0: number + 1}) for number in range(1, 9)]
    ledger.append(rows)
    assert ledger.near("p", 1, "s0", 71, 71) == rows[7:]
    assert ledger.near("p", 1, "s0", 72, 72) == rows[7:]
    ledger.append([taken_back("s0", 2, sink_version=30)])
    assert ledger.near("p", 1, "s0", 8, 30) == rows[:2]
    ledger.append([batch(number, {0: number}, {0: number + 1}, shard="s1") for number in range(1, 99)])
    ledger.append([taken_back("s1", 2, sink_version=130)])
    assert [(row.shard, row.batch) for row in ledger.near("p", 1, "s1", 98, 130)] == [("s0", 2), ("s1", 2)]


def test_how_far_the_ledger_reaches_does_not_depend_on_what_was_taken_back(ledger: Ledger) -> None:
    """The sink's fence keeps the number of a batch that was taken back."""
    s0 = [batch(number, {0: number}, {0: number + 1}) for number in (1, 2, 3)]
    undone = [replace(row, shard="s2") for row in s0]
    assert ledger.reached("p", 1) == {}
    ledger.append([*undone, *s0, taken_back("s2", 0, sink_version=30)])
    assert ledger.reached("p", 1) == {"s0": s0[2], "s2": undone[2]}


def test_a_row_that_was_measured_replaces_one_that_was_repaired(ledger: Ledger) -> None:
    """In whichever order they came: the repair knows less."""
    measured = [batch(number, {0: number}, {0: number + 1}, input_rows=7) for number in (1, 2)]
    repaired = [replace(row, input_rows=None, batch_seconds=None) for row in measured]
    ledger.append([repaired[0], measured[1]])
    ledger.append([measured[0], repaired[1]])
    assert ledger.batches("p", 1) == measured


def test_what_a_reset_took_back_is_between_what_it_kept_and_itself(ledger: Ledger) -> None:
    """Its own commit and the last one that it kept are not among it. A reset to the beginning kept none.
    Later batches are not taken back.
    """
    ledger.append([batch(number, {0: number}, {0: number + 1}) for number in (1, 2)])
    ledger.append(
        [taken_back("s0", 1, sink_version=5), replace(batch(1, {0: 2}, {0: 3}), shard="s1", sink_version=6)]
    )
    assert ledger.undone("p", 1) == [Undone(1, 5)]
    assert [version for version in range(8) if Undone(1, 5).has(version)] == [2, 3, 4]
    ledger.append([taken_back("s0", 0, sink_version=9), taken_back("s1", 0, sink_version=9)])
    assert ledger.undone("p", 1) == [Undone(-1, 5), Undone(-1, 9)]


def test_a_row_that_has_no_floors_has_none(settings: Settings, ledger: Ledger) -> None:
    """An older Hindcast wrote rows without them."""
    row = batch(1, {0: 0}, {0: 5})
    values = row.as_row()
    del values["floors"]
    ControlTables(settings).append(ControlTable.CHECKPOINTS, [values])
    assert ledger.batches("p", 1) == [row]


def test_a_partitions_own_floor_counts_in_addition_to_the_watermark() -> None:
    """For what is late in a batch, and for what is final after it. A partition without a floor has the
    watermark alone.
    """
    row = batch(1, {0: 0, 1: 0}, {0: 5, 1: 5}, 100, late_watermark_ms=50, floors={0: 70, 1: 130})
    assert [row.late_ms(partition) for partition in (0, 1, 2)] == [70, 130, 50]
    assert [row.final_ms(partition) for partition in (0, 1, 2)] == [100, 130, 100]
    at_zero = replace(row, watermark_ms=0, late_watermark_ms=0)
    assert (at_zero.late_ms(2), at_zero.final_ms(2)) == (0, 0)


def test_joined_files_of_the_ledger_are_searched_by_every_column(settings: Settings, ledger: Ledger) -> None:
    """A joined file keeps the bounds of some columns. Searches by others, the shard and what was left out,
    find its rows all the same.
    """
    tables = ControlTables(settings)
    for number in range(1, 4):
        ledger.append([batch(number, {0: 0}, {0: 1}), batch(number, {1: 0}, {1: 1}, shard="s1")])
    ledger.append([batch(4, {0: 0}, {0: 1}, excluded={0: {0: "KeyError"}})])
    before = {shard: ledger.batches("p", 1, shard) for shard in ("s0", "s1")}
    tables.upkeep[ControlTable.CHECKPOINTS].run()
    assert len(tables.open(ControlTable.CHECKPOINTS).file_uris()) == 1
    ledger.append([batch(4, {1: 0}, {1: 1}, shard="s1")])
    assert ledger.batches("p", 1, "s0") == before["s0"]
    assert ledger.batches("p", 1, "s1")[:3] == before["s1"]
    assert [row.batch for row in ledger.batches("p", 1, "s1", after=2)] == [3, 4]
    assert [row.batch for row in ledger.excluding("p", 1)] == [4]
    assert [row.batch for row in ledger.near("p", 1, "s0", 4, 4)] == [1, 2, 3, 4]
