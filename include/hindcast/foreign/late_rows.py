"""File what a stream that others run has left out of its results: the rows that came late for their
windows, and the records that cannot be read.

For a stream of one's own a worker does that. Here it is done before a verdict, which needs it.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from hindcast.foreign.record import EPOCH, shard_of
from hindcast.installation import Installation
from hindcast.partitions import app_id
from hindcast.pipeline import Pipeline
from hindcast.stream.late_and_dead_rows import Audit


def file_late_rows(spark: SparkSession, installation: Installation, pipeline: Pipeline) -> None:
    """File the rows of all recorded batches. What is filed already is not read again.

    :raises BadRangeError: if neither the topic nor its archive holds what is still to be filed
    :raises BrokerUnavailableError, StoreUnavailableError: if a source is away
    """
    shard = shard_of(pipeline)
    audit = Audit(spark, installation, pipeline, app_id(pipeline.name, shard), EPOCH)
    filed = audit.filed()
    batches = installation.ledger.batches(pipeline.name, pipeline.version, shard, after=filed)
    batches = [row for row in batches if not row.is_beginning]
    while batches and filed < batches[-1].batch:
        filed = audit.run(batches)
