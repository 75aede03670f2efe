"""Give readers a replay's answer in hindsight for the windows that it judged (the batch layer of a Lambda
architecture).

1. Check that the run was judged and that nothing of its verdict is unexplained: the batch and the stream
   agree on all but what came late.
2. Replace the stream's result, or an older correction, by the run's answer for its windows, in one commit
   (:meth:`hindcast.serving.corrected_windows.Corrections.replace`). All of these windows are final, because a
   plan judges no open window. If the run found no late row that readers lack, they have its answer already:
   then there is no commit, because each one repeats all that is corrected, and none is ever deleted.
3. Record an event that says so.
4. Let the served table follow, if there is one (:mod:`hindcast.serving.served_table`). A worker does it, too.

A process that is killed between 2 and 3 does both again: 2 then changes nothing, and 3 finds that the event
is missing.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.clock import utc_from_ms
from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.delta.open_table import open_table
from hindcast.errors import CorrectionRefusedError
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.replay.batch import ANSWER, Answer, answers_url
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.replay.run_table import Runs
from hindcast.serving.corrected_windows import Corrected, CorrectedRange, Corrections, stamped
from hindcast.serving.served_table import follow
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog
from hindcast.tables.table_names import ControlTable


def correct(installation: Installation, pipeline: Pipeline, run_id: str) -> dict[str, Any]:
    """Correct the windows of the run.

    Nothing changes if it already did, if a run that had read more did, or if readers lack no late row of
    these windows.

    :returns: {run_id, pipeline, corrected, windows_after_ms, windows_to_ms}
    :raises UnknownRunError: if no replay of that id has succeeded
    :raises CorrectionRefusedError: if readers must not get its answer
    """
    settings = installation.settings
    tables = installation.tables
    run = checked(installation, pipeline, run_id)
    plan = RecordedPlan.from_text(run["plan"])
    by = CorrectedRange(
        after_ms=plan.windows_after_ms, to_ms=plan.windows_to_ms, run_id=run["run_id"], end=plan.end
    )
    has_windows = by.after_ms < by.to_ms
    done = has_windows and _may_differ(pipeline, plan) and _replace(settings, pipeline, by)
    reach("correct.3")
    if done or _event_is_missing(tables, pipeline, by, Corrections(settings, pipeline).current()):
        _record(installation.event_log, pipeline, by)
    reach("correct.4")
    follow(installation, pipeline.name)
    return {
        "run_id": run_id,
        "pipeline": pipeline.name,
        "corrected": done,
        "windows_after_ms": by.after_ms,
        "windows_to_ms": by.to_ms,
    }


def checked(installation: Installation, pipeline: Pipeline, run_id: str) -> dict[str, Any]:
    """The run, if readers may get its answer. Nothing changes.

    :raises UnknownRunError: if no replay of that id has succeeded
    :raises CorrectionRefusedError: if readers must not get its answer
    """
    run = Runs(installation.tables).succeeded(run_id)
    _check(installation.tables, pipeline, run)
    return run


def _may_differ(pipeline: Pipeline, plan: RecordedPlan) -> bool:
    """Whether the run's answer in hindsight may differ from what readers had when it was planned.

    It does not if each row of its windows came in time or is in a correction: corrections only ever gain
    rows. A function of its own for hindsight may say anything.
    """
    assert plan.counted is not None, "a replay that succeeded has counted"
    return pipeline.hindsight is not None or plan.counted.late_judged_rows > 0


def _check(tables: ControlTables, pipeline: Pipeline, run: dict[str, Any]) -> None:
    """:raises CorrectionRefusedError: if readers must not get the run's answer"""
    run_id = run["run_id"]
    if (run["pipeline"], run["version"]) != (pipeline.name, pipeline.version):
        its_version = f"{run['pipeline']} version {run['version']}"
        declared = f"{pipeline.name} version {pipeline.version}"
        raise CorrectionRefusedError(
            run_id=run_id,
            problem=f"it is of {its_version}, not of {declared}",
            cure="Replay the range with the version that is declared.",
        )
    if pipeline.window is None:
        raise CorrectionRefusedError(
            run_id=run_id,
            problem=f"{pipeline.name} has no windows that close",
            cure=(
                "Its stream is exact as soon as all is read; "
                "a new version of it can be compared with this one."
            ),
        )
    verdicts = tables.rows(ControlTable.VERDICTS, [("run_id", "=", run_id)])
    if not verdicts:
        raise CorrectionRefusedError(
            run_id=run_id,
            problem="it was not judged",
            cure=f"`hindcast validate {pipeline.name} --run {run_id}` judges it.",
        )
    unexplained = max(verdicts, key=_number_and_unexplained)["unexplained"]
    if unexplained:
        raise CorrectionRefusedError(
            run_id=run_id,
            problem=f"{unexplained} of its differences are unexplained",
            cure=(
                f"`hindcast verdicts --run {run_id} --differences` names them: "
                "find out which side is wrong first."
            ),
        )


def _number_and_unexplained(verdict: dict[str, Any]) -> tuple[int, int]:
    """Orders verdicts by age. Two judges at once may give the same number: the worse verdict then counts."""
    return verdict["number"] or 0, verdict["unexplained"]


def _replace(settings: Settings, pipeline: Pipeline, by: CorrectedRange) -> bool:
    """Put the run's answer in hindsight in the place of what readers get for its windows."""
    url = answers_url(settings, pipeline.name, by.run_id)
    dataset = arrow_dataset(open_table(url, settings.storage_options))
    instant = pa.timestamp("us", tz="UTC")
    after = pa.scalar(utc_from_ms(by.after_ms), type=instant)
    to = pa.scalar(utc_from_ms(by.to_ms), type=instant)
    end = pc.field("window", "end")
    in_hindsight = pc.field(ANSWER) == Answer.HINDSIGHT.value
    only = in_hindsight & (end > after) & (end <= to)
    columns = [name for name in dataset.schema.names if name != ANSWER]
    rows = stamped(dataset, only, by.run_id, columns)
    return Corrections(settings, pipeline).replace(rows, by)


def _event_is_missing(
    tables: ControlTables, pipeline: Pipeline, by: CorrectedRange, current: Corrected
) -> bool:
    """Whether the run's correction is in the table and no event says so."""
    applied = any(one.run_id == by.run_id for one in current.ranges)
    if not applied:
        return False
    kind = EventKind.WINDOWS_CORRECTED.value
    events = tables.rows(ControlTable.EVENTS, [("pipeline", "=", pipeline.name), ("kind", "=", kind)])
    for event in events:
        detail = json.loads(event["detail"] or "{}")
        if detail.get("run_id") == by.run_id:
            return False
    return True


def _record(event_log: EventLog, pipeline: Pipeline, by: CorrectedRange) -> None:
    after = utc_from_ms(by.after_ms).isoformat()
    to = utc_from_ms(by.to_ms).isoformat()
    windows = f"windows that end after {after} and by {to}"
    message = f"Readers of {pipeline.sink.name} get the answer of run {by.run_id} for the {windows}."
    event_log.record(EventKind.WINDOWS_CORRECTED, message, pipeline=pipeline.name, run_id=by.run_id)
