"""For tests. Of pipelines: :func:`run_pipeline` tries one over a few records. Of Hindcast itself: twins of
its ports, which are a clock moved by hand, and a lease store in memory that fails on cue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hindcast.errors import CommitConflictError, CommitUnknownError, StoreUnavailableError
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.leases.store import Snapshot, after

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hindcast.pipeline import Pipeline
    from hindcast.stream.trial import Trial


#: A record's value: its bytes, None for a record without one, or columns that are sent as a JSON object.
Value = bytes | Mapping[str, Any] | None


@dataclass(frozen=True)
class Record:
    """A record of a trial, with what stands beside its value."""

    value: Value
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


def run_pipeline(spark: SparkSession, pipeline: Pipeline, batches: Any, **options: Any) -> Trial:
    """Run a pipeline's query as a stream and as a batch, see :func:`hindcast.stream.trial.run_pipeline`."""
    from hindcast.stream.trial import run_pipeline as run  # with Spark, which the twins do not need

    return run(spark, pipeline, batches, **options)


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self, *, started_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._seconds = 0.0
        self._started_at = started_at
        self.wall_offset = timedelta(0)

    def monotonic(self) -> float:
        return self._seconds

    def now(self) -> datetime:
        return self._started_at + timedelta(seconds=self._seconds) + self.wall_offset

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._seconds += seconds


class Outcome(StrEnum):
    """What a commit answers. Only OK and UNKNOWN_WRITTEN write it."""

    OK = "ok"
    CONFLICT = "conflict"
    FAIL = "fail"
    UNKNOWN_WRITTEN = "unknown, written"
    UNKNOWN_LOST = "unknown, not written"


_REASON = "the test said so"


class MemoryStore:
    """A lease store in memory, safe for threads. ``outcome`` is called before each commit and may raise."""

    def __init__(self, outcome: Callable[[], Outcome] = lambda: Outcome.OK) -> None:
        self.outcome = outcome
        self.commits = 0
        self._leases: dict[LeaseKey, Lease] = {}
        self._lock = threading.Lock()

    def read(self) -> Snapshot:
        with self._lock:
            return Snapshot(dict(self._leases), token=self.commits)

    def commit(self, snapshot: Snapshot, changes: Iterable[Lease]) -> None:
        outcome = self.outcome()
        with self._lock:
            if outcome is Outcome.FAIL:
                raise StoreUnavailableError(table="memory", action="written", reason=_REASON)
            if outcome is Outcome.UNKNOWN_LOST:
                raise CommitUnknownError(table="memory", reason=_REASON)
            if snapshot.token != self.commits or outcome is Outcome.CONFLICT:
                raise CommitConflictError(table="memory")
            self._leases = after(self._leases, changes)
            self.commits += 1
            if outcome is Outcome.UNKNOWN_WRITTEN:
                raise CommitUnknownError(table="memory", reason=_REASON)
