"""Plan a replay, run it, and keep its row in ``runs``, whatever its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog
from pyspark.sql import SparkSession

from hindcast.errors import (
    HindcastError,
    NothingToReplayError,
    ReplayFailedError,
    TryLaterError,
    VersionLostError,
    innermost,
)
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.replay.batch import answers_url, run_batch
from hindcast.replay.cost import RUNS_COMPARED, Meter, StreamCost, peak_memory_bytes, slow_note, versions
from hindcast.replay.inputs import read_inputs, read_ledger, settle
from hindcast.replay.planner import ReplayPlan, make_plan
from hindcast.replay.recorded_plan import Counted
from hindcast.replay.request import ReplayRequest, new_run_id
from hindcast.replay.run_table import Runs
from hindcast.settings import Settings
from hindcast.tables.event_log import EventKind, Severity
from hindcast.tables.ledger_bases import LedgerBases, worth_keeping
from hindcast.tables.ledger_history import History
from hindcast.tables.run_states import BadEnd, RunKind, RunState, close_run
from hindcast.tables.sink_files import SinkFiles, VersionGoneError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Replayed:
    """A replay that succeeded."""

    run_id: str
    plan: ReplayPlan
    counted: Counted
    row: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """What is printed: the row of ``runs`` with its plan and versions as objects, and what was
        counted.
        """
        shown = {name: value for name, value in self.row.items() if value is not None}
        return {**shown, "plan": json.loads(self.row["plan"]), "versions": json.loads(self.row["versions"])}


def plan_replay(
    installation: Installation, pipeline: Pipeline, request: ReplayRequest
) -> tuple[str, ReplayPlan]:
    """The run's id and its plan; starts no JVM.

    :raises BadRangeError, RangeNotYetConsumedError: see :func:`hindcast.replay.planner.make_plan`
    """
    named = replace(request, run_id=request.run_id or new_run_id(pipeline.name, datetime.now(UTC)))
    earlier = Runs(installation.tables).recorded_plan(named.run_id, named.describe())
    settled = settle(named, earlier)
    plan = _make_plan(installation, pipeline, settled)
    left_out = plan.left_out
    if earlier is not None and settled != named:
        left_out = earlier.left_out  # the offsets alone no longer tell
    return named.run_id, replace(plan, asked=request.describe(), left_out=left_out)


def _make_plan(installation: Installation, pipeline: Pipeline, request: ReplayRequest) -> ReplayPlan:
    """The plan from the newest batches of the ledger that it can be made from."""
    ledger = read_ledger(installation, pipeline)

    def plan_from(history: History) -> ReplayPlan:
        inputs = read_inputs(installation, pipeline, request, ledger, history)
        plan = make_plan(pipeline, request, inputs)
        return replace(plan, base=worth_keeping(history, plan.read_from) or ledger.unkept(history))

    return ledger.answer(plan_from)


#: Runs a plan under a run id, and counts.
Work = Callable[[SparkSession, Settings, Pipeline, ReplayPlan, str], Counted]


def run_replay(
    session: Callable[[], SparkSession],
    installation: Installation,
    pipeline: Pipeline,
    request: ReplayRequest,
    kind: RunKind = RunKind.REPLAY,
    work: Work = run_batch,
    *,
    prepare: Callable[[], object] = lambda: None,
    tried_again: bool = False,
) -> Replayed:
    """Replay a request. ``session`` is called once the plan stands: bad ranges start no JVM.

    A run that is refused or fails leaves its row in ``runs`` and an event; one with nothing to replay a row
    that says so. The same run id replays the same offsets and writes over its own tables; the row of its last
    attempt counts.

    :param prepare: what has to be done before a plan can be made
    :param tried_again: whether the caller asks again if the stream is not that far yet, so that this is no
        end of the run
    :raises ReplayFailedError: where Spark failed; the reason is its first line
    :raises NothingToReplayError: if the range lies before the stream's beginning
    """
    began_at = datetime.now(UTC)
    runs = Runs(installation.tables)
    request = replace(request, run_id=request.run_id or new_run_id(pipeline.name, began_at))
    try:
        prepare()
        run_id, plan = plan_replay(installation, pipeline, request)
        _keep_files(installation.settings, pipeline, plan)
        if plan.base is not None:
            LedgerBases(installation.tables).add(pipeline.name, pipeline.version, plan.base)
    except NothingToReplayError as nothing:
        runs.answer(request.run_id, pipeline.name, pipeline.version, kind, RunState.SKIPPED, str(nothing))
        raise
    except HindcastError as error:
        is_end = error.exit_code != 0 and not (tried_again and error.exit_code == TryLaterError.exit_code)
        if is_end:
            end = BadEnd.of_error(error)
            close_run(
                installation.tables,
                request.run_id,
                pipeline.name,
                end,
                since=began_at,
                version=pipeline.version,
                kind=kind,
            )
        raise
    row = _first_row(installation.settings, pipeline, plan, run_id, kind)
    runs.append(row)
    _log.info(
        "Planned the replay.",
        run_id=run_id,
        asked=plan.asked,
        start=plan.start,
        end=plan.end,
        read_from=plan.read_from,
        batches=len(plan.batches),
    )
    if plan.left_out:
        _log.warning(f"{plan.asked}: {plan.left_out}.", run_id=run_id)
    try:
        spark = session()
        meter = Meter()
        counted = work(spark, installation.settings, pipeline, plan, run_id)
        done = {**row, **_cost(meter, plan, counted), "plan": plan.to_record(counted).text()}
    except Exception as error:
        reason = innermost(error)
        runs.append({**row, "state": RunState.FAILED.value, "note": reason, "finished_at": datetime.now(UTC)})
        cure = "Run it again with the same run id once the cause is gone: it replays the same offsets."
        message = f"The replay {run_id} failed: {reason}"
        installation.event_log.record(
            EventKind.RUN_FAILED,
            message,
            severity=Severity.ERROR,
            cure=cure,
            pipeline=pipeline.name,
            run_id=run_id,
        )
        if isinstance(error, HindcastError):
            raise
        raise ReplayFailedError(run_id=run_id, pipeline=pipeline.name, reason=reason, cure=cure) from error
    slow = slow_note(
        done["rows_per_second"],
        counted.rows_read,
        runs.recent(pipeline.name, kind, 5 * RUNS_COMPARED, without=run_id),
    )
    done["note"] = "; ".join(note for note in (plan.left_out, slow) if note)
    done["finished_at"] = datetime.now(UTC)
    runs.append(done)
    if slow:
        installation.event_log.record(
            EventKind.RUN_SLOW,
            f"The replay {run_id} was slow: {slow}.",
            severity=Severity.WARNING,
            cure="Compare the runs' seconds and versions: `hindcast runs` lists them.",
            pipeline=pipeline.name,
        )
    return Replayed(run_id, plan, counted, done)


def _keep_files(settings: Settings, pipeline: Pipeline, plan: ReplayPlan) -> None:
    """Keep what the sink held at both ends of the range: its verdict and the next range need that when the
    sink's log may have lost it.

    :raises VersionLostError: if the log has lost it already
    """
    if pipeline.window is not None:
        return
    files = SinkFiles(settings, pipeline)
    for version in (plan.sink_after, plan.sink_version):
        if version < 0:
            continue
        try:
            files.keep(version)
        except VersionGoneError as error:
            raise VersionLostError(table=files.url, version=version) from error


def _first_row(
    settings: Settings, pipeline: Pipeline, plan: ReplayPlan, run_id: str, kind: RunKind
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "pipeline": pipeline.name,
        "version": pipeline.version,
        "kind": kind.value,
        "state": RunState.PLANNED.value,
        "plan": plan.to_record().text(),
        "hindcast_url": answers_url(settings, pipeline.name, run_id),
        "versions": versions(),
        "started_at": datetime.now(UTC),
    }


def _cost(meter: Meter, plan: ReplayPlan, counted: Counted) -> dict[str, Any]:
    """``rows_per_second`` counts every record read, also those before the start that only feed windows."""
    seconds, stream = meter.seconds(), StreamCost.of(plan.batches)
    return {
        "state": RunState.SUCCEEDED.value,
        "input_rows": counted.input_rows,
        "output_rows": counted.output_rows,
        "dead_letters": counted.dead_letters,
        "late_rows": counted.late_rows,
        "input_bytes": counted.input_bytes,
        "seconds": seconds,
        "rows_per_second": counted.rows_read / seconds,
        "cpu_seconds": meter.cpu_seconds(),
        "peak_memory_bytes": peak_memory_bytes(),
        "stream_rows_per_second": stream.rows_per_second,
        "stream_cpu_seconds": stream.cpu_seconds,
        "latency_p50_seconds": counted.latency_p50_seconds,
        "latency_p95_seconds": counted.latency_p95_seconds,
    }
