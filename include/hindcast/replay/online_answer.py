"""The online answer of a pipeline whose results depend on batches: made when a verdict asks for it, and kept with the replay's other one.

A replay is the answer in hindsight, and costs what a batch costs. What the stream had to say takes the streaming engine as long as the
stream was busy, and only a verdict compares with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.errors import HindcastError, ReplayFailedError, innermost
from hindcast.pipeline import Pipeline
from hindcast.replay.batch import ANSWER, Answer, answers_url
from hindcast.replay.recorded_batches import RecordedBatches, recorded_batches
from hindcast.settings import Settings
from hindcast.spark import parquet_writer
from hindcast.tables.ledger import LedgerRow, Offsets

_log = structlog.get_logger(__name__)


def keep_online(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    run_id: str,
    start: Offsets,
    end: Offsets,
    seams: Offsets,
    rows: Sequence[LedgerRow],
) -> None:
    """Run the recorded batches again and add what they say to the run's answers, unless it is there.

    :param rows: the batches that read [start, end)
    :raises ReplayFailedError: where the records cannot be read, or Spark failed
    """
    url = answers_url(settings, pipeline.name, run_id)
    try:
        while not _has_it(table := DeltaTable(url, storage_options=settings.storage_options or None)):
            with recorded_batches(spark, settings, pipeline, start, end, rows, seams) as recorded:
                if _add(recorded, table, url, settings):
                    return
            _log.info("Somebody else wrote the run's answers.", run_id=run_id)
    except HindcastError:
        raise
    except Exception as error:
        cure = "Judge it again once the cause is gone: a verdict reads the records of the range once more."
        raise ReplayFailedError(run_id=run_id, pipeline=pipeline.name, reason=innermost(error), cure=cure) from error


def _has_it(table: DeltaTable) -> bool:
    return any(partition[ANSWER] == Answer.ONLINE for partition in table.partitions())


def _add(recorded: RecordedBatches, table: DeltaTable, url: str, settings: Settings) -> bool:
    """Whether the rows are in: not where the table changed meanwhile."""
    kept = {field.name: field.dataType for field in recorded.spark.read.format("delta").load(url).schema.fields}
    columns = [F.col(f"`{name}`").cast(kind).alias(name) for name, kind in kept.items() if name != ANSWER]
    online = recorded.run().select(*columns, F.lit(Answer.ONLINE.value).alias(ANSWER))
    written = parquet_writer.write_files(online, url, settings.storage_options, "part", by=ANSWER)
    if not written:
        return True
    try:
        table.create_write_transaction(
            [file.as_action() for file in written],
            "append",
            table.schema(),
            [ANSWER],
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except CommitFailedError:
        return False
    return True
