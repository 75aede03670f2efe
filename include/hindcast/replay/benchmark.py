"""Replays as benchmarks: a pipeline's reference range is replayed twice.

It is replayed once as a batch and once through the streaming engine with the recorded batches. Both are rows
of ``runs`` with the versions of pipeline, Spark and platform. :mod:`hindcast.replay.compare_runs` compares
two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from hindcast.errors import BadInputError, RangeNotYetConsumedError
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.replay.batch import Answer, write_answer
from hindcast.replay.leave_proof import batches_of_range
from hindcast.replay.planner import ReplayPlan
from hindcast.replay.recorded_plan import Counted, RecordedPlan
from hindcast.replay.request import ReplayRequest, new_run_id
from hindcast.replay.run_replay import Replayed, run_replay
from hindcast.settings import Settings
from hindcast.tables.run_states import RunKind


def request_of(pipeline: Pipeline) -> ReplayRequest:
    """The reference range as a request, under a new run id.

    :raises BadInputError: if the pipeline declares none
    """
    if pipeline.reference is None:
        form = "reference=(first, last), two times or two JSON objects of offsets"
        cure = f"Declare one in {pipeline.file}: {form}."
        raise BadInputError(problem=f"{pipeline.name} has no reference range", cure=cure)
    first, last = pipeline.reference
    run_id = new_run_id(pipeline.name, datetime.now(UTC))
    if first.lstrip().startswith("{"):
        return ReplayRequest.parse(pipeline=pipeline.name, run_id=run_id, from_offsets=first, to_offsets=last)
    return ReplayRequest.parse(pipeline=pipeline.name, run_id=run_id, from_time=first, to_time=last)


def run_reference(
    session: Callable[[], SparkSession], installation: Installation, pipeline: Pipeline
) -> list[Replayed]:
    """Replay the reference range in both ways; the batch first.

    :raises RangeNotYetConsumedError: if the version has not recorded the range as batches
    """
    batch = run_replay(session, installation, pipeline, request_of(pipeline), RunKind.BENCHMARK)
    if not batch.plan.batches:
        nothing_read = f"no batch of version {pipeline.version} has read the reference range"
        problem = f"{nothing_read}, so there is nothing to run again"
        raise RangeNotYetConsumedError(pipeline=pipeline.name, problem=problem)
    request = request_of(pipeline)
    recorded = run_replay(session, installation, pipeline, request, RunKind.RE_EXECUTION, run_recorded)
    return [batch, recorded]


def run_recorded(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, plan: ReplayPlan, run_id: str
) -> Counted:
    """Run the batches that read the range again, and write all rows of their results as the run's answer.

    State begins with the first of them. So if the range does not begin where the stream began, the windows at
    its edge lack the rows before it.
    """
    with batches_of_range(spark, settings, pipeline, plan, plan.batches, plan.proof) as recorded:
        rows = write_answer(settings, plan, run_id, recorded.run(), Answer.HINDSIGHT)
    read = sum(end - plan.start[partition] for partition, end in plan.end.items())
    dead_letters = 0
    for batch in plan.batches:
        if batch.input_rows is not None:
            dead_letters += batch.poison_rows or 0
    return Counted(
        rows_read=read,
        input_rows=read,
        input_bytes=0,
        dead_letters=dead_letters,
        late_rows=0,
        judged_rows=0,
        late_judged_rows=0,
        pairs=0,
        output_rows=rows,
        latency_p50_seconds=None,
        latency_p95_seconds=None,
    )


def newest_pair(pipeline: str, rows: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """The run ids of two benchmarks of the same range by different versions: an older one and the newest.

    The older one is the newest before it that other versions ran.

    :param rows: succeeded benchmarks of the pipeline, newest first
    :raises BadInputError: if no two versions have replayed it
    """
    known = list(rows)
    for other in known[1:]:
        newest = known[0]
        if _range(other) == _range(newest) and _ran(other) != _ran(newest):
            return str(other["run_id"]), str(newest["run_id"])
    cure = f"`hindcast benchmark {pipeline}` under each version, or name two runs."
    raise BadInputError(problem=f"No two versions have replayed the reference range of {pipeline}", cure=cure)


def _ran(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What ran: the pipeline's version, and those of Spark and the platform."""
    return row["version"], row["versions"]


def _range(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return RecordedPlan.from_text(row["plan"]).range
