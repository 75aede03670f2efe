"""Mended dead letters go back into their topic, each once, whoever sends them and wherever he is killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from hindcast import catalog
from hindcast.control.schema import ControlTable
from hindcast.control.tables import ControlTables
from hindcast.errors import BadInputError
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings, project_root
from hindcast.topics import letters
from hindcast.topics.letters import LETTER_HEADER, Mended, send_back

if TYPE_CHECKING:
    from conftest import Broker


class KilledError(Exception):
    """Stands in for SIGKILL: nothing after it runs."""


@pytest.fixture
def dead(broker: Broker, topic_factory: Callable[..., str], settings_factory: Callable[..., Settings]) -> tuple[Settings, str]:
    """A topic with three records that nobody can use, filed as dead letters of a pipeline."""
    settings, topic = settings_factory(bootstrap_servers=broker.bootstrap_servers), topic_factory(partitions=2)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
    for partition in (0, 0, 1):
        producer.send(topic, key=b"k%d" % partition, value=b"torn", partition=partition)
    producer.close()
    rows = [
        {"pipeline": "stock_stats", "topic": topic, "partition": partition, "offset": offset, "key": b"k%d" % partition, "value": b"torn"}
        for partition, offset in ((0, 0), (0, 1), (1, 0))
    ]
    ControlTables(settings).append(ControlTable.DEAD_LETTERS, [{**row, "broker_at": datetime.now(UTC)} for row in rows])
    return settings, topic


@pytest.fixture
def stock_stats() -> Pipeline:
    return catalog.load(project_root() / "include" / "pipelines")["stock_stats"]


def mended(topic: str, *places: tuple[int, int]) -> list[Mended]:
    return [Mended((topic, partition, offset), json.dumps({"offset": offset}).encode()) for partition, offset in places]


def arrived(settings: Settings, topic: str) -> list[tuple[int, bytes, bytes, str]]:
    """(partition, key, value, the letter it mends) of what was sent back, as a stream reads it."""
    consumer = KafkaConsumer(bootstrap_servers=settings.bootstrap_servers, isolation_level="read_committed", enable_auto_commit=False)
    places = [TopicPartition(topic, number) for number in (0, 1)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    ends, found = consumer.end_offsets(places), list[Any]()
    while any(consumer.position(place) < ends[place] for place in places):
        for records in consumer.poll(timeout_ms=500).values():
            found += [record for record in records if record.headers]
    consumer.close(autocommit=False)
    return sorted((record.partition, record.key, record.value, dict(record.headers)[LETTER_HEADER].decode()) for record in found)


def test_a_letter_is_sent_back_once(dead: tuple[Settings, str], stock_stats: Pipeline) -> None:
    """To its own partition, with its own key; the second time it is left out."""
    settings, topic = dead
    assert send_back(settings, stock_stats, mended(topic, (0, 1), (1, 0))) == (2, 0)
    assert send_back(settings, stock_stats, mended(topic, (0, 0), (0, 1), (1, 0))) == (1, 2)
    assert arrived(settings, topic) == [
        (0, b"k0", b'{"offset": 0}', f"{topic}/0/0"),
        (0, b"k0", b'{"offset": 1}', f"{topic}/0/1"),
        (1, b"k1", b'{"offset": 0}', f"{topic}/1/0"),
    ]


@pytest.mark.parametrize(("dies_in", "sent"), [("begin", 1), ("send", 1), ("commit", 1), ("note", 0)])
def test_whoever_is_killed_in_the_middle_sends_nothing_twice(
    dead: tuple[Settings, str], stock_stats: Pipeline, monkeypatch: pytest.MonkeyPatch, dies_in: str, sent: int
) -> None:
    """Before the transaction is committed nothing is sent; after it all is, although nobody wrote it down."""
    settings, topic = dead
    note = letters._note

    def killed(*_: Any, **__: Any) -> None:
        raise KilledError

    def noted(tables: Any, pipeline: Any, run_id: str, state: str, *said: str) -> dict[str, Any]:
        return killed() or {} if state == letters.SENT else note(tables, pipeline, run_id, state, *said)

    step = {"begin": "begin_transaction", "send": "send", "commit": "commit_transaction"}.get(dies_in)
    with monkeypatch.context() as patch:
        patch.setattr(*((letters, "_note", noted) if step is None else (KafkaProducer, step, killed)))
        with pytest.raises(KilledError):
            send_back(settings, stock_stats, mended(topic, (0, 0)))
    assert send_back(settings, stock_stats, mended(topic, (0, 0))) == (sent, 1 - sent)
    assert [letter for *_, letter in arrived(settings, topic)] == [f"{topic}/0/0"]


def test_what_is_no_dead_letter_is_refused(dead: tuple[Settings, str], stock_stats: Pipeline) -> None:
    """A wrong place, a place twice, a line that is none: nothing is sent."""
    settings, topic = dead
    for wrong, says in ((mended(topic, (0, 7)), "is no dead letter"), (mended(topic, (0, 0), (0, 0)), "is named twice")):
        with pytest.raises(BadInputError, match=says):
            send_back(settings, stock_stats, wrong)
    with pytest.raises(BadInputError, match="Line 3"):
        Mended.parse('{"topic": "t", "partition": 0}', 3)
    assert arrived(settings, topic) == []
