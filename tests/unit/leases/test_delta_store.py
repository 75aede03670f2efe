"""The table of leases on Delta: what it refuses, what it writes, and what its clients remember."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from hindcast.errors import (
    CommitConflictError,
    CommitUnknownError,
    HindcastError,
    SchemaVersionError,
    StoreUnavailableError,
)
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.leases.store import swap
from hindcast.processes.end_with_parent import exit_now
from hindcast.settings import Settings
from hindcast.tables.schema import LEASES_CHECKPOINT_EVERY, SCHEMAS
from hindcast.tables.table_names import SCHEMA_VERSION, ControlTable
from hindcast.testing import FakeClock

KEY = LeaseKey("trades", "shard", "v1.g0.s0")


def lease(**changes: object) -> Lease:
    return Lease(**{"stream_id": KEY[0], "status_type": StatusType.SHARD, "status_value": KEY[2], **changes})


class Unfollowed:
    """A folder whose log says nothing, so that Delta's own reader is asked."""

    def open(self, name: str) -> Any:
        raise LookupError(name)

    def versions(self) -> list[int]:
        return []


def _raise_counter(home: Path, times: int) -> None:
    store = LeaseTable(Settings(home=home))
    for _ in range(times):
        swap(store, lambda snapshot: [row.renewed() for row in snapshot.leases.values()])
    exit_now(0)


def test_no_update_of_four_processes_is_lost(settings: Settings) -> None:
    """Four processes that each raise one counter 15 times leave it at 60."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease()])
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_raise_counter, args=(settings.home, 15)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert next(iter(store.read().leases.values())).lease_counter == 60


def test_a_writer_remembers_what_a_reader_finds(settings: Settings) -> None:
    """The leases that a client returns without reading a file are those that another client reads."""
    one = LeaseTable(settings)
    one.commit(
        one.read(), [lease(checkpoint={7: (1, 2)}, detail={"a": (None, 3)}), lease(status_value="other")]
    )
    snapshot = one.read()
    assert snapshot.leases == LeaseTable(settings).read().leases
    renewed = [row.renewed(detail={"b": [row.lease_counter]}) for row in snapshot.leases.values()]
    one.commit(snapshot, renewed)
    assert one.read().leases == LeaseTable(settings).read().leases


def test_a_foreign_table_is_refused(settings: Settings) -> None:
    """A Delta table of other columns in the place of the leases is refused and left alone."""
    url = settings.table("control", "leases")
    write_deltalake(url, pa.table({"x": [1]}))
    with pytest.raises(SchemaVersionError, match="HINDCAST_TABLES_URL"):
        LeaseTable(settings).read()


def test_a_torn_log_is_an_error_that_names_the_table(settings: Settings) -> None:
    """An unreadable commit file is reported, and no version is skipped."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease(lease_owner="a")])
    log = Path(settings.table("control", "leases")) / "_delta_log"
    newest = max(log.glob("*.json"))
    newest.write_text(newest.read_text()[:40])
    with pytest.raises(StoreUnavailableError, match="leases"):
        LeaseTable(settings).read()


def broken(settings: Settings, which: int) -> str:
    """Empty one commit of three; return its name."""
    store = LeaseTable(settings)
    for owner in "abc":
        store.commit(store.read(), [lease(lease_owner=owner)])
    commit = sorted((Path(settings.table("control", "leases")) / "_delta_log").glob("*.json"))[which]
    commit.write_text("")
    return commit.name


def test_an_empty_newest_commit_is_refused(settings: Settings) -> None:
    """delta-rs would take it for a commit that did nothing. It is reported by its name."""
    name = broken(settings, -1)
    with pytest.raises(StoreUnavailableError, match=name):
        LeaseTable(settings).read()


def test_nothing_is_written_after_an_empty_commit(settings: Settings) -> None:
    """The newest commit has all leases, so they are read. A commit on such a log is refused with the
    name of the entry.
    """
    name = broken(settings, -2)
    store = LeaseTable(settings)
    snapshot = store.read()
    assert [found.lease_owner for found in snapshot.leases.values()] == ["c"]
    with pytest.raises(StoreUnavailableError, match=name):
        store.commit(snapshot, [lease(lease_owner="d")])


@pytest.mark.parametrize(("which", "refused"), [(2, False), (4, True)])
def test_only_commits_since_the_last_checkpoint_are_checked(
    settings: Settings, which: int, refused: bool
) -> None:
    """An empty commit before the checkpoint does no harm: no reader of the newest version reads it. One after
    the checkpoint is refused.
    """
    store = LeaseTable(settings)
    for owner in "abcd":
        store.commit(store.read(), [lease(lease_owner=owner)])
    url = settings.table("control", "leases")
    DeltaTable(url, version=3).create_checkpoint()
    sorted((Path(url) / "_delta_log").glob("*.json"))[which].write_text("")
    if refused:
        with pytest.raises(StoreUnavailableError, match=f"{which:020d}.json"):
            LeaseTable(settings).read()
    else:
        assert [found.lease_owner for found in LeaseTable(settings).leases()] == ["d"]


def test_clients_that_cannot_follow_the_log_take_turns(settings: Settings) -> None:
    """Delta's own reader tells each what the other has written."""
    one = LeaseTable(settings)
    two = LeaseTable(settings)
    one._folder = Unfollowed()
    two._folder = Unfollowed()
    one.commit(one.read(), [lease(), lease(status_value="other")])
    for number in range(1, 4):
        swap(two, lambda snapshot: [snapshot.leases[lease().key].renewed(lease_owner="two")])
        swap(one, lambda snapshot: [snapshot.leases[lease().key].renewed(lease_owner="one")])
        assert one.read() == two.read() == LeaseTable(settings).read()
        assert one.read().leases[lease().key].lease_counter == 2 * number
    stale = two.read()
    swap(one, lambda _: [lease(status_value="third")])
    with pytest.raises(CommitConflictError):
        two.commit(stale, [lease(lease_owner="two")])
    assert len(two.read().leases) == 3


def test_a_reader_makes_no_table(settings: Settings) -> None:
    """If nothing was ever leased it reads nothing. Otherwise the leases come in the order of their keys."""
    assert LeaseTable(settings).leases_if_any() == []
    assert not LeaseTable(settings).exists()
    assert not Path(settings.table("control", "leases")).exists()
    store = LeaseTable(settings)
    store.commit(store.read(), [lease(status_value=name) for name in "bca"])
    assert store.exists()
    assert [found.status_value for found in LeaseTable(settings).leases_if_any()] == ["a", "b", "c"]
    assert [found.status_value for found in store.leases()] == ["a", "b", "c"]


def test_a_reader_whose_table_was_deleted_reads_the_one_that_is_made_after_it(settings: Settings) -> None:
    """A process may list again and again. What it remembers of the deleted table counts no more."""
    reader = LeaseTable(settings)
    for value in ("old", "new"):
        store = LeaseTable(settings)
        swap(store, lambda _, value=value: [lease(status_value=value)])
        assert [found.status_value for found in reader.leases_if_any()] == [value]
        shutil.rmtree(settings.table("control", "leases"))
        assert reader.leases_if_any() == []


def test_a_store_of_leases_that_does_not_answer_is_named(settings: Settings) -> None:
    """Also if it is only asked whether there are any. The error has the store's own reason."""
    nothing_listens = "http://127.0.0.1:9"
    options = {
        "aws_endpoint": nothing_listens,
        "aws_access_key_id": "a",
        "aws_secret_access_key": "s",
        "region": "us-east-1",
        "allow_http": "true",
        "max_retries": "0",
    }
    on_s3 = {"tables_url": "s3://bucket/tables", "storage_options": options}
    store = LeaseTable(settings.model_copy(update=on_s3))
    with pytest.raises(StoreUnavailableError, match=nothing_listens) as caught:
        store.exists()
    assert caught.value.fields["table"] == "s3://bucket/tables/control/leases"
    assert caught.value.fields["action"] == "read"
    with pytest.raises(StoreUnavailableError, match=nothing_listens):
        store.read()


def test_a_file_that_is_gone_is_an_error_and_no_lease(settings: Settings) -> None:
    """No reader may think that there are no leases. Once the file is back they are read."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease(lease_owner="a")])
    (file,) = Path(settings.table("control", "leases")).glob("*.parquet")
    file.rename(file.with_suffix(".gone"))
    other = LeaseTable(settings)
    with pytest.raises(StoreUnavailableError, match="could not be read") as caught:
        other.read()
    assert caught.value.fields["table"] == settings.table("control", "leases")
    assert caught.value.fields["reason"] is caught.value.__cause__
    file.with_suffix(".gone").rename(file)
    assert other.leases() == store.leases() == [lease(lease_owner="a")]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (CommitFailedError("a writer was faster"), CommitConflictError),
        (DeltaError("no answer"), CommitUnknownError),
        (OSError("no answer"), CommitUnknownError),
    ],
)
def test_a_commit_that_fails_is_decided_on_what_the_table_holds(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[HindcastError]
) -> None:
    """A conflict has written nothing. A commit that ended without an answer may have landed, as here, so the
    next decision is made on what is read.
    """
    store = LeaseTable(settings, FakeClock())
    store.commit(store.read(), [lease()])
    commit = DeltaTable.create_write_transaction

    def fails(*arguments: object, **options: object) -> None:
        monkeypatch.undo()
        if raised is CommitUnknownError:
            commit(*arguments, **options)
        raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails)
    with pytest.raises(raised) as caught:
        swap(store, lambda snapshot: [row.renewed() for row in snapshot.leases.values()], attempts=1)
    assert caught.value.fields["table"] == settings.table("control", "leases")
    landed = 0
    if raised is CommitUnknownError:
        assert caught.value.fields["reason"] is error
        landed = 1
    monkeypatch.setattr(store, "_read_by_delta", lambda: pytest.fail("the log says enough"))
    assert store.leases()[0].lease_counter == landed
    swap(store, lambda snapshot: [row.renewed(lease_owner="a") for row in snapshot.leases.values()])
    assert LeaseTable(settings).leases() == store.leases()
    assert store.leases()[0].lease_owner == "a"


@pytest.mark.parametrize("follows", [True, False])
def test_rows_of_a_newer_hindcast_are_refused(settings: Settings, follows: bool) -> None:
    """The error names the table, also if the lease was known before."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease()])
    url = settings.table("control", "leases")
    handle = DeltaTable(url)
    rows = [{**row, "schema_version": SCHEMA_VERSION + 1} for row in handle.to_pyarrow_table().to_pylist()]
    write_deltalake(handle, pa.Table.from_pylist(rows, schema=SCHEMAS[ControlTable.LEASES]), mode="overwrite")
    other = LeaseTable(settings)
    for client in (store, other):
        if not follows:
            client._folder = Unfollowed()
        with pytest.raises(SchemaVersionError, match="Upgrade") as refused:
            client.read()
        assert (refused.value.fields["table"], refused.value.fields["found"]) == (url, SCHEMA_VERSION + 1)


def test_a_client_reads_no_file_that_it_has_written(settings: Settings) -> None:
    """It does not notice that the file is deleted, and commits on that version at once."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease()])
    for file in Path(settings.table("control", "leases")).glob("*.parquet"):
        file.unlink()
    snapshot = store.read()
    assert snapshot.leases == {lease().key: lease()}
    store.commit(snapshot, [lease(lease_owner="a")])
    assert LeaseTable(settings).leases() == [lease(lease_owner="a")]


def test_a_conflict_names_the_table(settings: Settings) -> None:
    """Both if this client has read a newer version since, and if another has written one."""
    one = LeaseTable(settings)
    two = LeaseTable(settings)
    first = one.read()
    one.commit(first, [lease()])
    snapshot = two.read()
    swap(one, lambda _: [lease(lease_owner="a")])
    for client, old in ((one, first), (two, snapshot)):
        with pytest.raises(CommitConflictError) as caught:
            client.commit(old, [lease(lease_owner="b")])
        assert caught.value.fields["table"] == settings.table("control", "leases")
    assert two.leases() == [lease(lease_owner="a")]


def test_a_store_that_does_not_answer_before_a_commit_is_named(settings: Settings) -> None:
    """Nothing is written. Once the store answers, the same decision is committed."""
    one = LeaseTable(settings)
    two = LeaseTable(settings)
    for client in (one, two, one):
        swap(client, lambda snapshot: [lease(lease_counter=len(snapshot.leases))])
    snapshot = two.read()
    log = Path(settings.table("control", "leases")) / "_delta_log"
    torn = log / f"{snapshot.token + 1:020d}.json"
    torn.write_text("no commit")
    with pytest.raises(StoreUnavailableError, match="could not be read") as caught:
        two.commit(snapshot, [lease(lease_owner="a")])
    assert caught.value.fields["table"] == settings.table("control", "leases")
    assert caught.value.fields["reason"] is caught.value.__cause__
    torn.unlink()
    assert two.leases() == [lease(lease_counter=1)]
    swap(two, lambda _: [lease(lease_owner="a")])
    assert one.leases() == [lease(lease_owner="a")]


def test_each_version_is_one_plain_file(settings: Settings) -> None:
    """Written whole, small and dated. Every fifth version has a checkpoint. The upkeep, which
    deletes old logs, hears of each version.
    """
    store = LeaseTable(settings)
    began = int(time.time() * 1000)
    versions: list[int] = []
    store.upkeep.committed = versions.append  # type: ignore[method-assign]
    for number in range(6):
        store.commit(store.read(), [lease(status_value=str(number))])
    assert versions == [1, 2, 3, 4, 5, 6]
    folder = Path(settings.table("control", "leases"))
    log = folder / "_delta_log"
    for version in versions:
        entry = (log / f"{version:020d}.json").read_text()
        actions = [json.loads(line) for line in entry.splitlines()]
        (added,) = [action["add"] for action in actions if "add" in action]
        file = folder / added["path"]
        assert added["size"] == file.stat().st_size
        assert json.loads(added["stats"]) == {"numRecords": version}
        assert added["dataChange"]
        assert began <= added["modificationTime"] <= time.time() * 1000
        column = pq.ParquetFile(file).metadata.row_group(0).column(0)
        assert column.compression == "LZ4"
        assert not column.is_stats_set
        assert set(column.encodings) == {"PLAIN", "RLE"}
    assert len(DeltaTable(folder).file_uris()) == 1
    assert [path.name for path in log.glob("*.checkpoint.parquet")] == [f"{4:020d}.checkpoint.parquet"]


def test_no_commit_deletes_old_entries_of_the_log(settings: Settings) -> None:
    """The upkeep deletes them, so that no renewal waits for that."""
    store = LeaseTable(settings)
    log = Path(settings.table("control", "leases")) / "_delta_log"
    for _ in range(3):
        store.commit(store.read(), [lease()])
    for entry in log.glob("*.json"):
        os.utime(entry, (0, 0))
    for _ in range(2 * LEASES_CHECKPOINT_EVERY):
        store.commit(store.read(), [lease()])
    assert len(list(log.glob("*.json"))) == 1 + 3 + 2 * LEASES_CHECKPOINT_EVERY


def test_every_access_to_the_leases_has_the_stores_options(
    settings: Settings, options_seen: list[Any]
) -> None:
    """To the table and to its files, of a client that follows the log and of one that asks Delta's reader."""
    mine = settings.model_copy(update={"storage_options": {"allow_http": "true"}})
    one = LeaseTable(mine)
    two = LeaseTable(mine)
    two._folder = Unfollowed()
    for store in (one, two, one):
        swap(store, lambda snapshot: [lease(lease_counter=len(snapshot.leases))])
    assert len(LeaseTable(mine).leases_if_any()) == 1
    assert len(options_seen) > 5
    assert set(map(str, options_seen)) == {"{'allow_http': 'true'}"}
