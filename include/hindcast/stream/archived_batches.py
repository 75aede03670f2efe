"""Commit the batches that a shard reads from archives, before its query reads the topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from hindcast.errors import HindcastError
from hindcast.partitions import Offsets
from hindcast.recovery.archived_rounds import Round
from hindcast.recovery.checkpoint import BatchPlans, PlannedBatch, SparkCheckpoint
from hindcast.stream.batch_commits import BatchCommits
from hindcast.stream.shard_progress import ShardProgress


class ArchivedBatches:
    """The batches of the rounds, with their plans: Spark's own plans name files, not offsets.

    See :class:`hindcast.recovery.rebuild_from_batches.FurtherBatches`.
    """

    def __init__(
        self,
        rounds: Iterator[Round],
        checkpoint: SparkCheckpoint,
        progress: ShardProgress,
        first: int,
        commits: Callable[[BatchPlans], BatchCommits],
    ) -> None:
        """:param first: Spark's number of the first batch
        :param commits: makes what commits the batches with these plans
        """
        self._rounds = rounds
        self._checkpoint = checkpoint
        self._progress = progress
        self._next = first
        # By Spark's number: up to where the batch reads.
        self._ends: dict[int, Offsets] = {first - 1: progress.end_offsets}
        self._commits = commits(self)
        self._in_hand = False

    def planned(self, spark_batch: int) -> PlannedBatch:
        """The plan of a batch of the rounds so far.

        :raises CheckpointDamagedError: if it is not planned
        """
        watermark_ms = self._checkpoint.watermark_ms(spark_batch)
        return PlannedBatch(self._ends[spark_batch], watermark_ms)

    def planned_next(self) -> tuple[Offsets, Offsets] | None:
        return self._commits.planned_next()

    def rounds(self) -> Iterator[Round]:
        for one in self._rounds:
            # Only the batch before the first of a round is asked for again.
            self._ends = {self._next - 1: one.start}
            for batch in one.batches:
                self._ends[self._next] = batch.end_offsets
                self._next += 1
            yield one

    def commit(self, frame: DataFrame, spark_batch: int) -> None:
        self._in_hand = True
        try:
            self._commits.commit_batch(frame, spark_batch)
        finally:
            self._in_hand = False

    def follow(self, query: StreamingQuery) -> None:
        self._progress.follow(query)

    def round_ended(self) -> None:
        """Spark has measured the round's last batch."""
        self._progress.complete_last()

    def close(self) -> None:
        self._commits.close()

    @property
    def in_hand(self) -> bool:
        return self._in_hand

    @property
    def refusal(self) -> HindcastError | None:
        return self._commits.refusal
