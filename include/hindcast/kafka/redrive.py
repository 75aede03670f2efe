"""Send repaired dead letters back into their topic, each once.

A dead letter is the record at one place (topic, partition, offset) that the stream could not use. A person
repairs its value. The repaired record is sent to the same partition, with its key, and a header that names
the dead letter. Two people who send at once, or a process that is killed in the middle, must not send a
letter twice.

The proof that a run was sent is its *mark*: a record in the topic :data:`MARKS`, written by the same
transaction as the letters. That topic is compacted by key, and a key is one pipeline in one set of control
tables. So it holds one mark a pipeline for ever, whatever retention does to the letters' own topics.

1. make the topic of marks if it does not exist, and check that it is compacted;
2. take Kafka's transactional id of the pipeline's runs: Kafka aborts what an earlier run has not committed;
3. finish what an earlier run left open: its row in ``mended_letters`` says ``begun``, and where the marks
   ended then. Its mark is after that place if its transaction was committed (all of it, or nothing). No later
   run can have replaced the mark, because each begins with this step;
4. leave out the letters that were sent before; write the row ``begun``;
5. begin one transaction, and send the letters and the mark in it;
6. commit it. If the broker finds a letter too large, abort it, write the row ``undone`` and name the letter;
7. write the row ``sent``.

If the topic of marks was deleted between 5 and 7, nothing proves either outcome. Nothing is sent then until a
person has checked the topic and called :func:`settle`.
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
from typing import Any, NoReturn

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAlreadyExistsError,
)

from hindcast.errors import BadInputError, LettersUnprovenError
from hindcast.installation import Installation
from hindcast.kafka.connected import connected
from hindcast.kafka.offsets import TopicOffsets
from hindcast.kafka.security import client_options
from hindcast.kafka.why_unavailable import explained
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.processes.crash_points import reach
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.side_rows import WITHOUT_CONTENTS
from hindcast.tables.table_names import ControlTable

#: Headers of a repaired record: the run that sent it, and its dead letter as ``topic/partition/offset``.
RUN_HEADER = "hindcast-run"
LETTER_HEADER = "hindcast-mends"
#: States of a run.
BEGUN = "begun"
SENT = "sent"
UNDONE = "undone"
#: The topic of the marks, and the place in it: it has one partition.
MARKS = "hindcast-mended-letters"
_MARKS = TopicPartition(MARKS, 0)
_POLL_MS = 1000
_LEAST_REQUEST_BYTES = 1_048_576  # kafka-python's own limit; a larger letter raises it
_BESIDE_BYTES = 4096  # a record's headers and frame take less
_OUTCOME_SECONDS = 10
_LAST_OFFSET = 2**63 - 1  # Kafka's offsets are signed, in 64 bits
_SPACE = re.compile(r"[\s\ufeff]*")

_CLEANUP = "cleanup.policy"
_COMPACT = "compact"

Place = tuple[str, int, int]


@dataclass(frozen=True)
class Repaired:
    """One repaired letter: the place of the dead one, and the new value (None: a tombstone).

    ``key`` is the key in the file, which must be the letter's own; None if the file has none.
    """

    place: Place
    value: bytes | None
    key: bytes | None = None

    @classmethod
    def parse(cls, line: str, number: int) -> Repaired:
        """One line of a file, as :meth:`of` takes it.

        :raises BadInputError: naming the line
        """
        try:
            row = json.loads(line)
        except ValueError as error:
            raise _no_letter(f"Line {number}", error) from error
        return cls.of(row, f"Line {number}")

    @classmethod
    def of(cls, row: Any, where: str) -> Repaired:
        """A letter from a JSON object with topic, partition, offset and value.

        The value is text, an object that is sent as JSON, or null. If it is null, ``value_base64`` may have
        the bytes. The same holds for the key, which may be left out.

        :param where: the object's place in the file
        :raises BadInputError: naming the place in the file
        """
        try:
            place = (str(row["topic"]), int(row["partition"]), _offset(row["offset"]))
            value = _bytes(row["value"], row.get("value_base64"))
            key = _bytes(row.get("key"), row.get("key_base64"))
            return cls(place, value, key)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _no_letter(where, error) from error


def _offset(value: Any) -> int:
    """:raises ValueError: if it is no offset that a topic can have"""
    offset = int(value)
    if not 0 <= offset <= _LAST_OFFSET:
        raise ValueError(f"no topic has an offset {offset}")
    return offset


def _bytes(value: Any, in_base64: str | None) -> bytes | None:
    if value is None:
        if in_base64 is None:
            return None
        return base64.b64decode(in_base64, validate=True)
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":")).encode()


def _no_letter(where: str, error: Exception) -> BadInputError:
    form = '{"topic": "trades", "partition": 0, "offset": 7, "value": {"ticker": "ACME"}}'
    return BadInputError(problem=f"{where} is no repaired letter ({error!r})", cure=f"Write {form}.")


def letters_of(text: str) -> list[Repaired]:
    """The letters of a file: JSON objects one after the other (one a line, or over several), or arrays of
    them.

    A letter that occurs twice with the same value counts once: two versions of a pipeline file the same
    record.

    :raises BadInputError: naming the line on which the invalid one begins
    """
    decoder = json.JSONDecoder()
    found: dict[Repaired, None] = {}
    line = 1
    counted = 0
    begin = _skip_space(text, 0)
    while begin < len(text):
        line += text.count("\n", counted, begin)
        counted = begin
        try:
            value, end = decoder.raw_decode(text, begin)
        except ValueError as error:
            raise _no_letter(f"Line {line}", error) from error
        if isinstance(value, list):
            for number, row in enumerate(value, 1):
                letter = Repaired.of(row, f"Object {number} of the array in line {line}")
                found[letter] = None
        else:
            letter = Repaired.of(value, f"Line {line}")
            found[letter] = None
        begin = _skip_space(text, end)
    return list(found)


def _skip_space(text: str, at: int) -> int:
    """The place of the next character that is not white space."""
    match = _SPACE.match(text, at)
    assert match is not None  # the pattern matches an empty text
    return match.end()


def redrive(installation: Installation, pipeline: Pipeline, mended: Sequence[Repaired]) -> tuple[int, int]:
    """Send the letters that were not sent before.

    :returns: how many were sent now, and how many had been sent before
    :raises BadInputError: if a place is not a dead letter of the pipeline, or is named twice, or if a letter
        is too large for its topic; nothing was sent
    :raises LettersUnprovenError: if nothing proves whether an earlier run was sent; nothing was sent
    :raises BrokerUnavailableError: the same command again finishes what was begun
    """
    settings = installation.settings
    keys = _keys(installation.tables, pipeline, mended)
    _make_marks(settings)  # step 1
    with _producer(settings, pipeline, _most_bytes(mended, keys)) as producer:  # step 2
        before = _sent_before(installation, pipeline)
        fresh = [letter for letter in mended if letter.place not in before]
        if fresh:
            _send(installation, pipeline, producer, fresh, keys)
    return len(fresh), len(mended) - len(fresh)


def check_letters(tables: ControlTables, pipeline: Pipeline, mended: Sequence[Repaired]) -> None:
    """Check that the letters could be sent back; nothing is sent.

    :raises BadInputError: as :func:`redrive`
    """
    _keys(tables, pipeline, mended)


def settle(installation: Installation, pipeline: Pipeline, run_id: str, *, sent: bool) -> None:
    """Record what a person found out about a run that nothing proves.

    :raises BadInputError: if no such run is open
    """
    settings = installation.settings
    tables = installation.tables
    _make_marks(settings)
    with _producer(settings, pipeline):  # from here on, an earlier process of the run can commit no more
        row = _find_open_run(_rows(tables, pipeline), run_id)
        if row is None:
            problem = f"No run {run_id} of repaired letters of {pipeline.name} waits to be settled"
            cure = "The refusal of `hindcast deadletters replay` names the run."
            raise BadInputError(problem=problem, cure=cure)
        state = UNDONE
        if sent:
            state = SENT
        _note(tables, pipeline, run_id, state, row["letters"], row["ends"])


def _keys(tables: ControlTables, pipeline: Pipeline, mended: Sequence[Repaired]) -> dict[Place, bytes | None]:
    """The keys of these letters, by place.

    :raises BadInputError: if a letter is no dead letter of the pipeline, is named twice, has another key, or
        has neither a key nor a value
    """
    keys = _dead_letters(tables, pipeline, mended)
    named: set[Place] = set()
    for letter in mended:
        if letter.place not in keys:
            problem = f"is no dead letter of {pipeline.name}, or its record was erased or has expired"
            _refuse_place(pipeline, letter.place, problem)
        if letter.place in named:
            _refuse_place(pipeline, letter.place, "is named twice")
        named.add(letter.place)
    for letter in mended:
        if letter.key is not None and letter.key != keys[letter.place]:
            problem = f"{_text_of(letter.place)} has another key in the file than in its topic"
            cure = "A letter keeps its key, because that chose its partition: change the value alone."
            raise BadInputError(problem=problem, cure=cure)
        if letter.value is None and keys[letter.place] is None:
            problem = f"{_text_of(letter.place)} has neither a key nor a value, so it cannot be sent"
            cure = "Give it a value, or leave it out: a record without a value deletes what has its key."
            raise BadInputError(problem=problem, cure=cure)
    return keys


def _dead_letters(
    tables: ControlTables, pipeline: Pipeline, mended: Sequence[Repaired]
) -> dict[Place, bytes | None]:
    """The key of each dead letter of the pipeline that has the topic and the offset of one of these. Those
    whose record was erased or has expired are left out.

    A pipeline may have very many dead letters, so all others are left out, and the values of these, too.
    """
    if not mended:
        return {}
    topics = sorted({letter.place[0] for letter in mended})
    offsets = sorted({letter.place[2] for letter in mended})
    where = [("pipeline", "=", pipeline.name), ("topic", "in", topics), ("offset", "in", offsets)]
    found = tables.read(ControlTable.DEAD_LETTERS, where, ["topic", "partition", "offset", "key", "reason"])
    keys: dict[Place, bytes | None] = {}
    for row in found.to_pylist():
        if row["reason"] in WITHOUT_CONTENTS:
            continue
        place = (row["topic"], row["partition"], row["offset"])
        keys[place] = row["key"]
    return keys


def _refuse_place(pipeline: Pipeline, place: Place, problem: str) -> NoReturn:
    cure = f"`hindcast deadletters --pipeline {pipeline.name}` lists them."
    raise BadInputError(problem=f"{_text_of(place)} {problem}", cure=cure)


def _text_of(place: Place) -> str:
    topic, partition, offset = place
    return f"{topic}/{partition}/{offset}"


def _make_marks(settings: Settings) -> None:
    """Step 1.

    :raises BadInputError: if the topic is there, but retention may delete marks, or the account may not see
        whether it may
    """
    reach("letters.1")
    with explained(settings.bootstrap_servers, MARKS), _admin(settings) as admin:
        _create_marks(admin)
        policy = _policy_of_marks(admin)
    if policy is None:
        problem = f"The account may not see the configuration of the topic {MARKS}"
        problem += ", so nothing shows that the proof that a letter was sent is kept"
        raise BadInputError(problem=problem, cure="Allow the account DescribeConfigs on that topic.")
    if policy != _COMPACT:
        problem = f"The topic {MARKS} has {_CLEANUP}={policy}"
        problem += ", so the proof that a letter was sent would not be kept"
        raise BadInputError(problem=problem, cure=f"Set {_CLEANUP}={_COMPACT} on it.")


def _admin(settings: Settings) -> KafkaAdminClient:
    return connected(KafkaAdminClient, **client_options(settings))


def _create_marks(admin: KafkaAdminClient) -> None:
    topic = {"num_partitions": 1, "replication_factor": -1, "configs": {_CLEANUP: _COMPACT}}
    with suppress(TopicAlreadyExistsError):
        admin.create_topics({MARKS: topic}, wait_for_metadata=True)


def _policy_of_marks(admin: KafkaAdminClient) -> str | None:
    """None if the account may not see it: brokers then tell no configuration at all."""
    resource = ConfigResource(ConfigResourceType.TOPIC, MARKS, {_CLEANUP: None})
    found = admin.describe_configs([resource], config_filter="all")
    for topics in found.values():
        if _CLEANUP in topics.get(MARKS, {}):
            return str(topics[MARKS][_CLEANUP]["value"])
    return None


def _rows(tables: ControlTables, pipeline: Pipeline) -> list[dict[str, Any]]:
    return tables.rows(ControlTable.MENDED_LETTERS, [("pipeline", "=", pipeline.name)])


def _open_runs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of runs that began and have no row of their end."""
    ended = {row["run_id"] for row in rows if row["state"] != BEGUN}
    begun = [row for row in rows if row["state"] == BEGUN]
    return [row for row in begun if row["run_id"] not in ended]


def _find_open_run(rows: Sequence[dict[str, Any]], run_id: str) -> dict[str, Any] | None:
    for row in _open_runs(rows):
        if row["run_id"] == run_id:
            return row
    return None


def _sent_before(installation: Installation, pipeline: Pipeline) -> set[Place]:
    """Step 3: every letter of the pipeline that was sent back."""
    reach("letters.3")
    tables = installation.tables
    rows = _rows(tables, pipeline)
    settled = []
    for row in _open_runs(rows):
        state = UNDONE
        if _was_sent(installation.settings, pipeline, row):
            state = SENT
        settled.append(_note(tables, pipeline, row["run_id"], state, row["letters"], row["ends"]))
    sent: set[Place] = set()
    for row in [*rows, *settled]:
        if row["state"] == SENT:
            for topic, partition, offset in json.loads(row["letters"]):
                sent.add((topic, partition, offset))
    return sent


def _was_sent(settings: Settings, pipeline: Pipeline, row: Mapping[str, Any]) -> bool:
    """Whether the run's transaction was committed: its mark is after the place at which the marks ended then.

    :raises LettersUnprovenError: if these are not the marks that it began with
    """
    began = json.loads(row["ends"])
    with TopicOffsets(settings) as offsets:
        same = began.get("marks") == offsets.identity(MARKS)
    if not same:
        raise LettersUnprovenError(
            pipeline=pipeline.name,
            run_id=row["run_id"],
            marks=MARKS,
            letters=row["letters"],
            header=RUN_HEADER,
        )
    with explained(settings.bootstrap_servers, MARKS):
        return _has_mark(settings, row["run_id"], int(began["offset"]))


def _has_mark(settings: Settings, run_id: str, offset: int) -> bool:
    """Whether the run's mark is in the topic at the offset or after it."""
    consumer = connected(
        KafkaConsumer,
        **client_options(settings),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",  # the topic may begin after the offset by now
    )
    try:
        consumer.assign([_MARKS])
        end = consumer.end_offsets([_MARKS])[_MARKS]
        consumer.seek(_MARKS, offset)
        while consumer.position(_MARKS) < end:
            polled = consumer.poll(timeout_ms=_POLL_MS)
            for record in polled.get(_MARKS, []):
                if record.value == run_id.encode():
                    return True
        return False
    finally:
        consumer.close(autocommit=False)


def _send(
    installation: Installation,
    pipeline: Pipeline,
    producer: KafkaProducer,
    letters: Sequence[Repaired],
    keys: Mapping[Place, bytes | None],
) -> None:
    """Steps 4 to 7.

    :raises BadInputError: if the broker finds a letter too large; then the transaction is aborted
    """
    tables = installation.tables
    run_id = uuid.uuid4().hex
    with TopicOffsets(installation.settings) as offsets:
        end = offsets.latest(MARKS)[_MARKS.partition]
        ends = json.dumps({"marks": offsets.identity(MARKS), "offset": end})
    places = json.dumps([letter.place for letter in letters])
    table_id = tables.open(ControlTable.MENDED_LETTERS).metadata().id
    mark_key = f"{table_id}/{pipeline.name}"
    run = run_id.encode()
    reach("letters.4")
    _note(tables, pipeline, run_id, BEGUN, places, ends)
    reach("letters.5")
    too_large: list[Repaired] = []
    producer.begin_transaction()
    try:
        for letter in letters:
            topic, partition, _ = letter.place
            sent = producer.send(
                topic,
                value=letter.value,
                key=keys[letter.place],
                partition=partition % TOPIC_STRIDE,
                headers=[(RUN_HEADER, run), (LETTER_HEADER, _text_of(letter.place).encode())],
            )
            sent.add_errback(_add_if_too_large, too_large, letter)
        producer.send(MARKS, value=run, key=mark_key.encode(), partition=_MARKS.partition)
        reach("letters.6")
        producer.commit_transaction()
    except KafkaError as error:
        with suppress(KafkaTimeoutError):
            producer.flush(timeout=_OUTCOME_SECONDS)  # the error may be known before its letter is
        if not too_large:
            raise
        producer.abort_transaction()
        _note(tables, pipeline, run_id, UNDONE, places, ends)
        # After the first, the producer gives up the letters that still wait, with the same error.
        _refuse_size(too_large[0], error)
    reach("letters.7")
    _note(tables, pipeline, run_id, SENT, places, ends)


def _add_if_too_large(found: list[Repaired], letter: Repaired, error: Exception) -> None:
    """Add a letter to those that are too large, if that is why it could not be sent."""
    if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
        found.append(letter)


def _refuse_size(letter: Repaired, error: Exception) -> NoReturn:
    topic = letter.place[0]
    size = len(letter.value or b"")
    problem = f"{_text_of(letter.place)} is too large for its topic ({size:,} bytes), so no letter was sent"
    cure = f"Make its value shorter, leave it out, or raise max.message.bytes of {topic}."
    raise BadInputError(problem=problem, cure=cure) from error


def _most_bytes(mended: Sequence[Repaired], keys: Mapping[Place, bytes | None]) -> int:
    """The size of the largest letter: its key and its value."""
    sizes = [len(letter.value or b"") + len(keys[letter.place] or b"") for letter in mended]
    return max(sizes, default=0)


def _note(
    tables: ControlTables, pipeline: Pipeline, run_id: str, state: str, letters: str, ends: str
) -> dict[str, Any]:
    """Append a row of the run and return it.

    :param letters: the places of its letters, as JSON
    :param ends: the identity and the end of the topic of marks before the run, as JSON
    """
    row = {
        "run_id": run_id,
        "pipeline": pipeline.name,
        "state": state,
        "letters": letters,
        "ends": ends,
        "noted_at": datetime.now(UTC),
    }
    tables.append(ControlTable.MENDED_LETTERS, [row])
    return row


@contextmanager
def _producer(settings: Settings, pipeline: Pipeline, most_bytes: int = 0) -> Iterator[KafkaProducer]:
    """Step 2.

    :param most_bytes: the key and the value of the largest letter
    :raises BrokerUnavailableError: from the body of the ``with`` statement, too
    """
    reach("letters.2")
    with explained(settings.bootstrap_servers, pipeline.source.name):
        producer = KafkaProducer(
            **client_options(settings),
            transactional_id=f"hindcast-mend-{pipeline.name}",
            acks="all",
            # Only the broker knows what its topics take. The producer's own limit is never the lower one.
            max_request_size=max(_LEAST_REQUEST_BYTES, most_bytes + _BESIDE_BYTES),
        )
        try:
            producer.init_transactions()
            yield producer
        finally:
            producer.close(timeout=10)
