"""The commit that restores a version of the sink, and the one that takes its place."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction
from support.paused_pipeline import STOCK_STATS

from hindcast.errors import RewindRefusedError, StoreUnavailableError
from hindcast.partitions import app_id
from hindcast.recovery.begun_rewind import BegunRewind
from hindcast.recovery.restore_sink import SinkRestore
from hindcast.settings import Settings
from hindcast.tables.compaction import COMPACTION
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable

RECORD = {"id": "one", "by": "me", "to": "the place", "sink_version": 1, "last": {}}
BEGUN = BegunRewind(RECORD, {"v1.g0.s0": 5, "v1.g0.s1": 4}, {0: 7, 1: 8})
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def url(settings: Settings) -> str:
    """A sink of three batches of one shard, in the versions 1 to 3; another shard has none."""
    url = settings.table("sinks", "stock_stats")
    DeltaTable.create(url, SCHEMA)
    for batch in (1, 2, 3):
        fence = Transaction(app_id("stock_stats", "v1.g0.s0"), Fence(4, batch).number)
        rows = pa.table({"n": [batch]}, schema=SCHEMA)
        write_deltalake(
            url, rows, mode="append", commit_properties=CommitProperties(app_transactions=[fence])
        )
    return url


@pytest.fixture
def sink(settings: Settings, url: str) -> SinkRestore:
    return SinkRestore(settings, STOCK_STATS, BEGUN)


def other(settings: Settings, **changes: Any) -> SinkRestore:
    """The sink in the view of a rewind with another record."""
    return SinkRestore(settings, STOCK_STATS, replace(BEGUN, record={**RECORD, **changes}))


def numbers(url: str) -> list[int]:
    return sorted(row["n"] for row in DeltaTable(url).to_pyarrow_table().to_pylist())


def recorded(url: str) -> dict[str, Fence | None]:
    return {shard: FencedTable(url, {}, app_id("stock_stats", shard)).recorded() for shard in BEGUN.epochs}


def newest(url: str) -> dict[str, Any]:
    return DeltaTable(url).history(1)[0]


def actions(url: str, kind: str) -> list[dict[str, Any]]:
    """The actions of this kind of the newest commit."""
    log = Path(url) / "_delta_log" / f"{DeltaTable(url).version():020d}.json"
    found = [json.loads(line) for line in log.read_text().splitlines()]
    return [action[kind] for action in found if kind in action]


def refusal(action: Callable[[], Any]) -> tuple[str, str]:
    """The problem and the cure; the rewind is named by pipeline and place."""
    with pytest.raises(RewindRefusedError) as caught:
        action()
    fields = caught.value.fields
    assert (fields["pipeline"], fields["to"]) == ("stock_stats", "the place")
    return fields["problem"], fields["cure"]


def test_a_restored_sink_has_the_files_of_its_version_and_no_others(
    sink: SinkRestore, settings: Settings, url: str
) -> None:
    """A file that a compaction has replaced is named again, and the one that replaced it is not. A file that
    is named is left as it is.
    """
    first = DeltaTable(url, version=1).file_uris()
    DeltaTable(url).optimize.compact()
    before = time.time_ns() // 1_000_000
    assert sink.restore() == 5
    assert numbers(url) == [1]
    assert DeltaTable(url).file_uris() == first
    (added,) = actions(url, "add")
    (removed,) = actions(url, "remove")
    assert added["dataChange"] is True
    assert json.loads(added["stats"]) == {"numRecords": 1}
    assert removed["dataChange"] is True
    assert before <= removed["deletionTimestamp"] <= before + 60_000
    again = other(settings, id="two", sink_version=3)
    with pytest.raises(StoreUnavailableError, match="has lost the commit of the rewind two"):
        again.restore()


def test_only_what_differs_is_in_the_commit(sink: SinkRestore, url: str) -> None:
    """Two files go; the one that stays is not named again."""
    assert sink.restore() == 4
    assert numbers(url) == [1]
    assert actions(url, "add") == []
    assert len(actions(url, "remove")) == 2


def test_before_the_first_batch_the_sink_is_empty(settings: Settings, url: str) -> None:
    """Version -1: no file is named."""
    assert other(settings, sink_version=-1).restore() == 4
    assert numbers(url) == []


@pytest.mark.parametrize(("action", "kind"), [("restore", "reset"), ("call_off", "reset-abandoned")])
def test_each_commit_says_what_it_is_and_fences_all_shards(
    sink: SinkRestore, url: str, action: str, kind: str
) -> None:
    """Readers of the log tell it from a batch; it has read nothing. Each fence keeps its batch in the new
    epoch; that of a shard without a batch keeps none.
    """
    getattr(sink, action)()
    entry = newest(url)
    assert entry["hindcast_reset"] == "one"
    commit = BatchCommit.from_history(entry)
    assert (commit.kind, commit.pipeline, commit.version, commit.worker) == (kind, "stock_stats", 1, "me")
    assert (commit.shard, commit.epoch, commit.batch) == ("", 0, 0)
    assert (commit.late_watermark_ms, commit.watermark_ms) == (0, 0)
    assert commit.start_offsets == commit.end_offsets == {0: 7, 1: 8}
    assert recorded(url) == {"v1.g0.s0": Fence(5, 3), "v1.g0.s1": Fence(4, 0)}


def test_what_is_done_is_not_done_again(sink: SinkRestore, url: str) -> None:
    """The same version is returned, also if another commit has followed."""
    assert sink.restore() == 4
    assert sink.restore() == 4
    write_deltalake(url, pa.table({"n": [9]}, schema=SCHEMA), mode="append")
    assert sink.restore() == 4
    assert DeltaTable(url).version() == 5


def test_a_rewind_that_was_called_off_restores_nothing(sink: SinkRestore, url: str) -> None:
    """Its rows are as before, and calling it off again changes nothing."""
    sink.call_off()
    sink.call_off()
    assert DeltaTable(url).version() == 4
    problem, cure = refusal(sink.restore)
    assert problem == "it was called off"
    assert cure == "`hindcast rewind stock_stats --abandon` calls it off."
    assert numbers(url) == [1, 2, 3]


def test_a_restored_sink_is_not_called_off(sink: SinkRestore, url: str) -> None:
    """The cure is to complete the rewind."""
    sink.restore()
    problem, cure = refusal(sink.call_off)
    assert problem == "its table is restored already, so the rewind cannot be called off"
    assert cure.startswith("`hindcast rewind stock_stats` completes it")
    assert DeltaTable(url).version() == 4


def test_one_shard_that_is_not_fenced_yet_is_enough_to_commit(sink: SinkRestore, url: str) -> None:
    """Whichever of them it is: an owner of a later epoch than the rewind's may have fenced the other."""
    fence = Transaction(app_id("stock_stats", "v1.g0.s1"), Fence(4, 0).number)
    DeltaTable(url).create_write_transaction(
        [],
        "append",
        DeltaTable(url).schema(),
        [],
        commit_properties=CommitProperties(app_transactions=[fence]),
    )
    assert sink.restore() == 5
    assert numbers(url) == [1]


@pytest.mark.parametrize(("hours", "near"), [(7 * 24 - 1.1, False), (7 * 24 - 0.9, True)])
def test_files_within_an_hour_of_the_retention_are_not_named_again(
    sink: SinkRestore, url: str, hours: float, near: bool
) -> None:
    """A vacuum may delete them meanwhile; the cure is to call the rewind off."""
    table = DeltaTable(url)
    at_ms = int((time.time() - hours * 3600) * 1000)
    paths = pa.table(table.get_add_actions())["path"].to_pylist()
    removed = [RemoveAction(path, True, at_ms) for path in paths]
    table.create_write_transaction(removed, "append", table.schema(), [])
    if near:
        problem, cure = refusal(sink.restore)
        assert "version 1 of its sink is too near" in problem
        assert cure == "`hindcast rewind stock_stats --abandon` calls it off."
    else:
        assert sink.restore() == 5
        assert numbers(url) == [1]


def test_a_version_that_is_gone_is_not_restored(settings: Settings, url: str) -> None:
    """The cure is to call the rewind off."""
    problem, cure = refusal(other(settings, sink_version=9).restore)
    assert problem == "version 9 of its sink is gone (Delta's retention)"
    assert cure == "`hindcast rewind stock_stats --abandon` calls it off."


def test_a_compaction_under_way_does_not_land_after_a_restore(sink: SinkRestore, url: str) -> None:
    """It has read files that are gone, and would bring their rows back. It lands after a rewind that was
    called off.
    """
    stale = DeltaTable(url)
    compaction = CommitProperties(app_transactions=[Transaction(COMPACTION, stale.version())])
    sink.restore()
    with pytest.raises(CommitFailedError):
        stale.create_write_transaction([], "append", stale.schema(), [], commit_properties=compaction)
    assert DeltaTable(url).transaction_version(COMPACTION) == 3


def test_calling_off_lets_a_compaction_land(sink: SinkRestore, url: str) -> None:
    """No file is changed."""
    stale = DeltaTable(url)
    compaction = CommitProperties(app_transactions=[Transaction(COMPACTION, stale.version())])
    sink.call_off()
    stale.create_write_transaction([], "append", stale.schema(), [], commit_properties=compaction)
    assert numbers(url) == [1, 2, 3]


def test_a_batch_that_lands_first_is_taken_back_with_the_rest(
    sink: SinkRestore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is refused on a stale handle, whatever it holds, and decided again."""
    commit = SinkRestore._commit

    def overtaken(restore: SinkRestore, *arguments: Any) -> int:
        monkeypatch.setattr(SinkRestore, "_commit", commit)
        write_deltalake(url, pa.table({"n": [4]}, schema=SCHEMA), mode="append")
        return commit(restore, *arguments)

    monkeypatch.setattr(SinkRestore, "_commit", overtaken)
    assert sink.restore() == 5
    assert numbers(url) == [1]


def test_a_log_that_has_lost_the_commit_is_an_error(sink: SinkRestore, settings: Settings, url: str) -> None:
    """Which of the two commits has landed is not guessed at."""
    sink.restore()
    with pytest.raises(StoreUnavailableError) as caught:
        other(settings, id="two").call_off()
    fields = caught.value.fields
    assert (fields["table"], fields["action"]) == (url, "read")
    assert fields["reason"] == "its log has lost the commit of the rewind two"


@pytest.mark.parametrize("action", ["restore", "call_off"])
def test_a_sink_that_does_not_answer_is_named(sink: SinkRestore, url: str, action: str) -> None:
    """Before anything is changed, with the store's own reason."""
    torn = Path(url) / "_delta_log" / f"{4:020d}.json"
    torn.write_text("no commit")
    with pytest.raises(StoreUnavailableError, match="could not be opened") as caught:
        getattr(sink, action)()
    assert caught.value.fields["table"] == url


@pytest.mark.parametrize("action", ["restore", "call_off"])
def test_a_store_that_fails_meanwhile_is_named(
    sink: SinkRestore, url: str, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """With its own reason; the same call commits later."""

    def fails(*_: object) -> int:
        raise OSError("the disk is full")

    monkeypatch.setattr(SinkRestore, "_commit", fails)
    with pytest.raises(StoreUnavailableError, match="could not be written: the disk is full") as caught:
        getattr(sink, action)()
    assert caught.value.fields["table"] == url
    monkeypatch.undo()
    getattr(sink, action)()
    assert DeltaTable(url).version() == 4


def test_a_shard_that_no_worker_has_held_is_fenced(settings: Settings, url: str) -> None:
    """Its new epoch is the first one, and the sink knows nothing of it."""
    begun = replace(BEGUN, epochs={"v1.g0.s1": 1})
    assert SinkRestore(settings, STOCK_STATS, begun).restore() == 4
    assert FencedTable(url, {}, app_id("stock_stats", "v1.g0.s1")).recorded() == Fence(1, 0)


def test_each_access_has_the_stores_options(settings: Settings, url: str, options_seen: list[Any]) -> None:
    """To the sink, to its older version and to its files."""
    distant = settings.model_copy(update={"storage_options": {"allow_http": "true"}})
    options_seen.clear()
    SinkRestore(distant, STOCK_STATS, BEGUN).restore()
    assert len(options_seen) == 3
    assert set(map(str, options_seen)) == {"{'allow_http': 'true'}"}
