"""How far one shard is, and what of that is still to be told to the ledger and to the lease."""

from __future__ import annotations

from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets, as_json_object
from hindcast.pipeline import Pipeline
from hindcast.recovery.takeover import ShardPosition
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.shard_row import ReportedCheckpoint, ReportedDetail
from hindcast.spark import batch_metrics
from hindcast.stream.ledger_queue import LedgerQueue
from hindcast.tables.ledger import Ledger, LedgerRow


class ShardProgress:
    """Where the sink holds a shard's records up to, from the moment its sink was sealed.

    Spark's thread adds the batches; the worker's threads read.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        lease: Lease,
        held: HeldLeases,
        ledger: Ledger,
        position: ShardPosition,
        history: list[LedgerRow],
    ) -> None:
        """:param history: the newest of the shard's batches in the ledger, the last one among them"""
        self.pipeline = pipeline
        self.lease = lease
        self.position = position
        self._held = held
        self._queue = LedgerQueue(ledger, pipeline, lease.status_value)
        self._queue.begin(history)
        self._query: StreamingQuery | None = None  # once it runs
        self._committed = 0
        if position.fence.batch:
            self._report(history[-1].sink_version, ReportedDetail())

    def follow(self, query: StreamingQuery) -> None:
        """The shard's query runs: what Spark measures of a batch comes from it."""
        self._query = query

    @property
    def end_offsets(self) -> Offsets:
        """Up to where the sink holds the shard's records."""
        return self.position.end_offsets

    @property
    def batch(self) -> int:
        """The last batch that the sink holds; 0 before the first."""
        return self.position.fence.batch

    @property
    def progressed(self) -> bool:
        """Whether this owner has committed a batch."""
        return self._committed > 0

    @property
    def lag_records(self) -> int | None:
        """How many records the topic's end was ahead when the last batch was planned; None before it."""
        progress = self._last_progress
        if progress is None:
            return None
        return batch_metrics.lag_records(progress)

    @property
    def state_bytes(self) -> int | None:
        """The memory that the query's state took after the last batch; None if that is not known."""
        progress = self._last_progress
        if progress is None:
            return None
        return batch_metrics.state_bytes(progress)

    @property
    def _last_progress(self) -> StreamingQueryProgress | None:
        """What Spark reports of the query's last batch; None before the first."""
        if self._query is None:
            return None
        return self._query.lastProgress

    def report_query(self, fingerprint: str) -> None:
        """Tell the lease which query consumes the shard."""
        checkpoint = ReportedCheckpoint(fingerprint=fingerprint)
        self._held.report(self.lease.key, self.lease.epoch, checkpoint=checkpoint)

    def committed(self, position: ShardPosition, row: LedgerRow) -> None:
        """A batch was committed: queue its ledger row, and tell the lease with its next renewal.

        :param position: where the shard is after it
        """
        self.position = position
        self._committed += 1
        self._queue.add(row)
        self._report(row.sink_version, ReportedDetail(lag_records=self.lag_records))

    def _report(self, sink_version: int, detail: ReportedDetail) -> None:
        checkpoint = ReportedCheckpoint(
            batch=self.position.fence.batch,
            end_offsets=as_json_object(self.position.end_offsets),
            watermark_ms=self.position.watermark_ms,
            sink_version=sink_version,
        )
        self._held.report(self.lease.key, self.lease.epoch, checkpoint=checkpoint, detail=detail)

    def complete_last(self) -> None:
        """Add what Spark measured of the last batch to its queued row."""
        self._queue.complete_last(self._query, self.position.incarnation.base)

    def flush(self) -> None:
        """Write the queued ledger rows. The newest waits for Spark's measurements while its query runs.

        :raises StoreUnavailableError: the rows stay queued
        """
        self._queue.flush(self._query, self.position.incarnation.base)

    def unfiled(self, filed: int) -> list[LedgerRow]:
        """The shard's batches in the ledger after one whose late and poison rows are filed.

        The batches before that one are filed, too, and are forgotten.

        :raises StoreUnavailableError: if earlier owners' batches could not be read
        """
        return self._queue.unfiled(filed)
