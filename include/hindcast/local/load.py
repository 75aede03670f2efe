"""The load generator: sends a generator's records to its topics at a steady pace and keeps exact accounts of what arrived.

The account is a JSON file, replaced as a whole each second and at the end. It counts a record only once the broker has
acknowledged it; a record that could not be sent ends the load, loudly, with the state ``failed``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import structlog

from hindcast.clock import Clock, SystemClock
from hindcast.errors import BadInputError, BrokerUnavailableError, HindcastError, ServiceError
from hindcast.local.detach import write_atomically
from hindcast.local.generators import GENERATORS
from hindcast.local.generators.record import Record
from hindcast.pipeline import TOPIC_STRIDE, check_topic
from hindcast.settings import Settings

DEFAULT_ROWS_PER_SECOND = 2000.0
DEFAULT_PARTITIONS = 4
_ACCOUNT_SECONDS = 1.0
_LINGER_MS = 20  # gathers about 40 rows a request at the default pace, and costs a row 20 ms at most
_TICK_SECONDS = (
    0.01  # rows due within it are sent together: waking for each row would cost more than sending it
)
_BOOTSTRAP_MS = 10_000  # a healthy broker answers in milliseconds
_DELIVERY_MS = 600_000  # a broker that is away for ten minutes loses no row
_KEYS_KEPT = 100_000  # whose hash is remembered: some generators never stop making new keys

_log = structlog.get_logger(__name__)


class LoadState(StrEnum):
    SENDING = "sending"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass
class PartitionAccount:
    """What one partition acknowledged. ``end_offset`` is exclusive; in a topic with one writer, end - first = sent."""

    sent: int = 0
    first_offset: int | None = None
    end_offset: int | None = None


@dataclass
class Account:
    """What was sent and acknowledged. ``late`` rows had their event time set back; ``poison`` counts by what was wrong.

    ``topic`` is the generator's main one. Its topics share the counts, and the numbers of their partitions are those of
    :data:`hindcast.pipeline.TOPIC_STRIDE`.
    """

    topic: str
    seed: int
    rows_per_second: float
    state: LoadState = LoadState.SENDING
    sent: int = 0
    late: int = 0
    poison: dict[str, int] = field(default_factory=dict)
    partitions: dict[int, PartitionAccount] = field(default_factory=dict)
    started_at: str = ""
    updated_at: str = ""
    error: str = ""

    @property
    def poison_total(self) -> int:
        return sum(self.poison.values())

    @property
    def start_offsets(self) -> dict[int, int]:
        """The first offset of each partition that got a row."""
        return {
            number: part.first_offset
            for number, part in sorted(self.partitions.items())
            if part.first_offset is not None
        }

    @property
    def end_offsets(self) -> dict[int, int]:
        """One past the last offset of each partition that got a row."""
        return {
            number: part.end_offset
            for number, part in sorted(self.partitions.items())
            if part.end_offset is not None
        }

    def acknowledge(self, record: Record, partition: int, offset: int) -> None:
        """Count the record; ``partition`` is numbered across the topics."""
        part = self.partitions.setdefault(partition, PartitionAccount())
        part.sent += 1
        part.first_offset = offset if part.first_offset is None else min(part.first_offset, offset)
        part.end_offset = offset + 1 if part.end_offset is None else max(part.end_offset, offset + 1)
        self.sent += 1
        self.late += record.late
        if record.poison:
            self.poison[record.poison] = self.poison.get(record.poison, 0) + 1

    def write(self, path: Path) -> None:
        self.updated_at = datetime.now(UTC).isoformat()
        write_atomically(path, json.dumps({**asdict(self), "poison_total": self.poison_total}, indent=2))

    @classmethod
    def read(cls, path: Path) -> Account:
        """The account at the path; FileNotFoundError where no load has written one."""
        values: dict[str, Any] = json.loads(path.read_text())
        del values["poison_total"]
        parts = {int(number): PartitionAccount(**part) for number, part in values["partitions"].items()}
        return cls(**{**values, "state": LoadState(values["state"]), "partitions": parts})


def account_path(settings: Settings, topic: str) -> Path:
    """Where the newest load of the topic keeps its account."""
    return settings.home / "load" / f"{check_topic(topic)}.json"


def ensure_topic(bootstrap_servers: str, topic: str, partitions: int = DEFAULT_PARTITIONS) -> None:
    """Create the topic unless it is there, whatever its partitions."""
    from kafka.admin import KafkaAdminClient
    from kafka.errors import TopicAlreadyExistsError

    with KafkaAdminClient(bootstrap_servers=bootstrap_servers, bootstrap_timeout_ms=_BOOTSTRAP_MS) as admin:
        if topic in admin.list_topics():
            return
        try:
            admin.create_topics(
                {topic: {"num_partitions": partitions, "replication_factor": 1}}, wait_for_metadata=True
            )
        except TopicAlreadyExistsError:
            return


class Load:
    """One run of a generator against its topics. :meth:`stop` may be called from a signal handler or another thread."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        account: Path,
        *,
        generator: str | None = None,
        seed: int = 1,
        rows_per_second: float = DEFAULT_ROWS_PER_SECOND,
        rows: int | None = None,
        seconds: float | None = None,
        partitions: int = DEFAULT_PARTITIONS,
        progress: Callable[[Account], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """
        :param topic: where the generator's main topic goes; its other topics keep their names
        :param generator: a key of :data:`GENERATORS`; the topic's own name by default
        :param rows: stop after so many rows
        :param seconds: stop after so long
        :param partitions: of each topic that is not there yet
        :param progress: called each second with the account, which goes on changing
        :raises BadInputError: where there is no such generator, or the pace is not above 0
        """
        check_topic(topic)
        name = generator or topic
        if name not in GENERATORS:
            known = ", ".join(GENERATORS)
            raise BadInputError(
                problem=f"Nothing generates rows for the topic {name!r}",
                cure=f"There are generators for: {known}.",
            )
        if not rows_per_second > 0:
            raise BadInputError(
                problem=f"{rows_per_second} rows a second is not above 0", cure="Give a number like 2000."
            )
        self._generator = GENERATORS[name]
        #: Where each of the generator's topics goes. A record names its main topic with "".
        self.topics = {"": topic, **{other: other for other in self._generator.topics[1:]}}
        self._servers, self._path, self._partitions = bootstrap_servers, account, partitions
        self._rows, self._seconds, self._progress = rows, seconds, progress
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._noted = 0.0
        self.account = Account(topic=topic, seed=seed, rows_per_second=rows_per_second)

    def stop(self) -> None:
        """End after the row in hand, wait for what is in flight, write the account."""
        self._stop.set()

    def run(self) -> Account:
        """Send until stopped; returns the final account.

        :raises BrokerUnavailableError: where no broker answers at the start
        :raises ServiceError: where a row could not be sent; the account then says ``failed`` and counts what did arrive
        """
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        for topic in self.topics.values():
            try:
                ensure_topic(self._servers, topic, self._partitions)
            except (KafkaError, OSError) as error:
                raise BrokerUnavailableError(
                    servers=self._servers, topic=topic, reason=f"{type(error).__name__}: {error}"
                ) from error
        started = self._clock.now()
        self.account.started_at = started.isoformat()
        self.account.write(self._path)
        producer = KafkaProducer(
            bootstrap_servers=self._servers,
            client_id=f"hindcast-load-{os.getpid()}",
            acks="all",
            enable_idempotence=True,
            linger_ms=_LINGER_MS,
            batch_size=64 * 1024,
            delivery_timeout_ms=_DELIVERY_MS,
            metrics_enabled=False,
            allow_auto_create_topics=False,
        )
        given = 0
        try:
            given = self._send_all(producer, started)
            producer.flush()
        except (KafkaError, OSError) as error:
            self._fail(error)
        finally:
            producer.close(timeout=10)
        if not self.account.error and self.account.sent != given:
            self._fail(RuntimeError(f"{given} rows were sent and {self.account.sent} acknowledged"))
        self.account.state = LoadState.FAILED if self.account.error else LoadState.FINISHED
        self.account.write(self._path)
        if self.account.error:
            raise ServiceError(
                service="load", problem=f"lost rows and stopped: {self.account.error}", log=self._path
            )
        return self.account

    def _send_all(self, producer: Any, started: datetime) -> int:
        """Returns how many rows were given to the producer. Row i is sent at the start + i / rate: a delay is made up, never kept."""
        from kafka.partitioner.default import murmur2

        # Kafka's own partitioner, once for each key: hashing in Python is a good part of the cost of a row.
        @lru_cache(_KEYS_KEPT)
        def place(key: bytes) -> int:
            return int(murmur2(key)) & 0x7FFFFFFF

        counts = {name: len(producer.partitions_for(topic)) for name, topic in self.topics.items()}
        first = {name: number * TOPIC_STRIDE for number, name in enumerate(self.topics)}
        began = self._noted = self._clock.monotonic()
        end = began + self._seconds if self._seconds is not None else float("inf")
        given = 0
        for record in self._generator.make(self.account.seed, self.account.rows_per_second, started):
            if given == self._rows or not self._wait(began + record.due_seconds, end):
                break
            partition = place(record.key) % counts[record.topic]
            future = producer.send(
                self.topics[record.topic], value=record.value, key=record.key, partition=partition
            )
            given += 1
            future.add_callback(self._acknowledge, record, first[record.topic])
            future.add_errback(self._fail)
        return given

    def _wait(self, due: float, end: float) -> bool:
        """Until the row is due, noting the account each second; False where the load ends before."""
        while not self._stop.is_set():
            now = self._clock.monotonic()
            if now - self._noted >= _ACCOUNT_SECONDS:
                self._noted = now
                self._note()
            if now >= end:
                return False
            if now >= due:
                return True
            self._stop.wait(
                min(max(due - now, _TICK_SECONDS), self._noted + _ACCOUNT_SECONDS - now, end - now)
            )
        return False

    def _note(self) -> None:
        with self._lock:
            self.account.write(self._path)
            if self._progress is not None:
                self._progress(self.account)

    def _acknowledge(self, record: Record, first: int, metadata: Any) -> None:
        with self._lock:
            self.account.acknowledge(record, first + metadata.partition, metadata.offset)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.account.error = self.account.error or f"{type(error).__name__}: {error}"
        self._stop.set()


@contextmanager
def stopped_by_signals(load: Load) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the load well: what is in flight is awaited, the account is written."""
    kept = {
        number: signal.signal(number, lambda *_: load.stop()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def main(arguments: list[str] | None = None) -> int:
    """``python -m hindcast.local.load``: the service that ``hindcast up`` starts."""
    parser = argparse.ArgumentParser(
        prog="hindcast load", description="Send records to a topic and keep account of them."
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
            account_path(settings, given.topic),
            generator=given.generator,
            seed=given.seed,
            rows_per_second=given.rows_per_second,
            rows=given.rows,
            seconds=given.seconds,
        )
        with stopped_by_signals(load):
            account = load.run()
    except HindcastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    _log.info("The load has ended.", sent=account.sent, late=account.late, poison=account.poison_total)
    return 0


if __name__ == "__main__":
    sys.exit(main())
