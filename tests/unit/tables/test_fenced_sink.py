"""The fenced table: one commit a batch, and none of an older epoch after a newer one has sealed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from support.opened_tables import record_opened_tables
from support.shard_harness import CrashError, crash_at

from hindcast.clock import utc_from_ms
from hindcast.delta import commit
from hindcast.delta.application_log import ApplicationLog, LocalLog, Reached
from hindcast.delta.column_statistics import statistics
from hindcast.delta.files import DataFile
from hindcast.errors import (
    FenceMovedError,
    LeaseLostError,
    SchemaVersionError,
    SinkSharedError,
    StoreUnavailableError,
)
from hindcast.settings import Settings
from hindcast.spark.parquet_writer import _write_file
from hindcast.tables import fenced_sink
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable, SinkEnd, Upsert, sink_end
from hindcast.tables.ledger import LedgerRow

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
APP = "p/v1/v1.g0.s0"


@pytest.fixture(params=[LocalLog, ApplicationLog], ids=["local disk", "other stores"], autouse=True)
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[ApplicationLog]:
    """How the table's log is read and continued: each promise is kept by both ways."""
    kind: type[ApplicationLog] = request.param
    monkeypatch.setattr(fenced_sink, "application_log", kind)
    return kind


@pytest.fixture
def table(settings: Settings) -> FencedTable:
    made = FencedTable(settings.table("sinks", "t"), {}, APP)
    made.create(SCHEMA)
    return made


@pytest.fixture(autouse=True)
def _soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that never lands ends its test at once."""
    monkeypatch.setattr(commit, "_ATTEMPTS", 3)


def data(table: FencedTable, n: int) -> list[DataFile]:
    return [_write_file(pa.table({"k": ["a"], "n": [n]}, schema=SCHEMA), table.url, {}, "x")]


def metadata(
    epoch: int, batch: int, kind: str = "batch", worker: str = "w", shard: str = "v1.g0.s0", **fields: Any
) -> str:
    return BatchCommit(
        kind=kind,
        pipeline="p",
        version=1,
        shard=shard,
        epoch=epoch,
        batch=batch,
        worker=worker,
        start_offsets={0: batch},
        end_offsets={0: batch + 1},
        late_watermark_ms=0,
        watermark_ms=batch * 1000,
        **fields,
    ).as_metadata()


def values(table: FencedTable) -> list[int]:
    return sorted(DeltaTable(table.url).to_pyarrow_table()["n"].to_pylist())


def test_a_log_is_kept_for_a_day_longer_than_the_files(table: FencedTable) -> None:
    """A commit lists the log. Who has set another time keeps it."""
    kept = "delta.logRetentionDuration"
    assert DeltaTable(table.url).metadata().configuration == {kept: "interval 8 days"}
    DeltaTable(table.url).alter.set_table_properties({kept: "interval 60 days"})
    table.create(SCHEMA)
    assert DeltaTable(table.url).metadata().configuration == {kept: "interval 60 days"}


def test_where_all_are_that_write_to_a_table(
    table: FencedTable, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's end is read once, however many they are, and the table is not opened."""
    table.commit(Fence(1, 1), data(table, 7), after=None)
    FencedTable(table.url, {}, "p/v1/v1.g0.s1").commit(Fence(4, 9), [], after=None)
    table.commit(Fence(1, 2), data(table, 8), after=Fence(1, 1))
    opened = record_opened_tables(monkeypatch)
    assert sink_end(table.url, {}) == SinkEnd(3, {APP: Fence(1, 2), "p/v1/v1.g0.s1": Fence(4, 9)})
    assert opened == []
    assert sink_end(settings.table("sinks", "none"), {}) is None


def test_a_commit_names_the_records_that_its_batch_left_out(table: FencedTable) -> None:
    """A commit of an older Hindcast, or of a batch that left out none, has no such entry."""
    assert "excluded" not in json.loads(metadata(1, 1))
    table.commit(Fence(1, 1), [], metadata(1, 1), after=None)
    table.commit(Fence(1, 2), [], metadata(1, 2, excluded={3: {7: "KeyError"}}), after=Fence(1, 1))
    second, first = table.commits(table.version())
    assert (first.excluded, second.excluded) == ({}, {3: {7: "KeyError"}})
    assert second.as_ledger_row("t").excluded == second.excluded


def test_a_commit_lands_with_its_fence_and_its_version(table: FencedTable) -> None:
    """Rows and fence are one commit, and the returned version is the one that holds them."""
    version = table.commit(Fence(1, 1), data(table, 7), after=None)
    assert DeltaTable(table.url, version=version).to_pyarrow_table()["n"].to_pylist() == [7]
    assert table.recorded() == Fence(1, 1)


def test_a_repeated_commit_writes_nothing(table: FencedTable) -> None:
    """The same fence again (after an answer that was lost) returns the version that has it and adds no row."""
    table.commit(Fence(1, 1), data(table, 7), after=None)
    assert table.commit(Fence(1, 1), data(table, 7), after=None) == 1
    assert values(table) == [7]


@pytest.mark.parametrize("kind", ["batch", "seal"])
def test_another_workers_commit_is_not_taken_for_ones_own(table: FencedTable, kind: str) -> None:
    """A fleet with leases of its own comes to the same epoch and batch. It gets an error, and its batch is
    not skipped in silence (F24).
    """
    table.commit(Fence(1, 1), data(table, 7), metadata(1, 1), after=None)
    assert table.commit(Fence(1, 1), [], metadata(1, 1, kind), after=Fence(1, 1)) == 1
    with pytest.raises(SinkSharedError, match="w has written") as caught:
        table.commit(Fence(1, 1), data(table, 8), metadata(1, 1, kind, "stranger"), after=Fence(1, 1))
    assert caught.value.fields == {
        "table": table.url,
        "app": APP,
        "epoch": 1,
        "found": "w",
        "worker": "stranger",
    }
    assert values(table) == [7]


def test_a_commit_that_says_nothing_of_itself_is_ones_own(table: FencedTable) -> None:
    """Late rows and dead letters are filed with such commits. A commit without an entry in the log is not
    doubted either.
    """
    assert table.commit(Fence(1, 1), data(table, 7), after=None) == 1
    assert table.commit(Fence(1, 1), data(table, 7), metadata(1, 1)) == 1
    table.commit(Fence(1, 2), [], metadata(1, 2), after=Fence(1, 1))
    assert table.commit(Fence(1, 2), []) == 2


def others_commit_after(table: FencedTable, monkeypatch: pytest.MonkeyPatch, fence: Fence) -> None:
    """Right after this owner has read where it is, a newer one commits, once."""
    reached = table._log.reached
    heir = FencedTable(table.url, {}, APP)

    def read() -> Reached:
        found = reached()
        monkeypatch.setattr(table._log, "reached", reached)
        said = metadata(fence.epoch, fence.batch, "batch", "the heir")
        heir.commit(fence, [], said, after=Fence.of(found.number))
        return found

    monkeypatch.setattr(table._log, "reached", read)


def test_a_newer_owners_commit_is_no_strangers(table: FencedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose answer was lost is found, and meanwhile the next owner has committed on top of it."""
    table.commit(Fence(1, 1), [], metadata(1, 1), after=None)
    others_commit_after(table, monkeypatch, Fence(2, 2))
    assert table.commit(Fence(1, 1), [], metadata(1, 1), after=None) == 1
    assert table.recorded() == Fence(2, 2)


def test_what_lands_after_the_place_was_read_is_not_of_it(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a shard whose batches are not in the ledger yet, too."""
    table.commit(Fence(1, 1), [], metadata(1, 1), after=None)
    others_commit_after(table, monkeypatch, Fence(1, 2))
    recorded, version = table.reached()
    assert recorded == Fence(1, 1)
    last, missing = table.since(recorded, version, None)
    assert last is not None
    assert (last.batch, [one.batch for one in missing]) == (1, [1])


def test_a_zombie_is_refused_after_the_seal(table: FencedTable) -> None:
    """Once epoch 2 has sealed, the paused owner of epoch 1 cannot commit any batch, old or new."""
    table.commit(Fence(1, 1), data(table, 1), after=None)
    heir = FencedTable(table.url, {}, APP)
    heir.commit(Fence(2, 1), [], metadata(2, 1, "seal"), after=Fence(1, 1))
    for batch in (1, 2, 9):
        with pytest.raises(LeaseLostError, match="epoch 2") as caught:
            table.commit(Fence(1, batch), data(table, 2), after=Fence(1, batch - 1))
        assert caught.value.fields.items() >= {"owner": "this worker", "lease": APP, "epoch": 1}.items()
    assert values(table) == [1]


def test_a_zombie_that_was_first_makes_the_seal_read_again(table: FencedTable) -> None:
    """A seal that was decided before the old owner's last commit is refused, so that batch is not forgotten."""
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
    with pytest.raises(FenceMovedError) as caught:
        table.commit(Fence(1, 3), data(table, 3), after=Fence(1, 2))
    assert caught.value.fields == {
        "table": table.url,
        "app": APP,
        "recorded": Fence(1, 1),
        "expected": Fence(1, 2),
    }
    assert values(table) == [1]


def test_two_shards_commit_to_one_table(table: FencedTable) -> None:
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
    assert next(table.commits(table.version())).sink_version == version


def test_commits_are_found_however_many_others_lie_between(table: FencedTable) -> None:
    """A shard's last commit is found below more commits of another shard than one reading of the log
    takes.
    """
    table.commit(Fence(1, 1), [], metadata(1, 1), after=None)
    table.commit(Fence(1, 2), [], metadata(1, 2), after=Fence(1, 1))
    other = FencedTable(table.url, {}, "p/v1/v1.g0.s1")
    last = None
    for batch in range(1, 41):
        other.commit(Fence(1, batch), [], after=last)
        last = Fence(1, batch)
    found = list(table.commits(table.version()))
    assert [commit.batch for commit in found] == [2, 1]
    assert (found[0].start_offsets, found[0].end_offsets, found[0].watermark_ms) == ({0: 2}, {0: 3}, 2000)
    assert [commit.batch for commit in table.commits(table.version(), stop_after=2)] == [2]


def test_commits_are_read_down_to_the_requested_batch(table: FencedTable) -> None:
    """A seal on an earlier batch does not end the reading. Commits of other shards, and those of other
    programs, are skipped.
    """
    other = FencedTable(table.url, {}, "p/v1/v1.g0.s1")
    table.commit(Fence(1, 1), [], metadata(1, 1), after=None)
    table.commit(Fence(1, 2), [], metadata(1, 2), after=Fence(1, 1))
    table.commit(Fence(2, 2), [], metadata(2, 2, "seal"), after=Fence(1, 2))
    other.commit(Fence(1, 9), [], metadata(1, 9, shard="v1.g0.s1"), after=None)
    DeltaTable(table.url).create_write_transaction([], "append", DeltaTable(table.url).schema())
    table.commit(Fence(2, 3), [], metadata(2, 3), after=Fence(2, 2))
    found = [(commit.kind, commit.epoch, commit.batch) for commit in table.commits(table.version())]
    assert found == [("batch", 2, 3), ("seal", 2, 2), ("batch", 1, 2), ("batch", 1, 1)]
    assert [commit.sink_version for commit in table.commits(table.version())] == [6, 3, 2, 1]
    assert [(commit.kind, commit.batch) for commit in table.commits(table.version(), stop_after=2)] == [
        ("batch", 3),
        ("seal", 2),
        ("batch", 2),
    ]
    assert [commit.batch for commit in other.commits(other.version())] == [9]


def test_a_shard_without_a_row_is_looked_for_down_to_its_first_batch(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not down to the beginning of the log, which may be a million commits of others away."""
    other = FencedTable(table.url, {}, "p/v1/v1.g0.s1")
    before = None
    for batch in range(1, 21):
        other.commit(Fence(1, batch), [], after=before)
        before = Fence(1, batch)
    table.commit(Fence(1, 1), [], metadata(1, 1), after=None)
    table.commit(Fence(1, 2), [], metadata(1, 2), after=Fence(1, 1))
    recorded, version = table.reached()
    assert recorded is not None
    read: list[int] = []
    commits_down = fenced_sink.commits_down

    def counted(*arguments: Any) -> Iterator[dict[str, Any]]:
        for entry in commits_down(*arguments):
            read.append(entry["version"])
            yield entry

    monkeypatch.setattr(fenced_sink, "commits_down", counted)
    last, missing = table.since(recorded, version, None)
    assert last is not None
    assert ([one.batch for one in missing], last.batch) == ([1, 2], 2)
    assert read == [22, 21]


def test_a_row_of_the_ledger_says_what_its_commit_says(table: FencedTable) -> None:
    """So a position is known without the log."""
    table.commit(Fence(3, 2), [], metadata(3, 2, checkpoint="c", base=7, floors={0: 5}), after=None)
    commit = next(table.commits(table.version()))
    assert BatchCommit.from_ledger_row(commit.as_ledger_row("trades")) == commit


def test_a_commit_becomes_the_ledgers_row_of_its_batch(table: FencedTable) -> None:
    """All that the ledger lacks can be taken from the sink's log. What only Spark could measure stays
    unknown.
    """
    version = table.commit(
        Fence(3, 2), [], metadata(3, 2, checkpoint="c", base=7, floors={0: 5}, output_rows=4), after=None
    )
    commit = next(table.commits(table.version()))
    assert (commit.checkpoint, commit.base, commit.floors) == ("c", 7, {0: 5})
    assert commit.as_ledger_row("trades") == LedgerRow.unmeasured(
        pipeline="p",
        version=1,
        shard="v1.g0.s0",
        epoch=3,
        batch=2,
        worker="w",
        topic="trades",
        start_offsets={0: 2},
        end_offsets={0: 3},
        late_watermark_ms=0,
        watermark_ms=2000,
        output_rows=4,
        floors={0: 5},
        checkpoint="c",
        base=7,
        sink_version=version,
        committed_at=utc_from_ms(DeltaTable(table.url).history(1)[0]["timestamp"]),
    )


@pytest.mark.parametrize("step", ["sink.3", "sink.4"])
def test_a_death_before_the_commit_leaves_the_table_as_it_was(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Neither its rows nor its fence are in the table, so the next owner reads the batch again."""
    crash_at(monkeypatch, step, 1)
    with pytest.raises(CrashError):
        table.commit(Fence(1, 1), data(table, 7), after=None)
    assert (values(table), table.recorded()) == ([], None)


def test_a_commit_that_is_overtaken_lands_on_top_with_its_true_version(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another shard's commit lands between the reading of the fence and the commit. It is decided again, and
    the version is the one that holds its rows.
    """
    other = FencedTable(table.url, {}, "p/v1/v1.g0.s1")

    def overtaken(step: str) -> None:
        if step == "sink.4":
            monkeypatch.setattr(fenced_sink, "reach", lambda _: None)
            other.commit(Fence(5, 1), data(table, 2), after=None)

    monkeypatch.setattr(fenced_sink, "reach", overtaken)
    version = table.commit(Fence(1, 1), data(table, 1), after=None)
    assert version == DeltaTable(table.url).version() == 2
    assert DeltaTable(table.url, version=1).to_pyarrow_table()["n"].to_pylist() == [2]
    assert values(table) == [1, 2]


def failing(
    monkeypatch: pytest.MonkeyPatch,
    call: tuple[Any, str],
    *,
    times: int,
    landed: bool = False,
    error: Exception,
) -> None:
    """Let this call fail so many times, before it does anything or after it has done it."""
    works = getattr(*call)
    left = [times]

    def fail(*arguments: Any, **options: Any) -> Any:
        if not left[0]:
            return works(*arguments, **options)
        left[0] -= 1
        if landed:
            works(*arguments, **options)
        raise error

    monkeypatch.setattr(*call, fail)


def committing(log: type[ApplicationLog]) -> tuple[Any, str]:
    """The call that makes an entry of the log."""
    if log is LocalLog:
        return os, "link"
    return DeltaTable, "create_write_transaction"


def following(log: type[ApplicationLog]) -> tuple[Any, str]:
    """The call that reads what others have committed since."""
    if log is LocalLog:
        return Path, "read_bytes"
    return DeltaTable, "update_incremental"


def test_a_table_to_which_others_always_commit_first_is_named(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch, log: type[ApplicationLog]
) -> None:
    """The attempts end."""
    faster: Exception = CommitFailedError("another writer")
    if log is LocalLog:
        faster = FileExistsError("it is there")
    with monkeypatch.context() as while_faster:
        failing(while_faster, committing(log), times=3, error=faster)
        with pytest.raises(StoreUnavailableError, match="could not be written: another writer") as caught:
            table.commit(Fence(1, 1), data(table, 7), after=None)
    assert caught.value.fields["table"] == table.url
    assert values(table) == []
    assert [path.name for path in Path(table.url, "_delta_log").iterdir()] == [f"{0:020d}.json"]


@pytest.mark.parametrize("kind", [DeltaError, OSError])
@pytest.mark.parametrize("landed", [False, True])
def test_a_commit_whose_outcome_is_unknown_is_in_the_table_once(
    table: FencedTable,
    monkeypatch: pytest.MonkeyPatch,
    log: type[ApplicationLog],
    landed: bool,
    kind: type[Exception],
) -> None:
    """The next attempt reads whether it has landed."""
    failing(monkeypatch, committing(log), times=1, landed=landed, error=kind("away"))
    assert table.commit(Fence(1, 1), data(table, 7), after=None) == 1
    assert (values(table), table.recorded()) == ([7], Fence(1, 1))


def test_a_store_that_stays_away_is_named(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch, log: type[ApplicationLog]
) -> None:
    """The error names the table, what could not be done to it, and the store's own reason. The table serves
    once the store answers again.
    """
    away = OSError("the disk is away")
    with monkeypatch.context() as while_away:
        failing(while_away, committing(log), times=3, error=away)
        with pytest.raises(StoreUnavailableError, match="could not be written: the disk is away") as caught:
            table.commit(Fence(1, 1), data(table, 7), after=None)
        assert caught.value.fields["table"] == table.url
    table.recorded()
    with monkeypatch.context() as while_away:
        failing(while_away, following(log), times=1, error=away)
        with pytest.raises(StoreUnavailableError, match="could not be read: the disk is away") as caught:
            table.recorded()
        assert caught.value.fields["table"] == table.url
    assert table.commit(Fence(1, 1), data(table, 7), after=None) == 1


def test_a_table_that_does_not_exist_is_no_store_that_is_away(settings: Settings) -> None:
    """A retry would not create it. The error names it."""
    url = settings.table("sinks", "none")
    with pytest.raises(TableNotFoundError, match="there is no table") as caught:
        FencedTable(url, {}, APP).recorded()
    assert url in str(caught.value)


def test_every_access_has_the_stores_options(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them an object store would refuse to open, create or write the table."""
    options = {"allow_http": "true"}
    makes = DeltaTable.create
    made_with = []

    def made(*arguments: Any, storage_options: dict[str, str] | None = None, **others: Any) -> DeltaTable:
        made_with.append(storage_options)
        return makes(*arguments, storage_options=storage_options, **others)

    seen = record_opened_tables(monkeypatch)
    monkeypatch.setattr(DeltaTable, "create", made)
    url = settings.table("sinks", "t")
    FencedTable(url, options, APP).create(SCHEMA)
    assert FencedTable(url, options, APP).recorded() is None
    used = [*made_with, *(given for _, given in seen)]
    assert len(used) > 3
    assert made_with
    assert set(map(str, used)) == {str(options)}


def test_an_upserted_row_replaces_the_one_with_its_keys(settings: Settings) -> None:
    """All keys together name a row, whatever their types and the names of their columns. Null is a value like
    any other.
    """
    schema = pa.schema([("open", pa.bool_()), ('the "key"', pa.string()), ("n", pa.int64())])
    table = FencedTable(settings.table("sinks", "upserted"), {}, APP)
    table.create(schema)

    def rows(*values: tuple[bool, str | None, int]) -> Upsert:
        named = [dict(zip(schema.names, value, strict=True)) for value in values]
        return Upsert(pa.Table.from_pylist(named, schema=schema), ["open", 'the "key"'])

    table.commit(Fence(1, 1), rows((True, "a", 1), (False, "a", 2), (True, None, 3)), after=None)
    table.commit(Fence(1, 2), rows((True, "a", 10), (True, None, 30), (False, None, 4)), after=Fence(1, 1))
    found = [tuple(row.values()) for row in DeltaTable(table.url).to_pyarrow_table().to_pylist()]
    assert sorted(found, key=str) == [(False, "a", 2), (False, None, 4), (True, "a", 10), (True, None, 30)]
    assert table.recorded() == Fence(1, 2)


def test_a_row_that_says_it_is_deleted_takes_its_key_out(settings: Settings) -> None:
    """A key that is not there may be deleted, too, and one that was deleted may come back. A table does not
    have the column that says so; a null in it says nothing.
    """
    table = FencedTable(settings.table("sinks", "upserted"), {}, APP)
    table.create(SCHEMA)
    flagged = SCHEMA.append(pa.field('"gone"', pa.bool_()))

    def rows(*values: tuple[str, int, bool | None]) -> Upsert:
        named = [dict(zip(flagged.names, value, strict=True)) for value in values]
        return Upsert(pa.Table.from_pylist(named, schema=flagged), ["k"], '"gone"')

    def held() -> dict[str, int]:
        found = DeltaTable(table.url).to_pyarrow_table()
        assert found.column_names == SCHEMA.names
        return {row["k"]: row["n"] for row in found.to_pylist()}

    table.commit(Fence(1, 1), rows(("a", 1, False), ("b", 2, None), ("never", 3, True)), after=None)
    assert held() == {"a": 1, "b": 2}
    table.commit(Fence(1, 2), rows(("a", 4, True), ("b", 5, False)), after=Fence(1, 1))
    assert held() == {"b": 5}
    table.commit(Fence(1, 3), rows(("a", 6, None), ("b", 7, True)), after=Fence(1, 2))
    assert held() == {"a": 6}


@pytest.mark.parametrize("values", [(), (("never", 3, True),)], ids=["no row", "an unknown key is deleted"])
def test_an_upsert_that_changes_no_row_is_a_commit_all_the_same(
    settings: Settings, values: tuple[tuple[str, int, bool], ...]
) -> None:
    """delta-rs makes none of such a merge. Without the fence the next batch would not fit the one before."""
    table = FencedTable(settings.table("sinks", "upserted"), {}, APP)
    table.create(SCHEMA)
    flagged = SCHEMA.append(pa.field("gone", pa.bool_()))
    named = [dict(zip(flagged.names, value, strict=True)) for value in values]
    nothing = Upsert(pa.Table.from_pylist(named, schema=flagged), ["k"], "gone")
    assert table.commit(Fence(1, 1), nothing, metadata(1, 1), after=None) == 1
    assert table.reached() == (Fence(1, 1), 1)
    assert table.commit(Fence(1, 2), nothing, metadata(1, 2), after=Fence(1, 1)) == 2
    assert [commit.batch for commit in table.commits(table.version())] == [2, 1]
    assert DeltaTable(table.url).to_pyarrow_table().num_rows == 0


def test_an_upsert_that_is_overtaken_is_made_on_the_newest_rows(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lands only on the version whose rows and fences it has read."""
    table, other = (
        FencedTable(settings.table("sinks", "upserted"), {}, f"p/v1/v1.g0.s{number}") for number in (0, 1)
    )
    table.create(SCHEMA)
    rows = pa.table({"k": ["a"], "n": [1]}, schema=SCHEMA)

    def overtaken(step: str) -> None:
        if step == "sink.4":
            monkeypatch.setattr(fenced_sink, "reach", lambda _: None)
            other.commit(Fence(1, 1), Upsert(rows, ["k"]), after=None)

    monkeypatch.setattr(fenced_sink, "reach", overtaken)
    assert table.commit(Fence(1, 1), Upsert(rows, ["k"]), metadata(1, 1), after=None) == 2
    assert values(table) == [1]
    assert next(table.commits(table.version())).sink_version == 2


def test_a_table_of_other_columns_is_refused(table: FencedTable) -> None:
    """A result with other columns is not appended to the old table. The cure is another table."""
    with pytest.raises(SchemaVersionError, match=r"columns k, n.*its own table"):
        table.create(pa.schema([("k", pa.string())]))


def test_statistics_hold_rows_and_the_windows_bounds() -> None:
    """Readers can skip files by window. The statistics claim nothing else."""
    import datetime as dt

    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    kind = pa.struct([("start", pa.timestamp("us", tz="UTC")), ("end", pa.timestamp("us", tz="UTC"))])
    windows = [
        {"start": at + dt.timedelta(seconds=s), "end": at + dt.timedelta(seconds=s + 5)} for s in (3, 0)
    ]
    stats = statistics(pa.table({"window": pa.array(windows, kind)}))
    assert stats["numRecords"] == 2
    assert stats["minValues"]["window"] == {
        "start": "2026-01-01T00:00:00.000Z",
        "end": "2026-01-01T00:00:05.000Z",
    }
    assert stats["maxValues"]["window"] == {
        "start": "2026-01-01T00:00:03.000Z",
        "end": "2026-01-01T00:00:08.000Z",
    }


def test_files_without_a_commit_are_not_seen(table: FencedTable) -> None:
    """Data files of a batch whose worker died before its commit are in no reader's table."""
    data(table, 9)
    assert len(list(Path(table.url).glob("*.parquet"))) == 1
    assert values(table) == []


@pytest.mark.parametrize("which", [-1, -2])
def test_a_sink_with_an_empty_commit_is_refused(table: FencedTable, which: int) -> None:
    """A batch whose commit file was emptied is not skipped: nothing is read or written before the file is
    restored.
    """
    last = None
    for batch in (1, 2, 3):
        table.commit(Fence(1, batch), data(table, batch), after=last)
        last = Fence(1, batch)
    broken = sorted((Path(table.url) / "_delta_log").glob("*.json"))[which]
    text = broken.read_text()
    broken.write_text("")
    with pytest.raises(StoreUnavailableError, match=broken.name):
        FencedTable(table.url, {}, APP).recorded()
    with pytest.raises(StoreUnavailableError, match=broken.name):
        FencedTable(table.url, {}, APP).create(SCHEMA)
    broken.write_text(text)
    assert FencedTable(table.url, {}, APP).recorded() == Fence(1, 3)
    assert values(table) == [1, 2, 3]


def test_a_commit_leaves_an_expired_log_to_the_maintenance(table: FencedTable) -> None:
    """To find what has expired, delta-rs lists the whole log. A table that asks for that gets it, at the latest
    with its next checkpoint.
    """
    log = Path(table.url) / "_delta_log"
    table.commit(Fence(1, 1), [], metadata(1, 1), after=None)
    DeltaTable(table.url).create_checkpoint()
    old = time.time() - 40 * 86_400
    for path in log.iterdir():
        os.utime(path, (old, old))
    table.commit(Fence(1, 2), [], metadata(1, 2), after=Fence(1, 1))
    assert (log / f"{0:020d}.json").exists()
    DeltaTable(table.url).alter.set_table_properties(
        {"delta.enableExpiredLogCleanup": "true", "delta.checkpointInterval": "5"}
    )
    table.commit(Fence(1, 3), [], metadata(1, 3), after=Fence(1, 2))
    assert not (log / f"{0:020d}.json").exists()


def test_the_log_is_kept_short_by_the_commits(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, log: type[ApplicationLog]
) -> None:
    """What is older moves to the older log. Where the shard is, and each of its batches, is found all the same,
    also by an owner that knows only its first batch.
    """
    monkeypatch.setattr(fenced_sink, "_SHORTEN_EVERY", 10)
    url = settings.table("sinks", "t")
    table = FencedTable(url, {}, APP, log_hours=1.0)
    table.create(SCHEMA)
    folder = Path(url, "_delta_log")
    last = None
    first = None
    for batch in range(1, 31):
        table.commit(Fence(1, batch), [], metadata(1, batch), after=last)
        last = Fence(1, batch)
        first = first or next(table.commits(table.version()))
        if batch == 15:
            DeltaTable(url).create_checkpoint()
            at = time.time() - 2 * 3600
            for path in folder.iterdir():
                os.utime(path, (at, at))
    assert min(path.name for path in folder.glob("*.json")) == f"{15:020d}.json"
    assert [one.batch for one in table.commits(table.version())] == list(range(30, 0, -1))
    assert first is not None
    heir = FencedTable(url, {}, APP)
    position, missing = heir.since(Fence(1, 30), heir.version(), first.as_ledger_row("t"))
    assert position is not None
    assert (position.batch, [one.batch for one in missing]) == (30, list(range(2, 31)))


def test_a_log_that_cannot_be_shortened_is_no_commit_that_failed(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later commit tries again."""
    monkeypatch.setattr(fenced_sink, "_SHORTEN_EVERY", 1)

    def fail(url: str, hours: float) -> int:
        raise OSError(f"{url} is away for {hours} hours")

    monkeypatch.setattr(fenced_sink, "shorten_log", fail)
    short = FencedTable(table.url, {}, APP, log_hours=1.0)
    assert short.commit(Fence(1, 1), data(table, 7), after=None) == 1
    assert values(table) == [7]
