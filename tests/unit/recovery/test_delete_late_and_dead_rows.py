"""Late and poison rows of batches that are taken back go, and no older owner adds more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.paused_pipeline import STOCK_STATS, write_as

from hindcast.errors import LeaseLostError, StoreUnavailableError
from hindcast.installation import Installation
from hindcast.partitions import app_id
from hindcast.pipeline import Pipeline, Table
from hindcast.recovery.begun_rewind import BegunRewind
from hindcast.recovery.delete_late_and_dead_rows import (
    delete_late_and_dead_rows,
    empty_late_sink,
    last_filed_batch,
    seal,
)
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import Fence, FencedTable
from hindcast.tables.table_names import ControlTable

TABLES = [ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS]
SHARD = "v1.g0.s0"
SCHEMA = pa.schema([("n", pa.int64())])


def fenced(settings: Settings, name: ControlTable, shard: str = SHARD) -> FencedTable:
    """The table as the shard sees it, made if nobody has made it."""
    tables = ControlTables(settings)
    tables.open(name)
    return FencedTable(tables.url(name), {}, app_id("stock_stats", shard))


def append(settings: Settings, name: ControlTable, *rows: tuple[str, str, int]) -> None:
    """Append a row of each (pipeline, shard, batch), with the batch as its offset."""
    given = [
        {"pipeline": pipeline, "shard": shard, "batch": batch, "partition": 0, "offset": batch}
        for pipeline, shard, batch in rows
    ]
    ControlTables(settings).append(name, given)


def left(settings: Settings, name: ControlTable) -> set[tuple[str, str, int]]:
    return {(row["pipeline"], row["shard"], row["batch"]) for row in ControlTables(settings).rows(name)}


@pytest.fixture
def with_late_sink(settings: Settings) -> Pipeline:
    """A pipeline with a table of its own for late rows, in which two shards have each left one."""
    url = settings.table("sinks", "too_late")
    DeltaTable.create(url, SCHEMA)
    for shard in (SHARD, "v1.g0.s1"):
        write_as(url, app_id("stock_stats", shard), SCHEMA)
    return replace(STOCK_STATS, late=lambda rows: rows, late_sink=Table("too_late"))


def test_the_rows_of_batches_that_are_taken_back_are_deleted(settings: Settings) -> None:
    """Those of the last batch that is kept stay, and so do those of other pipelines and of other shards."""
    others = {("bar", SHARD, 9), ("stock_stats", "v2.g0.s0", 9)}
    for name in TABLES:
        append(settings, name, *others, *(("stock_stats", SHARD, batch) for batch in (2, 3, 4)))
        append(settings, name, ("stock_stats", "v1.g0.s1", 1))
    begun = BegunRewind({"last": {SHARD: 2}}, {SHARD: 5, "v1.g0.s1": 7}, {})
    delete_late_and_dead_rows(Installation(settings), STOCK_STATS, begun)
    for name in TABLES:
        assert left(settings, name) == {*others, ("stock_stats", SHARD, 2)}
        assert fenced(settings, name).recorded() == Fence(5, 0)
        assert fenced(settings, name, "v1.g0.s1").recorded() == Fence(7, 0)


def test_rows_of_an_older_generation_are_deleted_without_a_fence(settings: Settings) -> None:
    """Its shards have no owner that could write, and no new epoch."""
    for name in TABLES:
        append(settings, name, ("stock_stats", "v1.g0.s1", 3), ("stock_stats", "v1.g0.s1", 4))
    begun = BegunRewind({"last": {"v1.g0.s1": 3}}, {}, {})
    delete_late_and_dead_rows(Installation(settings), STOCK_STATS, begun)
    for name in TABLES:
        assert left(settings, name) == {("stock_stats", "v1.g0.s1", 3)}
        assert fenced(settings, name, "v1.g0.s1").recorded() is None


def test_the_last_filed_batch_is_in_both_tables(settings: Settings) -> None:
    """0 before the first; a table that nobody has made is made."""
    assert last_filed_batch(Installation(settings), "stock_stats", SHARD) == 0
    fenced(settings, TABLES[0]).commit(Fence(1, 4), [])
    assert last_filed_batch(Installation(settings), "stock_stats", SHARD) == 0
    fenced(settings, TABLES[1]).commit(Fence(1, 3), [])
    assert last_filed_batch(Installation(settings), "stock_stats", SHARD) == 3
    assert last_filed_batch(Installation(settings), "stock_stats", "v1.g0.s1") == 0
    assert last_filed_batch(Installation(settings), "bar", SHARD) == 0


def test_a_seal_keeps_the_batch_and_is_set_once(settings: Settings) -> None:
    """No older owner files any more; nothing is committed if the fence is there or beyond."""
    unused = fenced(settings, TABLES[1])
    seal(unused, 1)
    assert unused.recorded() == Fence(1, 0)
    table = fenced(settings, TABLES[0])
    table.commit(Fence(1, 4), [])
    seal(table, 2)
    assert table.recorded() == Fence(2, 4)
    version = table.version()
    seal(table, 2)
    seal(table, 1)
    assert (table.recorded(), table.version()) == (Fence(2, 4), version)
    with pytest.raises(LeaseLostError):
        fenced(settings, TABLES[0]).commit(Fence(1, 5), [], after=Fence(1, 4))


def test_a_seal_is_set_on_what_an_older_owner_files_meanwhile(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decided again on the batch that was reached, so that what was filed is deleted with the rest."""
    older = fenced(settings, TABLES[0])
    older.commit(Fence(1, 4), [])
    commit = FencedTable.commit

    def overtaken(table: FencedTable, *arguments: Any, **options: Any) -> int:
        monkeypatch.undo()
        commit(older, Fence(1, 5), [], after=Fence(1, 4))
        return commit(table, *arguments, **options)

    monkeypatch.setattr(FencedTable, "commit", overtaken)
    seal(fenced(settings, TABLES[0]), 2)
    assert older.recorded() == Fence(2, 5)


def test_a_late_sink_is_fenced_and_emptied(settings: Settings, with_late_sink: Pipeline) -> None:
    """Each shard that ended is fenced."""
    url = settings.table("sinks", "too_late")
    empty_late_sink(settings, with_late_sink, {SHARD: 5, "v1.g0.s1": 7})
    assert DeltaTable(url).to_pyarrow_table().num_rows == 0
    assert FencedTable(url, {}, app_id("stock_stats", SHARD)).recorded() == Fence(5, 1)
    assert FencedTable(url, {}, app_id("stock_stats", "v1.g0.s1")).recorded() == Fence(7, 1)


def test_a_late_sink_that_has_no_row_yet_is_not_made(settings: Settings) -> None:
    """It is made with the first late row. A pipeline without such a table has nothing to empty."""
    pipeline = replace(STOCK_STATS, late=lambda rows: rows, late_sink=Table("too_late"))
    empty_late_sink(settings, pipeline, {SHARD: 5})
    empty_late_sink(settings, STOCK_STATS, {SHARD: 5})
    assert not Path(settings.table("sinks", "too_late")).exists()


def test_a_store_that_fails_is_named(
    settings: Settings, with_late_sink: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table whose rows could not be deleted, with the store's own reason."""

    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(DeltaTable, "delete", fails)
    with pytest.raises(StoreUnavailableError, match="could not be written: the disk is full") as caught:
        empty_late_sink(settings, with_late_sink, {SHARD: 5})
    assert caught.value.fields["table"] == settings.table("sinks", "too_late")
    with pytest.raises(StoreUnavailableError, match="could not be written: the disk is full") as caught:
        delete_late_and_dead_rows(
            Installation(settings), STOCK_STATS, BegunRewind({"last": {SHARD: 2}}, {}, {})
        )
    assert caught.value.fields["table"] == ControlTables(settings).url(TABLES[0])


def test_each_access_has_the_stores_options(
    settings: Settings, with_late_sink: Pipeline, options_seen: list[Any]
) -> None:
    """To the tables for late and poison rows, and to the pipeline's own one."""
    distant = settings.model_copy(update={"storage_options": {"allow_http": "true"}})
    options_seen.clear()
    begun = BegunRewind({"last": {SHARD: 2}}, {SHARD: 5}, {})
    delete_late_and_dead_rows(Installation(distant), STOCK_STATS, begun)
    assert last_filed_batch(Installation(distant), "stock_stats", SHARD) == 0
    seen = len(options_seen)
    empty_late_sink(distant, with_late_sink, {SHARD: 5})
    assert len(options_seen) == seen + 3
    assert set(map(str, options_seen)) == {"{'allow_http': 'true'}"}
