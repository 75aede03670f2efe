"""Send mended dead letters back into their topic, each once.

A letter is the record at one place (topic, partition, offset) that the stream could not use. Somebody mends its value; the mended record
is sent to the same partition, with its key, and a header that says which letter it mends. Two who mend at once, or one who is killed in
the middle, must not send a letter twice.

The proof that a run was sent is its *mark*: a record in the topic :data:`MARKS`, written by the same transaction as the letters. That topic
is compacted by key, and a key is one pipeline in one set of control tables. So it holds one mark a pipeline for ever, whatever retention
does to the letters' own topics.

1. make the topic of marks if it is not there, and check that it is compacted;
2. take Kafka's transactional id of the pipeline's menders: whatever another one has not committed is undone, and will stay so;
3. finish what an earlier one left open: its row in ``mended_letters`` says ``begun`` and where the marks ended then. Its mark stands after
   that place if its transaction was committed (all of it, or nothing). No later run can have replaced it, for each begins with this step;
4. leave out the letters that were sent before; write the row ``begun``;
5. begin one transaction, and send the letters and the mark in it;
6. commit it;
7. write the row ``sent``.

If the topic of marks was deleted between 5 and 7, nothing proves either. Nothing is sent then until a person has looked and called
:func:`settle`.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError

from hindcast.control.schema import ControlTable
from hindcast.control.tables import ControlTables
from hindcast.errors import BadInputError, BrokerUnavailableError, LettersUnprovenError
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.settings import Settings
from hindcast.steps import reach
from hindcast.topics.offsets import TopicOffsets

#: Headers of a mended record: the run that sent it, and the letter that it mends, as ``topic/partition/offset``.
RUN_HEADER, LETTER_HEADER = "hindcast-run", "hindcast-mends"
BEGUN, SENT, UNDONE = "begun", "sent", "undone"
#: The topic of the marks, and the place in it: it has one partition.
MARKS = "hindcast-mended-letters"
_MARKS = TopicPartition(MARKS, 0)
_POLL_MS = 1000
_SPACE = re.compile(r"[\s\ufeff]*")

_CLEANUP, _COMPACT = "cleanup.policy", "compact"

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

    :raises BadInputError: if a place is not a dead letter of the pipeline, or is named twice; nothing was sent
    :raises LettersUnprovenError: if nothing says whether an earlier run was sent; nothing was sent
    :raises BrokerUnavailableError: the same command again finishes what was begun
    """
    tables = ControlTables(settings)
    keys = _keys(tables, pipeline, mended)
    _make_marks(settings)  # step 1
    with _producer(settings, pipeline) as producer:  # step 2
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


def settle(settings: Settings, pipeline: Pipeline, run_id: str, *, sent: bool) -> None:
    """Write down what a person found out about a run that nothing proves.

    :raises BadInputError: if no such run is open
    """
    tables = ControlTables(settings)
    _make_marks(settings)
    with _producer(settings, pipeline):  # whoever is still at it can commit no more
        row = next((row for row in _open_runs(_rows(tables, pipeline)) if row["run_id"] == run_id), None)
        if row is None:
            problem = f"No run {run_id} of mended letters of {pipeline.name} waits to be settled"
            raise BadInputError(problem=problem, cure="The refusal of `hindcast deadletters replay` names the run.")
        _note(tables, pipeline, run_id, SENT if sent else UNDONE, row["letters"], row["ends"])


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


def _make_marks(settings: Settings) -> None:
    """Step 1.

    :raises BadInputError: if the topic is there, but retention may delete marks
    """
    reach("letters.1")
    servers = settings.bootstrap_servers
    try:
        with KafkaAdminClient(bootstrap_servers=servers.split(",")) as admin:
            with suppress(TopicAlreadyExistsError):
                made = {"num_partitions": 1, "replication_factor": -1, "configs": {_CLEANUP: _COMPACT}}
                admin.create_topics({MARKS: made}, wait_for_metadata=True)
            found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, MARKS, {_CLEANUP: None})], config_filter="all")
    except (KafkaError, OSError) as error:
        raise BrokerUnavailableError(servers=servers, topic=MARKS, reason=f"{type(error).__name__}: {error}") from error
    policy = next(topics[MARKS][_CLEANUP]["value"] for topics in found.values() if MARKS in topics)
    if policy != _COMPACT:
        problem = f"The topic {MARKS} has {_CLEANUP}={policy}, so the proof that a letter was sent would not be kept"
        raise BadInputError(problem=problem, cure=f"Set {_CLEANUP}={_COMPACT} on it.")


def _rows(tables: ControlTables, pipeline: Pipeline) -> list[dict[str, Any]]:
    return tables.rows(ControlTable.MENDED_LETTERS, [("pipeline", "=", pipeline.name)])


def _open_runs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs that began and of which nobody wrote the end."""
    ended = {row["run_id"] for row in rows if row["state"] != BEGUN}
    return [row for row in rows if row["state"] == BEGUN and row["run_id"] not in ended]


def _sent_before(settings: Settings, tables: ControlTables, pipeline: Pipeline) -> set[Place]:
    """Step 3: every letter of the pipeline that was sent back."""
    reach("letters.3")
    rows = _rows(tables, pipeline)
    settled = []
    for row in _open_runs(rows):
        state = SENT if _was_sent(settings, pipeline, row) else UNDONE
        settled.append(_note(tables, pipeline, row["run_id"], state, row["letters"], row["ends"]))
    return {tuple(place) for row in [*rows, *settled] if row["state"] == SENT for place in json.loads(row["letters"])}


def _was_sent(settings: Settings, pipeline: Pipeline, row: Mapping[str, Any]) -> bool:
    """Whether the run's transaction was committed: its mark stands after the place where the marks ended then.

    :raises LettersUnprovenError: if these are not the marks that it began with
    """
    began = json.loads(row["ends"])
    with TopicOffsets(settings) as offsets:
        same = began.get("marks") == offsets.identity(MARKS)
    if not same:
        raise LettersUnprovenError(pipeline=pipeline.name, run_id=row["run_id"], marks=MARKS, letters=row["letters"], header=RUN_HEADER)
    try:
        return _has_mark(settings, row["run_id"], int(began["offset"]))
    except (KafkaError, OSError) as error:
        raise BrokerUnavailableError(servers=settings.bootstrap_servers, topic=MARKS, reason=error) from error


def _has_mark(settings: Settings, run_id: str, offset: int) -> bool:
    consumer = KafkaConsumer(
        bootstrap_servers=settings.bootstrap_servers.split(","),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",  # a mark that is there is found, even if the topic begins later than it was asked for
    )
    try:
        consumer.assign([_MARKS])
        end = consumer.end_offsets([_MARKS])[_MARKS]
        consumer.seek(_MARKS, offset)
        while consumer.position(_MARKS) < end:
            for record in consumer.poll(timeout_ms=_POLL_MS).get(_MARKS, []):
                if record.value == run_id.encode():
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
        ends = {"marks": offsets.identity(MARKS), "offset": offsets.latest(MARKS)[_MARKS.partition]}
    said = (json.dumps([letter.place for letter in letters]), json.dumps(ends))
    key = f"{tables.open(ControlTable.MENDED_LETTERS).metadata().id}/{pipeline.name}"
    reach("letters.4")
    _note(tables, pipeline, run_id, BEGUN, *said)
    reach("letters.5")
    producer.begin_transaction()
    for letter in letters:
        topic, partition, offset = letter.place
        headers = [(RUN_HEADER, run_id.encode()), (LETTER_HEADER, f"{topic}/{partition}/{offset}".encode())]
        producer.send(topic, value=letter.value, key=keys[letter.place], partition=partition % TOPIC_STRIDE, headers=headers)
    producer.send(MARKS, value=run_id.encode(), key=key.encode(), partition=_MARKS.partition)
    reach("letters.6")
    producer.commit_transaction()
    reach("letters.7")
    _note(tables, pipeline, run_id, SENT, *said)


def _note(tables: ControlTables, pipeline: Pipeline, run_id: str, state: str, letters: str, ends: str) -> dict[str, Any]:
    row = {"run_id": run_id, "pipeline": pipeline.name, "state": state, "letters": letters, "ends": ends, "noted_at": datetime.now(UTC)}
    tables.append(ControlTable.MENDED_LETTERS, [row])
    return row


@contextmanager
def _producer(settings: Settings, pipeline: Pipeline) -> Iterator[KafkaProducer]:
    reach("letters.2")
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
