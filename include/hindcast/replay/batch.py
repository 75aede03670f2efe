"""The batch run: the pipeline's transformation over an exact range, once with all rows and once without those that came late.

Kafka is read once. The parsed rows are cached (memory, then local disk), because three jobs need them: the counts, the rows set aside, and
the two answers, which are written by one job. Both tables are written as the sinks are: files by the executors, one commit by delta-rs.

Where results depend on batches, no batch says the online answer; a verdict has it made (:mod:`hindcast.replay.online_answer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import structlog
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.ddl import quoted
from hindcast.delta import files
from hindcast.errors import BadInputError, ReplayFailedError
from hindcast.pipeline import Pipeline
from hindcast.replay import hindsight_in_one_query
from hindcast.replay.planner import ReplayPlan
from hindcast.replay.recorded_batches import recorded_batches
from hindcast.replay.window_attribution import attribute, is_corrected, lost_windows
from hindcast.settings import Settings
from hindcast.spark import kafka_source, parquet_writer, query_signature, session
from hindcast.spark.kafka_source import PLACE_COLUMNS, assign_windows, in_common, read_topics, transform, usable

_log = structlog.get_logger(__name__)

ANSWER = "answer"


class Answer(StrEnum):
    """The two answers of a replay, in the column ``answer`` of its table."""

    HINDSIGHT = "hindsight"  # had the stream known the whole range
    ONLINE = "online"  # without the rows that came after their window was final


@dataclass(frozen=True)
class Counted:
    """What was in the range. Rows before the plan's start, read for their windows only, count in ``rows_read``, ``judged_rows``,
    ``late_judged_rows`` and ``pairs``, and nowhere else. ``pairs`` are (row, judged window); ``late_rows`` were late for any window.
    ``output_rows`` are those of the answer in hindsight.
    """

    rows_read: int
    input_rows: int
    input_bytes: int
    dead_letters: int
    late_rows: int
    judged_rows: int
    late_judged_rows: int
    pairs: int
    output_rows: int
    latency_p50_seconds: float | None
    latency_p95_seconds: float | None
    reasons: dict[str, int] = field(default_factory=dict)


def answers_url(settings: Settings, plan_pipeline: str, run_id: str) -> str:
    """The Delta table of a run's answers."""
    return settings.table("hindcasts", plan_pipeline, run_id)


def side_rows_url(settings: Settings, plan_pipeline: str, run_id: str) -> str:
    """The Delta table of a run's poison and late records, by partition and offset."""
    return settings.table("hindcast_rows", plan_pipeline, run_id)


def run_batch(spark: SparkSession, settings: Settings, pipeline: Pipeline, plan: ReplayPlan, run_id: str) -> Counted:
    """Replay the plan and write both tables of the run, in place of what an earlier try of the same run wrote.

    :raises ReplayFailedError: where a record was read that no batch of the ledger holds
    """
    with _read(spark, settings, pipeline, plan) as (rows, topics):
        counted = _count(rows, pipeline, plan, run_id)
        _log.info("Read the range.", run_id=run_id, rows=counted.rows_read, dead_letters=counted.dead_letters, late_rows=counted.late_rows)
        aside = _side_rows(rows, pipeline, plan)
        some = counted.dead_letters + counted.late_rows + counted.late_judged_rows > 0
        _write(settings, aside if some else spark.createDataFrame([], aside.schema), side_rows_url(settings, plan.pipeline, run_id))
        with _answers(spark, settings, pipeline, plan, rows, topics, some_late=counted.late_judged_rows > 0) as answers:
            written = _write(settings, _together(pipeline, *answers), answers_url(settings, plan.pipeline, run_id), by=ANSWER)
    counted = replace(counted, output_rows=sum(file.rows for file in written if file.partition[ANSWER] == Answer.HINDSIGHT))
    _log.info("Wrote the hindcast.", run_id=run_id, url=answers_url(settings, plan.pipeline, run_id))
    return counted


@contextmanager
def _read(spark: SparkSession, settings: Settings, pipeline: Pipeline, plan: ReplayPlan) -> Iterator[tuple[DataFrame, list[DataFrame]]]:
    """All records, placed, and the usable rows of each topic; each topic is read once, and kept for as long as the context lasts."""
    parsed = read_topics(spark, settings, pipeline, plan.read_from, plan.end, plan.seams)
    size = F.coalesce(F.octet_length("_value"), F.lit(0)) + F.coalesce(F.octet_length("_key"), F.lit(0))
    if len(parsed) == 1:
        with session.cached(
            attribute(spark, parsed[0].withColumn("_bytes", size).drop("_topic", "_key", "_value"), plan, pipeline)
        ) as rows:
            yield rows, [usable(rows)]
        return
    with ExitStack() as kept:
        topics = [kept.enter_context(session.cached(frame.withColumn("_bytes", size).drop("_topic", "_key", "_value"))) for frame in parsed]
        common = ("_partition", "_offset", "_timestamp", "_event_at", "_reason", "_bytes")
        yield attribute(spark, in_common(topics, common), plan, pipeline), [usable(frame) for frame in topics]


def _count(rows: DataFrame, pipeline: Pipeline, plan: ReplayPlan, run_id: str) -> Counted:
    inside, poison = F.col("_inside"), F.col("_reason").isNotNull()
    latency = F.when(inside, (F.unix_micros("_committed_at") - F.unix_micros("_timestamp")) / 1_000_000)
    percentiles = F.percentile_approx(latency, [0.5, 0.95], 1000).alias("latency")
    # One row for each reason, null for usable rows: a single job gives the counts and the reasons.
    found = rows.groupBy("_reason").agg(
        F.count("*").alias("rows_read"),
        F.count_if(inside).alias("input_rows"),
        F.sum(F.when(inside, F.col("_bytes"))).alias("input_bytes"),
        F.count_if(inside & poison).alias("dead_letters"),
        F.count_if(inside & (F.col("_windows_late") > 0)).alias("late_rows"),
        F.count_if(F.col("_windows_judged") > 0).alias("judged_rows"),
        F.count_if(F.col("_windows_late_judged") > 0).alias("late_judged_rows"),
        F.sum("_windows_judged").alias("pairs"),
        F.count_if(F.col("_late_us").isNull()).alias("unplaced"),
        percentiles,
    )
    groups = [row.asDict() for row in found.collect()]
    if unplaced := sum(group["unplaced"] for group in groups):
        reason = f"{unplaced} records between {plan.read_from} and {plan.end} belong to no batch of the ledger"
        raise ReplayFailedError(run_id=run_id, pipeline=pipeline.name, reason=reason, cure="Look at `hindcast checkpoints` for a gap.")
    names = ("rows_read", "input_rows", "input_bytes", "dead_letters", "late_rows", "judged_rows", "late_judged_rows", "pairs")
    sums: dict[str, Any] = {name: sum(group[name] or 0 for group in groups) for name in names}
    # Of the usable rows: a poison record has no result to wait for.
    p50, p95 = next((group["latency"] for group in groups if group["_reason"] is None and group["latency"]), (None, None))
    reasons = {
        str(group["_reason"]): int(group["dead_letters"]) for group in groups if group["_reason"] is not None and group["dead_letters"]
    }
    return Counted(**sums, output_rows=0, latency_p50_seconds=p50, latency_p95_seconds=p95, reasons=reasons)


def _side_rows(rows: DataFrame, pipeline: Pipeline, plan: ReplayPlan) -> DataFrame:
    """Columns: kind (``poison`` or ``late``), partition, offset, inside, reason, windows (ends, in ms, of those that it is lost for)."""
    windows = F.array().cast("array<long>")
    if pipeline.window is not None:
        lost = F.expr(f"transform({lost_windows(plan, pipeline)}, e -> e div 1000L)")
        windows = F.when(F.col("_windows_late_judged") > 0, lost).otherwise(windows)
    late = (F.col("_windows_late") > 0) & (F.col("_inside") | (F.col("_windows_late_judged") > 0))
    kept = rows.where((F.col("_inside") & F.col("_reason").isNotNull()) | late)
    return kept.select(
        F.when(F.col("_reason").isNotNull(), "poison").otherwise("late").alias("kind"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_inside").alias("inside"),
        F.col("_reason").alias("reason"),
        windows.alias("windows"),
    )


@contextmanager
def _answers(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    plan: ReplayPlan,
    rows: DataFrame,
    topics: list[DataFrame],
    *,
    some_late: bool,
) -> Iterator[tuple[DataFrame, DataFrame | None]]:
    """The answer in hindsight and the online one, None where that is the same; what they are read from lasts as long as the context."""
    if pipeline.window is not None:
        windowed = assign_windows(usable(rows).where(F.col("_windows_judged") > 0), pipeline)
        end = F.unix_micros("window.end")
        all_rows = windowed.where((end > plan.windows_after_ms * 1000) & (end <= plan.windows_to_ms * 1000))
        in_time = all_rows.where((end > F.col("_late_us")) | F.expr(is_corrected(plan, "unix_micros(window.end)")))
        same = not some_late and pipeline.hindsight is None
        yield _transformed([all_rows], pipeline, hindsight=True), None if same else _transformed([in_time], pipeline)
        return
    if not pipeline.re_execute:
        yield _transformed(topics, pipeline, hindsight=True), None if pipeline.hindsight is None else _transformed(topics, pipeline)
        return
    session.keep_state_for(spark, pipeline)
    everything = _transformed(topics, pipeline, hindsight=True)
    hindsight = everything if pipeline.hindsight else hindsight_in_one_query.said(everything, pipeline, plan.recorded)
    # No rows yet, but columns: those of the table are of the types that hold both answers.
    online = spark.createDataFrame([], transform(kafka_source.empty(spark, pipeline), pipeline).schema)
    if hindsight is not None:
        yield hindsight, online
        return
    with recorded_batches(spark, settings, pipeline, plan.start, plan.end, plan.recorded, plan.seams, at_once=True) as recorded:
        yield recorded.run(), online


def _transformed(frames: Sequence[DataFrame], pipeline: Pipeline, *, hindsight: bool = False) -> DataFrame:
    window = ["window"] if pipeline.window else []
    given = [
        frame.select(*map(quoted, topic.columns), *PLACE_COLUMNS, *window) for topic, frame in zip(pipeline.topics, frames, strict=True)
    ]
    return transform(given, pipeline, hindsight=hindsight)


def _together(pipeline: Pipeline, hindsight: DataFrame, online: DataFrame | None) -> DataFrame:
    """Both answers in one frame. Where they are the same, each row of the one that is computed stands twice."""
    if ANSWER in hindsight.columns:
        raise BadInputError(
            problem=f"The pipeline {pipeline.name} has a result column named {ANSWER}", cure="A replay needs that name: rename the column."
        )
    if online is None:
        return hindsight.withColumn(ANSWER, F.explode(F.array(*(F.lit(answer.value) for answer in Answer))))
    answers = {Answer.HINDSIGHT: hindsight, Answer.ONLINE: online}
    first, second = (frame.withColumn(ANSWER, F.lit(name.value)) for name, frame in answers.items())
    return first.unionByName(second)


def write_answer(settings: Settings, plan: ReplayPlan, run_id: str, frame: DataFrame, answer: Answer) -> int:
    """Write a frame as the run's only answer; return its rows."""
    named = frame.withColumn(ANSWER, F.lit(answer.value))
    return sum(file.rows for file in _write(settings, named, answers_url(settings, plan.pipeline, run_id), by=ANSWER))


def _write(settings: Settings, frame: DataFrame, url: str, by: str = "") -> list[files.DataFile]:
    """Write the frame in the place of what the table holds: executors write files, and one commit names them (as the sink's batches do)."""
    options, schema = settings.storage_options, query_signature.table_schema(frame)
    partitions = [by] if by else []
    table = DeltaTable.create(url, schema, mode="overwrite", partition_by=partitions, storage_options=options or None)
    written = parquet_writer.write_files(frame, url, options, "part", by=by)
    table.create_write_transaction([file.as_action() for file in written], "overwrite", table.schema(), partitions)
    return written
