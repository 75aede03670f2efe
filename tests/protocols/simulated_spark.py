"""What the protocols use of Spark, in plain Python: plans that are written before a batch, state that is kept
by batch, and a query's thread. It counts records by window and partition, under Spark's rule of late rows, and
raises on some records unless they are left out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from protocols.scheduler import Scheduler
from protocols.topic import DELAY_MS, Topic, event_ms, places, raises, window_end

from hindcast.delta.files import DataFile
from hindcast.errors import CheckpointDamagedError
from hindcast.partitions import Offsets
from hindcast.recovery.checkpoint import PlannedBatch
from hindcast.tables.excluded_records import Excluded

#: Records that a batch takes of one partition at most.
MOST_RECORDS = 6

#: A partition, the end of a window, and how many records it has.
Row = tuple[int, int, int]


class RaisedError(Exception):
    """What the pipeline's function raises on some records."""


@dataclass(frozen=True)
class State:
    """After a batch: records by (partition, end of a window) of the open windows, and the newest event time."""

    counts: Mapping[tuple[int, int], int] = field(default_factory=dict)
    newest_ms: int = 0


@dataclass
class Folder:
    """A checkpoint on disk: plans by batch, and the states of the batches that have ended."""

    plans: dict[int, PlannedBatch] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)


@dataclass
class SimulatedSpark:
    """All that is on disks of Spark's: checkpoints by address, and the rows of data files by name."""

    scheduler: Scheduler
    topic: Topic
    rng: random.Random
    folders: dict[str, Folder] = field(default_factory=dict)
    files: dict[str, list[Row]] = field(default_factory=dict)

    def folder(self, url: str) -> Folder:
        return self.folders.setdefault(url, Folder())

    def write_files(
        self, frame: BatchFrame, url: str, _options: dict[str, str], prefix: str
    ) -> Sequence[DataFile]:
        """Run the frame, and write its rows as a file that no commit names yet."""
        self.scheduler.pause("data files")
        rows = frame.run()
        if not rows:
            return []
        path = f"{prefix}-{len(self.files)}.parquet"
        self.files[path] = rows
        Path(url, path).write_bytes(b"x")
        return [DataFile(path, 1, len(rows), json.dumps({"numRecords": len(rows)}))]

    def copy_before(self, root: str, name: str, batch: int, to: str) -> None:
        """Stand in for :func:`hindcast.recovery.copied_checkpoint.copy_before`."""
        self.scheduler.pause("a copy of a checkpoint")
        known = self.folders.get(f"{root}/{name}")
        if known is None:
            return
        states = {number: state for number, state in known.states.items() if number < batch}
        self.folders[f"{root}/{to}"] = Folder(dict(known.plans), states)

    def run(self, frame: BatchFrame) -> None:
        """Run the frame for the state alone."""
        self.scheduler.pause("state")
        frame.run()


@dataclass
class BatchFrame:
    """The frame that a batch is given."""

    before: State
    start: Offsets
    plan: PlannedBatch
    late_ms: int
    floors: Offsets
    excluded: Excluded
    state: State = field(default_factory=State)

    def run(self) -> list[Row]:
        """Count the records that are on time, and return the windows that are final now.

        :raises RaisedError: if the function raises on one that is not left out
        """
        counts = dict(self.before.counts)
        newest_ms = self.before.newest_ms
        for partition, offset in self._taken():
            if raises(partition, offset):
                raise RaisedError(f"on offset {offset} of partition {partition}")
            newest_ms = max(newest_ms, event_ms(partition, offset))
            end = window_end(partition, offset)
            if end > max(self.late_ms, self.floors.get(partition, 0)):
                counts[partition, end] = counts.get((partition, end), 0) + 1
        final = {key: count for key, count in counts.items() if key[1] <= self.plan.watermark_ms}
        for key in final:
            del counts[key]
        self.state = State(counts, newest_ms)
        return [(partition, end, count) for (partition, end), count in sorted(final.items())]

    def _taken(self) -> list[tuple[int, int]]:
        """The records that the function gets."""
        found = []
        for partition, offset in places(self.start, self.plan.end_offsets):
            if offset not in self.excluded.get(partition, {}):
                found.append((partition, offset))
        return found

    def measured(self) -> dict[str, Any]:
        """What Spark observes of the records."""
        times = [event_ms(*place) for place in self._taken()]
        rows = sum(1 for _ in places(self.start, self.plan.end_offsets))
        return {
            "rows": rows,
            "poison": rows - len(times),
            "min_event_ms": min(times, default=None),
            "max_event_ms": max(times, default=None),
        }


class Progress(dict[str, Any]):
    """What a query reports of its last batch."""

    sources: Sequence[Any] = ()
    stateOperators: Sequence[Any] = ()  # noqa: N815 - Spark's name


class StandInCheckpoint:
    """:class:`hindcast.recovery.checkpoint.SparkCheckpoint` over a :class:`Folder`."""

    def __init__(self, spark: SimulatedSpark, url: str, *, pipeline: Any, shard: str) -> None:
        self.url = url
        self._spark = spark
        self._pipeline = pipeline
        self._shard = shard

    @property
    def _folder(self) -> Folder:
        return self._spark.folder(self.url)

    def planned(self, spark_batch: int) -> PlannedBatch:
        plan = self._folder.plans.get(spark_batch)
        if plan is None:
            raise self._damaged(f"there is no plan of batch {spark_batch}")
        return plan

    def check(self, last_batch: int | None) -> None:
        """Spark can resume where the sink ends."""
        newest_plan = max(self._folder.plans, default=-1)
        newest_commit = max(self._folder.states, default=-1)
        if last_batch is None:
            if newest_commit >= 0:
                raise self._damaged("it has committed a batch of which the sink knows nothing")
            if newest_plan < 0:
                self.remove()
            return
        if newest_plan < last_batch:
            raise self._damaged(f"its newest plan is of batch {newest_plan}")
        if newest_commit < last_batch - 1:
            raise self._damaged(f"it has committed up to batch {newest_commit}")

    def begin(self, _spark: SimulatedSpark, end_offsets: Offsets) -> None:
        self.remove()
        self._spark.scheduler.pause("a checkpoint that rebuilds")
        self._folder.plans[0] = PlannedBatch(dict(end_offsets), 0)

    def remove(self) -> None:
        self._spark.scheduler.pause("the removal of a checkpoint")
        self._spark.folders.pop(self.url, None)

    def _damaged(self, problem: str) -> CheckpointDamagedError:
        return CheckpointDamagedError(
            pipeline=self._pipeline.name, shard=self._shard, path=self.url, problem=problem, cure="rebuild"
        )


class StandInFrame:
    """:class:`hindcast.stream.query_frame.QueryFrame`, and the writer of the stream that comes from it."""

    def __init__(self, spark: SimulatedSpark, _settings: Any, _pipeline: Any) -> None:
        self._spark = spark
        self._start: Offsets = {}
        self._floors: Offsets = {}
        self._excluded: Excluded = {}
        self._batch: Callable[[Any, int], None] = lambda _frame, _batch: None
        self._url = ""

    def at(self, start: Offsets, floors: Offsets, excluded: Excluded) -> Self:
        self._start = start
        self._floors = floors
        self._excluded = excluded
        return self

    @property
    def writeStream(self) -> Self:  # noqa: N802 - Spark's name
        return self

    def queryName(self, _name: str) -> Self:  # noqa: N802
        return self

    def foreachBatch(self, batch: Callable[[Any, int], None]) -> Self:  # noqa: N802
        self._batch = batch
        return self

    def outputMode(self, _mode: str) -> Self:  # noqa: N802
        return self

    def option(self, _name: str, url: str) -> Self:
        self._url = url
        return self

    def trigger(self, **_options: str) -> Self:
        return self

    def start(self) -> Query:
        return Query(self._spark, self._url, self._start, self._floors, self._excluded, self._batch)


class Query:
    """A streaming query, in a thread of the process that starts it."""

    def __init__(
        self,
        spark: SimulatedSpark,
        url: str,
        start: Offsets,
        floors: Offsets,
        excluded: Excluded,
        batch: Callable[[Any, int], None],
    ) -> None:
        self._spark = spark
        self._url = url
        self._start = start
        self._floors = floors
        self._excluded = excluded
        self._batch = batch
        self._stopping = False
        self._in_batch = False
        self._error: Exception | None = None
        self.lastProgress: Progress | None = None
        current = spark.scheduler.current
        assert current is not None
        self._thread = spark.scheduler.thread(current.process, self._run)

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return not self._thread.ended

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": self._in_batch}

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        """Wait until the batch in hand has returned, and begin no other."""
        self._stopping = True
        while self.isActive:
            self._spark.scheduler.pause("a query's stop")

    def _run(self) -> None:
        try:
            self._run_batches()
        except Exception as error:  # noqa: BLE001 - as Spark does
            self._error = error

    def _run_batches(self) -> None:
        pause = self._spark.scheduler.pause
        number = max(self._spark.folder(self._url).states, default=-1) + 1
        while not self._stopping:
            plan = self._planned(number)
            if plan is None:
                pause("a query without new records")
                continue
            self._in_batch = True
            frame = self._frame(number, plan)
            self._batch(frame, number)
            pause("commits/N")
            folder = self._spark.folder(self._url)
            if folder.plans.get(number) != plan:
                raise RuntimeError("another query has planned this batch")
            folder.states[number] = frame.state
            self._in_batch = False
            metrics = {"source0": frame.measured()}
            self.lastProgress = Progress(batchId=number, observedMetrics=metrics, durationMs={})
            number += 1
            pause("between two batches")

    def _planned(self, number: int) -> PlannedBatch | None:
        """The plan of a batch: the one that is written, or a new one; None if there is nothing to do."""
        known = self._spark.folder(self._url).plans.get(number)
        if known is not None:
            return known
        plan = self._new_plan(number)
        if plan is None:
            return None
        self._spark.scheduler.pause("offsets/N")
        # Spark writes a plan only if there is none of that number.
        plans = self._spark.folder(self._url).plans
        if plans.setdefault(number, plan) != plan:
            raise RuntimeError("another query has planned this batch")
        return plan

    def _new_plan(self, number: int) -> PlannedBatch | None:
        before = self._spark.folder(self._url).plans.get(number - 1)
        watermark_ms = 0
        start = self._start
        if before is not None:
            start = before.end_offsets
            newest_ms = self._state_before(number).newest_ms
            watermark_ms = max(before.watermark_ms, newest_ms - DELAY_MS)
        ends = {}
        for partition, offset in start.items():
            most = offset + self._spark.rng.randint(0, MOST_RECORDS)
            ends[partition] = max(offset, min(most, self._spark.topic.ends[partition]))
        moved = before is not None and watermark_ms > before.watermark_ms
        if ends == start and not moved:
            return None
        return PlannedBatch(ends, watermark_ms)

    def _state_before(self, number: int) -> State:
        if number == 0:
            return State()
        return self._spark.folder(self._url).states[number - 1]

    def _frame(self, number: int, plan: PlannedBatch) -> BatchFrame:
        before = self._spark.folder(self._url).plans.get(number - 1)
        start = self._start
        late_ms = 0
        if before is not None:
            start = before.end_offsets
            late_ms = before.watermark_ms
        return BatchFrame(self._state_before(number), start, plan, late_ms, self._floors, self._excluded)


def signature_of(_spark: Any, _pipeline: Any) -> SimpleNamespace:
    """The query's schema and fingerprint."""
    import pyarrow as pa

    schema = pa.schema([("partition", pa.int64()), ("window_end", pa.int64()), ("records", pa.int64())])
    return SimpleNamespace(schema=schema, fingerprint="the query")
