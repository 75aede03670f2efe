"""Tables keep themselves small, and nobody who uses them meanwhile loses anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction
from structlog.testing import capture_logs

from hindcast.errors import CommitConflictError, CommitUnknownError
from hindcast.leases.delta_store import BELIEVED_SECONDS, LeaseTable
from hindcast.leases.lease import Lease, StatusType
from hindcast.leases.store import Snapshot, swap
from hindcast.settings import Settings
from hindcast.tables import compaction, schema
from hindcast.tables import control_tables as tables_module
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.schema import APPENDED_LOG_RETENTION_SECONDS, LEASES_CHECKPOINT_EVERY
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock


def shard(number: int = 0) -> Lease:
    return Lease(
        stream_id="trades",
        status_type=StatusType.SHARD,
        status_value=f"v1.g0.s{number}",
        updated_at=datetime.now(UTC),
    )


def renew(snapshot: Snapshot) -> list[Lease]:
    return [lease.renewed() for lease in snapshot.leases.values()]


def folder(settings: Settings, name: ControlTable = ControlTable.LEASES) -> Path:
    return Path(settings.table("control", name))


def data_files(settings: Settings, name: ControlTable = ControlTable.LEASES) -> set[str]:
    return {path.name for path in folder(settings, name).glob("*.parquet")}


@pytest.fixture
def store(settings: Settings) -> LeaseTable:
    """A leases table of one shard."""
    table = LeaseTable(settings)
    swap(table, lambda _: [shard()])
    return table


@pytest.fixture
def short_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases tables that are created now keep for one second only."""
    monkeypatch.setattr(schema, "LEASES_RETENTION_SECONDS", 1)


def test_a_table_that_cannot_be_opened_is_left_to_the_next_time(
    store: LeaseTable, settings: Settings
) -> None:
    """Upkeep runs in a thread of its own: an error would end in a stack trace that nobody can act on."""
    torn = folder(settings) / "_delta_log" / f"{DeltaTable(folder(settings)).version() + 1:020}.json"
    torn.write_text("no commit")
    assert "could not be opened" in store.upkeep.run()["skipped"]
    torn.unlink()
    assert store.upkeep.run()["skipped"] == ""


def test_renewals_alone_keep_the_table_small(
    short_retention: None, store: LeaseTable, settings: Settings
) -> None:
    """After many renewals and a pause, the next renewals leave few files and a short log. Nobody called the
    maintenance.
    """
    for _ in range(2 * compaction.EVERY):
        swap(store, renew)
    time.sleep(1.1)  # Delta compares the ages of files with its own clock
    for _ in range(compaction.EVERY):
        swap(store, renew)
        store.upkeep.wait()  # as in life, where the next renewal is far away
    every = compaction.EVERY
    assert len(data_files(settings)) <= every + 1
    assert len(list((folder(settings) / "_delta_log").glob("*.json"))) <= 2 * every
    assert LeaseTable(settings).leases()[0].lease_counter == 3 * every


def test_a_renewal_does_not_wait_for_the_upkeep(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep that never ends delays no renewal, and is not begun a second time meanwhile."""
    begun = []
    go_on = threading.Event()

    def slow(*_: object) -> int:
        begun.append(threading.current_thread().name)
        go_on.wait(30)
        return 0

    monkeypatch.setattr(compaction, "tidy_leases", slow)
    monkeypatch.setattr(compaction, "EVERY", 2)
    store = LeaseTable(settings)
    swap(store, lambda _: [shard()])
    for _ in range(10):
        swap(store, renew)
    assert store.read().leases[shard().key].lease_counter == 10
    go_on.set()
    store.upkeep.wait()
    assert begun == ["upkeep-leases"], "a dump of all threads says what this one does"


def test_a_process_that_ends_at_once_ends_well(settings: Settings) -> None:
    """A process whose last commit begins an upkeep finishes it and ends with 0. Its commits were checkpointed
    meanwhile.
    """
    code = f"""
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, StatusType
from hindcast.leases.store import swap
from hindcast.settings import Settings
store = LeaseTable(Settings(home={str(settings.home)!r}))
for number in range({compaction.EVERY}):
    swap(store, lambda _: [Lease(stream_id="a", status_type=StatusType.SHARD, status_value=str(number))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    checkpoints = sorted(
        int(path.name.split(".")[0])
        for path in (folder(settings) / "_delta_log").glob("*.checkpoint.parquet")
    )
    assert checkpoints[0] == LEASES_CHECKPOINT_EVERY - 1
    assert {after - before for before, after in pairwise(checkpoints)} == {LEASES_CHECKPOINT_EVERY}


def test_two_that_tidy_at_once_lose_no_renewal(
    short_retention: None, store: LeaseTable, settings: Settings
) -> None:
    """While two workers tidy again and again, every renewal of a third is kept, and the table opens."""
    ended = threading.Event()
    failed: list[str] = []

    def tidy() -> None:
        mine = LeaseTable(settings)
        while not ended.is_set():
            skipped = mine.upkeep.run()["skipped"]
            # With a retention of an instant the other one may delete a log that this one is opening; in life
            # it is minutes old.
            failed.extend(
                [skipped]
                if skipped and "a writer was faster" not in skipped and "not found" not in skipped
                else []
            )

    threads = [threading.Thread(target=tidy) for _ in range(2)]
    for thread in threads:
        thread.start()
    renewed = 0
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        swap(store, renew)
        renewed += 1
        time.sleep(0.01)  # the pause between renewals, in which the others get a turn
    ended.set()
    for thread in threads:
        thread.join()
    assert LeaseTable(settings).leases()[0].lease_counter == renewed
    assert failed == []


def test_a_reader_in_the_middle_keeps_its_file(store: LeaseTable, settings: Settings) -> None:
    """The files of a version that was the newest a moment ago outlast the upkeep."""
    reader = DeltaTable(str(folder(settings)))
    for _ in range(5):
        swap(store, renew)
    assert store.upkeep.run()["skipped"] == ""
    assert [row["lease_counter"] for row in reader.to_pyarrow_table().to_pylist()] == [0]


def test_files_of_a_commit_in_progress_are_safe(
    short_retention: None, store: LeaseTable, settings: Settings
) -> None:
    """A vacuum that was decided before a renewal landed is refused, and deletes nothing."""
    old = DeltaTable(str(folder(settings)))
    swap(store, renew)
    time.sleep(1.1)  # Delta compares the ages of files with its own clock
    before = data_files(settings)
    (folder(settings) / "part-never-committed.parquet").write_bytes(b"x")
    with pytest.raises(CommitFailedError):
        old.vacuum(retention_hours=0, dry_run=False, full=True, enforce_retention_duration=False)
    assert before <= data_files(settings)
    assert LeaseTable(settings).leases()[0].lease_counter == 1


def test_a_renewal_decided_before_a_vacuum_is_refused(
    short_retention: None, store: LeaseTable, settings: Settings
) -> None:
    """Once the upkeep has begun to delete, no commit lands whose files it may have taken for orphans. The
    renewal is decided again.
    """
    swap(store, renew)
    time.sleep(1.1)  # Delta compares the ages of files with its own clock
    snapshot = store.read()
    assert LeaseTable(settings).upkeep.run()["files_deleted"] == 1
    with pytest.raises(CommitConflictError):
        store.commit(snapshot, renew(snapshot))
    swap(store, renew)
    assert LeaseTable(settings).leases()[0].lease_counter == 2


def test_a_sleeper_finds_the_newest_leases(
    short_retention: None, store: LeaseTable, settings: Settings
) -> None:
    """A worker that slept until the log after its version was deleted cannot write into the gap, and reads
    the present leases.
    """
    sleeper = LeaseTable(settings)
    snapshot = sleeper.read()
    for _ in range(5):
        swap(store, renew)
    time.sleep(1.1)  # Delta compares the ages of files with its own clock
    store.upkeep.run()
    assert not (folder(settings) / "_delta_log" / f"{snapshot.token + 1:020d}.json").exists()
    with pytest.raises((CommitConflictError, CommitUnknownError)):
        sleeper.commit(snapshot, renew(snapshot))
    assert sleeper.read().leases[shard().key].lease_counter == 5


def test_a_commit_that_lands_late_is_not_believed(store: LeaseTable, settings: Settings) -> None:
    """A process that was stopped between its read and its commit for longer than logs are sure to be kept
    must read again.
    """
    clock = FakeClock()
    late = LeaseTable(settings, clock)
    snapshot = late.read()
    clock.advance(BELIEVED_SECONDS + 1)
    with pytest.raises(CommitUnknownError, match="it landed 61 s after it was decided") as caught:
        late.commit(snapshot, renew(snapshot))
    assert caught.value.fields["table"] == str(folder(settings))
    assert late.read().leases[shard().key].lease_counter == 1


def test_appended_rows_are_joined_into_few_files(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that gets single rows compacts itself, and each row is in it once."""
    monkeypatch.setattr(compaction, "EVERY", 10)
    tables = ControlTables(settings)
    for number in range(25):
        tables.append(ControlTable.EVENTS, [{"event_id": str(number), "at": datetime.now(UTC)}])
        tables.upkeep[ControlTable.EVENTS].wait()
    assert len(tables.open(ControlTable.EVENTS).file_uris()) < 12
    assert Counter(row["event_id"] for row in tables.rows(ControlTable.EVENTS)) == Counter(
        str(number) for number in range(25)
    )


def test_an_append_that_landed_late_is_repeated(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped in the middle of an append may have written into a deleted part of the log.
    Its rows are in the table all the same.
    """
    clock = FakeClock()
    pauses = [APPENDED_LOG_RETENTION_SECONDS / 2 + 1, 0.0]

    def stopped(*arguments: Any, **options: Any) -> None:
        clock.advance(pauses.pop(0))
        if pauses:
            return  # into the gap
        write_deltalake(*arguments, **options)

    monkeypatch.setattr(tables_module, "write_deltalake", stopped)
    tables = ControlTables(settings, clock)
    tables.append(ControlTable.EVENTS, [{"event_id": "1", "at": datetime.now(UTC)}])
    assert [row["event_id"] for row in tables.rows(ControlTable.EVENTS)] == ["1"]
    assert not pauses


def test_an_append_that_finds_its_log_deleted_opens_the_table_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process slept until the log after its open version was deleted. It opens the table again, and appends
    once.
    """
    monkeypatch.setattr(schema, "APPENDED_LOG_RETENTION_SECONDS", 1)
    sleeper = ControlTables(settings)
    other = ControlTables(settings)
    row = {"at": datetime.now(UTC)}
    sleeper.append(ControlTable.EVENTS, [{"event_id": "0", **row}])
    behind = DeltaTable(sleeper.url(ControlTable.EVENTS))
    monkeypatch.setattr(behind, "update_incremental", lambda: None)  # it stops between this and its commit
    for number in range(1, 60):
        other.append(ControlTable.EVENTS, [{"event_id": str(number), **row}])
        other.upkeep[ControlTable.EVENTS].wait()
    time.sleep(1.1)  # Delta compares the ages of files with its own clock
    DeltaTable(sleeper.url(ControlTable.EVENTS)).create_checkpoint()
    DeltaTable(sleeper.url(ControlTable.EVENTS)).cleanup_metadata()
    assert not (
        folder(settings, ControlTable.EVENTS) / "_delta_log" / f"{behind.version() + 1:020d}.json"
    ).exists()
    sleeper._appended[ControlTable.EVENTS] = behind
    sleeper.append(ControlTable.EVENTS, [{"event_id": "60", **row}])
    assert Counter(row["event_id"] for row in sleeper.rows(ControlTable.EVENTS)) == Counter(
        str(number) for number in range(61)
    )


def test_appends_and_compaction_at_once_lose_nothing(settings: Settings) -> None:
    """Two processes compact again and again while another writes. No row is lost or doubled."""
    ended = threading.Event()

    def tidy() -> None:
        while not ended.is_set():
            ControlTables(settings).upkeep[ControlTable.EVENTS].run()

    tables = ControlTables(settings)
    tables.open(ControlTable.EVENTS)
    threads = [threading.Thread(target=tidy) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(40):
        tables.append(ControlTable.EVENTS, [{"event_id": str(number), "at": datetime.now(UTC)}])
    ended.set()
    for thread in threads:
        thread.join()
    assert Counter(row["event_id"] for row in tables.rows(ControlTable.EVENTS)) == Counter(
        str(number) for number in range(40)
    )


def small_files(folder: Path, count: int = 20) -> str:
    """A table of as many files as rows. Its rows have windows."""
    for number in range(count):
        at = datetime(2026, 1, 1, second=number, tzinfo=UTC)
        rows = pa.table({"number": [number], "window": [{"start": at, "end": at + timedelta(seconds=5)}]})
        write_deltalake(folder, rows, mode="append")
    return str(folder)


def test_two_compactions_never_land_on_each_other(tmp_path: Path) -> None:
    """The second of two that began on the same version is refused, else every row would be in the table
    twice. An append in between is accepted.
    """
    url = small_files(tmp_path / "sink")
    first = DeltaTable(url)
    second = DeltaTable(url)
    compaction.compact(first, {})
    write_deltalake(url, DeltaTable(url).to_pyarrow_table().slice(0, 1), mode="append")
    with pytest.raises(CommitFailedError):
        compaction.compact(second, {})
    assert len(DeltaTable(url).to_pyarrow_table()) == 21


def test_a_compaction_lands_over_an_append_and_keeps_the_bounds_of_windows(tmp_path: Path) -> None:
    """A stream that commits each second does not keep its sink from being compacted, and readers still skip
    files by window.
    """
    url = small_files(tmp_path / "sink")
    table = DeltaTable(url)
    write_deltalake(url, DeltaTable(url).to_pyarrow_table().slice(0, 1), mode="append")
    compaction.compact(table, {})
    found = DeltaTable(url)
    assert len(found.file_uris()) == 2
    actions = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    (joined,) = [action for action in actions if action["path"].startswith("compacted-")]
    assert joined["num_records"] == 20
    assert joined["max.window.end"] - joined["min.window.end"] == timedelta(seconds=19)


def test_a_large_table_is_compacted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit joins more than fits into memory."""
    url = small_files(tmp_path / "sink", 9)
    size = max(pa.table(DeltaTable(url).get_add_actions())["size_bytes"].to_pylist())
    monkeypatch.setattr(compaction, "GROUP_BYTES", 3 * size - 100)
    compaction.compact(DeltaTable(url), {})
    assert len(DeltaTable(url).file_uris()) == 3
    assert len(DeltaTable(url).to_pyarrow_table()) == 9


@pytest.mark.parametrize(("more_bytes", "pieces"), [(0, [3, 3, 2]), (1, [4, 4])])
def test_a_piece_ends_with_the_file_that_fills_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options_seen: list[Any],
    more_bytes: int,
    pieces: list[int],
) -> None:
    """To the byte. The files of each piece are read and written with the store's options."""
    url = str(tmp_path / "sink")
    options = {"allow_http": "true"}
    for _ in range(8):
        write_deltalake(url, pa.table({"number": [1]}), mode="append")
    table = DeltaTable(url)
    (size,) = set(pa.table(table.get_add_actions())["size_bytes"].to_pylist())
    monkeypatch.setattr(compaction, "GROUP_BYTES", 3 * size + more_bytes)
    options_seen.clear()
    compaction.compact(table, options)
    assert sorted(pa.table(table.get_add_actions())["num_records"].to_pylist(), reverse=True) == pieces
    assert options_seen == [options] * len(pieces)


def test_a_vacuum_decided_before_a_renewal_is_given_up(
    short_retention: None, store: LeaseTable, settings: Settings
) -> None:
    """It is attempted five times. If a writer is always faster, the report says so, and no file is deleted."""
    old = DeltaTable(str(folder(settings)))
    opened = []
    swap(store, renew)
    time.sleep(1.1)  # Delta compares the ages of files with its own clock
    before = data_files(settings)

    def behind() -> DeltaTable:
        opened.append(1)
        return old

    tidying = compaction.Compactor(ControlTable.LEASES, behind, {})
    done = tidying.run()
    assert done["skipped"].startswith("a writer was faster: ")
    assert done["files_deleted"] == 0
    assert len(opened) == 1 + compaction.ATTEMPTS
    assert data_files(settings) == before


def test_files_of_refused_commits_are_deleted_with_the_old_ones(
    short_retention: None, store: LeaseTable, settings: Settings
) -> None:
    """A file that no commit names is deleted once it is as old as the retention, and the log says how many
    files that were.
    """
    (folder(settings) / "part-never-committed.parquet").write_bytes(b"x")
    swap(store, renew)
    time.sleep(1.1)  # Delta compares the ages of files with its own clock
    swap(store, renew)
    with capture_logs() as logs:
        done = store.upkeep.run()
    assert (done["skipped"], done["files_deleted"]) == ("", 2)
    assert len(data_files(settings)) == 2, "the newest, and the one that was replaced just now"
    assert isinstance(done["seconds"], float)
    assert 0 <= done["seconds"] < 60
    assert done["seconds"] == round(done["seconds"], 3)
    (logged,) = [entry for entry in logs if "was tidied" in entry["event"]]
    assert {name: logged[name] for name in done} == done
    assert logged["table"] == "leases"


def test_appended_files_that_were_replaced_are_kept_for_their_readers(settings: Settings) -> None:
    """They are kept for an hour, then they are deleted. A file that no commit has ever named may be an append
    that waits for its commit, and stays.
    """
    tables = ControlTables(settings)
    hours_ago = {}
    for number, hours in enumerate((0.9, 1.1, 1.9)):
        tables.append(ControlTable.EVENTS, [{"event_id": str(number), "at": datetime.now(UTC)}])
        (file,) = data_files(settings, ControlTable.EVENTS) - hours_ago.keys()
        hours_ago[file] = hours
    table = tables.open(ControlTable.EVENTS)
    removed = [
        RemoveAction(file, False, int((time.time() - hours * 3600) * 1000))
        for file, hours in hours_ago.items()
    ]
    table.create_write_transaction(removed, "append", table.schema())
    for file in hours_ago:
        os.utime(folder(settings, ControlTable.EVENTS) / file, (0, 0))
    waiting = folder(settings, ControlTable.EVENTS) / "part-not-committed-yet.parquet"
    waiting.write_bytes(b"x")
    os.utime(waiting, (0, 0))
    done = tables.upkeep[ControlTable.EVENTS].run()
    assert (done["skipped"], done["files_deleted"]) == ("", 2)
    young = {file for file, hours in hours_ago.items() if hours < 1}
    assert data_files(settings, ControlTable.EVENTS) == {*young, waiting.name}


def test_a_table_that_cannot_be_tidied_is_warned_of(settings: Settings) -> None:
    """The warning has its name and the reason, because the next time may be no better."""

    def away() -> DeltaTable:
        raise OSError("the disk is away")

    with capture_logs() as logs:
        done = compaction.Compactor(ControlTable.EVENTS, away, {}).run()
    assert (done["skipped"], done["files_deleted"]) == ("the disk is away", 0)
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warning["table"], warning["reason"]) == ("events", "the disk is away")
    assert "tried again later" in warning["event"]


def test_a_table_with_a_torn_file_is_left_as_it_is(settings: Settings) -> None:
    """Its files cannot be joined, and that is a warning like any other."""
    tables = ControlTables(settings)
    for number in range(2):
        tables.append(ControlTable.EVENTS, [{"event_id": str(number), "at": datetime.now(UTC)}])
    torn = min(folder(settings, ControlTable.EVENTS).glob("*.parquet"))
    torn.write_bytes(b"as a machine that lost its power left it")
    with capture_logs() as logs:
        done = tables.upkeep[ControlTable.EVENTS].run()
    assert "Parquet" in done["skipped"]
    assert [entry["reason"] for entry in logs if entry["log_level"] == "warning"] == [done["skipped"]]
    assert len(tables.open(ControlTable.EVENTS).file_uris()) == 2


def test_files_that_were_replaced_are_kept_for_an_hour(settings: Settings) -> None:
    """A reader of an appended table may take that long. A file that waits for its commit is never deleted."""
    tables = ControlTables(settings)
    for number in range(2):
        tables.append(ControlTable.EVENTS, [{"event_id": str(number), "at": datetime.now(UTC)}])
    table = tables.open(ControlTable.EVENTS)
    now = time.time()
    old, young = pa.table(table.get_add_actions())["path"].to_pylist()
    removed = [
        RemoveAction(path, False, int((now - hours * 3600) * 1000))
        for path, hours in ((old, 1.1), (young, 0.9))
    ]
    table.create_write_transaction(removed, "append", table.schema())
    waits = folder(settings, ControlTable.EVENTS) / "part-that-waits.parquet"
    waits.write_bytes(b"x")
    os.utime(waits, (0, 0))
    assert tables.upkeep[ControlTable.EVENTS].run()["files_deleted"] == 1
    assert data_files(settings, ControlTable.EVENTS) == {young, waits.name}


def test_upkeep_begins_with_each_fiftieth_version(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in a thread with a name of its own. The versions in between begin none."""
    begun: list[str] = []
    monkeypatch.setattr(
        compaction, "tidy_appended", lambda *_: begun.append(threading.current_thread().name) or 0
    )
    tidying = ControlTables(settings).upkeep[ControlTable.EVENTS]
    for version in (compaction.EVERY - 1, compaction.EVERY, compaction.EVERY + 1, 2 * compaction.EVERY):
        tidying.committed(version)
        tidying.wait()
    assert begun == ["upkeep-events"] * 2


def test_a_compaction_moves_rows_and_changes_none(tmp_path: Path) -> None:
    """Its commit says so of each file. It is the transaction of one application, on the version that it has
    read.
    """
    url = small_files(tmp_path / "sink", 3)
    table = DeltaTable(url)
    paths = set(pa.table(table.get_add_actions())["path"].to_pylist())
    version = table.version()
    compaction.compact(table, {})
    assert table.version() == version + 1, "the handle is where the next commit lands"
    commit = (Path(url) / "_delta_log" / f"{version + 1:020d}.json").read_text()
    actions = [json.loads(line) for line in commit.splitlines()]
    (added,) = [action["add"] for action in actions if "add" in action]
    removed = [action["remove"] for action in actions if "remove" in action]
    assert {action["path"] for action in removed} == paths
    assert not any(action["dataChange"] for action in [added, *removed])
    now = time.time() * 1000
    assert all(
        now - 60_000 < at <= now
        for at in (added["modificationTime"], *(action["deletionTimestamp"] for action in removed))
    )
    file = Path(url) / added["path"]
    assert added["size"] == file.stat().st_size
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"
    assert table.transaction_version(compaction.COMPACTION) == version


def test_large_files_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a small file that is the only one: a long history is not rewritten for a few rows."""
    url = str(tmp_path / "sink")
    for rows in (10_000, 1, 10_000):
        write_deltalake(
            url, pa.table({"number": [number * 7919 % 10_007 for number in range(rows)]}), mode="append"
        )
    sizes = pa.table(DeltaTable(url).get_add_actions())["size_bytes"].to_pylist()
    monkeypatch.setattr(compaction, "COMPACTED_BYTES", max(sizes))
    compaction.compact(DeltaTable(url), {})
    assert DeltaTable(url).version() == 2
    monkeypatch.setattr(compaction, "COMPACTED_BYTES", max(sizes) + 1)
    compaction.compact(DeltaTable(url), {})
    assert len(DeltaTable(url).file_uris()) == 1


def test_columns_that_were_added_since_are_null_in_older_rows(tmp_path: Path) -> None:
    """Files from before and after a table got a new column are joined."""
    url = str(tmp_path / "sink")
    write_deltalake(url, pa.table({"number": [1]}))
    write_deltalake(url, pa.table({"number": [2], "later": ["x"]}), mode="append", schema_mode="merge")
    compaction.compact(DeltaTable(url), {})
    found = sorted(DeltaTable(url).to_pyarrow_table().to_pylist(), key=lambda row: row["number"])
    assert found == [{"number": 1, "later": None}, {"number": 2, "later": "x"}]
    assert len(DeltaTable(url).file_uris()) == 1


def test_bounded_files_are_joined_in_order_and_by_their_first_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only files that begin with the same value of the first column are joined, in the order of the second. A
    file without bounds stays as it is.
    """
    url = str(tmp_path / "archive")
    for partition, offset in ((1, 30), (0, 20), (1, 10), (0, 40), (1, 20), (0, 50)):
        write_deltalake(url, pa.table({"partition": [partition], "offset": [offset]}), mode="append")
    nulls = pa.table({"partition": pa.array([None], pa.int64()), "offset": [5]})
    write_deltalake(url, nulls, mode="append")
    sizes = pa.table(DeltaTable(url).get_add_actions())["size_bytes"].to_pylist()
    monkeypatch.setattr(compaction, "GROUP_BYTES", 2 * min(sizes))
    compaction.compact(DeltaTable(url), {}, ("partition", "offset"))
    files = pa.table(DeltaTable(url).get_add_actions(flatten=True)).to_pylist()
    names = ("min.partition", "min.offset", "max.offset", "num_records")
    found = [tuple(file[name] for name in names) for file in files]
    assert sorted(found, key=str) == [
        (0, 20, 40, 2),
        (0, 50, 50, 1),
        (1, 10, 20, 2),
        (1, 30, 30, 1),
        (None, 5, 5, 1),
    ]


def test_the_rows_of_a_table_of_ranges_are_joined_in_order(tmp_path: Path) -> None:
    """Whatever bounds the small files have. Each file and each part of it then has the bounds of the columns."""
    url = str(tmp_path / "ledger")
    for name, number in (("b", 30), ("a", 20), ("b", 10), ("a", 40)):
        rows = pa.table({"name": [name, "a"], "number": [number, number + 1], "more": ["x", "y"]})
        write_deltalake(url, rows, mode="append")
    compaction.compact(DeltaTable(url), {}, ordered_by=("name", "number"))
    (file,) = pa.table(DeltaTable(url).get_add_actions(flatten=True)).to_pylist()
    names = ("min.name", "max.name", "min.number", "max.number", "num_records")
    assert [file[name] for name in names] == ["a", "b", 10, 41, 8]
    rows = pq.read_table(f"{url}/{file['path']}").select(["name", "number"]).to_pylist()
    found = [(row["name"], row["number"]) for row in rows]
    assert found == [("a", 11), ("a", 20), ("a", 21), ("a", 31), ("a", 40), ("a", 41), ("b", 10), ("b", 30)]
    for number in range(3):
        write_deltalake(url, pa.table({"name": ["c"], "number": [number], "more": ["z"]}), mode="append")
    compaction.compact(DeltaTable(url), {}, ordered_by=("name", "number"))
    assert len(DeltaTable(url).file_uris()) == 1
    assert DeltaTable(url).to_pyarrow_table().num_rows == 11


def test_a_row_is_rewritten_only_as_often_as_its_file_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file waits until the smaller ones together are as large, so few files are left all the same."""
    url = str(tmp_path / "ledger")
    rewritten = 0
    write = pq.write_table

    def counted(rows: pa.Table, *arguments: Any, **options: Any) -> None:
        nonlocal rewritten
        rewritten += rows.num_rows
        write(rows, *arguments, **options)

    monkeypatch.setattr(pq, "write_table", counted)
    rows = 0
    most = 0
    for number in range(120):
        text = os.urandom(20_000).hex()  # so that sizes are those of the rows
        write_deltalake(url, pa.table({"number": [number], "text": [text]}), mode="append")
        rows += 1
        if number % 3 == 2:
            compaction.compact(DeltaTable(url), {}, ordered_by=("number",))
            most = max(most, len(DeltaTable(url).file_uris()))
    assert DeltaTable(url).to_pyarrow_table().num_rows == rows
    assert rewritten < rows * 7  # each of 40 compactions rewrote all before: 20 times
    assert most < 8


def test_every_access_of_the_upkeep_has_the_stores_options(
    settings: Settings, options_seen: list[Any]
) -> None:
    """The table is opened with them, and the joined files are read and written with them."""
    tables = ControlTables(settings.model_copy(update={"storage_options": {"allow_http": "true"}}))
    for number in range(2):
        tables.append(ControlTable.EVENTS, [{"event_id": str(number), "at": datetime.now(UTC)}])
    assert tables.upkeep[ControlTable.EVENTS].run()["skipped"] == ""
    assert len(tables.open(ControlTable.EVENTS).file_uris()) == 1
    assert len(options_seen) > 5
    assert set(map(str, options_seen)) == {"{'allow_http': 'true'}"}


def test_files_that_a_delete_has_rewritten_are_joined_with_the_others(tmp_path: Path) -> None:
    """delta-rs writes text, also within lists and structures, as another Arrow type then."""
    url = str(tmp_path / "table")
    row = {"name": "a", "more": ["x"], "part": {"of": "y"}}
    for name in ("a", "b", "c"):
        write_deltalake(
            url, pa.Table.from_pylist([{**row, "name": name}, {**row, "name": "gone"}]), mode="append"
        )
    DeltaTable(url).delete("name = 'gone' AND name != 'b'")
    write_deltalake(url, pa.Table.from_pylist([{**row, "name": "d"}]), mode="append")
    compaction.compact(DeltaTable(url), {})
    joined = DeltaTable(url)
    assert len(joined.file_uris()) == 1
    assert sorted(joined.to_pyarrow_table()["name"].to_pylist()) == ["a", "b", "c", "d"]
