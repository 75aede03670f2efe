"""A client that follows the log of the leases finds what Delta's own reader finds, or leaves it to that
reader.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from hindcast.errors import CommitConflictError, CommitUnknownError
from hindcast.leases import delta_store
from hindcast.leases.delta_log import LocalFolder, StoreFolder, newer, newest
from hindcast.leases.delta_store import BELIEVED_SECONDS, LeaseTable
from hindcast.leases.lease import REMOVED, Lease, StatusType
from hindcast.leases.store import swap
from hindcast.settings import Settings
from hindcast.tables.schema import SCHEMAS
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock

RESTED = BELIEVED_SECONDS + 1


def shard(number: int = 0) -> Lease:
    return Lease(
        stream_id="trades",
        status_type=StatusType.SHARD,
        status_value=f"v1.g0.s{number}",
        parent_shard_ids=["a"],
    )


def add(number: int) -> Callable[[LeaseTable], object]:
    return lambda table: swap(table, lambda _: [shard(number)])


def renew(table: LeaseTable) -> None:
    swap(table, lambda snapshot: [lease.renewed() for lease in snapshot.leases.values()])


def remove_all(table: LeaseTable) -> None:
    swap(table, lambda snapshot: [replace(lease, state=REMOVED) for lease in snapshot.leases.values()])


def tidy(table: LeaseTable) -> None:
    """A vacuum that finds an old file that no commit names. (A vacuum that finds none commits nothing)."""
    orphan = Path(table._url) / "of-a-refused-commit.parquet"
    orphan.write_bytes(b"")
    os.utime(orphan, (0, 0))
    assert table.upkeep.run()["files_deleted"] == 1


def foreign(**options: str) -> Callable[[LeaseTable], None]:
    """What a foreign tool may do to the table: copy the rows that nobody has renewed, under other names."""

    def write(table: LeaseTable) -> None:
        handle = DeltaTable(table._url)
        rows = handle.to_pyarrow_table(filters=[("lease_counter", "=", 0)])
        names = [f"foreign {number}" for number in range(rows.num_rows)]
        write_deltalake(handle, rows.set_column(2, "status_value", [names]), **options)

    return write


def set_property(table: LeaseTable) -> None:
    DeltaTable(table._url).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "1"})


STEPS = {
    "a renewal": [renew],
    "many renewals": [renew] * 7,
    "a new lease": [add(1)],
    "a vacuum": [renew, tidy],
    "a vacuum before a renewal": [tidy, renew],
    "all removed": [remove_all],
    "removed and added": [remove_all, add(2)],
    "an append": [foreign(mode="append")],
    "an append before a renewal": [foreign(mode="append"), renew],
    "an overwrite of some rows": [renew, add(1), foreign(mode="overwrite", predicate="lease_counter = 0")],
    "an overwrite of all rows": [add(1), foreign(mode="overwrite")],
    "a property": [set_property],
    "a property before a renewal": [set_property, renew],
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pair(settings: Settings, clock: FakeClock) -> tuple[LeaseTable, LeaseTable]:
    """Two clients of a table of one shard: both have read it."""
    one = LeaseTable(settings)
    two = LeaseTable(settings, clock)
    add(0)(one)
    two.read()
    return one, two


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_the_log_says_what_the_table_holds(
    pair: tuple[LeaseTable, LeaseTable], settings: Settings, steps: list[Callable[[LeaseTable], object]]
) -> None:
    """After each step of another client or a foreign tool, both clients find what a new one finds, and both
    can commit.
    """
    one, two = pair
    for step in steps:
        step(one)
        assert two.read().leases == one.read().leases == LeaseTable(settings).read().leases
    renew(two)
    renew(one)
    assert two.read() == one.read() == LeaseTable(settings).read()


def test_a_client_that_follows_the_log_needs_no_other_reader(
    pair: tuple[LeaseTable, LeaseTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewals and vacuums of others are read without Delta's reader. Only a commit needs it."""
    one, two = pair
    monkeypatch.setattr(two, "_read_by_delta", lambda: pytest.fail("Delta's reader was asked"))
    for step in (renew, renew, tidy, renew):
        step(one)
        assert two.read().leases == one.read().leases
    renew(two)
    assert two.read().leases == one.read().leases


def test_a_client_that_read_a_moment_ago_reads_on_from_there(
    pair: tuple[LeaseTable, LeaseTable], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not list the whole log, however long its machine has run, and its commits are in time."""
    one, two = pair
    clock.advance(10 * RESTED)
    two.read()
    monkeypatch.setattr(delta_store, "newest", lambda _: pytest.fail("the log was listed"))
    for _ in range(2):
        renew(one)
        clock.advance(BELIEVED_SECONDS)
        assert two.read().leases == one.read().leases
    renew(two)
    assert two.leases() == one.leases()


def test_a_commit_lands_in_time_until_the_log_may_be_deleted(
    pair: tuple[LeaseTable, LeaseTable], clock: FakeClock
) -> None:
    """A commit is believed for as long after its read as a client reads on from there."""
    one, two = pair
    snapshot = two.read()
    clock.advance(BELIEVED_SECONDS)
    two.commit(snapshot, [shard(1)])
    assert one.leases() == [shard(0), shard(1)]


def test_a_commit_that_lands_later_is_not_believed(
    pair: tuple[LeaseTable, LeaseTable], clock: FakeClock
) -> None:
    """The error names the table and says how late it was. The next read finds what the table holds."""
    one, two = pair
    snapshot = two.read()
    clock.advance(RESTED)
    with pytest.raises(CommitUnknownError) as caught:
        two.commit(snapshot, [shard(1)])
    reason = f"it landed {RESTED:.0f} s after it was decided"
    assert caught.value.fields == {"table": two._url, "reason": reason}
    assert two.leases() == one.leases()


def test_a_client_that_has_read_a_table_without_leases_follows_its_log(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0 is a version like any other: if none follows it, nothing is leased."""
    table = LeaseTable(settings)
    assert table.read().leases == {}
    monkeypatch.setattr(table, "_read_by_delta", lambda: pytest.fail("Delta's reader was asked"))
    assert table.read().leases == {}
    add(0)(table)
    assert table.leases() == [shard(0)]


def test_a_new_client_needs_no_other_reader(
    pair: tuple[LeaseTable, LeaseTable], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has read no version finds the newest leases without Delta's reader, also after a vacuum,
    and can commit on them.
    """
    monkeypatch.setattr(LeaseTable, "_read_by_delta", lambda _: pytest.fail("Delta's reader was asked"))
    for step in (renew, tidy, tidy, renew):
        step(pair[0])
        assert LeaseTable(settings, FakeClock()).read() == pair[0].read()
    renew(LeaseTable(settings))
    assert [lease.lease_counter for lease in LeaseTable(settings).leases()] == [3]


@pytest.mark.parametrize(
    "name",
    [
        f"{9:020d}.checkpoint.0f.json",
        f"{0:020d}.{9:020d}.compacted.json",
        f"{9:020d}~.json",
        f"{9:020d}.json.tmp",
        "9.crc",
    ],
)
def test_only_entries_are_read(pair: tuple[LeaseTable, LeaseTable], name: str) -> None:
    """The log's folder also has checkpoints, joined entries, and files that a person may have left there."""
    one, _ = pair
    tidy(one)
    folder = Path(one._url)
    (file,) = folder.glob("*.parquet")
    assert newest(LocalFolder(folder)) == (3, file.name)
    (folder / "_delta_log" / name).write_text("")
    assert newest(LocalFolder(folder)) == (3, file.name)


def test_a_vacuum_after_a_renewal_hides_no_row(pair: tuple[LeaseTable, LeaseTable]) -> None:
    """A client that reads both at once finds the file of the renewal."""
    one, two = pair
    version = one.read().token
    renew(one)
    tidy(one)
    end = newer(LocalFolder(Path(one._url)), version)
    assert end is not None
    assert end.version == version + 3
    assert end == newest(LocalFolder(Path(one._url)))
    assert two.read().leases == one.read().leases


def test_a_vacuum_that_was_cut_short_changes_no_row(pair: tuple[LeaseTable, LeaseTable]) -> None:
    """Its start is in the log and its end is not."""
    one, two = pair
    tidy(one)
    (Path(one._url) / "_delta_log" / f"{3:020d}.json").unlink()
    (file,) = Path(one._url).glob("*.parquet")
    assert newest(LocalFolder(Path(one._url))) == (2, file.name)
    assert newer(LocalFolder(Path(one._url)), 1) == (2, "")
    assert two.leases() == [shard(0)]


def test_a_file_of_other_columns_is_left_to_the_table(
    pair: tuple[LeaseTable, LeaseTable], settings: Settings
) -> None:
    """A foreign tool may write them in another order."""
    one, two = pair
    handle = DeltaTable(one._url)
    file = Path(one._url) / "foreign.parquet"
    rows = [{**row, "lease_owner": "foreign"} for row in handle.to_pyarrow_table().to_pylist()]
    schema = pa.schema([*SCHEMAS[ControlTable.LEASES]][::-1])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    status = file.stat()
    added = AddAction(file.name, status.st_size, {}, int(status.st_mtime * 1000), True, '{"numRecords": 1}')
    handle.create_write_transaction([added], "overwrite", handle.schema())
    assert newest(LocalFolder(Path(one._url))) == (2, file.name)
    expected = replace(shard(0), lease_owner="foreign")
    for client in (one, two, LeaseTable(settings)):
        assert client.leases() == [expected]


def test_a_client_that_rested_lists_the_log(pair: tuple[LeaseTable, LeaseTable], clock: FakeClock) -> None:
    """The entries after the version that it read may be deleted, so a missing next entry proves nothing."""
    one, two = pair
    renew(one)
    renew(one)
    version = two.read().token
    for _ in range(3):
        renew(one)
    log = Path(one._url) / "_delta_log"
    DeltaTable(one._url).create_checkpoint()
    (log / f"{version + 1:020d}.json").unlink()
    clock.advance(RESTED)
    assert two.read().leases == one.read().leases


def test_a_commit_of_a_client_that_follows_the_log_is_still_a_compare_and_swap(
    pair: tuple[LeaseTable, LeaseTable], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose handle lags behind what it has read commits on just that version, or not at all."""
    one, two = pair
    renew(one)
    snapshot = two.read()
    two.commit(snapshot, [shard(7)])
    assert [lease.key for lease in LeaseTable(settings).leases()] == [shard(0).key, shard(7).key]
    renew(one)
    snapshot = two.read()
    renew(one)
    with pytest.raises(CommitConflictError):
        two.commit(snapshot, [shard(8)])
    monkeypatch.setattr(two, "_read_by_delta", lambda: pytest.fail("Delta's reader was asked"))
    assert two.read().leases == one.read().leases
    assert shard(8).key not in one.read().leases


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"add"', '{"add": 1}', '{"commitInfo": {}}'])
def test_an_entry_that_cannot_be_understood_is_left_to_the_table(tmp_path: Path, text: str) -> None:
    """Nothing is guessed from an entry that is torn or of another shape."""
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{5:020d}.json").write_text(text)
    assert newer(LocalFolder(tmp_path), 4) is None
    assert newer(LocalFolder(tmp_path), 5) == (5, "")


@pytest.mark.parametrize(
    "change",
    [
        {"add": {"path": "a%20b.parquet"}},
        {"add": {"path": "../b.parquet"}},
        {"add": {"deletionVector": {"storageType": "u"}}},
        {"commitInfo": {"operation": "MERGE"}},
        {"commitInfo": {"operationParameters": {"mode": "Append"}}},
        {"commitInfo": {"operationParameters": {"mode": "Overwrite", "predicate": "epoch = 1"}}},
        {"metaData": {"id": "other columns"}},
        {"txn": {"appId": "another", "version": 1}},
    ],
    ids=str,
)
def test_an_entry_that_says_more_is_left_to_the_table(
    pair: tuple[LeaseTable, LeaseTable], change: dict[str, dict[str, object]]
) -> None:
    """Delta's reader reads all that is not a whole overwrite by one plain file in the table's folder."""
    one, _ = pair
    version = one.read().token
    renew(one)
    folder = Path(one._url)
    assert newer(LocalFolder(folder), version) is not None
    entry = folder / "_delta_log" / f"{version + 1:020d}.json"
    actions: list[dict[str, dict[str, object]]] = [
        json.loads(line) for line in entry.read_text().splitlines()
    ]
    (kind,) = change
    if not any(kind in action for action in actions):
        actions.append({kind: {}})
    for action in actions:
        if kind in action:
            action[kind] |= change[kind]
    entry.write_text("\n".join(json.dumps(action) for action in actions))
    assert newer(LocalFolder(folder), version) is None


def test_the_table_lies_where_its_name_says(settings: Settings) -> None:
    """On a local disk, or in an object store, which is asked nothing before the first poll."""
    assert isinstance(LeaseTable(settings)._folder, LocalFolder)
    on_s3 = settings.model_copy(update={"tables_url": "s3://bucket/tables"})
    assert isinstance(LeaseTable(on_s3)._folder, StoreFolder)
