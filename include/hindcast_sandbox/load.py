"""The load generator: sends a generator's records to its topics at a steady pace and keeps an exact report
of them.

The report is a JSON file, replaced as a whole each second and at the end. It counts a record only once the
broker has acknowledged it. A record that could not be sent ends the load with an error and the state
``failed``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from hindcast.clock import Clock, SystemClock
from hindcast.errors import BadInputError, HindcastError, ServiceError
from hindcast.kafka.security import security_options
from hindcast.pipeline import TOPIC_STRIDE, check_topic
from hindcast.processes.detach import write_atomically
from hindcast.settings import Settings
from hindcast_sandbox.generators import GENERATORS, Generator
from hindcast_sandbox.generators.record import Record

DEFAULT_ROWS_PER_SECOND = 2000.0
DEFAULT_PARTITIONS = 4
_REPORT_SECONDS = 1.0
_LINGER_MS = 20  # gathers about 40 rows a request at the default pace, and costs a row 20 ms at most
_BATCH_BYTES = 64 * 1024
#: Rows due within it are sent together: waking for each row would cost more than sending it.
_TICK_SECONDS = 0.01
_BOOTSTRAP_MS = 10_000  # a healthy broker answers in milliseconds
_DELIVERY_MS = 600_000  # a broker that is away for ten minutes loses no row
_CLOSE_SECONDS = 10
#: Keys whose hash is remembered: some generators never stop making new keys.
_KEYS_KEPT = 100_000

_log = structlog.get_logger(__name__)


class LoadState(StrEnum):
    """``waiting``: it makes no more rows, and waits until the broker has acknowledged those in flight."""

    SENDING = "sending"
    WAITING = "waiting"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass
class PartitionReport:
    """What one partition acknowledged. ``end_offset`` is exclusive; in a topic with one writer, end - first
    = sent.
    """

    sent: int = 0
    first_offset: int | None = None
    end_offset: int | None = None

    def acknowledge(self, offset: int) -> None:
        """Count a row. Acknowledgements may come in any order."""
        self.sent += 1
        if self.first_offset is None or offset < self.first_offset:
            self.first_offset = offset
        if self.end_offset is None or offset >= self.end_offset:
            self.end_offset = offset + 1


@dataclass
class LoadReport:
    """What was sent and acknowledged. ``late`` rows had their event time set back; ``poison`` counts by
    what was wrong.

    ``topic`` is the generator's main one. Its topics share the counts, and the numbers of their partitions
    are those of
    :data:`hindcast.pipeline.TOPIC_STRIDE`.
    """

    topic: str
    seed: int
    rows_per_second: float
    state: LoadState = LoadState.SENDING
    sent: int = 0
    late: int = 0
    poison: dict[str, int] = field(default_factory=dict)
    partitions: dict[int, PartitionReport] = field(default_factory=dict)
    started_at: str = ""
    updated_at: str = ""
    error: str = ""

    @property
    def poison_total(self) -> int:
        return sum(self.poison.values())

    @property
    def start_offsets(self) -> dict[int, int]:
        """The first offset of each partition that got a row."""
        found = {}
        for number, part in sorted(self.partitions.items()):
            if part.first_offset is not None:
                found[number] = part.first_offset
        return found

    @property
    def end_offsets(self) -> dict[int, int]:
        """One past the last offset of each partition that got a row."""
        found = {}
        for number, part in sorted(self.partitions.items()):
            if part.end_offset is not None:
                found[number] = part.end_offset
        return found

    def acknowledge(self, record: Record, partition: int, offset: int) -> None:
        """Count the record; ``partition`` is numbered across the topics."""
        self.partitions.setdefault(partition, PartitionReport()).acknowledge(offset)
        self.sent += 1
        self.late += record.late
        if record.poison:
            self.poison[record.poison] = self.poison.get(record.poison, 0) + 1

    def write(self, path: Path) -> None:
        self.updated_at = datetime.now(UTC).isoformat()
        values = asdict(self) | {"poison_total": self.poison_total}
        write_atomically(path, json.dumps(values, indent=2))

    @classmethod
    def read(cls, path: Path) -> LoadReport:
        """The report at the path.

        :raises FileNotFoundError: if no load has written one
        """
        values: dict[str, Any] = json.loads(path.read_text())
        del values["poison_total"]
        partitions = {}
        for number, part in values["partitions"].items():
            partitions[int(number)] = PartitionReport(**part)
        values["partitions"] = partitions
        values["state"] = LoadState(values["state"])
        return cls(**values)


def report_path(settings: Settings, topic: str) -> Path:
    """The file in which the newest load of the topic keeps its report."""
    return settings.home / "load" / f"{check_topic(topic)}.json"


def ensure_topic(
    bootstrap_servers: str,
    topic: str,
    partitions: int = DEFAULT_PARTITIONS,
    *,
    security: Mapping[str, Any] | None = None,
) -> None:
    """Create the topic unless it exists. An existing one keeps its number of partitions.

    :param security: as :func:`hindcast.kafka.security.security_options` gives it
    """
    from kafka.admin import KafkaAdminClient
    from kafka.errors import TopicAlreadyExistsError

    with KafkaAdminClient(
        bootstrap_servers=bootstrap_servers, bootstrap_timeout_ms=_BOOTSTRAP_MS, **(security or {})
    ) as admin:
        if topic in admin.list_topics():
            return
        shape = {"num_partitions": partitions, "replication_factor": 1}
        with suppress(TopicAlreadyExistsError):
            admin.create_topics({topic: shape}, wait_for_metadata=True)


class Load:
    """One run of a generator against its topics. :meth:`stop` may be called from a signal handler or
    another thread.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        report: Path,
        *,
        generator: str | Generator | None = None,
        seed: int = 1,
        rows_per_second: float = DEFAULT_ROWS_PER_SECOND,
        rows: int | None = None,
        seconds: float | None = None,
        partitions: int = DEFAULT_PARTITIONS,
        security: Mapping[str, Any] | None = None,
        progress: Callable[[LoadReport], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """
        :param topic: the topic of the generator's main records; its other topics keep their names
        :param generator: what makes the records, or its key in :data:`GENERATORS`, by default the topic's
            name. The load ends when it does
        :param rows: stop after so many rows
        :param seconds: stop after so long
        :param partitions: of each topic that is not there yet
        :param security: as :func:`hindcast.kafka.security.security_options` gives it
        :param progress: called each second with the report, which the load keeps changing
        :raises BadInputError: if there is no such generator, or the pace is not above 0
        """
        check_topic(topic)
        if not rows_per_second > 0:
            problem = f"{rows_per_second} rows a second is not above 0"
            raise BadInputError(problem=problem, cure="Give a number like 2000.")
        self._generator = _found(generator or topic)
        #: The topic of each of the generator's topics. A record names its main topic with "".
        self.topics = {"": topic}
        for other in self._generator.topics[1:]:
            self.topics[other] = other
        self._servers = bootstrap_servers
        self._security = dict(security or {})
        self._path = report
        self._partitions = partitions
        self._rows = rows
        self._seconds = seconds
        self._progress = progress
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._given_up = threading.Event()
        self._given = 0
        self._lock = threading.Lock()
        self._noted = 0.0
        self.report = LoadReport(topic=topic, seed=seed, rows_per_second=rows_per_second)

    def stop(self) -> None:
        """End after the present row, wait for the rows in flight, write the report. A call while it waits
        gives those rows up.
        """
        if self.stopping:
            self._given_up.set()
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """True once no more rows are made."""
        return self._stop.is_set()

    @property
    def in_flight(self) -> int:
        """Rows that the client has, and that the broker has not acknowledged."""
        return self._given - self.report.sent

    def run(self) -> LoadReport:
        """Send until stopped; returns the final report.

        :raises BrokerUnavailableError: if no broker answers at the start
        :raises ServiceError: if a row could not be sent, or was given up; the report then says ``failed``
            and counts what did arrive
        """
        from kafka.errors import KafkaError, KafkaTimeoutError

        self._make_topics()
        started = self._clock.now()
        self.report.started_at = started.isoformat()
        self.report.write(self._path)
        producer = self._connect()
        try:
            self._send_all(producer, started)
            self._wait_for_rows_in_flight(producer)
        except (KafkaError, OSError) as error:
            self._fail(error)
        finally:
            seconds = _CLOSE_SECONDS
            if self._given_up.is_set():
                seconds = 0
            with suppress(KafkaTimeoutError):  # rows that were given up are still there
                producer.close(timeout=seconds)
        if not self.report.error and self.in_flight:
            self._fail(RuntimeError(f"{self._given} rows were sent and {self.report.sent} acknowledged"))
        self.report.state = LoadState.FINISHED
        if self.report.error:
            self.report.state = LoadState.FAILED
        self.report.write(self._path)
        if self.report.error:
            problem = f"lost rows and stopped: {self.report.error}"
            raise ServiceError(service="load", problem=problem, log=self._path)
        return self.report

    def _make_topics(self) -> None:
        from hindcast.kafka.why_unavailable import explained

        for topic in self.topics.values():
            with explained(self._servers, topic):
                ensure_topic(self._servers, topic, self._partitions, security=self._security)

    def _connect(self) -> Any:
        from kafka import KafkaProducer

        return KafkaProducer(
            bootstrap_servers=self._servers,
            **self._security,
            client_id=f"hindcast-load-{os.getpid()}",
            acks="all",
            enable_idempotence=True,
            linger_ms=_LINGER_MS,
            batch_size=_BATCH_BYTES,
            delivery_timeout_ms=_DELIVERY_MS,
            metrics_enabled=False,
            allow_auto_create_topics=False,
        )

    def _send_all(self, producer: Any, started: datetime) -> None:
        """Send row i at the start + i / rate: after a delay the load catches up."""
        partition_counts: dict[str, int] = {}
        first_numbers: dict[str, int] = {}
        for number, (name, topic) in enumerate(self.topics.items()):
            partition_counts[name] = len(producer.partitions_for(topic))
            first_numbers[name] = number * TOPIC_STRIDE
        hash_of = _remembered_hash()
        began = self._clock.monotonic()
        self._noted = began
        end = float("inf")
        if self._seconds is not None:
            end = began + self._seconds
        records = self._generator.make(self.report.seed, self.report.rows_per_second, started)
        for record in records:
            if self._given == self._rows or not self._wait(began + record.due_seconds, end):
                break
            topic = self.topics[record.topic]
            partition = None
            if record.key is not None:
                partition = hash_of(record.key) % partition_counts[record.topic]
            future = producer.send(topic, value=record.value, key=record.key, partition=partition)
            self._given += 1
            future.add_callback(self._acknowledge, record, first_numbers[record.topic])
            future.add_errback(self._fail)

    def _wait_for_rows_in_flight(self, producer: Any) -> None:
        """Wait until each row is acknowledged or lost, and write the report each second; less if the load
        gives up.
        """
        from kafka.errors import KafkaTimeoutError

        self._stop.set()
        self.report.state = LoadState.WAITING
        self._note()
        while not self._given_up.is_set():
            try:
                producer.flush(timeout=_REPORT_SECONDS)
            except KafkaTimeoutError:
                self._note()
            else:
                return
        problem = f"{self.in_flight} rows were given up that the broker had not acknowledged"
        self._fail(RuntimeError(problem))

    def _wait(self, due: float, end: float) -> bool:
        """Wait until the row is due, and write the report each second; False if the load ends before."""
        while not self._stop.is_set():
            now = self._clock.monotonic()
            if now - self._noted >= _REPORT_SECONDS:
                self._noted = now
                self._note()
            if now >= end:
                return False
            if now >= due:
                return True
            until_due = max(due - now, _TICK_SECONDS)
            until_note = self._noted + _REPORT_SECONDS - now
            self._stop.wait(min(until_due, until_note, end - now))
        return False

    def _note(self) -> None:
        with self._lock:
            self.report.write(self._path)
            if self._progress is not None:
                self._progress(self.report)

    def _acknowledge(self, record: Record, first: int, metadata: Any) -> None:
        with self._lock:
            self.report.acknowledge(record, first + metadata.partition, metadata.offset)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if not self.report.error:
                self.report.error = f"{type(error).__name__}: {error}"
        self._stop.set()


def _found(generator: str | Generator) -> Generator:
    if isinstance(generator, Generator):
        return generator
    if generator not in GENERATORS:
        problem = f"Nothing generates rows for the topic {generator!r}"
        known = ", ".join(GENERATORS)
        cure = f"There are generators for: {known}. `hindcast load --file` sends the lines of a file."
        raise BadInputError(problem=problem, cure=cure)
    return GENERATORS[generator]


def _remembered_hash() -> Callable[[bytes], int]:
    """Kafka's own partitioner, once for each key: hashing in Python is a good part of the cost of a row."""
    from kafka.partitioner.default import murmur2

    @lru_cache(_KEYS_KEPT)
    def positive_hash(key: bytes) -> int:
        return int(murmur2(key)) & 0x7FFFFFFF

    return positive_hash


@contextmanager
def stopped_by_signals(load: Load) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the load well: it waits for the rows in flight and writes the report. The second
    one gives those rows up.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        load.stop()

    kept = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        kept[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def main(arguments: list[str] | None = None) -> int:
    """``python -m hindcast_sandbox.load``: the service that ``hindcast up`` starts."""
    parser = argparse.ArgumentParser(
        prog="hindcast load", description="Send records to a topic and count what arrived."
    )
    parser.add_argument("--topic", default="trades")
    parser.add_argument("--generator", choices=sorted(GENERATORS))
    parser.add_argument("--rows-per-second", type=float, default=DEFAULT_ROWS_PER_SECOND)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--seconds", type=float)
    given = parser.parse_args(arguments)
    settings = Settings()
    try:
        load = Load(
            settings.bootstrap_servers,
            given.topic,
            report_path(settings, given.topic),
            generator=given.generator,
            seed=given.seed,
            rows_per_second=given.rows_per_second,
            rows=given.rows,
            seconds=given.seconds,
            security=security_options(settings),
        )
        with stopped_by_signals(load):
            report = load.run()
    except HindcastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    _log.info("The load has ended.", sent=report.sent, late=report.late, poison=report.poison_total)
    return 0


if __name__ == "__main__":
    sys.exit(main())
