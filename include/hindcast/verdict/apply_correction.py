"""Let readers have a replay's answer in hindsight, for the windows that it judged (the batch layer of a Lambda architecture).

1. The run was judged, and nothing of its verdict is unexplained: the batch and the stream agree on all but what came late;
2. its answer takes the place of the stream's result, or of an older correction, for its windows, in one commit
   (:meth:`hindcast.serving.corrected_windows.Corrections.replace`). All of them are final: a plan judges no open window;
3. an event says so. Whoever is killed between 2 and 3 does both again: 2 then changes nothing, and 3 finds that the event is missing.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.errors import CorrectionRefusedError
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.replay.batch import ANSWER, Answer, answers_url
from hindcast.replay.planner import recorded_offsets
from hindcast.replay.run_table import Runs
from hindcast.serving.corrected_windows import Corrected, CorrectedRange, Corrections, stamped
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables, arrow_dataset, utc_from_ms
from hindcast.tables.event_log import EventKind, EventLog
from hindcast.tables.schema import ControlTable


def correct(settings: Settings, pipeline: Pipeline, run_id: str) -> dict[str, Any]:
    """Correct the run's windows; once more, or after a run that had read more, nothing changes.

    :returns: {run_id, pipeline, corrected, windows_after_ms, windows_to_ms}
    :raises UnknownRunError: where no replay of that id has succeeded
    :raises CorrectionRefusedError: where its answer must not be given to readers
    """
    tables = ControlTables(settings)
    run = Runs(tables).succeeded(run_id)
    _check(tables, pipeline, run)
    plan = json.loads(run["plan"])
    by = CorrectedRange(plan["windows_after_ms"], plan["windows_to_ms"], run_id, recorded_offsets(run["plan"], "end"))
    done = by.after_ms < by.to_ms and _replace(settings, pipeline, by)
    reach("correct.3")
    if done or _unsaid(tables, pipeline, by, Corrections(settings, pipeline).current()):
        windows = f"windows that end after {utc_from_ms(by.after_ms).isoformat()} and by {utc_from_ms(by.to_ms).isoformat()}"
        message = f"Readers of {pipeline.sink.name} get the answer of run {run_id} for the {windows}."
        EventLog(tables).record(EventKind.WINDOWS_CORRECTED, message, pipeline=pipeline.name, run_id=run_id)
    return {"run_id": run_id, "pipeline": pipeline.name, "corrected": done, "windows_after_ms": by.after_ms, "windows_to_ms": by.to_ms}


def _check(tables: ControlTables, pipeline: Pipeline, run: dict[str, Any]) -> None:
    run_id = run["run_id"]
    if (run["pipeline"], run["version"]) != (pipeline.name, pipeline.version):
        problem = f"it is of {run['pipeline']} version {run['version']}, not of {pipeline.name} version {pipeline.version}"
        raise CorrectionRefusedError(run_id=run_id, problem=problem, cure="Replay the range with the version that is declared.")
    if pipeline.window is None:
        cure = "Its stream is exact as soon as all is read; a new version of it can be compared with this one."
        raise CorrectionRefusedError(run_id=run_id, problem=f"{pipeline.name} has no windows that close", cure=cure)
    verdicts = tables.rows(ControlTable.VERDICTS, [("run_id", "=", run_id)])
    if not verdicts:
        raise CorrectionRefusedError(
            run_id=run_id, problem="it was not judged", cure=f"`hindcast validate {pipeline.name} --run {run_id}` judges it."
        )
    if unexplained := max(verdicts, key=lambda row: (row["number"] or 0, row["unexplained"]))["unexplained"]:
        cure = f"`hindcast verdicts --run {run_id} --differences` names them: find out which side is wrong first."
        raise CorrectionRefusedError(run_id=run_id, problem=f"{unexplained} of its differences are unexplained", cure=cure)


def _unsaid(tables: ControlTables, pipeline: Pipeline, by: CorrectedRange, current: Corrected) -> bool:
    if not any(one.run_id == by.run_id for one in current.ranges):
        return False
    said = tables.rows(ControlTable.EVENTS, [("pipeline", "=", pipeline.name), ("kind", "=", EventKind.WINDOWS_CORRECTED.value)])
    return not any(json.loads(row["detail"] or "{}").get("run_id") == by.run_id for row in said)


def _replace(settings: Settings, pipeline: Pipeline, by: CorrectedRange) -> bool:
    answers = DeltaTable(answers_url(settings, pipeline.name, by.run_id), storage_options=settings.storage_options or None)
    end = pc.field("window", "end")
    after, to = (pa.scalar(utc_from_ms(bound), type=pa.timestamp("us", tz="UTC")) for bound in (by.after_ms, by.to_ms))
    only = (pc.field(ANSWER) == Answer.HINDSIGHT.value) & (end > after) & (end <= to)
    dataset = arrow_dataset(answers)
    columns = [name for name in dataset.schema.names if name != ANSWER]
    return Corrections(settings, pipeline).replace(stamped(dataset, only, by.run_id, columns), by)
