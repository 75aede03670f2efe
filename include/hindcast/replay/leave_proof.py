"""Leave a proof: the state at the end of a run's range, from which the next range is judged.

1. The recorded batches of the range have run, in the state that the proof before left.
2. Their state is copied into a folder of its own.
3. A row of ``proofs`` names the folder. From now on a plan may begin there. Older proofs are forgotten.
4. The folders of these are deleted.

After a crash before step 3 nothing names the folder, and the upkeep deletes it. The run that is tried again
leaves another one. A crash before step 4 leaves folders to the upkeep, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import structlog
from pyspark.sql import SparkSession

from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.replay.planner import ReplayPlan
from hindcast.replay.recorded_batches import BatchRange, BegunState, RecordedBatches, recorded_batches
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.settings import Settings
from hindcast.spark import scratch
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.proofs import FOLDER, Proof, Proofs

_log = structlog.get_logger(__name__)

#: Of a result that depends on rows alone: one state over all partitions, whichever shards read them.
_ALL = "all"


@contextmanager
def batches_of_range(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    plan: ReplayPlan | RecordedPlan,
    rows: Iterable[LedgerRow | BatchRange],
    proof: Proof | None,
    *,
    at_once: bool = False,
    state_is_kept: bool = False,
) -> Iterator[RecordedBatches]:
    """The batches of a plan's range, in the state in which it begins; see
    :func:`hindcast.replay.recorded_batches.recorded_batches`.

    :param proof: that state; None if the range begins with the stream
    """
    begun = None
    if proof is not None:
        begun = BegunState(proof.url, proof.batches)
    with recorded_batches(
        spark,
        settings,
        pipeline,
        plan.start,
        plan.end,
        rows,
        plan.seams,
        at_once=at_once,
        begun=begun,
        state_is_kept=state_is_kept or begun is not None,
    ) as recorded:
        yield recorded


def one_batch(plan: ReplayPlan | RecordedPlan) -> list[BatchRange]:
    """A plan's range as one batch, for results that do not depend on batches."""
    return [BatchRange(_ALL, 0, plan.start, plan.end, plan.excluded)]


def leave_proof(
    settings: Settings,
    pipeline: Pipeline,
    run_id: str,
    plan: RecordedPlan,
    first: Offsets,
    recorded: RecordedBatches,
) -> None:
    """Steps 2 to 4.

    :param first: the stream's first offsets
    :param recorded: the batches of the range, after they have run
    """
    reach("proof.1")
    url = settings.table(FOLDER, pipeline.name, f"{run_id}-{uuid.uuid4().hex[:8]}")
    state = recorded.keep_state(url)
    reach("proof.2")
    proof = Proof(
        run_id=run_id,
        pipeline=pipeline.name,
        version=pipeline.version,
        first=first,
        start=plan.start,
        end=plan.end,
        sink_version=plan.sink_version,
        based_on=plan.proof,
        batches=state.batches,
        url=state.url,
        made_at=datetime.now(UTC),
    )
    forgotten = Proofs(ControlTables(settings)).add(proof)
    reach("proof.3")
    for one in forgotten:
        scratch.Folder(recorded.spark, one.url).remove()
    _log.info("Kept the state at the end of the range.", run_id=run_id, url=url)


def prove_at_once(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    run_id: str,
    plan: RecordedPlan,
    proof: Proof | None,
) -> None:
    """Leave the proof of a run whose answer came from a batch query, which leaves no state. Its results
    depend on rows alone, so they run as one batch.
    """
    batches = one_batch(plan)
    with batches_of_range(spark, settings, pipeline, plan, batches, proof, state_is_kept=True) as recorded:
        recorded.run()
        leave_proof(settings, pipeline, run_id, plan, first_of(plan, proof), recorded)


def first_of(plan: RecordedPlan, proof: Proof | None) -> Offsets:
    """Where the chain of proofs begins that the plan's range is added to."""
    if proof is None:
        return plan.start
    return proof.first
