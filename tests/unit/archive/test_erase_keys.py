"""Keys are erased from an archive, from late rows and from dead letters, on real Delta tables without a JVM."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.crashes import CrashError, crash_at

from hindcast import catalog
from hindcast.archive import erase_keys as module
from hindcast.archive.erase_keys import Erased, erase_keys
from hindcast.archive.erased_records import ERASED_HEADERS, first_erased, is_erased
from hindcast.archive.snapshot import read_snapshot
from hindcast.archive.table import ArchiveTable
from hindcast.cli.main import run
from hindcast.errors import BadInputError, BadNameError, StoreUnavailableError, UnknownTopicError
from hindcast.installation import Installation
from hindcast.kafka.redrive import Repaired, check_letters
from hindcast.pipeline import TOPIC_STRIDE
from hindcast.settings import Settings, project_root
from hindcast.spark.parquet_writer import _write_file
from hindcast.tables import compaction, rewritten_rows
from hindcast.tables.archive_schema import ARCHIVE_SCHEMA, BOUNDED, archive_url
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.schema import SCHEMAS
from hindcast.tables.table_names import ControlTable

Row = dict[str, Any]

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SECRET = b"user-17"
#: The keys of the topic's records, by offset: every third is of the person who is forgotten.
KEYS = [b"user-1", None, SECRET]
#: What each partition has.
RECORDS = 30
HEADERS = [{"key": "trace", "value": b"user-17 was here"}]


def key_of(offset: int) -> bytes | None:
    return KEYS[offset % len(KEYS)]


def archived(partition: int, offset: int) -> Row:
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": NOON + timedelta(seconds=offset),
        "timestamp_type": 0,
        "headers": HEADERS if offset % 2 else None,
        "key": key_of(offset),
        "value": b'{"who": "%d"}' % offset,
    }


def filed(topic: str, partition: int, offset: int, **more: Any) -> Row:
    return {
        "pipeline": "stock_stats",
        "version": 1,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "broker_at": NOON + timedelta(seconds=offset),
        "key": key_of(offset),
        "value": b"%d" % offset,
        **more,
    }


class Kept:
    """The tables of one home: an archive of two files a partition, late rows and letters of two topics."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tables = ControlTables(settings)
        table = ArchiveTable(settings, "t")
        table.create()
        files = []
        for partition in (0, 1):
            for first in range(0, RECORDS, 15):
                rows = [archived(partition, offset) for offset in range(first, first + 15)]
                part = pa.Table.from_pylist(rows, schema=ARCHIVE_SCHEMA)
                files.append(_write_file(part, table.url, {}, "c", BOUNDED))
        empty = table.manifest()
        begin, end = {0: 0, 1: 0}, {0: RECORDS, 1: RECORDS}
        full = empty.with_step("a", begin, end, rows=2 * RECORDS, size=1, newest_at="")
        assert table.commit(empty, full, files)
        for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
            for topic in ("t", "other"):
                for partition in (0, TOPIC_STRIDE + 1):
                    rows = [filed(topic, partition, offset) for offset in range(9)]
                    if name is ControlTable.DEAD_LETTERS:
                        rows = [{**row, "reason": "no value", "traceback": "KeyError: 17"} for row in rows]
                    self.tables.append(name, rows)

    def erase(self, *keys: bytes, dry_run: bool = False) -> Erased:
        return erase_keys(Installation(self.settings), "t", keys or (SECRET,), dry_run=dry_run)

    def archive(self) -> list[Row]:
        rows = DeltaTable(archive_url(self.settings, "t")).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    def side(self, name: ControlTable) -> list[Row]:
        rows = self.tables.rows(name)
        return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))

    def everything(self) -> tuple[list[Row], list[Row], list[Row]]:
        return self.archive(), self.side(ControlTable.LATE_ROWS), self.side(ControlTable.DEAD_LETTERS)


class FakeTopic:
    """The topic as the broker tells of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def earliest(self, topic: str) -> dict[int, int]:
        if topic != "t":
            raise UnknownTopicError(topic=topic, servers="", cure="")
        return {0: 20, 1: 30}

    def latest(self, _: str) -> dict[int, int]:
        return {0: 34, 1: 31}


@pytest.fixture
def kept(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """A home in which the person is known in all three places."""
    monkeypatch.setattr(module, "TopicOffsets", lambda _: FakeTopic())
    return Kept(settings)


def expected(row: Row, **gone: Any) -> Row:
    """The row as it is after the erasure."""
    if row.get("topic") == "other" or row["key"] != SECRET:
        return row
    return {**row, **gone}


def test_what_a_key_left_is_erased_and_nothing_else(kept: Kept) -> None:
    """Places stay, counts add up, all other rows are as they were, and the event names no key."""
    archive, late, letters = kept.everything()
    done = kept.erase()
    assert (done.archived, done.late_rows, done.dead_letters) == (20, 6, 6)
    assert (done.keys, done.in_topic, done.not_archived) == (1, 15, 5)
    gone = {"key": None, "value": None}
    assert kept.archive() == [expected(row, **gone, headers=ERASED_HEADERS) for row in archive]
    assert kept.side(ControlTable.LATE_ROWS) == [expected(row, **gone) for row in late]
    erased = {**gone, "traceback": None, "reason": "erased"}
    assert kept.side(ControlTable.DEAD_LETTERS) == [expected(row, **erased) for row in letters]
    held = read_snapshot(kept.settings, "t")
    assert held is not None
    assert held.manifest.rows == 2 * RECORDS
    assert held.at_time(NOON + timedelta(seconds=17), {0: 30, 1: 30}) == {0: 17, 1: 17}
    (event,) = kept.tables.rows(ControlTable.EVENTS)
    assert event["kind"] == "keys_erased"
    assert "20 archived records, 6 late rows, 6 dead letters" in event["message"]
    assert SECRET.decode() not in json.dumps(event, default=str)


def test_a_second_erasure_finds_nothing(kept: Kept) -> None:
    """It changes no file either."""
    kept.erase()
    version = DeltaTable(archive_url(kept.settings, "t")).version()
    again = kept.erase()
    assert (again.archived, again.late_rows, again.dead_letters) == (0, 0, 0)
    assert DeltaTable(archive_url(kept.settings, "t")).version() == version


def test_a_dry_run_counts_and_changes_nothing(kept: Kept) -> None:
    """Not even an event is left."""
    before = kept.everything()
    done = kept.erase(b"user-1", SECRET, SECRET, dry_run=True)
    assert (done.keys, done.archived, done.late_rows, done.dead_letters) == (2, 40, 12, 12)
    assert kept.everything() == before
    assert kept.tables.rows(ControlTable.EVENTS) == []


@pytest.mark.parametrize(
    ("step", "time"),
    [
        *((f"erase.{number}", 1) for number in range(1, 5)),
        *((f"rewrite.{n}", t) for n in (1, 2) for t in range(1, 6)),
    ],
)
def test_a_death_on_the_way_is_finished_by_the_next_run(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, step: str, time: int
) -> None:
    """Killed between any two steps, and around each replaced file: then the same command once more."""
    with monkeypatch.context() as patch:
        crash_at(patch, step, time)
        with pytest.raises(CrashError):
            kept.erase()
    kept.erase()
    once = kept.everything()
    assert [len(rows) for rows in once] == [2 * RECORDS, 36, 36]
    again = kept.erase(dry_run=True)
    assert (again.archived, again.late_rows, again.dead_letters) == (0, 0, 0)


def in_between(monkeypatch: pytest.MonkeyPatch, times: int, work: Callable[[], None]) -> None:
    """Let something else happen once a new file is written and before its commit."""
    left = [times]
    reach = rewritten_rows.reach

    def reached(step: str) -> None:
        reach(step)
        if step == "rewrite.1" and left[0]:
            left[0] -= 1
            work()

    monkeypatch.setattr(rewritten_rows, "reach", reached)


def test_an_erasure_and_a_join_of_files_keep_each_row_once(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The join lands first, so the commit is refused and decided again on the joined file."""
    before = kept.everything()

    def join() -> None:
        tables = ControlTables(kept.settings)
        for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
            compaction.compact(
                tables.open(name), {}, ordered_by=("pipeline", "version", "offset", "broker_at")
            )
        compaction.compact(DeltaTable(archive_url(kept.settings, "t")), {}, BOUNDED)

    in_between(monkeypatch, 3, join)
    done = kept.erase()
    assert (done.archived, done.late_rows, done.dead_letters) == (20, 6, 6)
    after = kept.everything()
    assert [len(rows) for rows in after] == [len(rows) for rows in before]
    assert kept.erase(dry_run=True).late_rows == 0
    files = Path(kept.tables.url(ControlTable.LATE_ROWS)).glob("rewritten-*.parquet")
    named = {Path(uri).name for uri in kept.tables.open(ControlTable.LATE_ROWS).file_uris()}
    assert {path.name for path in files} <= named, "the file of the refused commit is deleted"


def test_a_join_that_began_before_an_erasure_is_refused(kept: Kept) -> None:
    """Else it would bring back what was erased."""
    stale = kept.tables.open(ControlTable.LATE_ROWS)
    kept.erase()
    with pytest.raises(compaction.CommitFailedError):
        compaction.compact(stale, {})
    assert kept.erase(dry_run=True).late_rows == 0
    assert len(kept.side(ControlTable.LATE_ROWS)) == 36


def test_rows_that_are_filed_meanwhile_are_erased_too(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append hinders no commit, and its rows are looked at before the erasure ends."""
    more = [filed("t", 0, offset) for offset in range(20, 29)]
    in_between(monkeypatch, 1, lambda: kept.tables.append(ControlTable.LATE_ROWS, more))
    assert kept.erase().late_rows == 6 + 3
    late = kept.side(ControlTable.LATE_ROWS)
    assert len(late) == 36 + 9
    assert SECRET not in {row["key"] for row in late if row["topic"] == "t"}


def test_late_rows_without_a_key_are_known_by_their_place(kept: Kept) -> None:
    """An older Hindcast filed none: the archive has it, under the topic's own number of the partition."""
    old = [{**filed("t", TOPIC_STRIDE + 1, offset), "key": None} for offset in range(9, 12)]
    kept.tables.append(ControlTable.LATE_ROWS, old)
    assert kept.erase().late_rows == 6 + 1
    left = {row["offset"]: row["value"] for row in kept.side(ControlTable.LATE_ROWS) if row["offset"] > 8}
    assert left == {9: b"9", 10: b"10", 11: None}


def test_tables_of_an_older_hindcast_are_erased_as_they_are(kept: Kept) -> None:
    """Their files lack the columns that came later."""
    url = kept.tables.url(ControlTable.LATE_ROWS)
    old = pa.schema([field for field in SCHEMAS[ControlTable.LATE_ROWS] if field.name != "key"])
    rows = pa.Table.from_pylist([filed("t", 1, 2), filed("t", 1, 3)], schema=old)
    file = _write_file(rows, url, {}, "old", ())
    table = DeltaTable(url)
    table.create_write_transaction([file.as_action()], "append", table.schema(), [])
    assert kept.erase().late_rows == 6 + 1
    values = {
        row["offset"]: row["value"] for row in kept.side(ControlTable.LATE_ROWS) if row["partition"] == 1
    }
    assert values == {2: None, 3: b"3"}


def test_erased_places_are_named_by_the_archive(kept: Kept) -> None:
    """A tombstone of a producer's is no erased record."""
    assert first_erased(kept.settings, "t", {0: range(30)}) == (0, {})
    kept.erase()
    assert first_erased(kept.settings, "t", {0: range(3, 30), 1: [0, 1, 26, 29]}) == (9 + 2, {0: 5, 1: 26})
    assert first_erased(kept.settings, "t", {}) == (0, {})
    assert first_erased(kept.settings, "u", {0: [1]}) == (0, {})


@pytest.mark.parametrize(
    ("whole", "held", "erased", "beyond"),
    [
        ((1, 15), [15, 17, 29], (2, {1: 17}), {1: [14, 15]}),
        ((1, 0), [0, 2, 14], (2, {1: 2}), {1: [14, 15]}),
        ((0, 0), [1, 5], (1, {0: 5}), {1: [1, 5]}),
    ],
)
def test_only_files_that_may_hold_the_places_are_read(
    kept: Kept,
    whole: tuple[int, int],
    held: list[int],
    erased: tuple[int, dict[int, int]],
    beyond: dict[int, Any],
) -> None:
    """By the bounds of each, and a file that cannot be read is named."""
    kept.erase()
    table = DeltaTable(archive_url(kept.settings, "t"))
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        if (file["min.partition"], file["min.offset"]) != whole:
            (Path(archive_url(kept.settings, "t")) / file["path"]).write_bytes(b"torn")
    assert first_erased(kept.settings, "t", {whole[0]: held}) == erased
    with pytest.raises(StoreUnavailableError, match="could not be read") as caught:
        first_erased(kept.settings, "t", beyond)
    assert str(table.table_uri).rstrip("/").endswith(str(caught.value.fields["table"]).rstrip("/"))
    assert caught.value.fields["reason"] is caught.value.__cause__


def test_headers_of_others_are_no_erasure() -> None:
    """Nor is a record without any."""
    assert is_erased(ERASED_HEADERS)
    assert not is_erased(None)
    assert not is_erased([])
    assert not is_erased(HEADERS)


def test_an_erased_letter_is_not_sent_back(kept: Kept) -> None:
    """Somebody may still have it in a file."""
    letter = Repaired(("t", 0, 2), b"{}")
    pipeline = catalog.load(project_root() / "include/pipelines")["stock_stats"]
    check_letters(kept.tables, pipeline, [letter])
    kept.erase()
    check_letters(kept.tables, pipeline, [Repaired(("t", 0, 3), b"{}")])
    with pytest.raises(
        BadInputError, match="t/0/2 is no dead letter of stock_stats, or its record was erased"
    ):
        check_letters(kept.tables, pipeline, [letter])


def test_without_archive_and_broker_letters_are_erased(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may be gone, and a home may be empty."""
    monkeypatch.setattr(module, "TopicOffsets", lambda _: FakeTopic())
    nothing = erase_keys(Installation(settings), "gone", [SECRET])
    assert nothing == Erased("gone", 1, 0, 0, 0, None, None)
    assert erase_keys(Installation(settings), "t", [SECRET]).in_topic == 15
    ControlTables(settings).append(ControlTable.DEAD_LETTERS, [filed("gone", 0, 2)])
    assert erase_keys(Installation(settings), "gone", [SECRET]).dead_letters == 1


def test_bad_input_is_refused(settings: Settings) -> None:
    """No key, or no name of a topic."""
    with pytest.raises(BadInputError, match="No key is given"):
        erase_keys(Installation(settings), "t", [])
    with pytest.raises(BadNameError):
        erase_keys(Installation(settings), "../t", [SECRET])


@pytest.fixture
def command(kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`hindcast erase t` in the home, with a file of these bytes."""
    for name, value in kept.settings.environment().items():
        if name.startswith("HINDCAST_"):
            monkeypatch.setenv(name, value)
    file = tmp_path / "keys"

    def erase(content: bytes, *options: str) -> int:
        file.write_bytes(content)
        return run(["erase", "t", "--keys", str(file), *options])

    return erase


def test_the_command_takes_keys_from_a_file(
    kept: Kept, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks before, counts with --dry-run, and says what is left to do."""
    content = b"\n" + SECRET + b"\r\nnobody\n" + SECRET + b"\n"
    assert command(content) == 2
    assert "needs a yes" in capsys.readouterr().err
    assert command(content, "--dry-run", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["late_rows"] == 6
    assert command(base64.b64encode(SECRET), "--base64", "--yes", "-o", "json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["archived"] == 20
    assert "5 offsets that are not archived yet" in printed.err


def test_a_refused_file_names_no_key(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong is named by its line."""
    assert command(b"\n\n") == 2
    assert "has no key" in capsys.readouterr().err
    assert command(SECRET + b"\nuser-17!!", "--base64") == 2
    message = capsys.readouterr().err
    assert "Line 1 is not base64" in message
    assert SECRET.decode() not in message
