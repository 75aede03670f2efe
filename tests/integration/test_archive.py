"""A topic and its archive, with a real broker, Spark and Delta: byte-exact, each record once, and replays
from both at once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from support.live_stream import delete_records, ends
from support.shard_harness import CrashError, Shard, crash_at, parts
from support.workload_harness import Workload, at

from hindcast.apps import archive as archive_app
from hindcast.archive.copy_topic import archive_topic
from hindcast.archive.verify import verify
from hindcast.errors import ArchiveRefusedError, BadRangeError
from hindcast.installation import Installation
from hindcast.replay.batch import answers_url, side_rows_url
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import Replayed, run_replay
from hindcast.settings import Settings
from hindcast.tables.archive_schema import archive_url
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.judge import judge

if TYPE_CHECKING:
    from conftest import Broker
    from pyspark.sql import SparkSession

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

Headers = list[tuple[str, bytes | None]]
#: (partition, offset, timestamp in ms, its type, headers, key, value)
Record = tuple[int, int, int, int, Headers, bytes | None, bytes | None]


class Archive:
    """A topic of two partitions and its archive."""

    def __init__(self, spark: SparkSession, settings: Settings, topic: str) -> None:
        self.spark, self.settings, self.topic = spark, settings, topic

    def run(self, **options: Any) -> dict[str, Any]:
        return archive_topic(lambda: self.spark, Installation(self.settings), self.topic, **options)

    def verify(self, **options: Any) -> dict[str, Any]:
        return verify(lambda: self.spark, Installation(self.settings), self.topic, **options)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return ControlTables(self.settings).rows(ControlTable.EVENTS, [("kind", "=", kind)])

    def send(self, count: int, first: int = 0) -> None:
        """Records of all shapes: without key, without value (tombstones), without either, bytes that are no
        text, headers of all kinds.

        Spark's writer sends them, as the Python client refuses some that Kafka takes.
        """
        with_headers: Headers = [
            ("trace", b"\xff\x00\x01"),
            ("trace", b"again"),
            ("empty", b""),
            ("none", None),
        ]
        rows = [
            (
                number % 2,
                None if number % 3 == 0 else b"\x00key-%d\xfe" % number,
                None if number % 5 == 0 else bytes(range(256)) + b"%d" % number if number % 2 else b"",
                with_headers if number % 4 == 0 else [],
            )
            for number in range(first, first + count)
        ]
        schema = "partition int, key binary, value binary, headers array<struct<key: string, value: binary>>"
        options = {
            "kafka.bootstrap.servers": self.settings.bootstrap_servers,
            "topic": self.topic,
            "includeHeaders": "true",
        }
        self.spark.createDataFrame(rows, schema).coalesce(1).write.format("kafka").options(**options).save()

    def transaction(self, count: int, *, commit: bool) -> None:
        """A transaction leaves marks, and an aborted one records that no reader sees: offsets without a
        record.
        """
        producer = KafkaProducer(
            bootstrap_servers=self.settings.bootstrap_servers, transactional_id=f"of-{self.topic}", acks="all"
        )
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(count):
            producer.send(
                self.topic, key=b"t", value=b"committed" if commit else b"aborted", partition=number % 2
            )
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)()
        producer.close()

    def drop(self, before: dict[int, int]) -> None:
        """What retention does: the topic forgets the records before these offsets."""
        delete_records(self.settings.bootstrap_servers, self.topic, before)

    def in_topic(self) -> list[Record]:
        """What a consumer of the topic is given, from its earliest offset to its end."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.settings.bootstrap_servers,
            isolation_level="read_committed",
            enable_auto_commit=False,
        )
        places = [TopicPartition(self.topic, number) for number in (0, 1)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        last, found = consumer.end_offsets(places), list[Any]()
        while any(consumer.position(place) < last[place] for place in places):
            for records in consumer.poll(timeout_ms=500).values():
                found += records
        consumer.close(autocommit=False)
        return sorted(
            (
                r.partition,
                r.offset,
                r.timestamp,
                r.timestamp_type,
                [tuple(header) for header in r.headers],
                r.key,
                r.value,
            )
            for r in found
        )

    def archived(self) -> list[Record]:
        """Every archived record, doubled ones twice."""
        rows = DeltaTable(archive_url(self.settings, self.topic)).to_pyarrow_table().to_pylist()
        return sorted(
            (
                row["partition"],
                row["offset"],
                round(row["timestamp"].timestamp() * 1000),
                row["timestamp_type"],
                [(header["key"], header["value"]) for header in row["headers"] or []],
                row["key"],
                row["value"],
            )
            for row in rows
        )

    def tamper(self, change: Callable[[DeltaTable], Any]) -> None:
        change(DeltaTable(archive_url(self.settings, self.topic)))


@pytest.fixture
def archive(
    spark: SparkSession,
    broker: Broker,
    topic_factory: Callable[..., str],
    settings_factory: Callable[..., Settings],
) -> Archive:
    return Archive(
        spark, settings_factory(bootstrap_servers=broker.bootstrap_servers), topic_factory(partitions=2)
    )


def test_a_topic_is_archived_byte_by_byte_and_only_what_is_new_is_added(archive: Archive) -> None:
    """Null and empty keys and values, headers, committed and aborted transactions, whose holes are accounted
    for as archived.
    """
    archive.send(40)
    archive.transaction(6, commit=True)
    archive.transaction(6, commit=False)
    archive.send(21, first=40)
    archive.transaction(4, commit=False)  # the topic ends with records that nobody sees
    sent = archive.in_topic()
    assert len(sent) == 67
    done = archive.run(step_offsets=25)
    assert archive.archived() == sent
    assert (done["rows"], done["steps"] > 2) == (67, True)
    assert archive.run()["steps"] == 0
    archive.send(9, first=100)
    assert archive.run()["rows"] == 9
    assert archive.archived() == archive.in_topic()
    found = archive.verify(step_offsets=30)
    assert (found["equal"], found["compared"], found["samples"]) == (True, 76, [])


def test_a_copy_that_dies_anywhere_is_finished_by_the_next(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between each two of its steps, one after the other: no record is archived twice and none is
    missing.
    """
    archive.send(120)
    for number in range(1, 6):
        with monkeypatch.context() as patch:
            crash_at(patch, f"archive.{number}", 2 if number == 1 else 1)
            with pytest.raises(CrashError):
                archive.run(step_offsets=20)
    archive.run(step_offsets=20)
    assert archive.archived() == archive.in_topic()


def test_two_archivers_at_once_copy_each_record_once(archive: Archive) -> None:
    """One of them writes each step; the other reads again and goes on."""
    archive.send(200)
    done: list[dict[str, Any]] = []
    both = [threading.Thread(target=lambda: done.append(archive.run(step_offsets=25))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert [one["ranges"] for one in done] == [{"0": [[0, 100]], "1": [[0, 100]]}] * 2
    assert sum(one["rows"] for one in done) == 200
    assert archive.archived() == archive.in_topic()


def test_a_gap_is_named_and_passed_over_only_on_demand(archive: Archive) -> None:
    """Records that retention took first are refused by name; accepted, they are remembered as a gap."""
    archive.send(20)
    archive.run()
    archive.send(20, first=20)
    archive.drop({0: 15, 1: 8})
    with pytest.raises(ArchiveRefusedError, match="dropped offsets 10 to 15 of partition 0 before"):
        archive.run()
    assert len(archive.events("archive_stopped")) == 1
    done = archive.run(accept_gap="a test of retention")
    assert done["ranges"] == {"0": [[0, 10], [15, 20]], "1": [[0, 20]]}
    assert [gap["reason"] for gap in done["gaps"]] == ["a test of retention"]
    assert len(archive.events("archive_gap")) == 1
    found = archive.verify()
    assert (found["equal"], found["start"], found["end"]) == (True, {"0": 15, "1": 8}, {"0": 20, "1": 20})


def test_a_tampered_archive_is_found_out(
    archive: Archive, app: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed value, a lost row and a doubled one, each named; exit code 3 and an event."""
    archive.send(40)
    archive.run()
    assert app.main(["verify", archive.topic]) == 0
    archive.tamper(
        lambda table: table.update(
            predicate='partition = 0 AND "offset" = 3', updates={"value": "CAST('x' AS BYTEA)"}
        )
    )
    archive.tamper(lambda table: table.delete('partition = 1 AND "offset" = 7'))
    archive.tamper(
        lambda table: table.update(predicate='partition = 1 AND "offset" = 9', updates={"offset": "11"})
    )
    capsys.readouterr()
    assert app.main(["verify", archive.topic]) == 3
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["equal"], found["compared"], found["differences"]) == (False, 40, 4)
    assert [(one["partition"], one["offset"], one["kind"]) for one in found["samples"]] == [
        (0, 3, "changed"),
        (1, 7, "missing"),
        (1, 9, "missing"),
        (1, 11, "doubled"),
    ]
    assert found["samples"][0]["columns"] == ["value"]
    assert "restore that table" in printed.err
    assert len(archive.events("archive_differs")) == 1


@pytest.fixture
def app(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program in this test's home and Spark session."""
    monkeypatch.setattr(archive_app, "_session", lambda _: archive.spark)
    monkeypatch.setattr(archive_app, "Installation", lambda: Installation(archive.settings))
    return archive_app


def replayed(shard: Shard, run_id: str, **asked: Any) -> Replayed:
    request = ReplayRequest(pipeline=shard.pipeline.name, run_id=run_id, **(asked or {"everything": True}))
    return run_replay(lambda: shard.spark, Installation(shard.settings), shard.pipeline, request)


def rows_of(shard: Shard, run_id: str) -> list[list[str]]:
    """Both tables of a run, row for row, in one order."""
    urls = (
        answers_url(shard.settings, shard.pipeline.name, run_id),
        side_rows_url(shard.settings, shard.pipeline.name, run_id),
    )
    return [
        sorted(json.dumps(row, default=str) for row in DeltaTable(url).to_pyarrow_table().to_pylist())
        for url in urls
    ]


def test_a_range_whose_beginning_is_gone_is_replayed_exactly(shard: Shard) -> None:
    """Archive and topic together give the replay that the whole topic gave, row for row, and the same
    verdict; without it, a refusal.
    """
    first, second = parts()
    archive = Archive(shard.spark, shard.settings, shard.pipeline.source.name)
    shard.serve(first)
    archive.run(step_offsets=90)
    between = datetime.now(UTC)
    shard.serve(second)
    shard.file()
    by_time = {"from_time": between - timedelta(hours=1), "to_time": between}
    before, early = replayed(shard, "before"), replayed(shard, "early", **by_time)
    gone = {partition: end * 2 // 3 for partition, end in ends(first).items()}
    archive.drop(gone)

    after, early_after = replayed(shard, "after"), replayed(shard, "early-after", **by_time)
    assert before.plan.seams == before.plan.read_from
    assert after.plan.seams == ends(
        first
    )  # as far as the archive goes, which is past what is gone; the topic from there
    assert all(after.plan.read_from[p] < gone[p] < after.plan.seams[p] < after.plan.end[p] for p in gone)
    assert rows_of(shard, "after") == rows_of(shard, "before")
    assert (after.counted.rows_read, after.counted.late_rows > 0) == (len(shard.sent), True)
    assert after.counted == before.counted
    assert (
        (early_after.plan.start, early_after.plan.end)
        == (early.plan.start, early.plan.end)
        == ({0: 0, 1: 0}, ends(first))
    )
    assert rows_of(shard, "early-after") == rows_of(shard, "early")
    verdict = judge(lambda: shard.spark, Installation(shard.settings), shard.pipeline, "after")
    assert (verdict["passed"], verdict["unexplained"], verdict["input_rows"]) == (True, 0, len(shard.sent))

    kept = Path(archive_url(shard.settings, archive.topic))
    away = kept.rename(kept.with_name("moved.away"))
    with pytest.raises(BadRangeError, match=f"no longer holds 0 to {gone[0]}; it has no archive"):
        replayed(shard, "refused")
    away.rename(kept)
    assert rows_of(shard, replayed(shard, "again").run_id) == rows_of(shard, "before")


def test_recorded_batches_are_run_again_from_the_archive(workload: Callable[..., Workload]) -> None:
    """A pipeline whose batches matter gives the same verdict when the first of them are gone from the
    topic.
    """
    spoken = workload("sentences")

    def said(text: str) -> list[dict[str, str]]:
        return [{"speaker": "ann", "word": word, "ts": at(0)} for word in text.split()]

    archive = Archive(spoken.spark, spoken.settings, spoken.pipeline.source.name)
    spoken.put(said("the sea is high. and the"))
    spoken.read()
    archive.run()
    spoken.put(said("wind is strong."))
    spoken.read()
    whole = spoken.verdict("whole")
    archive.drop({0: 5})
    partly = spoken.verdict("partly")
    assert (partly["passed"], partly["unexplained"], partly["rows_compared"]) == (True, 0, 2)
    assert {name: partly[name] for name in ("captured", "input_rows", "rows_compared")} == {
        name: whole[name] for name in ("captured", "input_rows", "rows_compared")
    }
    archive.drop({0: 9})
    with pytest.raises(BadRangeError, match="no longer holds 6 to 9; its archive does not either"):
        spoken.verdict("refused")
