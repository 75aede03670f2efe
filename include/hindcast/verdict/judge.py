"""Judge a replay: compare it with the stream, explain the differences, and keep the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.clock import utc_from_ms
from hindcast.ddl import quoted
from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.delta.older_log import open_version
from hindcast.errors import BadInputError
from hindcast.installation import Installation
from hindcast.pipeline import Mode, Pipeline
from hindcast.pipeline_checks import check_bounded_columns
from hindcast.replay.batch import ANSWER, Answer, answers_url, side_rows_url
from hindcast.replay.leave_proof import batches_of_range, prove_at_once
from hindcast.replay.online_answer import keep_online, proof_of
from hindcast.replay.recorded_plan import Counted, RecordedPlan
from hindcast.replay.run_table import Runs
from hindcast.serving.corrected_windows import RUN_ID
from hindcast.serving.reading import Reading
from hindcast.settings import Settings
from hindcast.shards.active_version import rollouts
from hindcast.spark.delta_files import read_partition
from hindcast.spark.transformation import without_deleted
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.proofs import Proofs
from hindcast.tables.sink_files import SinkFiles
from hindcast.tables.table_names import ControlTable
from hindcast.tables.verdict_trends import VerdictTrends, point_of
from hindcast.verdict import bounds
from hindcast.verdict.check_side_rows import check_side_rows
from hindcast.verdict.compare import Cause, Comparison, Difference, Kind, Sides, compare
from hindcast.verdict.erased_records import refuse_erased
from hindcast.verdict.expectations import check_types, columns_of, validate
from hindcast.verdict.sink_change import SinkChange

_log = structlog.get_logger(__name__)

#: Samples kept of one verdict; counts are exact whatever their number.
SAMPLES = 1000
#: The numbers of a comparison that a row of ``verdicts`` has under the same name.
_MEASURES = (
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


@dataclass(frozen=True)
class _Case:
    """A replay that is judged: its row of ``runs``, read back."""

    row: dict[str, Any]
    plan: RecordedPlan
    counted: Counted

    @classmethod
    def of(cls, row: dict[str, Any]) -> _Case:
        plan = RecordedPlan.from_text(row["plan"])
        assert plan.counted is not None, "a replay that succeeded has counted"
        return cls(row, plan, plan.counted)

    @property
    def run_id(self) -> str:
        return str(self.row["run_id"])

    @property
    def version(self) -> int:
        return int(self.row["version"])

    def knows_hindsight(self, pipeline: Pipeline) -> bool:
        """Whether the run has the answer of the pipeline's function for hindsight. That needs all rows, so a
        range that begins with a proof has none.
        """
        return pipeline.hindsight is None or not self.plan.proof

    @property
    def captured(self) -> float:
        """The share of input rows with a judged window that are in the results for all of their windows: in
        time, or by a correction.
        """
        if self.counted.judged_rows == 0:
            return 1.0
        return 1.0 - self.counted.late_judged_rows / self.counted.judged_rows


def judge(
    session: Callable[[], SparkSession], installation: Installation, pipeline: Pipeline, run_id: str
) -> dict[str, Any]:
    """Judge the run and return the row of ``verdicts``. A verdict that does not pass is returned too; it also
    leaves an event.

    :raises UnknownRunError: if no replay of that id has succeeded
    :raises PipelineError: if an expectation is of an unknown type, or a bound is of a column that is no
        number of the result
    :raises ErasedRecordsError: if records of the range were erased after the stream had read them
    """
    check_types(pipeline)
    settings = installation.settings
    tables = installation.tables
    rollout = rollouts(installation.lease_table.leases_if_any()).get(pipeline.name)
    case = _Case.of(Runs(tables).succeeded(run_id))
    if case.row["pipeline"] != pipeline.name:
        raise BadInputError(
            problem=f"The run {run_id} is of the pipeline {case.row['pipeline']}, not of {pipeline.name}",
            cure="Name that pipeline.",
        )
    refuse_erased(installation, pipeline, case.version, run_id, case.plan)
    if pipeline.re_execute:
        batches = _recorded(installation.ledger, pipeline, case)
        keep_online(session(), settings, pipeline, run_id, case.plan, batches)
    elif pipeline.has_running_results and Proofs(tables).of_run(run_id) is None:
        proof = proof_of(settings, run_id, case.plan)
        prove_at_once(session(), settings, pipeline, run_id, case.plan, proof)
    columns, comparison = _compare(session(), settings, pipeline, case)
    wrong_side_rows, side_rows = check_side_rows(
        installation, pipeline.name, case.version, run_id, case.plan.start, case.plan.end, SAMPLES
    )
    unexplained = comparison.unexplained + wrong_side_rows + len(columns)
    _log.info(
        "Compared the stream with the hindcast.",
        run_id=run_id,
        rows=comparison.rows_compared,
        unexplained=unexplained,
    )
    row = _verdict_row(pipeline, case, comparison, unexplained)
    found = bounds.of_columns(comparison.ratio_bounds, comparison.tolerances)
    sink = _sink_frame(settings, pipeline, case)
    outcome = validate(settings.home, pipeline, run_id, row, sink, found)
    failed = [*outcome.failed, *bounds.exceeded(found, run_id)]
    if unexplained and pipeline.re_execute:
        failed += _unstable(session(), installation, pipeline, case)
    change = 0
    if rollout is not None:
        change = rollout.changes
    row |= {
        "passed": not failed and unexplained == 0,
        "failed": json.dumps(failed),
        "bounds": bounds.as_text(found),
        "data_docs": outcome.page,
        "judged_at": datetime.now(UTC),
        "change": change,
        "number": _next_number(tables, pipeline.name, case.version),
    }
    # A verdict that is killed after this is given again, and its figures then count once.
    VerdictTrends(tables).add(pipeline.name, case.version, point_of(row, case.row))
    differences = [*columns, *side_rows, *comparison.samples]
    samples = [_difference_row(pipeline, row, difference) for difference in differences[:SAMPLES]]
    tables.append(ControlTable.DIFFERENCES, samples)
    tables.append(ControlTable.VERDICTS, [row])
    if not row["passed"]:
        _record_failure(installation.event_log, pipeline, row, failed)
    return row


def _next_number(tables: ControlTables, pipeline: str, version: int) -> int:
    """One more than the newest verdict of the version has. Two judges at once may give the same."""
    of_version = [("pipeline", "=", pipeline), ("version", "=", version)]
    known = tables.read(ControlTable.VERDICTS, of_version, columns=["number"])
    numbers = [number or 0 for number in known.column("number").to_pylist()]
    return 1 + max(numbers, default=0)


def _recorded(ledger: Ledger, pipeline: Pipeline, case: _Case) -> list[LedgerRow]:
    """The batches of the range: those of the sink's judged commits."""
    return ledger.batches(
        pipeline.name, case.version, sink_after=case.plan.sink_after, sink_to=case.plan.sink_version
    )


def _unstable(spark: SparkSession, installation: Installation, pipeline: Pipeline, case: _Case) -> list[str]:
    """Run the recorded batches once more. If their answer differs, return a sentence that names the columns,
    else nothing.
    """
    settings = installation.settings
    rows = _recorded(installation.ledger, pipeline, case)
    first = _answer(spark, settings, pipeline, case.run_id, Answer.ONLINE)
    proof = proof_of(settings, case.run_id, case.plan)
    with batches_of_range(spark, settings, pipeline, case.plan, rows, proof) as recorded:
        second = recorded.run()
        sides = Sides(second, first, first, pipeline.sink.keys, tolerance=pipeline.tolerance)
        found = compare(sides, SAMPLES)
    if not found.unexplained:
        return []
    place = "in its rows"
    columns = sorted({sample.column for sample in found.samples if sample.column})
    if columns:
        place = f"in {', '.join(columns)}"
    finding = f"not deterministic: the same batches run twice differ {place}"
    return [f"{finding}, so the function depends on more than its input"]


def _compare(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, case: _Case
) -> tuple[list[Difference], Comparison]:
    """Compare what readers get from the stream with the answers of the replay.

    :returns: one difference for each column that cannot be compared, and the comparison of all others
    :raises BadInputError: if a key column cannot be compared
    :raises PipelineError: if a bound is of a column that is no number of the result
    """
    by_online = _answer(spark, settings, pipeline, case.run_id, Answer.ONLINE)
    by_hindsight = by_online
    if not case.counted.one_answer:
        by_hindsight = _answer(spark, settings, pipeline, case.run_id, Answer.HINDSIGHT)
    result = without_deleted(by_online, pipeline)
    check_bounded_columns(pipeline, _types(result))
    carried = None
    late = None
    if pipeline.window is None:
        change = _sink_change(settings, pipeline, case)
        stream = change.added_rows(spark)
        if change.removed:
            carried = change.removed_rows(spark)
    else:
        stream = _stream_frame(spark, settings, pipeline, case)
        if case.counted.late_judged_rows:
            late = _late_rows_by_window(spark, settings, pipeline, case)
    common, differing = _columns(stream, result)
    keys: list[str] = []  # if a key may have several rows, whole rows are compared
    if pipeline.compares_by_key:
        keys = list(pipeline.sink.keys)
    lacking = [key for key in keys if key not in common]
    if lacking:
        raise BadInputError(
            problem=(
                f"The key columns {lacking} of {pipeline.name} are not in both its sink and its result, "
                "or differ in type"
            ),
            cure="Correct the sink's keys, or give the pipeline a new version and sink.",
        )
    online = result.select(*common)
    hindsight = without_deleted(by_hindsight, pipeline).select(*common)
    if carried is not None:
        # Rows that were there before the range must still be there, wherever they were moved. Those that the
        # range replaced or deleted are not.
        kept = carried.select(*common)
        online = online.unionByName(_not_replaced(pipeline, kept, by=by_online))
        hindsight = hindsight.unionByName(_not_replaced(pipeline, kept, by=by_hindsight))
    if case.counted.one_answer:
        hindsight = online
    ratio_bound = pipeline.ratio_bound
    if not case.knows_hindsight(pipeline):
        ratio_bound = {}
    sides = Sides(
        stream=stream.select(*common),
        online=online,
        hindsight=hindsight,
        keys=keys,
        late=late,
        foresight=pipeline.re_execute or pipeline.hindsight is not None,
        tolerance=pipeline.tolerance,
        ratio_bound=ratio_bound,
    )
    found = compare(sides, SAMPLES)
    if not case.knows_hindsight(pipeline):
        found = replace(found, ratios={})
    return differing, found


def _answer(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, run_id: str, answer: Answer
) -> DataFrame:
    """The rows of one of a run's answers, as the pipeline's function gave them."""
    url = answers_url(settings, pipeline.name, run_id)
    return read_partition(spark, url, settings.storage_options, ANSWER, answer.value)


def _not_replaced(pipeline: Pipeline, rows: DataFrame, *, by: DataFrame) -> DataFrame:
    """The rows that stay in the table when others are written to it."""
    if pipeline.sink.mode is not Mode.UPSERT:
        return rows
    replacing = by.select(*[F.col(quoted(key)).alias(f"_by_{key}") for key in pipeline.sink.keys])
    same = [F.col(quoted(key)).eqNullSafe(F.col(quoted(f"_by_{key}"))) for key in pipeline.sink.keys]
    return rows.join(replacing, reduce(and_, same), "left_anti")


def _sink_change(settings: Settings, pipeline: Pipeline, case: _Case) -> SinkChange:
    """What the commits of the range changed in the sink."""
    return SinkChange.between(SinkFiles(settings, pipeline), case.plan.sink_after, case.plan.sink_version)


def _stream_frame(spark: SparkSession, settings: Settings, pipeline: Pipeline, case: _Case) -> DataFrame:
    """What readers get of the judged windows, without corrections by runs that had read more than this."""
    reading = Reading.pin(settings, pipeline, case.plan.sink_version, case.plan.corrections_version)
    corrected = reading.corrected.known_by(case.plan.end)
    ends_ms = (case.plan.windows_after_ms, case.plan.windows_to_ms)
    return replace(reading, corrected=corrected).spark(spark, ends_ms).drop(RUN_ID)


def _late_rows_by_window(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, case: _Case
) -> DataFrame:
    """``end_ms`` of each window that had late rows, and how many."""
    side_rows = spark.read.format("delta").load(side_rows_url(settings, pipeline.name, case.run_id))
    windows = side_rows.select(F.explode("windows").alias("end_ms"))
    return windows.groupBy("end_ms").agg(F.count("*").alias("late_rows"))


def _columns(stream: DataFrame, result: DataFrame) -> tuple[list[str], list[Difference]]:
    """The columns that both have in the same type, and one difference for each other column."""
    here = _types(stream)
    there = _types(result)
    common = [name for name in there if here.get(name) == there[name]]
    others = sorted((here.keys() | there.keys()) - set(common))
    differences: list[Difference] = []
    for name in others:
        difference = Difference(
            kind=Kind.COLUMNS,
            cause=Cause.UNEXPLAINED,
            keys="{}",
            column=name,
            stream_value=here.get(name, ""),
            hindcast_value=there.get(name, ""),
        )
        differences.append(difference)
    return common, differences


def _types(frame: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema.fields}


def _sink_frame(settings: Settings, pipeline: Pipeline, case: _Case) -> pd.DataFrame | None:
    """The judged rows of the sink, only the columns that expectations look at. ``window`` becomes
    ``window_start`` and ``window_end``.
    """
    if not pipeline.expectations:
        return None
    if pipeline.window is None:
        return _sink_change(settings, pipeline, case).new_pandas(columns_of(pipeline.expectations))
    url = settings.sink(pipeline)
    table = open_version(url, settings.storage_options, case.plan.sink_version)
    dataset = arrow_dataset(table, folder=url)
    columns = {name: pc.field(name) for name in dataset.schema.names if name != "window"}
    end = pc.field("window", "end")
    columns["window_start"] = pc.field("window", "start")
    columns["window_end"] = end
    instant = pa.timestamp("us", tz="UTC")
    after = pa.scalar(utc_from_ms(case.plan.windows_after_ms), type=instant)
    to = pa.scalar(utc_from_ms(case.plan.windows_to_ms), type=instant)
    judged = (end > after) & (end <= to)
    wanted = columns_of(pipeline.expectations)
    if wanted is not None:
        columns = {name: column for name, column in columns.items() if name in wanted}
    frame: pd.DataFrame = dataset.to_table(columns=columns, filter=judged).to_pandas()
    return frame


def _verdict_row(pipeline: Pipeline, case: _Case, comparison: Comparison, unexplained: int) -> dict[str, Any]:
    measured = asdict(comparison)
    ratios: dict[str, Any] = dict(comparison.ratios)
    if comparison.rounding:
        ratios["greatest_rounding"] = comparison.greatest_rounding
    return {
        "run_id": case.run_id,
        "pipeline": pipeline.name,
        "version": case.version,
        "sink_version": case.plan.sink_version,
        "windows_after_ms": case.plan.windows_after_ms,
        "windows_to_ms": case.plan.windows_to_ms,
        **{name: measured[name] for name in _MEASURES},
        "unexplained": unexplained,
        "captured": case.captured,
        "ratios": json.dumps(ratios, sort_keys=True),
        "input_rows": case.row["input_rows"],
        "late_rows": case.row["late_rows"],
        "dead_letters": case.row["dead_letters"],
    }


def _difference_row(pipeline: Pipeline, verdict: dict[str, Any], difference: Difference) -> dict[str, Any]:
    """``found_at`` is the verdict's ``judged_at``: it tells the samples of two verdicts on one run apart."""
    return {
        "run_id": verdict["run_id"],
        "pipeline": pipeline.name,
        "found_at": verdict["judged_at"],
        **asdict(difference),
    }


def _record_failure(event_log: EventLog, pipeline: Pipeline, row: dict[str, Any], failed: list[str]) -> None:
    unexplained = f"{row['unexplained']} differences are unexplained"
    captured = f"captured is {row['captured']:.4f}"
    event_log.record(
        EventKind.VERDICT_FAILED,
        f"{unexplained} and {captured}: {'; '.join(failed)}",
        severity=Severity.ERROR,
        cure=f"`hindcast verdicts --run {row['run_id']} --differences` names the rows.",
        pipeline=pipeline.name,
        run_id=row["run_id"],
    )
