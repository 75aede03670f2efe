"""Judge a replay: compare, explain, assert, and keep the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.errors import BadInputError
from hindcast.leases.delta_store import read_leases
from hindcast.pipeline import Mode, Pipeline
from hindcast.replay.batch import ANSWER, Answer, answers_url, side_rows_url
from hindcast.replay.online_answer import keep_online
from hindcast.replay.planner import recorded_offsets
from hindcast.replay.recorded_batches import recorded_batches
from hindcast.replay.run_table import Runs
from hindcast.serving.corrected_windows import NOTHING
from hindcast.serving.reading import Reading
from hindcast.settings import Settings
from hindcast.shards.active_version import rollouts
from hindcast.tables.control_tables import ControlTables, arrow_dataset, utc_from_ms
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.ledger import Ledger, LedgerRow, Offsets
from hindcast.tables.schema import ControlTable
from hindcast.verdict.check_side_rows import check_accounts
from hindcast.verdict.compare import Cause, Comparison, Difference, Kind, Sides, compare
from hindcast.verdict.expectations import check_types, columns_of, validate

_log = structlog.get_logger(__name__)

#: Samples kept of one verdict; counts are exact whatever their number.
SAMPLES = 1000


@dataclass(frozen=True)
class _Case:
    """A replay that is judged: its row of ``runs``, read back."""

    run_id: str
    version: int
    start: Offsets
    end: Offsets
    seams: Offsets
    windows_after_ms: int
    windows_to_ms: int
    sink_version: int
    corrections_version: int
    judged_rows: int
    late_judged_rows: int
    row: dict[str, Any]

    @classmethod
    def of(cls, row: dict[str, Any]) -> _Case:
        plan = json.loads(row["plan"])
        return cls(
            run_id=row["run_id"],
            version=row["version"],
            start=recorded_offsets(row["plan"], "start"),
            end=recorded_offsets(row["plan"], "end"),
            seams=recorded_offsets(row["plan"], "archive_to") if "archive_to" in plan else {},
            windows_after_ms=plan["windows_after_ms"],
            windows_to_ms=plan["windows_to_ms"],
            sink_version=plan["sink_version"],
            corrections_version=plan.get("corrections_version", NOTHING.version),
            judged_rows=plan["counted"]["judged_rows"],
            late_judged_rows=plan["counted"]["late_judged_rows"],
            row=row,
        )

    @property
    def captured(self) -> float:
        """The share of input rows with a judged window that are in the results for all of them: in time, or by a correction."""
        return 1.0 - self.late_judged_rows / self.judged_rows if self.judged_rows else 1.0


def judge(session: Callable[[], SparkSession], settings: Settings, pipeline: Pipeline, run_id: str) -> dict[str, Any]:
    """Judge the run and return the row of ``verdicts``. A verdict that does not pass is returned too; it also leaves an event.

    :raises UnknownRunError: where no replay of that id has succeeded
    :raises PipelineError: where an expectation is of an unknown type
    """
    check_types(pipeline)
    tables = ControlTables(settings)
    standing = rollouts(read_leases(settings)).get(pipeline.name)
    case = _Case.of(Runs(tables).succeeded(run_id))
    if case.row["pipeline"] != pipeline.name:
        raise BadInputError(
            problem=f"The run {run_id} is of the pipeline {case.row['pipeline']}, not of {pipeline.name}", cure="Name that pipeline."
        )
    if pipeline.re_execute:
        rows = _recorded(settings, pipeline, case)
        keep_online(session(), settings, pipeline, run_id, case.start, case.end, case.seams, rows)
    columns, comparison = _compare(session(), settings, pipeline, case)
    wrong_accounts, accounts = check_accounts(settings, pipeline.name, case.version, run_id, case.start, case.end, SAMPLES)
    differences = [*columns, *accounts, *comparison.samples]
    unexplained = comparison.unexplained + wrong_accounts + len(columns)
    _log.info("Compared the stream with the hindcast.", run_id=run_id, rows=comparison.rows_compared, unexplained=unexplained)
    row = _verdict_row(pipeline, case, comparison, unexplained)
    outcome = validate(settings, pipeline, run_id, row, _sink_frame(settings, pipeline, case))
    failed = [*outcome.failed, *(_unstable(session(), settings, pipeline, case) if unexplained and pipeline.re_execute else [])]
    row |= {
        "passed": not failed and unexplained == 0,
        "failed": json.dumps(failed),
        "data_docs": outcome.page,
        "judged_at": datetime.now(UTC),
        "change": standing.changes if standing else 0,
        "number": _next_number(tables, pipeline.name, case.version),
    }
    tables.append(ControlTable.DIFFERENCES, [_difference_row(pipeline, row, difference) for difference in differences[:SAMPLES]])
    tables.append(ControlTable.VERDICTS, [row])
    if not row["passed"]:
        _record_failure(tables, pipeline, row, failed)
    return row


def _next_number(tables: ControlTables, pipeline: str, version: int) -> int:
    """One more than the newest verdict of the version has. Two judges at once may give the same."""
    known = tables.read(ControlTable.VERDICTS, [("pipeline", "=", pipeline), ("version", "=", version)], columns=["number"])
    return 1 + max((number or 0 for number in known.column("number").to_pylist()), default=0)


def _recorded(settings: Settings, pipeline: Pipeline, case: _Case) -> list[LedgerRow]:
    """The batches that the judged version of the sink holds."""
    ledger = Ledger(ControlTables(settings)).batches(pipeline.name, case.version)
    return [row for row in ledger if row.sink_version <= case.sink_version]


def _unstable(spark: SparkSession, settings: Settings, pipeline: Pipeline, case: _Case) -> list[str]:
    """Whether the recorded batches give another answer when they are run once more: a sentence that names the columns, else nothing."""
    rows = _recorded(settings, pipeline, case)
    answers = spark.read.format("delta").load(answers_url(settings, pipeline.name, case.run_id))
    first = answers.where(F.col(ANSWER) == Answer.ONLINE.value).drop(ANSWER)
    with recorded_batches(spark, settings, pipeline, case.start, case.end, rows, case.seams) as recorded:
        found = compare(Sides(recorded.run(), first, first, pipeline.sink.keys), SAMPLES)
    if not found.unexplained:
        return []
    columns = sorted({sample.column for sample in found.samples if sample.column})
    where = f"in {', '.join(columns)}" if columns else "in its rows"
    return [f"not deterministic: the same batches run twice differ {where}, so the function depends on more than its input"]


def _compare(spark: SparkSession, settings: Settings, pipeline: Pipeline, case: _Case) -> tuple[list[Difference], Comparison]:
    answers = spark.read.format("delta").load(answers_url(settings, pipeline.name, case.run_id))
    reading = Reading.pin(settings, pipeline, case.sink_version, case.corrections_version)
    stream = replace(reading, corrected=reading.corrected.known_by(case.end)).spark(spark)
    late = None
    if pipeline.window is not None:
        stream = stream.where(F.col("window.end").between(*_bounds(case)))
        windows = (
            spark.read.format("delta")
            .load(side_rows_url(settings, pipeline.name, case.run_id))
            .select(F.explode("windows").alias("end_ms"))
        )
        late = windows.groupBy("end_ms").agg(F.count("*").alias("late_rows"))
    result = answers.drop(ANSWER)
    common, differing = _columns(stream, result)
    one_row_a_key = pipeline.window is not None or pipeline.re_execute or pipeline.sink.mode is Mode.UPSERT
    keys = list(pipeline.sink.keys) if one_row_a_key else []
    foresight = pipeline.re_execute or pipeline.hindsight is not None
    if lacking := [key for key in keys if key not in common]:
        raise BadInputError(
            problem=f"The key columns {lacking} of {pipeline.name} are not in both its sink and its result, or differ in type",
            cure="Correct the sink's keys, or give the pipeline a new version and sink.",
        )
    online, hindsight = (answers.where(F.col(ANSWER) == answer.value).select(*common) for answer in (Answer.ONLINE, Answer.HINDSIGHT))
    return differing, compare(Sides(stream.select(*common), online, hindsight, keys, late, foresight), SAMPLES)


def _bounds(case: _Case) -> tuple[Any, Any]:
    # Ends of windows are whole microseconds: the least one after the exclusive bound is a microsecond later.
    return F.timestamp_micros(F.lit(case.windows_after_ms * 1000 + 1)), F.timestamp_micros(F.lit(case.windows_to_ms * 1000))


def _columns(stream: DataFrame, result: DataFrame) -> tuple[list[str], list[Difference]]:
    """The columns that both have in the same type, and one difference for each other; a sink's own ``_``-columns are the platform's."""
    sides = [
        {field.name: field.dataType.simpleString() for field in frame.schema.fields if not field.name.startswith("_")}
        for frame in (stream, result)
    ]
    here, there = sides
    common = [name for name in there if here.get(name) == there[name]]
    other = sorted((here.keys() | there.keys()) - set(common))
    return common, [
        Difference(
            kind=Kind.COLUMNS,
            cause=Cause.UNEXPLAINED,
            keys="{}",
            column=name,
            stream_value=here.get(name, ""),
            hindcast_value=there.get(name, ""),
        )
        for name in other
    ]


def _sink_frame(settings: Settings, pipeline: Pipeline, case: _Case) -> pd.DataFrame | None:
    """The judged rows of the sink, only columns that expectations look at; ``window`` becomes ``window_start``, ``window_end``."""
    if not pipeline.expectations:
        return None
    url = settings.table("sinks", pipeline.sink.name)
    table = arrow_dataset(DeltaTable(url, version=case.sink_version, storage_options=settings.storage_options or None))
    columns = {name: pc.field(name) for name in table.schema.names if name != "window"}
    judged = None
    if pipeline.window is not None:
        end = pc.field("window", "end")
        columns |= {"window_start": pc.field("window", "start"), "window_end": end}
        bounds = [pa.scalar(utc_from_ms(bound), type=pa.timestamp("us", tz="UTC")) for bound in (case.windows_after_ms, case.windows_to_ms)]
        judged = (end > bounds[0]) & (end <= bounds[1])
    wanted = columns_of(pipeline.expectations)
    shown = {name: column for name, column in columns.items() if wanted is None or name in wanted}
    frame: pd.DataFrame = table.to_table(columns=shown, filter=judged).to_pandas()
    return frame


def _verdict_row(pipeline: Pipeline, case: _Case, comparison: Comparison, unexplained: int) -> dict[str, Any]:
    names = (
        "windows_compared",
        "rows_compared",
        "missing",
        "extra",
        "changed",
        "doubled",
        "late_differences",
        "rounding",
        "captured_results",
    )
    measured = asdict(comparison)
    ratios = {**comparison.ratios, **({"greatest_rounding": comparison.greatest_rounding} if comparison.rounding else {})}
    return {
        "run_id": case.run_id,
        "pipeline": pipeline.name,
        "version": case.version,
        "sink_version": case.sink_version,
        "windows_after_ms": case.windows_after_ms,
        "windows_to_ms": case.windows_to_ms,
        **{name: measured[name] for name in names},
        "unexplained": unexplained,
        "captured": case.captured,
        "ratios": json.dumps(ratios, sort_keys=True),
        "input_rows": case.row["input_rows"],
        "late_rows": case.row["late_rows"],
        "dead_letters": case.row["dead_letters"],
    }


def _difference_row(pipeline: Pipeline, verdict: dict[str, Any], difference: Difference) -> dict[str, Any]:
    """``found_at`` is the verdict's ``judged_at``: it tells the samples of two verdicts on one run apart."""
    return {"run_id": verdict["run_id"], "pipeline": pipeline.name, "found_at": verdict["judged_at"], **asdict(difference)}


def _record_failure(tables: ControlTables, pipeline: Pipeline, row: dict[str, Any], failed: list[str]) -> None:
    cure = f"`hindcast verdicts --run {row['run_id']} --differences` names the rows."
    message = f"{row['unexplained']} differences are unexplained and captured is {row['captured']:.4f}: {'; '.join(failed)}"
    EventLog(tables).record(
        EventKind.VERDICT_FAILED, message, severity=Severity.ERROR, cure=cure, pipeline=pipeline.name, run_id=row["run_id"]
    )
