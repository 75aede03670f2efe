"""The query of one shard, from its first batch until the shard is given up.

How a shard is taken over is in :mod:`hindcast.stream.shard_takeover`, and how its batches are committed in
:mod:`hindcast.stream.batch_commits`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import structlog
from pyspark.sql.streaming import StreamingQuery

from hindcast.errors import StoreUnavailableError
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets
from hindcast.recovery.rebuild_from_batches import RebuildFromBatches
from hindcast.stream.batch_commits import BatchCommits
from hindcast.stream.shard_progress import ShardProgress
from hindcast.tables.ledger import LedgerRow

_log = structlog.get_logger(__name__)


class Phase(StrEnum):
    """What a shard that was taken over does."""

    SEALED = "sealed"  # it is only to be ended, and has no query
    REBUILDING = "rebuilding"  # batches run from files into its state; its query waits for them
    CONSUMING = "consuming"  # its query was started


@dataclass(frozen=True)
class RunningQuery:
    """A query that was started, and what commits its batches."""

    query: StreamingQuery
    commits: BatchCommits


class ShardRunner:
    """One shard whose sink is sealed. The query runs in Spark's threads."""

    def __init__(
        self,
        progress: ShardProgress,
        *,
        begin: Callable[[], RunningQuery] | None = None,
        draining: threading.Event | None = None,
        rebuild: RebuildFromBatches | None = None,
        rebuilt: str = "",
    ) -> None:
        """:param begin: starts the query; None if the shard is only to be ended
        :param draining: once it is set, the query begins no batch
        :param rebuild: batches from files that must have run before the query begins
        :param rebuilt: why the shard's state was rebuilt; empty if it was not
        """
        self.rebuilt = rebuilt
        self._progress = progress
        self._begin = begin
        self._rebuild = rebuild
        self._running: RunningQuery | None = None
        self._refusal: Exception | None = None  # why its query could not begin
        self._draining = draining or threading.Event()

    @property
    def lease(self) -> Lease:
        return self._progress.lease

    @property
    def phase(self) -> Phase:
        if self._begin is None:
            return Phase.SEALED
        return Phase.REBUILDING if self._running is None else Phase.CONSUMING

    def begin(self) -> None:
        """Start the query; see :meth:`hindcast.stream.shard_takeover.ShardTakeover.start`."""
        if self._begin is not None:
            self._running = self._begin()

    def go_on(self) -> None:
        """Start the query of a shard whose state is rebuilt from files, once the state is there.

        An error becomes a :attr:`failure`.
        """
        if self._rebuild is None or self._running is not None:
            return
        if not self._rebuild.ended or self.failure or self._draining.is_set():
            return
        try:
            self.begin()
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            self._refusal = error

    def drain(self) -> None:
        """Let the batch in hand end and begin no other."""
        self._draining.set()

    @property
    def drained(self) -> bool:
        """Whether no batch is in hand any more after :meth:`drain`; then :meth:`stop` interrupts nothing."""
        if self._running is None:
            return self._rebuild is None or not self._rebuild.in_hand
        if not self._running.query.isActive:
            return True
        return self._draining.is_set() and not self._running.query.status["isTriggerActive"]

    def interrupt(self) -> None:
        """Stop the query at once. The shard's next owner runs the batch in hand again."""
        if self._rebuild is not None:
            self._rebuild.stop()
        if self._running is not None:
            self._running.query.stop()

    def stop(self) -> None:
        """Stop the query at once, and write the last ledger rows."""
        self.interrupt()
        if self._running is not None:
            self._running.commits.close()
        try:
            self.flush()
        except StoreUnavailableError as error:
            message = "The last ledger rows could not be written; the next owner repairs them."
            _log.warning(message, shard=str(self.lease.key), reason=str(error))

    @property
    def failure(self) -> BaseException | None:
        """Why the query ended, if nobody asked it to end."""
        if self._refusal is not None:
            return self._refusal
        if self._running is None:
            return self._rebuild_failure
        if self._running.commits.refusal is not None:
            return self._running.commits.refusal
        if self._running.query.isActive or self._draining.is_set():
            return None
        return self._running.query.exception() or RuntimeError("the query ended by itself")

    @property
    def _rebuild_failure(self) -> BaseException | None:
        if self._rebuild is None or not self._rebuild.ended or self._draining.is_set():
            return None
        return self._rebuild.failure

    # -- how far it is ---------------------------------------------------------------------------------------

    @property
    def end_offsets(self) -> Offsets:
        """Up to where the sink holds the shard's records."""
        return self._progress.end_offsets

    @property
    def floors(self) -> Offsets:
        """By partition, in epoch milliseconds: the query leaves out windows that end at or before it."""
        return self._progress.position.incarnation.floors

    @property
    def watermark_ms(self) -> int:
        """Of the last batch that the sink holds, in epoch milliseconds."""
        return self._progress.position.watermark_ms

    @property
    def batch(self) -> int:
        """The last batch that the sink holds; 0 before the first."""
        return self._progress.batch

    @property
    def progressed(self) -> bool:
        """Whether this owner has committed a batch."""
        return self._progress.progressed

    def planned_next(self) -> tuple[Offsets, Offsets] | None:
        """From where to where the batch after the sink's last one reads; None if it is not planned yet."""
        if self._running is not None:
            return self._running.commits.planned_next()
        if self._rebuild is not None:
            return self._rebuild.planned_next()
        return None

    def flush(self) -> None:
        """Write the queued ledger rows. The newest waits for Spark's measurements while its query runs.

        :raises StoreUnavailableError: the rows stay queued
        """
        self._progress.flush()

    def unfiled(self, filed: int) -> list[LedgerRow]:
        """The shard's batches in the ledger after one whose late and poison rows are filed.

        :raises StoreUnavailableError: if earlier owners' batches could not be read
        """
        return self._progress.unfiled(filed)
