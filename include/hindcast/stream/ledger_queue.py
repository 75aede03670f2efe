"""The ledger rows of one shard that wait: to be written, or for their late and poison rows to be filed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from hindcast.pipeline import Pipeline
from hindcast.spark import batch_metrics
from hindcast.tables.ledger import Ledger, LedgerRow


class LedgerQueue:
    """Writes committed batches into the ledger, and remembers them until the audit has filed their rows.

    Safe for threads: the audit may stop a shard while the main thread flushes all shards, and Spark's thread
    adds rows.
    """

    def __init__(self, ledger: Ledger, pipeline: Pipeline, shard: str) -> None:
        self._ledger = ledger
        self._pipeline = pipeline
        self._shard = shard
        # Committed, not yet in the ledger; the last may still lack what Spark measured.
        self._rows: list[LedgerRow] = []
        self._reported = 0  # the newest batch of which Spark has said something
        self._history: list[LedgerRow] = []  # each batch in the ledger after this one:
        self._history_after = 0
        self._lock = threading.Lock()
        self._flushing = threading.Lock()

    def begin(self, history: list[LedgerRow]) -> None:
        """The shard was taken over, and the newest of its batches in the ledger are these."""
        self._history = history
        if history:
            self._history_after = history[0].batch - 1

    def add(self, row: LedgerRow) -> None:
        """A batch was committed."""
        with self._lock:
            self._rows.append(row)

    def complete_last(self, query: StreamingQuery | None, base: int) -> None:
        """Add what Spark measured of the last batch. Spark reports it after the batch, before the next one.

        :param base: what to add to Spark's number of a batch to get the shard's
        """
        if query is None:
            return
        progress = query.lastProgress
        with self._lock:
            if progress is None or not self._rows or self._rows[-1].input_rows is not None:
                return
            last = self._rows[-1]
            self._reported = progress["batchId"] + base
            if self._reported > last.batch:
                progress = _report_of(query, last.batch - base)
            elif self._reported < last.batch:
                return
            if progress is not None:
                self._rows[-1] = batch_metrics.completed(last, progress, len(self._pipeline.topics))

    def flush(self, query: StreamingQuery | None, base: int) -> None:
        """Write the queued rows. The newest waits for Spark's measurements while its query runs.

        :raises StoreUnavailableError: the rows stay queued
        """
        with self._flushing:
            self.complete_last(query, base)
            ready = self._ready(query)
            if not ready:
                return
            self._ledger.append(ready)
            self._history += ready
            with self._lock:
                del self._rows[: len(ready)]

    def _ready(self, query: StreamingQuery | None) -> Sequence[LedgerRow]:
        """The rows that can be written: the first ones that are queued, or all."""
        with self._lock:
            if query is None or not query.isActive or not self._rows:
                return list(self._rows)
            newest = self._rows[-1]
            if newest.input_rows is None and self._reported <= newest.batch:
                return self._rows[:-1]  # what Spark measured may still come
            return list(self._rows)

    def unfiled(self, filed: int) -> list[LedgerRow]:
        """The shard's batches in the ledger after one whose late and poison rows are filed.

        The rows of the batches before that one are filed, too, so the queue forgets them.

        :raises StoreUnavailableError: if earlier owners' batches could not be read
        """
        with self._flushing:
            if filed < self._history_after:
                name, version = self._pipeline.name, self._pipeline.version
                self._history = self._ledger.batches(name, version, self._shard, after=filed)
            else:
                self._history = [row for row in self._history if row.batch > filed]
            self._history_after = filed
            return list(self._history)


def _report_of(query: StreamingQuery, spark_batch: int) -> StreamingQueryProgress | None:
    """What Spark reported of a batch that is not its last report; None if that is forgotten.

    A query that reads nothing reports each ten seconds, under the number of the batch to come.
    """
    for progress in reversed(query.recentProgress):
        if progress["batchId"] == spark_batch:
            return progress
    return None
