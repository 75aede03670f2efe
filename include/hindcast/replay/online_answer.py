"""The online answer of a pipeline whose results depend on batches.

It is made when a verdict asks for it, and kept with the replay's answer in hindsight. A replay is the answer
in hindsight, and costs what a batch costs. The online answer takes the streaming engine as long as the stream
was busy, and only a verdict compares with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.delta.open_table import open_table
from hindcast.errors import HindcastError, ProofLostError, ReplayFailedError, innermost
from hindcast.pipeline import Pipeline
from hindcast.replay.batch import ANSWER, Answer, answers_url
from hindcast.replay.leave_proof import batches_of_range, first_of, leave_proof
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.settings import Settings
from hindcast.spark import parquet_writer
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.proofs import Proof, Proofs

_log = structlog.get_logger(__name__)


def keep_online(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    run_id: str,
    plan: RecordedPlan,
    rows: Sequence[LedgerRow],
) -> None:
    """Run the recorded batches again and add their results to the run's answers, unless they are there
    already. Before that, leave the state at the end of the range as a proof.

    :param rows: the batches of the range
    :raises ReplayFailedError: if the records cannot be read, or Spark failed
    :raises ProofLostError: if the state in which the range begins was deleted
    """
    url = answers_url(settings, pipeline.name, run_id)
    proof = proof_of(settings, run_id, plan)
    try:
        while True:
            table = open_table(url, settings.storage_options)
            if _has_online(table):
                return
            with batches_of_range(spark, settings, pipeline, plan, rows, proof) as recorded:
                online = recorded.run()
                leave_proof(settings, pipeline, run_id, plan, first_of(plan, proof), recorded)
                if _add(online, table, url, settings):
                    return
            _log.info("Another process wrote the run's answers.", run_id=run_id)
    except HindcastError:
        raise
    except Exception as error:
        cure = "Judge it again once the cause is gone: a verdict reads the records of the range once more."
        reason = innermost(error)
        raise ReplayFailedError(run_id=run_id, pipeline=pipeline.name, reason=reason, cure=cure) from error


def proof_of(settings: Settings, run_id: str, plan: RecordedPlan) -> Proof | None:
    """The state in which a run's range begins; None if it begins with the stream.

    :raises ProofLostError: if it was deleted
    """
    if not plan.proof:
        return None
    proof = Proofs(ControlTables(settings)).of_run(plan.proof)
    if proof is None:
        raise ProofLostError(run_id=run_id, proof=plan.proof)
    return proof


def _has_online(table: DeltaTable) -> bool:
    return any(partition[ANSWER] == Answer.ONLINE for partition in table.partitions())


def _add(rows: DataFrame, table: DeltaTable, url: str, settings: Settings) -> bool:
    """Whether the rows are added. They are not if the table changed meanwhile."""
    kept = rows.sparkSession.read.format("delta").load(url).schema.fields
    fields = [field for field in kept if field.name != ANSWER]
    columns = [F.col(f"`{field.name}`").cast(field.dataType).alias(field.name) for field in fields]
    online = rows.select(*columns, F.lit(Answer.ONLINE.value).alias(ANSWER))
    written = parquet_writer.write_files(online, url, settings.storage_options, "part", by=ANSWER)
    if not written:
        return True
    once = CommitProperties(max_commit_retries=0)
    try:
        table.create_write_transaction(
            [file.as_action() for file in written], "append", table.schema(), [ANSWER], commit_properties=once
        )
    except CommitFailedError:
        return False
    return True
