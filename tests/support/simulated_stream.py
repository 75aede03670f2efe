"""A stream in plain Python: the oracle against which replays are judged.

It follows the rule of the late row and nothing else: a row is late for a window iff the window's end is at or
before the watermark of the batch before. It knows no Spark, no Kafka and no planner.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hindcast.tables.ledger import LedgerRow

#: Midnight UTC of yesterday: a real broker deletes what is older than its retention.
BASE_MS = int(time.time() // 86_400 - 1) * 86_400_000

Key = tuple[int, str]  # window end in epoch milliseconds, ticker
Answer = tuple[float, int, float]  # least ask, count, average ask


@dataclass(frozen=True)
class Record:
    """One record of the topic; ``event_ms`` None makes it poison, and ``poison`` is then what is sent."""

    partition: int
    offset: int
    ticker: str
    event_ms: int | None
    ask: float = 1.0
    broker_ms: int = BASE_MS
    poison: bytes | None = b"{bad"

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset


@dataclass(frozen=True)
class Clockwork:
    """Window length and slide and watermark delay, in milliseconds."""

    length_ms: int = 5_000
    step_ms: int = 1_000
    delay_ms: int = 10_000

    def window_ends(self, event_ms: int) -> list[int]:
        """The ends of every window [end - length, end) that holds the moment."""
        first = (event_ms - self.length_ms) // self.step_ms + 1
        return [start * self.step_ms + self.length_ms for start in range(first, event_ms // self.step_ms + 1)]


@dataclass
class Simulated:
    """What a stream has done: its ledger, its table, and what it set aside."""

    clockwork: Clockwork
    records: list[Record]
    ledger: list[LedgerRow] = field(default_factory=list)
    emitted: dict[int, dict[Key, Answer]] = field(default_factory=dict)  # by sink version
    late: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  # place -> number of windows it was late for
    poison: set[tuple[int, int]] = field(default_factory=set)
    thresholds: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  # place -> late watermark of the batch that read it

    @property
    def table(self) -> dict[Key, Answer]:
        return {key: answer for answers in self.emitted.values() for key, answer in answers.items()}

    def read_in(self, row: LedgerRow) -> list[Record]:
        """The records of one batch."""
        return [
            record
            for record in self.records
            if row.start_offsets.get(record.partition, 0)
            <= record.offset
            < row.end_offsets.get(record.partition, 0)
        ]

    def answers(
        self, records: Iterable[Record], after_ms: int, to_ms: int, *, online: bool
    ) -> dict[Key, Answer]:
        """The result over the records, of the windows that end in (after, to]; ``online`` leaves out what
        came late.
        """
        asks: dict[Key, list[float]] = defaultdict(list)
        for record in records:
            for end in self.clockwork.window_ends(record.event_ms) if record.event_ms is not None else ():
                if after_ms < end <= to_ms and not (online and end <= self.thresholds[record.place]):
                    asks[end, record.ticker].append(record.ask)
        return {key: answer(found) for key, found in asks.items()}


def answer(asks: Sequence[float]) -> Answer:
    return min(asks), len(asks), sum(asks) / len(asks)


def trades(
    seed: int,
    *,
    count: int,
    partitions: int,
    late_share: float = 0.05,
    poison_share: float = 0.01,
    rate_ms: float = 20.0,
) -> list[Record]:
    """Records of ten tickers, each ticker in one partition; asks are sixty-fourths, so that their sums are
    exact.
    """
    rng = random.Random(seed)
    offsets = [0] * partitions
    made = []
    for number in range(count):
        ticker = rng.randrange(10)
        partition = ticker % partitions
        event_ms: int | None = BASE_MS + int(number * rate_ms) - rng.randrange(2_000)
        if rng.random() < late_share and event_ms is not None:
            event_ms -= rng.randrange(60_000)
        if rng.random() < poison_share:
            event_ms = None
        made.append(
            Record(
                partition,
                offsets[partition],
                f"T{ticker}",
                event_ms,
                rng.randrange(64, 6_400) / 64,
                BASE_MS + int(number * rate_ms),
            )
        )
        offsets[partition] += 1
    return made


def simulate(
    records: list[Record],
    *,
    even: bool = False,
    seed: int,
    shards: int,
    clockwork: Clockwork | None = None,
    batch_rows: int = 40,
    pipeline: str = "stock_stats",
) -> Simulated:
    """Run the stream over the records: each shard reads its partitions in batches of random sizes, some of
    them empty.

    ``even`` reads in the order of arrival, as a stream that keeps up does; else one partition may run ahead
    of another, which makes many rows late.
    """
    rng = random.Random(seed)
    stream = Simulated(clockwork or Clockwork(), records)
    runs = [_Shard(stream, pipeline, index, shards) for index in range(shards)]
    while waiting := [run for run in runs if run.left()]:
        _step(rng.choice(waiting), rng, batch_rows, even=even)
    for run in runs:  # Spark runs one more batch, without data, once the watermark has moved
        run.read({}, ending=True)
    return stream


def _step(run: _Shard, rng: random.Random, batch_rows: int, *, even: bool) -> None:
    if not even:
        run.read({p: rng.randint(0, batch_rows) if rng.random() > 0.1 else 0 for p in run.partitions})
        return
    begin = sum(run.position.values())
    arrived = run.arrivals[begin : begin + rng.randint(0, 2 * batch_rows)]
    run.read({p: arrived.count(p) for p in run.partitions})


class _Shard:
    def __init__(self, stream: Simulated, pipeline: str, index: int, shards: int) -> None:
        self.stream, self.pipeline, self.index = stream, pipeline, index
        queues: dict[int, list[Record]] = defaultdict(list)
        for record in stream.records:
            queues[record.partition].append(record)
        self.partitions = sorted(partition for partition in queues if partition % shards == index)
        self.arrivals = [record.partition for record in stream.records if record.partition in self.partitions]
        self.queues = {partition: queues[partition] for partition in self.partitions}
        self.position = dict.fromkeys(self.partitions, 0)
        self.batch, self.watermark_ms, self.newest_ms = 0, 0, 0
        self.state: dict[Key, list[float]] = defaultdict(list)

    def left(self) -> bool:
        return any(self.position[partition] < len(self.queues[partition]) for partition in self.partitions)

    def read(self, wanted: dict[int, int], *, ending: bool = False) -> None:
        start = dict(self.position)
        rows = []
        for partition, count in wanted.items():
            rows += self.queues[partition][start[partition] : start[partition] + count]
            self.position[partition] = min(start[partition] + count, len(self.queues[partition]))
        late_ms, self.watermark_ms = (
            self.watermark_ms,
            max(self.watermark_ms, self.newest_ms - self.stream.clockwork.delay_ms),
        )
        self._take(rows, late_ms)
        self._commit(rows, start, late_ms)

    def _take(self, rows: list[Record], late_ms: int) -> None:
        for record in rows:
            self.stream.thresholds[record.place] = late_ms
            if record.event_ms is None:
                self.stream.poison.add(record.place)
                continue
            self.newest_ms = max(self.newest_ms, record.event_ms)
            for end in self.stream.clockwork.window_ends(record.event_ms):
                if end <= late_ms:
                    self.stream.late[record.place] = self.stream.late.get(record.place, 0) + 1
                else:
                    self.state[end, record.ticker].append(record.ask)

    def _commit(self, rows: list[Record], start: dict[int, int], late_ms: int) -> None:
        done = {key: answer(asks) for key, asks in self.state.items() if key[0] <= self.watermark_ms}
        for key in done:
            del self.state[key]
        version = len(self.stream.ledger) + 1
        self.stream.emitted[version] = done
        events = [record.event_ms for record in rows if record.event_ms is not None]
        at = datetime.fromtimestamp(
            max([record.broker_ms for record in rows], default=BASE_MS) / 1000, UTC
        ) + timedelta(seconds=2)
        self.stream.ledger.append(
            LedgerRow(
                pipeline=self.pipeline,
                version=1,
                shard=f"v1.g0.s{self.index}",
                epoch=1,
                batch=self.batch,
                worker="w",
                topic="trades",
                start_offsets=start,
                end_offsets=dict(self.position),
                late_watermark_ms=late_ms,
                watermark_ms=self.watermark_ms,
                min_event_ms=min(events, default=None),
                max_event_ms=max(events, default=None),
                input_rows=len(rows),
                poison_rows=len(rows) - len(events),
                output_rows=len(done),
                batch_seconds=0.5,
                cpu_seconds=0.25,
                sink_version=version,
                started_at=at - timedelta(seconds=1),
                committed_at=at,
            )
        )
        self.batch += 1
