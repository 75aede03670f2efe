"""File what a stream that others run has left out of its results: the rows that came late for their windows,
and the records that cannot be read.

For a stream of one's own a worker does that. Here it is done before a verdict, which needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from hindcast.foreign.record import EPOCH, shard_of
from hindcast.installation import Installation
from hindcast.partitions import app_id
from hindcast.pipeline import Pipeline
from hindcast.replay.wait_for_stream import filed_batches
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.tables.ledger import LedgerRow


def unfiled(installation: Installation, pipeline: Pipeline) -> Sequence[LedgerRow]:
    """The recorded batches whose rows are not filed yet, in order."""
    shard = shard_of(pipeline)
    filed = filed_batches(installation.tables, pipeline.name, [shard])[shard]
    batches = installation.ledger.batches(pipeline.name, pipeline.version, shard, after=max(filed, 0))
    return [row for row in batches if not row.is_beginning and row.batch > filed]


def records_of(batches: Sequence[LedgerRow]) -> int:
    """How many offsets these batches have read."""
    count = 0
    for row in batches:
        count += sum(row.end_offsets.values()) - sum(row.start_offsets.values())
    return count


def file_late_rows(
    spark: SparkSession, installation: Installation, pipeline: Pipeline, batches: Sequence[LedgerRow]
) -> None:
    """File the rows of these batches, as :func:`unfiled` gives them.

    :raises HindcastError: if a source is away, or neither the topic nor its archive holds what is to be filed
    """
    audit = Audit(spark, installation, pipeline, app_id(pipeline.name, shard_of(pipeline)), EPOCH)
    filed = -1
    while batches and filed < batches[-1].batch:
        filed = audit.run(batches)
