"""The fenced table: one commit a batch, and none of an older epoch after a newer one has sealed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from hindcast.control.statistics import statistics
from hindcast.errors import FenceMovedError, LeaseLostError, SchemaVersionError, SinkSharedError, StoreUnavailableError
from hindcast.settings import Settings
from hindcast.stream.fenced_table import BatchCommit, Fence, FencedTable
from hindcast.stream.files import DataFile, _write_file

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
APP = "p/v1/v1.g0.s0"


@pytest.fixture
def table(settings: Settings) -> FencedTable:
    made = FencedTable(settings.table("sinks", "t"), {}, APP)
    made.create(SCHEMA)
    return made


def data(table: FencedTable, n: int) -> list[DataFile]:
    return [_write_file(pa.table({"k": ["a"], "n": [n]}, schema=SCHEMA), table.url, {}, "x")]


def metadata(epoch: int, batch: int, kind: str = "batch", worker: str = "w") -> str:
    return BatchCommit(
        kind=kind,
        pipeline="p",
        version=1,
        shard="v1.g0.s0",
        epoch=epoch,
        batch=batch,
        worker=worker,
        start_offsets={0: batch},
        end_offsets={0: batch + 1},
        late_watermark_ms=0,
        watermark_ms=batch * 1000,
    ).as_metadata()


def values(table: FencedTable) -> list[int]:
    return sorted(DeltaTable(table.url).to_pyarrow_table()["n"].to_pylist())


def test_a_commit_lands_with_its_fence_and_its_version(table: FencedTable) -> None:
    """Rows and fence are one commit, and the returned version is the one that holds them."""
    version = table.commit(Fence(1, 1), data(table, 7), after=None)
    assert DeltaTable(table.url, version=version).to_pyarrow_table()["n"].to_pylist() == [7]
    assert table.recorded() == Fence(1, 1)


def test_a_repeated_commit_writes_nothing(table: FencedTable) -> None:
    """The same fence again (an answer that was lost) returns -1 and adds no row."""
    table.commit(Fence(1, 1), data(table, 7), after=None)
    assert table.commit(Fence(1, 1), data(table, 7), after=None) == -1
    assert values(table) == [7]


@pytest.mark.parametrize("kind", ["batch", "seal"])
def test_another_workers_commit_is_not_taken_for_ones_own(table: FencedTable, kind: str) -> None:
    """A fleet with leases of its own comes to the same epoch and batch: it is told, and its batch is not passed over in silence (F24)."""
    table.commit(Fence(1, 1), data(table, 7), metadata(1, 1), after=None)
    assert table.commit(Fence(1, 1), [], metadata(1, 1, kind), after=Fence(1, 1)) == -1
    with pytest.raises(SinkSharedError, match="w has written"):
        table.commit(Fence(1, 1), data(table, 8), metadata(1, 1, kind, "stranger"), after=Fence(1, 1))
    assert values(table) == [7]


def test_a_zombie_is_refused_after_the_seal(table: FencedTable) -> None:
    """Once epoch 2 has sealed, the paused owner of epoch 1 cannot commit any batch, old or new."""
    table.commit(Fence(1, 1), data(table, 1), after=None)
    heir = FencedTable(table.url, {}, APP)
    heir.commit(Fence(2, 1), [], metadata(2, 1, "seal"), after=Fence(1, 1))
    for batch in (1, 2, 9):
        with pytest.raises(LeaseLostError, match="epoch 2"):
            table.commit(Fence(1, batch), data(table, 2), after=Fence(1, batch - 1))
    assert values(table) == [1]


def test_a_zombie_that_was_first_makes_the_seal_read_again(table: FencedTable) -> None:
    """A seal decided before the old owner's last commit is refused, so that batch is not forgotten."""
    table.commit(Fence(1, 1), data(table, 1), after=None)
    heir = FencedTable(table.url, {}, APP)
    seen = heir.recorded()
    table.commit(Fence(1, 2), data(table, 2), after=Fence(1, 1))
    with pytest.raises(FenceMovedError):
        heir.commit(Fence(2, 1), [], metadata(2, 1, "seal"), after=seen)
    assert heir.recorded() == Fence(1, 2)


def test_a_batch_cannot_be_skipped(table: FencedTable) -> None:
    """A commit that expects another predecessor than the recorded one is refused."""
    table.commit(Fence(1, 1), data(table, 1), after=None)
    with pytest.raises(FenceMovedError):
        table.commit(Fence(1, 3), data(table, 3), after=Fence(1, 2))
    assert values(table) == [1]


def test_two_shards_commit_beside_each_other(table: FencedTable) -> None:
    """Applications of one table do not disturb each other's fences, whichever handle is older."""
    other = FencedTable(table.url, {}, "p/v1/v1.g0.s1")
    table.recorded(), other.recorded()
    table.commit(Fence(1, 1), data(table, 1), after=None)
    other.commit(Fence(4, 1), data(table, 2), after=None)
    table.commit(Fence(1, 2), data(table, 3), after=Fence(1, 1))
    assert (table.recorded(), other.recorded()) == (Fence(1, 2), Fence(4, 1))
    assert values(table) == [1, 2, 3]


def test_an_empty_batch_is_a_commit(table: FencedTable) -> None:
    """A batch without rows has its number, too."""
    version = table.commit(Fence(1, 1), [], metadata(1, 1), after=None)
    assert table.recorded() == Fence(1, 1)
    assert next(table.commits()).sink_version == version


def test_commits_are_found_however_many_others_lie_between(table: FencedTable) -> None:
    """A shard's last commit is found below more commits of another shard than one reading of the log takes."""
    table.commit(Fence(1, 1), [], metadata(1, 1), after=None)
    table.commit(Fence(1, 2), [], metadata(1, 2), after=Fence(1, 1))
    other = FencedTable(table.url, {}, "p/v1/v1.g0.s1")
    last = None
    for batch in range(1, 41):
        other.commit(Fence(1, batch), [], after=last)
        last = Fence(1, batch)
    found = list(table.commits())
    assert [commit.batch for commit in found] == [2, 1]
    assert (found[0].start_offsets, found[0].end_offsets, found[0].watermark_ms) == ({0: 2}, {0: 3}, 2000)
    assert [commit.batch for commit in table.commits(stop_after=2)] == [2]


def test_a_table_of_other_columns_is_refused(table: FencedTable) -> None:
    """A result whose columns changed is not appended to the old table."""
    with pytest.raises(SchemaVersionError, match="columns k, n"):
        table.create(pa.schema([("k", pa.string())]))


def test_statistics_hold_rows_and_the_windows_bounds() -> None:
    """Readers can prune files by window; nothing else is claimed."""
    import datetime as dt

    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    kind = pa.struct([("start", pa.timestamp("us", tz="UTC")), ("end", pa.timestamp("us", tz="UTC"))])
    windows = [{"start": at + dt.timedelta(seconds=s), "end": at + dt.timedelta(seconds=s + 5)} for s in (3, 0)]
    stats = statistics(pa.table({"window": pa.array(windows, kind)}))
    assert stats["numRecords"] == 2
    assert stats["minValues"]["window"] == {"start": "2026-01-01T00:00:00.000Z", "end": "2026-01-01T00:00:05.000Z"}
    assert stats["maxValues"]["window"] == {"start": "2026-01-01T00:00:03.000Z", "end": "2026-01-01T00:00:08.000Z"}


def test_files_without_a_commit_are_not_seen(table: FencedTable) -> None:
    """Data files of a batch whose worker died before its commit are in no reader's table."""
    data(table, 9)
    assert len(list(Path(table.url).glob("*.parquet"))) == 1
    assert values(table) == []


@pytest.mark.parametrize("which", [-1, -2])
def test_a_sink_with_an_empty_commit_is_refused(table: FencedTable, which: int) -> None:
    """A batch whose commit file was emptied is not skipped: nothing is read or written before the file is restored."""
    for batch in (1, 2, 3):
        table.commit(Fence(1, batch), data(table, batch), after=Fence(1, batch - 1) if batch > 1 else None)
    broken = sorted((Path(table.url) / "_delta_log").glob("*.json"))[which]
    text = broken.read_text()
    broken.write_text("")
    with pytest.raises(StoreUnavailableError, match=broken.name):
        FencedTable(table.url, {}, APP).recorded()
    broken.write_text(text)
    assert FencedTable(table.url, {}, APP).recorded() == Fence(1, 3)
    assert values(table) == [1, 2, 3]
