"""Mended dead letters go back into their topic, each once, whoever sends them and wherever he is killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from support.live_stream import delete_records
from support.shard_harness import CrashError, crash_at

from hindcast import catalog
from hindcast.errors import BadInputError, LettersUnprovenError
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets
from hindcast.kafka.redrive import LETTER_HEADER, MARKS, Repaired, redrive, settle
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings, project_root
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from conftest import Broker


@pytest.fixture
def dead(
    broker: Broker, topic_factory: Callable[..., str], settings_factory: Callable[..., Settings]
) -> tuple[Settings, str]:
    """A topic with three records that nobody can use, filed as dead letters of a pipeline."""
    settings, topic = (
        settings_factory(bootstrap_servers=broker.bootstrap_servers),
        topic_factory(partitions=2),
    )
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
    for partition in (0, 0, 1):
        producer.send(topic, key=b"k%d" % partition, value=b"torn", partition=partition)
    producer.close()
    rows = [
        {
            "pipeline": "stock_stats",
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "key": b"k%d" % partition,
            "value": b"torn",
        }
        for partition, offset in ((0, 0), (0, 1), (1, 0))
    ]
    ControlTables(settings).append(
        ControlTable.DEAD_LETTERS, [{**row, "broker_at": datetime.now(UTC)} for row in rows]
    )
    return settings, topic


@pytest.fixture
def stock_stats() -> Pipeline:
    return catalog.load(project_root() / "include" / "pipelines")["stock_stats"]


def mended(topic: str, *places: tuple[int, int]) -> list[Repaired]:
    return [
        Repaired((topic, partition, offset), json.dumps({"offset": offset}).encode())
        for partition, offset in places
    ]


def arrived(settings: Settings, topic: str) -> list[tuple[int, bytes, bytes, str]]:
    """(partition, key, value, the letter it mends) of what was sent back, as a stream reads it."""
    consumer = KafkaConsumer(
        bootstrap_servers=settings.bootstrap_servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    places = [TopicPartition(topic, number) for number in (0, 1)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    ends, found = consumer.end_offsets(places), list[Any]()
    while any(consumer.position(place) < ends[place] for place in places):
        for records in consumer.poll(timeout_ms=500).values():
            found += [record for record in records if record.headers]
    consumer.close(autocommit=False)
    return sorted(
        (record.partition, record.key, record.value, dict(record.headers)[LETTER_HEADER].decode())
        for record in found
    )


def test_a_letter_is_sent_back_once(dead: tuple[Settings, str], stock_stats: Pipeline) -> None:
    """To its own partition, with its own key; the second time it is left out."""
    settings, topic = dead
    assert redrive(Installation(settings), stock_stats, mended(topic, (0, 1), (1, 0))) == (2, 0)
    assert redrive(Installation(settings), stock_stats, mended(topic, (0, 0), (0, 1), (1, 0))) == (1, 2)
    assert arrived(settings, topic) == [
        (0, b"k0", b'{"offset": 0}', f"{topic}/0/0"),
        (0, b"k0", b'{"offset": 1}', f"{topic}/0/1"),
        (1, b"k1", b'{"offset": 0}', f"{topic}/1/0"),
    ]


def expire(settings: Settings, topic: str) -> None:
    """All that the topic holds is past its retention."""
    with TopicOffsets(settings) as offsets:
        delete_records(settings.bootstrap_servers, topic, offsets.latest(topic))


def killed_at(step: int, settings: Settings, pipeline: Pipeline, letters: list[Repaired]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, f"letters.{step}", 1)
        with pytest.raises(CrashError):
            redrive(Installation(settings), pipeline, letters)


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize(
    ("step", "sent"), [(1, False), (2, False), (3, False), (4, False), (5, False), (6, False), (7, True)]
)
def test_whoever_is_killed_before_a_step_sends_nothing_twice(
    dead: tuple[Settings, str], stock_stats: Pipeline, step: int, sent: bool, expired: bool
) -> None:
    """Before the transaction is committed nothing is sent; after it all is, although nobody wrote it down and
    retention took it since.
    """
    settings, topic = dead
    killed_at(step, settings, stock_stats, mended(topic, (0, 0)))
    assert [letter for *_, letter in arrived(settings, topic)] == [f"{topic}/0/0"] * sent
    if expired:
        expire(settings, topic)
    assert redrive(Installation(settings), stock_stats, mended(topic, (0, 0))) == (int(not sent), int(sent))
    there = [f"{topic}/0/0"] if not (sent and expired) else []
    assert [letter for *_, letter in arrived(settings, topic)] == there
    assert redrive(Installation(settings), stock_stats, mended(topic, (0, 0))) == (0, 1)


@pytest.mark.parametrize("step", [4, 5, 6, 7])
def test_one_that_takes_over_from_a_killed_one_may_be_killed_too(
    dead: tuple[Settings, str], stock_stats: Pipeline, step: int
) -> None:
    """The first dies after its transaction, the second at any step with other letters, everything expires:
    each letter is sent once.
    """
    settings, topic = dead
    killed_at(7, settings, stock_stats, mended(topic, (0, 0)))
    expire(settings, topic)
    killed_at(step, settings, stock_stats, mended(topic, (0, 0), (0, 1)))
    seen = [letter for *_, letter in arrived(settings, topic)]
    expire(settings, topic)
    assert redrive(Installation(settings), stock_stats, mended(topic, (0, 0), (0, 1), (1, 0))) == (
        3 - 1 - len(seen),
        1 + len(seen),
    )
    seen += [letter for *_, letter in arrived(settings, topic)]
    assert sorted(seen) == [f"{topic}/0/1", f"{topic}/1/0"]


def test_two_sets_of_tables_on_one_broker_do_not_take_each_others_proof(
    dead: tuple[Settings, str], stock_stats: Pipeline, settings_factory: Callable[..., Settings]
) -> None:
    """Each has a mark of its own, so compaction keeps both."""
    settings, topic = dead
    other = settings_factory(bootstrap_servers=settings.bootstrap_servers, home=settings.home / "other")
    rows = ControlTables(settings).rows(ControlTable.DEAD_LETTERS)
    ControlTables(other).append(ControlTable.DEAD_LETTERS, rows)
    for one in (settings, other):
        assert redrive(Installation(one), stock_stats, mended(topic, (0, 0))) == (1, 0)
    keys = [
        tables.open(ControlTable.MENDED_LETTERS).metadata().id
        for tables in (ControlTables(settings), ControlTables(other))
    ]
    assert {f"{key}/stock_stats".encode() for key in keys} <= marked(settings)


def marked(settings: Settings) -> set[bytes]:
    """The keys of the marks."""
    place = TopicPartition(MARKS, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=settings.bootstrap_servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    end, found = consumer.end_offsets([place])[place], set[bytes]()
    while consumer.position(place) < end:
        found |= {record.key for record in consumer.poll(timeout_ms=500).get(place, [])}
    consumer.close(autocommit=False)
    return found


@pytest.mark.parametrize("sent", [False, True])
def test_a_proof_that_was_deleted_is_asked_of_a_person(
    dead: tuple[Settings, str], stock_stats: Pipeline, sent: bool
) -> None:
    """Neither guess is safe, so nothing is sent until somebody says what he found in the topic."""
    settings, topic = dead
    killed_at(7, settings, stock_stats, mended(topic, (0, 0)))
    with KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers) as admin:
        admin.delete_topics([MARKS])
    with pytest.raises(LettersUnprovenError, match="deadletters settle") as refused:
        redrive(Installation(settings), stock_stats, mended(topic, (0, 0)))
    run_id = refused.value.fields["run_id"]
    with pytest.raises(BadInputError, match="waits to be settled"):
        settle(Installation(settings), stock_stats, "no-such-run", sent=sent)
    settle(Installation(settings), stock_stats, run_id, sent=sent)
    assert redrive(Installation(settings), stock_stats, mended(topic, (0, 0))) == (int(not sent), int(sent))


def test_marks_that_retention_would_delete_are_refused(
    dead: tuple[Settings, str], stock_stats: Pipeline
) -> None:
    """A topic of marks that somebody made otherwise proves nothing a week later."""
    settings, topic = dead
    redrive(Installation(settings), stock_stats, mended(topic, (0, 0)))
    with KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers) as admin:
        resource = ConfigResource(ConfigResourceType.TOPIC, MARKS, {"cleanup.policy": "delete"})
        admin.alter_configs([resource])
        try:
            with pytest.raises(BadInputError, match=r"cleanup\.policy=delete"):
                redrive(Installation(settings), stock_stats, mended(topic, (0, 1)))
        finally:
            admin.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, MARKS, {"cleanup.policy": "compact"})]
            )


def allow(settings: Settings, topic: str, size: int) -> None:
    """Let the topic take records of so many bytes."""
    with KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers) as admin:
        limit = {"max.message.bytes": str(size)}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, limit)])


def test_a_letter_as_large_as_its_topic_takes_is_sent_back(
    dead: tuple[Settings, str], stock_stats: Pipeline
) -> None:
    """Above 1 MiB, too, which is the most that a producer sends by default."""
    settings, topic = dead
    allow(settings, topic, 4_000_000)
    large = Repaired((topic, 0, 0), b"x" * 3_900_000)
    assert redrive(Installation(settings), stock_stats, [large, *mended(topic, (1, 0))]) == (2, 0)
    found = [(len(value), letter) for _, _, value, letter in arrived(settings, topic)]
    assert found == [(3_900_000, f"{topic}/0/0"), (13, f"{topic}/1/0")]


def test_a_letter_that_the_broker_finds_too_large_is_named_and_nothing_is_sent(
    dead: tuple[Settings, str], stock_stats: Pipeline
) -> None:
    """The run is noted as undone, so the others can be sent without it, and it after it was made shorter."""
    settings, topic = dead
    large = Repaired((topic, 0, 1), b"x" * 1_100_000)
    letters = [*mended(topic, (0, 0)), large, *mended(topic, (1, 0))]
    with pytest.raises(BadInputError, match=rf"{topic}/0/1 .* too large .*max\.message\.bytes"):
        redrive(Installation(settings), stock_stats, letters)
    assert arrived(settings, topic) == []
    rows = ControlTables(settings).rows(ControlTable.MENDED_LETTERS)
    assert sorted(row["state"] for row in rows) == ["begun", "undone"]
    assert redrive(Installation(settings), stock_stats, mended(topic, (0, 0), (1, 0))) == (2, 0)
    assert redrive(Installation(settings), stock_stats, mended(topic, (0, 1))) == (1, 0)
    assert len(arrived(settings, topic)) == 3


def test_what_is_no_dead_letter_is_refused(dead: tuple[Settings, str], stock_stats: Pipeline) -> None:
    """A wrong place, a place twice, a line that is none: nothing is sent."""
    settings, topic = dead
    for wrong, says in (
        (mended(topic, (0, 7)), "is no dead letter"),
        (mended(topic, (0, 0), (0, 0)), "is named twice"),
    ):
        with pytest.raises(BadInputError, match=says):
            redrive(Installation(settings), stock_stats, wrong)
    with pytest.raises(BadInputError, match="Line 3"):
        Repaired.parse('{"topic": "t", "partition": 0}', 3)
    assert arrived(settings, topic) == []
