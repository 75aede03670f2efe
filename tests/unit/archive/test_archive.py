"""Archives of topics without a JVM: what is copied next, what is remembered, what is refused, and what a
replay may take from where.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.shard_harness import CrashError, crash_at
from support.upkeep import maintain_all

from hindcast.archive import copy_topic
from hindcast.archive.copy_topic import archive_topic
from hindcast.archive.manifest import Manifest
from hindcast.archive.snapshot import read_snapshot
from hindcast.archive.table import ArchiveTable
from hindcast.cli.main import run
from hindcast.delta.column_statistics import statistics
from hindcast.delta.files import DataFile
from hindcast.errors import (
    ArchiveDamagedError,
    ArchiveFailedError,
    ArchiveRefusedError,
    BadInputError,
    BadNameError,
    UnknownArchiveError,
)
from hindcast.installation import Installation
from hindcast.settings import Settings
from hindcast.spark.parquet_writer import _write_file
from hindcast.tables import compaction
from hindcast.tables.archive_schema import ARCHIVE_SCHEMA, BOUNDED, archive_url, archived_topics
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
STEPS = [f"archive.{number}" for number in range(1, 6)]


def at(offset: int) -> datetime:
    """The broker timestamp of an offset: a second each."""
    return NOON + timedelta(seconds=offset)


@dataclass
class FakeTopic:
    """A topic as the broker tells of it; every third offset of it is a hole."""

    earliest_: dict[int, int] = field(default_factory=dict)
    latest_: dict[int, int] = field(default_factory=dict)
    id: str = "first"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def earliest(self, _: str) -> dict[int, int]:
        return dict(self.earliest_)

    def latest(self, _: str) -> dict[int, int]:
        return dict(self.latest_)

    def identity(self, _: str) -> str:
        return self.id

    def rows(self, start: dict[int, int], end: dict[int, int]) -> list[tuple[int, int]]:
        return [(p, offset) for p in start for offset in range(start[p], end[p]) if offset % 3]

    def held(self) -> list[tuple[int, int]]:
        return self.rows(self.earliest_, self.latest_)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> FakeTopic:
    """The topic that the copies of this test read, without Spark."""
    fake = FakeTopic({0: 0, 1: 0}, {0: 10, 1: 7})

    def write(copy: Any, manifest: Manifest, start: dict[int, int], end: dict[int, int]) -> list[DataFile]:
        files = []
        for partition, offset in start.items():
            rows = [row(*place) for place in fake.rows({partition: offset}, end)]
            if rows:
                table = pa.Table.from_pylist(rows, schema=ARCHIVE_SCHEMA)
                files.append(_write_file(table, copy._table.url, {}, "c", BOUNDED))
        return files

    monkeypatch.setattr(copy_topic, "TopicOffsets", lambda _: fake)
    monkeypatch.setattr(copy_topic._Copy, "_write", write)
    return fake


def row(partition: int, offset: int) -> dict[str, Any]:
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": at(offset),
        "timestamp_type": 0,
        "value": b"%d" % offset,
    }


def no_spark() -> Any:
    raise AssertionError("no session is needed")


def archive(settings: Settings, **options: Any) -> dict[str, Any]:
    return archive_topic(no_spark, Installation(settings), "t", **options)


def places(settings: Settings) -> list[tuple[int, int]]:
    """Every archived (partition, offset), doubled ones twice."""
    table = (
        DeltaTable(archive_url(settings, "t")).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    )
    return sorted((found["partition"], found["offset"]) for found in table)


def events(settings: Settings) -> list[dict[str, Any]]:
    return ControlTables(settings).rows(ControlTable.EVENTS)


def test_a_second_copy_adds_only_what_is_new(settings: Settings, topic: FakeTopic) -> None:
    """Holes are accounted for by range, so a topic of holes is archived to its end, too."""
    done = archive(settings, step_offsets=4)
    assert (done["rows"], done["ranges"]) == (len(topic.held()), {"0": [[0, 10]], "1": [[0, 7]]})
    assert places(settings) == topic.held()
    assert archive(settings)["steps"] == 0
    topic.latest_ = {0: 11, 1: 31}
    done = archive(settings)
    assert (done["rows"], done["steps"]) == (len(topic.held()) - 10, 1)
    assert places(settings) == topic.held()


def test_the_first_copy_begins_at_the_topics_beginning(settings: Settings, topic: FakeTopic) -> None:
    """What was gone before anybody asked for an archive is no gap; a partition that is added later is
    archived from 0.
    """
    topic.earliest_ = {0: 4, 1: 7}
    assert archive(settings)["ranges"] == {"0": [[4, 10]]}
    topic.earliest_[2], topic.latest_[2] = 0, 3
    assert archive(settings)["ranges"] == {"0": [[4, 10]], "2": [[0, 3]]}
    assert places(settings) == topic.held()


def test_a_topic_that_was_empty_is_watched_from_then_on(settings: Settings, topic: FakeTopic) -> None:
    """Records that come and go between two copies are a gap, although the first copy found none."""
    topic.latest_ = {0: 0, 1: 0}
    archive(settings)
    topic.earliest_, topic.latest_ = {0: 5, 1: 0}, {0: 9, 1: 0}
    with pytest.raises(ArchiveRefusedError, match="0 to 5 of partition 0"):
        archive(settings)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("time", [1, 2])
def test_a_death_between_two_steps_doubles_and_loses_nothing(
    settings: Settings, topic: FakeTopic, monkeypatch: pytest.MonkeyPatch, step: str, time: int
) -> None:
    """Whatever a killed copy leaves, the next one ends with each record once."""
    with monkeypatch.context() as patch:
        crash_at(patch, step, time)
        with pytest.raises(CrashError):
            archive(settings, step_offsets=6)
    archive(settings, step_offsets=6)
    assert places(settings) == topic.held()


def test_of_two_archivers_at_once_one_writes_each_step(settings: Settings, topic: FakeTopic) -> None:
    """The others read again and go on: each record is archived once, and both end well."""
    topic.latest_ = {0: 60, 1: 40}
    done: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: done.append(archive(settings, step_offsets=5))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 3
    assert places(settings) == topic.held()
    assert sum(one["rows"] for one in done) == len(topic.held())


def test_a_commit_whose_answer_was_lost_is_known_again(settings: Settings, topic: FakeTopic) -> None:
    """The same step again writes nothing and counts as written; another one from the same manifest is
    refused.
    """
    archive(settings)
    table = ArchiveTable(settings, "t")
    before = table.manifest()
    after = before.with_step("mine", before.ends, {0: 12, 1: 7}, rows=0, size=0, newest_at="")
    assert table.commit(before, after, [])
    assert table.commit(before, after, [])
    assert not table.commit(
        before, before.with_step("theirs", before.ends, {0: 13, 1: 7}, rows=0, size=0, newest_at=""), []
    )
    assert table.manifest() == after


def test_offsets_that_were_lost_are_passed_over_only_with_a_reason(
    settings: Settings, topic: FakeTopic
) -> None:
    """The refusal names them and the cure, and is an event; the accepted gap is in the manifest and among the
    events.
    """
    archive(settings)
    topic.earliest_, topic.latest_ = {0: 14, 1: 7}, {0: 20, 1: 9}
    with pytest.raises(ArchiveRefusedError, match=r"offsets 10 to 14 of partition 0 .* --accept-gap"):
        archive(settings)
    before = places(settings)
    (event,) = events(settings)
    assert (event["kind"], event["severity"]) == ("archive_stopped", "error")
    assert "--accept-gap" in event["cure"]
    done = archive(settings, accept_gap="retention was an hour")
    assert done["gaps"] == [{"partition": 0, "start": 10, "end": 14, "reason": "retention was an hour"}]
    assert done["ranges"] == {"0": [[0, 10], [14, 20]], "1": [[0, 9]]}
    assert places(settings) == sorted([*before, *topic.rows({0: 14, 1: 7}, topic.latest_)])
    assert "retention was an hour" in next(
        event["message"] for event in events(settings) if event["kind"] == "archive_gap"
    )
    archive(settings)


@pytest.mark.parametrize(
    "change", [{"latest_": {0: 3, 1: 7}}, {"latest_": {0: 10}, "earliest_": {0: 0}}, {"id": "second"}]
)
def test_a_topic_that_was_made_anew_is_not_mixed_with_the_old_one(
    settings: Settings, topic: FakeTopic, change: dict[str, Any]
) -> None:
    """Whether it ends before the archive, has fewer partitions, or is already longer than the old one."""
    archive(settings)
    before = places(settings)
    for name, value in change.items():
        setattr(topic, name, value)
    with pytest.raises(ArchiveRefusedError, match=r"created again.*move the archive"):
        archive(settings)
    assert places(settings) == before


def test_a_topic_that_drops_records_under_the_reader_says_so(
    settings: Settings, topic: FakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own error is not what a person needs; nothing of the step is kept."""
    archive(settings)
    topic.latest_ = {0: 20, 1: 7}

    def fails(*_: Any) -> list[DataFile]:
        topic.earliest_[0] = 13
        raise RuntimeError("Caused by: OffsetOutOfRange")

    monkeypatch.setattr(copy_topic._Copy, "_write", fails)
    with pytest.raises(ArchiveFailedError, match="dropped offsets 10 to 13 of partition 0"):
        archive(settings)


def test_bad_names_and_reasons_are_refused(settings: Settings, topic: FakeTopic) -> None:
    """Before anything is looked up."""
    with pytest.raises(BadNameError):
        archive_topic(no_spark, Installation(settings), "../t")
    with pytest.raises(BadInputError, match="too long"):
        archive(settings, accept_gap="x" * 501)
    with pytest.raises(UnknownArchiveError, match="hindcast archive run"):
        ArchiveTable(settings, "t").open()


def test_an_archive_whose_log_was_cut_off_is_refused(settings: Settings, topic: FakeTopic) -> None:
    """Without its newest manifest nobody knows where it ends: it is not begun again on top."""
    archive(settings)
    DeltaTable(archive_url(settings, "t")).create_checkpoint()
    log = Path(archive_url(settings, "t")) / "_delta_log"
    for entry in log.glob("*.json"):
        entry.unlink()
    with pytest.raises(ArchiveRefusedError, match="no longer in the table's log"):
        archive(settings)


def test_a_moment_has_an_offset_in_the_archive(settings: Settings, topic: FakeTopic) -> None:
    """The first record at or after it, before the given ends; none where there is none."""
    topic.latest_ = {0: 60, 1: 7}
    archive(settings, step_offsets=9)
    held = read_snapshot(settings, "t")
    assert held is not None
    assert held.at_time(at(-5), {0: 60, 1: 7}) == {0: 1, 1: 1}
    assert held.at_time(at(5) + timedelta(microseconds=999), {0: 60, 1: 7}) == {0: 5, 1: 5}
    assert held.at_time(at(30), {0: 60, 1: 7}) == {0: 31}
    assert held.at_time(at(30), {0: 31, 1: 7}) == {}
    assert read_snapshot(settings, "other") is None
    assert held.is_of("first")
    assert held.is_of("")
    assert not held.is_of("second")


def test_the_files_of_an_archive_are_listed_once_for_all_partitions(
    settings: Settings, topic: FakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of several partitions counts for each of them."""
    table = ArchiveTable(settings, "t")
    table.create()
    places = [(p, offset) for p in range(4) for offset in range(5)]
    several = pa.Table.from_pylist([row(*place) for place in places], schema=ARCHIVE_SCHEMA)
    later = pa.Table.from_pylist([row(2, offset) for offset in range(5, 8)], schema=ARCHIVE_SCHEMA)
    files = [_write_file(part, table.url, {}, "c", BOUNDED) for part in (later, several)]
    begin = dict.fromkeys(range(4), 0)
    end = {**dict.fromkeys(range(4), 5), 2: 8}
    start = table.manifest()
    table.commit(start, start.with_step("a", begin, end, rows=23, size=1, newest_at=""), files)
    held = read_snapshot(settings, "t")
    assert held is not None
    listed: list[DeltaTable] = []
    list_ = DeltaTable.get_add_actions

    def note(table: DeltaTable, **options: Any) -> Any:
        listed.append(table)
        return list_(table, **options)

    monkeypatch.setattr(DeltaTable, "get_add_actions", note)
    assert held.at_time(at(3), end) == dict.fromkeys(range(4), 3)
    assert len(listed) == 1
    assert held.at_time(at(6), end) == {2: 6}


def test_an_archive_that_lost_records_serves_no_replay(settings: Settings, topic: FakeTopic) -> None:
    """What the manifest promises and the table does not hold would be missing from a replay in silence."""
    archive(settings)
    DeltaTable(archive_url(settings, "t")).delete("partition = 1")
    with pytest.raises(ArchiveDamagedError, match="holds 6 records, its commits wrote 10"):
        read_snapshot(settings, "t")


def test_timestamps_out_of_order_do_not_hide_a_record(settings: Settings) -> None:
    """A producer's own timestamps may go back: the least offset counts, in whichever file it is."""
    table = ArchiveTable(settings, "t")
    table.create()
    seconds = ([(0, 0), (1, 50), (2, 2)], [(3, 3), (4, 99)], [(5, 7)])
    rows = [
        pa.Table.from_pylist([{**row(0, o), "timestamp": at(s)} for o, s in part], schema=ARCHIVE_SCHEMA)
        for part in seconds
    ]
    files = [_write_file(part, table.url, {}, "c", BOUNDED) for part in rows]
    start = table.manifest()
    table.commit(start, start.with_step("a", {0: 0}, {0: 6}, rows=6, size=1, newest_at=""), files)
    held = read_snapshot(settings, "t")
    assert held is not None
    assert [held.at_time(at(s), {0: 6}).get(0) for s in (0, 3, 51, 99, 100)] == [0, 1, 4, 4, None]


def test_a_time_that_no_calendar_has_hides_no_record() -> None:
    """A producer may stamp its records with the year 20000: the file then has no bounds of its timestamps,
    and is looked at.
    """
    times = pa.array([0, 569_034_205_000_000_000], pa.timestamp("us", tz="UTC"))
    table = pa.table({"partition": [0, 0], "offset": [7, 8], "timestamp": times})
    found = statistics(table, BOUNDED)
    assert (found["numRecords"], found["minValues"], found["maxValues"]) == (
        2,
        {"partition": 0, "offset": 7},
        {"partition": 0, "offset": 8},
    )


def test_upkeep_keeps_an_archive_exact_and_in_order(
    settings_factory: Callable[..., Settings], tmp_path: Path, topic: FakeTopic
) -> None:
    """Small files are joined by partition in the order of offsets, beside a copy; the manifest and the lookups
    stay as they were.
    """
    settings = settings_factory(pipelines_dir=tmp_path)
    topic.latest_ = {0: 60, 1: 40}
    archive(settings, step_offsets=9)
    manifest = ArchiveTable(settings, "t").manifest()
    (done,) = [row for row in maintain_all(settings) if row["table"] == "archive/t"]
    assert (done["files_after"], done["skipped"]) == (2, "")
    assert done["files_before"] > 10
    assert places(settings) == topic.held()
    assert ArchiveTable(settings, "t").manifest() == manifest
    held = read_snapshot(settings, "t")
    assert held is not None
    assert held.at_time(at(30), {0: 60, 1: 40}) == {0: 31, 1: 31}
    topic.latest_ = {0: 70, 1: 40}
    archive(settings)
    assert places(settings) == topic.held()


def test_a_compaction_is_no_other_archiver(
    settings: Settings, topic: FakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step whose commit meets a compaction is committed again, with the same files."""
    archive(settings, step_offsets=4)
    topic.latest_ = {0: 30, 1: 30}
    commit, compacted = DeltaTable.create_write_transaction, list[int]()

    def meets(table: DeltaTable, *args: Any, **kwargs: Any) -> None:
        if not compacted:
            compacted.append(1)
            compaction.compact(DeltaTable(table.table_uri), {}, BOUNDED)
        commit(table, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", meets)
    assert (archive(settings)["steps"], compacted) == (1, [1])
    assert places(settings) == topic.held()


@pytest.fixture
def home(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("HINDCAST_HOME", str(settings.home))
    return settings


def test_archives_are_listed(home: Settings, topic: FakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranges by partition, rows, bytes, the newest timestamp and the gaps; nothing before the first."""
    assert run(["archive", "list", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    archive(home)
    capsys.readouterr()
    assert archived_topics(home) == ["t"]
    assert run(["archive", "list", "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["topic"], found["rows"], found["newest_at"]) == ("t", 10, "2026-01-05T12:00:08.000Z")
    assert (found["ranges"], found["gaps"]) == ({"0": [[0, 10]], "1": [[0, 7]]}, [])
    assert found["bytes"] > 0
    assert run(["archive", "list"]) == 0
    assert run(["archive", "run", "../x"]) == 2
