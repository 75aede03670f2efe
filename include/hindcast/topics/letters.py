"""Send mended dead letters back into their topic, each once.

A letter is the record at one place (topic, partition, offset) that the stream could not use. Somebody mends its value; the mended record
is sent to the same partition, with its key, and a header that says which letter it mends. Two who mend at once, or one who is killed in
the middle, must not send a letter twice:

1. take Kafka's transactional id of the pipeline's menders: whatever another one has not committed is undone, and will stay so;
2. finish what an earlier one left open: its row in ``mended_letters`` says ``begun`` and where the topic ended then. Records of its run
   after that place mean that its transaction was committed (all of it, or nothing);
3. leave out the letters that were sent before; write the row ``begun``;
4. send all in one transaction;
5. write the row ``sent``.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from hindcast.control.schema import ControlTable
from hindcast.control.tables import ControlTables
from hindcast.errors import BadInputError, BrokerUnavailableError
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.settings import Settings
from hindcast.topics.offsets import TopicOffsets

#: Headers of a mended record: the run that sent it, and the letter that it mends, as ``topic/partition/offset``.
RUN_HEADER, LETTER_HEADER = "hindcast-run", "hindcast-mends"
BEGUN, SENT, UNDONE = "begun", "sent", "undone"
_POLL_MS = 1000
_SPACE = re.compile(r"[\s\ufeff]*")

Place = tuple[str, int, int]


@dataclass(frozen=True)
class Mended:
    """One mended letter: the place of the dead one, and the new value (None: a tombstone).

    ``key`` is the key as the file has it, which must be the letter's own; None if the file says nothing of it.
    """

    place: Place
    value: bytes | None
    key: bytes | None = None

    @classmethod
    def parse(cls, line: str, number: int) -> Mended:
        """One line of a file, as :meth:`of` takes it.

        :raises BadInputError: naming the line
        """
        try:
            row = json.loads(line)
        except ValueError as error:
            raise _no_letter(f"Line {number}", error) from error
        return cls.of(row, f"Line {number}")

    @classmethod
    def of(cls, row: Any, where: str) -> Mended:
        """A JSON object with topic, partition, offset and value: text, an object that is written as JSON, or null.

        Beside a value that is null, ``value_base64`` has the bytes. The same holds for the key, which may be left out.

        :raises BadInputError: naming the place in the file
        """
        try:
            place = (str(row["topic"]), int(row["partition"]), int(row["offset"]))
            return cls(place, _bytes(row["value"], row.get("value_base64")), _bytes(row.get("key"), row.get("key_base64")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _no_letter(where, error) from error


def _bytes(value: Any, in_base64: str | None) -> bytes | None:
    if value is None:
        return None if in_base64 is None else base64.b64decode(in_base64, validate=True)
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":")).encode()


def _no_letter(where: str, error: Exception) -> BadInputError:
    form = '{"topic": "trades", "partition": 0, "offset": 7, "value": {"ticker": "ACME"}}'
    return BadInputError(problem=f"{where} is no mended letter ({error!r})", cure=f"Write {form}.")


def letters_of(text: str) -> list[Mended]:
    """The letters of a file: JSON objects one after the other (one a line, or over several), or arrays of them.

    A letter that stands there twice with the same value counts once: two versions of a pipeline file the same record.

    :raises BadInputError: naming the line at which the wrong one begins
    """
    decoder, found, at = json.JSONDecoder(), dict[Mended, None](), 0
    while (begin := _SPACE.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        line = text.count("\n", 0, begin) + 1
        try:
            value, at = decoder.raw_decode(text, begin)
        except ValueError as error:
            raise _no_letter(f"Line {line}", error) from error
        if isinstance(value, list):
            letters = [Mended.of(row, f"Object {number} of the array in line {line}") for number, row in enumerate(value, 1)]
        else:
            letters = [Mended.of(value, f"Line {line}")]
        found.update(dict.fromkeys(letters))
    return list(found)


def send_back(settings: Settings, pipeline: Pipeline, mended: Sequence[Mended]) -> tuple[int, int]:
    """Send the letters that were not sent before; return how many were, and how many had been sent already.

    :raises BadInputError: where a place is not a dead letter of the pipeline, or is named twice; nothing was sent
    :raises BrokerUnavailableError: the same command again finishes what was begun
    """
    tables = ControlTables(settings)
    keys = _keys(tables, pipeline, mended)
    with _producer(settings, pipeline) as producer:  # step 1
        before = _sent_before(settings, tables, pipeline)
        fresh = [letter for letter in mended if letter.place not in before]
        if fresh:
            _send(settings, tables, pipeline, producer, fresh, keys)
    return len(fresh), len(mended) - len(fresh)


def check_letters(settings: Settings, pipeline: Pipeline, mended: Sequence[Mended]) -> None:
    """Whether they could be sent back. Nothing is.

    :raises BadInputError: as :func:`send_back`
    """
    _keys(ControlTables(settings), pipeline, mended)


def _keys(tables: ControlTables, pipeline: Pipeline, mended: Sequence[Mended]) -> dict[Place, bytes | None]:
    letters = tables.rows(ControlTable.DEAD_LETTERS, [("pipeline", "=", pipeline.name)])
    keys = {(row["topic"], row["partition"], row["offset"]): row["key"] for row in letters}
    places = [letter.place for letter in mended]
    for place in places:
        if place not in keys or places.count(place) > 1:
            what = "is named twice" if place in keys else f"is no dead letter of {pipeline.name}"
            cure = f"`hindcast deadletters --pipeline {pipeline.name}` lists them."
            raise BadInputError(problem=f"{place[0]}/{place[1]}/{place[2]} {what}", cure=cure)
    for letter in mended:
        if letter.key is not None and letter.key != keys[letter.place]:
            topic, partition, offset = letter.place
            cure = "A letter keeps its key, for that chose its partition: mend the value alone."
            raise BadInputError(problem=f"{topic}/{partition}/{offset} has another key in the file than in its topic", cure=cure)
    return keys


def _sent_before(settings: Settings, tables: ControlTables, pipeline: Pipeline) -> set[Place]:
    """Step 2: every letter of the pipeline that was sent back."""
    rows = tables.rows(ControlTable.MENDED_LETTERS, [("pipeline", "=", pipeline.name)])
    ended = {row["run_id"] for row in rows if row["state"] != BEGUN}
    for row in rows:
        if row["state"] == BEGUN and row["run_id"] not in ended:
            state = SENT if _was_sent(settings, row) else UNDONE
            rows = [*rows, _note(tables, pipeline, row["run_id"], state, row["letters"], row["ends"])]
    return {tuple(place) for row in rows if row["state"] == SENT for place in json.loads(row["letters"])}


def _was_sent(settings: Settings, row: Mapping[str, Any]) -> bool:
    """Whether the run's transaction was committed: its records stand after the places where the topics ended then."""
    ended = {
        TopicPartition(topic, int(number)): offset for topic, ends in json.loads(row["ends"]).items() for number, offset in ends.items()
    }
    consumer = KafkaConsumer(
        bootstrap_servers=settings.bootstrap_servers.split(","), isolation_level="read_committed", enable_auto_commit=False
    )
    try:
        consumer.assign(list(ended))
        ends = consumer.end_offsets(list(ended))
        for place, offset in ended.items():
            consumer.seek(place, offset)
        while any(consumer.position(place) < ends[place] for place in ended):
            for records in consumer.poll(timeout_ms=_POLL_MS).values():
                if any(dict(record.headers).get(RUN_HEADER) == row["run_id"].encode() for record in records):
                    return True
        return False
    finally:
        consumer.close(autocommit=False)


def _send(
    settings: Settings,
    tables: ControlTables,
    pipeline: Pipeline,
    producer: KafkaProducer,
    letters: Sequence[Mended],
    keys: Mapping[Place, bytes | None],
) -> None:
    run_id = uuid.uuid4().hex
    with TopicOffsets(settings) as offsets:
        ends = {topic: offsets.latest(topic) for topic in sorted({letter.place[0] for letter in letters})}
    said = (json.dumps([letter.place for letter in letters]), json.dumps(ends))
    _note(tables, pipeline, run_id, BEGUN, *said)  # step 3
    producer.begin_transaction()  # step 4
    for letter in letters:
        topic, partition, offset = letter.place
        headers = [(RUN_HEADER, run_id.encode()), (LETTER_HEADER, f"{topic}/{partition}/{offset}".encode())]
        producer.send(topic, value=letter.value, key=keys[letter.place], partition=partition % TOPIC_STRIDE, headers=headers)
    producer.commit_transaction()
    _note(tables, pipeline, run_id, SENT, *said)  # step 5


def _note(tables: ControlTables, pipeline: Pipeline, run_id: str, state: str, letters: str, ends: str) -> dict[str, Any]:
    row = {"run_id": run_id, "pipeline": pipeline.name, "state": state, "letters": letters, "ends": ends, "noted_at": datetime.now(UTC)}
    tables.append(ControlTable.MENDED_LETTERS, [row])
    return row


@contextmanager
def _producer(settings: Settings, pipeline: Pipeline) -> Iterator[KafkaProducer]:
    producer = None
    try:
        producer = KafkaProducer(
            bootstrap_servers=settings.bootstrap_servers.split(","), transactional_id=f"hindcast-mend-{pipeline.name}", acks="all"
        )
        producer.init_transactions()
        yield producer
    except (KafkaError, OSError) as error:
        raise BrokerUnavailableError(servers=settings.bootstrap_servers, topic=pipeline.source.name, reason=error) from error
    finally:
        if producer is not None:
            producer.close(timeout=10)
