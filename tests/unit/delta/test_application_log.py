"""A log on a local disk is followed and continued by the names of its entries."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from structlog.testing import capture_logs
from support.opened_tables import record_opened_tables

from hindcast.delta import application_log
from hindcast.delta.application_log import BELIEVED_SECONDS, ApplicationLog, LocalLog, Reached, log_end
from hindcast.delta.commit import METADATA_KEY, read_commit
from hindcast.delta.files import DataFile
from hindcast.delta.log_state import LogState, read_state
from hindcast.errors import StoreUnavailableError
from hindcast.tables.schema import APPENDED_LOG_RETENTION_SECONDS

APP = "a"
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A table without rows, at version 0."""
    made = str(tmp_path / "t")
    DeltaTable.create(made, SCHEMA)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a log's clock shows."""
    now = [1_000.0]
    monkeypatch.setattr(application_log, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    return now


def local_log(url: str, app: str = APP) -> LocalLog:
    return LocalLog(url, {}, app)


def data_file(url: str, n: int, name: str = "") -> DataFile:
    path = name or f"{n}.parquet"
    target = Path(url) / path
    target.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": [n]}, schema=SCHEMA), target)
    stats = json.dumps({"numRecords": 1, "minValues": {"n": n}, "maxValues": {"n": n}, "nullCount": {"n": 0}})
    return DataFile(path, target.stat().st_size, 1, stats)


def commit(log: LocalLog, number: int, *files: DataFile, metadata: str = "") -> int:
    """The version that holds it."""
    version = log.reached().version + 1
    log.append(files, number, metadata)
    return version


def values(url: str) -> list[int]:
    return sorted(DeltaTable(url).to_pyarrow_table()["n"].to_pylist())


def cut(url: str, before: int) -> None:
    """Delete the entries before a version, after a checkpoint, as an upkeep does in the end."""
    DeltaTable(url).create_checkpoint()
    for path in Path(url, "_delta_log").glob("*.json"):
        if int(path.stem) < before:
            path.unlink()


def test_deltas_own_reader_finds_what_was_appended(url: str) -> None:
    """The rows, the statistics, the application's number, and what the commit says of itself. A file's name may
    have any characters.
    """
    log = local_log(url)
    name = "50% of ä:b c/d+e#f?.parquet"
    assert commit(log, 7, data_file(url, 3, name), data_file(url, 4), metadata='{"x": 1}') == 1
    table = DeltaTable(url)
    assert (values(url), table.version(), table.transaction_version(APP)) == ([3, 4], 1, 7)
    added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {unquote(row["path"]) for row in added} == {name, "4.parquet"}
    assert sorted((row["num_records"], row["min.n"], row["max.n"]) for row in added) == [(1, 3, 3), (1, 4, 4)]
    assert table.history(1)[0]["operation"] == "WRITE"
    said = read_commit(url, {}, 1)
    assert said is not None
    assert said[METADATA_KEY] == '{"x": 1}'


def test_an_entry_says_what_the_protocol_asks_for(url: str) -> None:
    """Readers of changes skip a file that changes no data, and other writers rely on it that an append has read no
    rows.
    """
    now_ms = time.time() * 1000
    file = data_file(url, 3)
    commit(local_log(url), 7, file, metadata="said")
    info, added, transaction = map(
        json.loads, Path(url, "_delta_log", f"{1:020d}.json").read_text().splitlines()
    )
    at_ms = info["commitInfo"].pop("timestamp")
    assert abs(at_ms - now_ms) < 60_000
    assert info["commitInfo"] == {
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": "[]"},
        "isBlindAppend": True,
        "engineInfo": "hindcast",
        METADATA_KEY: "said",
    }
    assert added == {
        "add": {
            "path": "3.parquet",
            "partitionValues": {},
            "size": file.size,
            "modificationTime": at_ms,
            "dataChange": True,
            "stats": file.stats,
        }
    }
    assert transaction == {"txn": {"appId": APP, "version": 7, "lastUpdated": at_ms}}


def test_the_store_decides_how_a_log_is_read(url: str) -> None:
    """A local disk is listed whole, an object store is not."""
    for address, kind in ((url, LocalLog), ("s3://bucket/t", ApplicationLog)):
        log = application_log.application_log(address, {"a": "b"}, APP)
        assert (type(log), log.url, log.storage_options, log.app) == (kind, address, {"a": "b"}, APP)


def test_the_end_of_a_log_is_the_same_by_deltas_own_reader(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which is asked if the log has another form. What cannot be read is told."""
    commit(local_log(url), 7)
    commit(local_log(url, "b"), 8)
    found = log_end(url, {})
    assert found is not None
    assert (found.version, found.numbers) == (2, {"a": 7, "b": 8})
    with monkeypatch.context() as unknown:
        unknown.setattr(application_log, "read_state", lambda *_: None)
        by_delta = log_end(url, {})
        assert by_delta is not None
        assert (by_delta.version, by_delta.numbers) == (found.version, found.numbers)
        assert log_end(str(tmp_path / "none"), {}) is None
    Path(url, "_delta_log", f"{2:020d}.json").write_text("{")
    with pytest.raises(StoreUnavailableError, match=f"{url} could not be read: "):
        log_end(url, {})


def test_a_partition_is_named(tmp_path: Path) -> None:
    """A reader takes its value from the log, not from the file."""
    url = str(tmp_path / "t")
    DeltaTable.create(url, pa.schema([("n", pa.int64()), ("k", pa.string())]), partition_by=["k"])
    file = data_file(url, 3, "k=a%20b/3.parquet")
    commit(local_log(url), 1, DataFile(file.path, file.size, 1, file.stats, {"k": "a b"}))
    assert DeltaTable(url).to_pyarrow_table().to_pylist() == [{"n": 3, "k": "a b"}]


def test_an_append_opens_no_table(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the log's end is known, neither it nor what others append is read by listing the log."""
    one, two = local_log(url), local_log(url, "b")
    commit(one, 1, data_file(url, 1))
    commit(two, 1, data_file(url, 2))
    opened = record_opened_tables(monkeypatch)
    monkeypatch.setattr(DeltaTable, "update_incremental", lambda _: pytest.fail("it lists the log"))
    for number in range(2, 10):
        commit(one, number, data_file(url, 10 * number))
        commit(two, number)
    assert (one.reached(), two.reached()) == (Reached(9, 18), Reached(9, 18))
    assert opened == []
    assert values(url) == [1, 2, *range(20, 100, 10)]


def test_what_others_write_is_followed(url: str) -> None:
    """Whatever writer it was, and whatever it did. Another application's number is not ours."""
    log = local_log(url)
    commit(log, 5, data_file(url, 1))
    write_deltalake(url, pa.table({"n": [2]}, schema=SCHEMA), mode="append")
    commit(local_log(url, "b"), 9)
    DeltaTable(url).delete("n = 2")
    assert log.reached() == Reached(5, 4)
    assert commit(log, 6, data_file(url, 3)) == 5
    assert values(url) == [1, 3]


def test_a_table_that_was_altered_is_followed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If its protocol is a newer one, the appends leave it to delta-rs to keep that."""
    log = local_log(url)
    commit(log, 1, data_file(url, 1))
    DeltaTable(url).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    asked = []
    commits = DeltaTable.create_write_transaction

    def commit_by_delta(self: DeltaTable, *arguments: Any, **options: Any) -> Any:
        asked.append(self.version())
        return commits(self, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_by_delta)
    assert commit(log, 2, data_file(url, 2), metadata="said") == 3
    said = read_commit(url, {}, 3)
    assert said is not None
    assert said[METADATA_KEY] == "said"
    assert DeltaTable(url).protocol().min_writer_version > 2
    assert asked == [2]
    assert commit(log, 3, data_file(url, 3)) == 4
    assert commit(local_log(url), 4, data_file(url, 4)) == 5
    assert asked == [2, 3, 4]
    assert log.reached() == Reached(4, 5)
    assert values(url) == [1, 2, 3, 4]


def test_columns_are_those_of_the_newest_version(tmp_path: Path, url: str) -> None:
    """None of a table that does not exist; nobody creates its folder by asking."""
    log = local_log(url)
    assert log.columns() == ("n",)
    DeltaTable(url).alter.add_columns([Field("more", PrimitiveType("string"))])
    assert log.columns() == ("n", "more")
    assert local_log(str(tmp_path / "none")).columns() is None
    assert not (tmp_path / "none").exists()


def test_the_first_of_two_writers_makes_the_version(url: str) -> None:
    """The second one has written nothing, and reads what the first one did."""
    one, two = local_log(url), local_log(url, "b")
    one.reached(), two.reached()
    two.append([data_file(url, 2)], 1, "")
    with pytest.raises(CommitFailedError, match="another writer has made version 1"):
        one.append([data_file(url, 1)], 1, "")
    assert values(url) == [2]
    assert commit(one, 1, data_file(url, 1)) == 2
    assert {path.suffix for path in Path(url, "_delta_log").iterdir()} == {".json"}


def test_a_log_that_was_cut_is_read_anew(url: str) -> None:
    """The entry after the last known one is missing since it was deleted, so it says nothing."""
    log = local_log(url)
    commit(log, 1, data_file(url, 1))
    for n in range(2, 6):
        write_deltalake(url, pa.table({"n": [n]}, schema=SCHEMA), mode="append")
    cut(url, before=4)
    assert log.reached() == Reached(1, 5)
    assert commit(log, 2, data_file(url, 6)) == 6
    assert values(url) == [1, 2, 3, 4, 5, 6]


def test_an_append_into_a_log_that_was_cut_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cut after the place was reached: version 2 was made, and is deleted."""
    log = local_log(url)
    commit(log, 1, data_file(url, 1))
    log.reached()
    for n in range(2, 6):
        write_deltalake(url, pa.table({"n": [n]}, schema=SCHEMA), mode="append")
    cut(url, before=4)
    with pytest.raises(CommitFailedError, match="the log has lost version 1"):
        log.append([data_file(url, 9)], 2, "")
    assert not Path(url, "_delta_log", f"{2:020d}.json").exists()
    assert commit(log, 2, data_file(url, 6)) == 6
    assert values(url) == [1, 2, 3, 4, 5, 6]


def test_a_table_of_which_the_checkpoint_alone_is_left_goes_on(url: str) -> None:
    """It has all that the lost entries had."""
    commit(local_log(url), 1, data_file(url, 1))
    DeltaTable(url).create_checkpoint()
    for path in Path(url, "_delta_log").glob("*.json"):
        path.unlink()
    log = local_log(url)
    assert log.reached() == Reached(1, 1)
    assert commit(log, 2, data_file(url, 2)) == 2
    assert commit(log, 3, data_file(url, 3)) == 3
    assert values(url) == [1, 2, 3]


def test_what_lands_in_a_gap_is_not_believed(
    url: str, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    """A process is stopped right before its entry gets its name, and the log is cut meanwhile. Nobody reads
    that entry, and another log of that process, which was stopped, too, does not continue it.
    """
    one, two = local_log(url), local_log(url, "b")
    commit(one, 1, data_file(url, 1))
    commit(two, 1, data_file(url, 2))
    assert one.reached() == two.reached() == Reached(1, 2)
    link = os.link

    def stopped(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        for n in range(3, 8):
            write_deltalake(url, pa.table({"n": [n]}, schema=SCHEMA), mode="append")
        cut(url, before=6)
        clock[0] += BELIEVED_SECONDS + 1
        link(source, target)

    monkeypatch.setattr(os, "link", stopped)
    with pytest.raises(CommitFailedError, match="it landed 121 s after it was decided"):
        one.append([data_file(url, 90)], 2, "")
    assert two.reached() == Reached(1, 7)
    assert one.reached() == Reached(1, 7)
    assert commit(one, 2, data_file(url, 91)) == 8
    assert commit(two, 2, data_file(url, 92)) == 9
    assert values(url) == [1, 2, 3, 4, 5, 6, 7, 91, 92]


def test_what_was_reached_long_ago_is_read_anew(
    url: str, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    """Up to the bound the log is followed."""
    log = local_log(url)
    commit(log, 1)
    anew = []

    def read_anew(*arguments: Any) -> LogState | None:
        anew.append(clock[0])
        return read_state(*arguments)

    monkeypatch.setattr(application_log, "read_state", read_anew)
    clock[0] += BELIEVED_SECONDS
    log.reached()
    assert anew == []
    clock[0] += BELIEVED_SECONDS + 1
    assert log.reached() == Reached(1, 1)
    assert anew == clock
    assert BELIEVED_SECONDS < APPENDED_LOG_RETENTION_SECONDS / 2


def test_checkpoints_are_written_at_the_tables_pace(url: str) -> None:
    """By the commit that makes the version, as delta-rs does it. By default one of a hundred does."""
    DeltaTable(url).alter.set_table_properties({"delta.checkpointInterval": "5"})
    log = local_log(url)
    for number in range(2, 11):
        commit(log, number, data_file(url, number))
    found = sorted(path.name[:20] for path in Path(url, "_delta_log").glob("*.checkpoint.parquet"))
    assert found == [f"{4:020d}", f"{9:020d}"]
    cut(url, before=10)
    assert DeltaTable(url).transaction_version(APP) == 10
    assert values(url) == list(range(2, 11))


def test_a_checkpoint_is_of_the_version_that_its_writer_made(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came after it meanwhile: two writers never write the same one."""
    DeltaTable(url).alter.set_table_properties({"delta.checkpointInterval": "3"})
    put = LocalLog._put

    def overtaken(log: LocalLog, version: int, entry: bytes) -> None:
        put(log, version, entry)
        write_deltalake(url, pa.table({"n": [7]}, schema=SCHEMA), mode="append")

    monkeypatch.setattr(LocalLog, "_put", overtaken)
    assert commit(local_log(url), 1) == 2
    found = [path.name[:20] for path in Path(url, "_delta_log").glob("*.checkpoint.parquet")]
    assert found == [f"{2:020d}"]


def test_a_checkpoint_that_fails_is_no_commit_that_failed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one makes up for it."""
    DeltaTable(url).alter.set_table_properties({"delta.checkpointInterval": "3"})
    log = local_log(url)
    with monkeypatch.context() as full, capture_logs() as logs:

        def fail(_: DeltaTable) -> None:
            raise DeltaError("the disk is full")

        full.setattr(DeltaTable, "create_checkpoint", fail)
        assert commit(log, 1, data_file(url, 1)) == 2
    (warning,) = logs
    assert warning == {
        "event": "A table's checkpoint could not be written; a later commit tries again.",
        "log_level": "warning",
        "table": url,
        "version": 2,
        "reason": "the disk is full",
    }
    for number in (2, 3, 4):
        commit(log, number, data_file(url, number))
    assert len(list(Path(url, "_delta_log").glob("*.checkpoint.parquet"))) == 1
    assert values(url) == [1, 2, 3, 4]


def test_a_draft_that_a_death_left_behind_is_seen_by_nobody(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner makes the version."""
    log = local_log(url)
    commit(log, 1, data_file(url, 1))
    log.reached()
    Path(url, "_delta_log", f".{2:020d}.0123.tmp").write_text("{")
    assert DeltaTable(url).version() == 1
    assert commit(local_log(url), 2, data_file(url, 2)) == 2
    assert values(url) == [1, 2]


@pytest.mark.parametrize(
    ("content", "said"), [("", "the commit .* is empty"), ('{"txn": ', "could not be read")]
)
def test_an_entry_that_is_empty_or_torn_is_refused(url: str, content: str, said: str) -> None:
    """What it held would be skipped. The table is read again once the file is restored."""
    log = local_log(url)
    commit(log, 1)
    commit(local_log(url), 2)
    path = Path(url, "_delta_log", f"{2:020d}.json")
    entry = path.read_text()
    path.write_text(content)
    with pytest.raises(StoreUnavailableError, match=said):
        log.reached()
    path.write_text(entry)
    assert log.reached() == Reached(2, 2)


def test_no_handle_is_kept_by_appends(url: str) -> None:
    """It would keep the list of all the table's files in memory, for each shard."""
    log = local_log(url)
    commit(log, 1, data_file(url, 1))
    assert log._handle is None
