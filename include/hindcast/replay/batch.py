"""The batch run: the pipeline's transformation over an exact range, once with all rows and once without the
rows that came late.

Kafka is read once. The parsed rows are cached (memory, then local disk), because three jobs need them: the
counts, the side rows, and the two answers. One job writes both answers. Both tables are written as the sinks
are: executors write the files, and delta-rs makes one commit.

If results depend on batches, this run writes no row of the online answer: no batch query can compute it. A
verdict has it made (:mod:`hindcast.replay.online_answer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import Any

import structlog
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.ddl import quoted
from hindcast.delta import files
from hindcast.errors import BadInputError, ReplayFailedError
from hindcast.pipeline import Pipeline
from hindcast.replay import hindsight_in_one_query
from hindcast.replay.leave_proof import batches_of_range, first_of, leave_proof, one_batch
from hindcast.replay.planner import ReplayPlan
from hindcast.replay.recorded_plan import Counted
from hindcast.replay.window_attribution import attribute, is_corrected, lost_windows
from hindcast.settings import Settings
from hindcast.spark import parquet_writer, parsed_records, query_signature, session
from hindcast.spark.parsed_records import given_columns, in_common, read_topics, usable
from hindcast.spark.transformation import assign_windows, transform

_log = structlog.get_logger(__name__)

ANSWER = "answer"

#: Counts that are added up over all groups of :func:`_count`.
_SUMMED = (
    "rows_read",
    "input_rows",
    "input_bytes",
    "dead_letters",
    "late_rows",
    "judged_rows",
    "late_judged_rows",
    "pairs",
)
#: Columns that the parsed rows of all topics have.
_COMMON_COLUMNS = ("_partition", "_offset", "_timestamp", "_event_at", "_reason", "_bytes")


class Answer(StrEnum):
    """The two answers of a replay, in the column ``answer`` of its table."""

    HINDSIGHT = "hindsight"  # had the stream known the whole range
    ONLINE = "online"  # without the rows that came after their window was final


#: The answer in hindsight and the online one. The second is None if both are the same.
_Answers = tuple[DataFrame, DataFrame | None]


def answers_url(settings: Settings, plan_pipeline: str, run_id: str) -> str:
    """The Delta table of a run's answers."""
    return settings.table("hindcasts", plan_pipeline, run_id)


def side_rows_url(settings: Settings, plan_pipeline: str, run_id: str) -> str:
    """The Delta table of a run's poison and late records, by partition and offset."""
    return settings.table("hindcast_rows", plan_pipeline, run_id)


def run_batch(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, plan: ReplayPlan, run_id: str
) -> Counted:
    """Replay the plan and write both tables of the run, in place of what an earlier try of the same run
    wrote.

    :raises ReplayFailedError: if a record was read that no batch of the ledger holds
    """
    url = answers_url(settings, plan.pipeline, run_id)
    with _read(spark, settings, pipeline, plan) as (rows, topics):
        counted = _count(rows, pipeline, plan, run_id)
        _log.info(
            "Read the range.",
            run_id=run_id,
            rows=counted.rows_read,
            dead_letters=counted.dead_letters,
            late_rows=counted.late_rows,
        )
        some_side_rows = counted.poison_read + counted.late_rows + counted.late_judged_rows > 0
        side_rows = _side_rows(rows, pipeline, plan)
        _write(settings, side_rows, side_rows_url(settings, plan.pipeline, run_id), empty=not some_side_rows)
        some_late = counted.late_judged_rows > 0
        with _answers(spark, settings, pipeline, plan, rows, topics, run_id, some_late=some_late) as (
            hindsight,
            online,
        ):
            written = _write(settings, _together(pipeline, hindsight, online), url, by=ANSWER)
    output_rows = sum(file.rows for file in written if file.partition[ANSWER] == Answer.HINDSIGHT)
    _log.info("Wrote the hindcast.", run_id=run_id, url=url)
    return replace(counted, output_rows=output_rows, one_answer=online is None)


@contextmanager
def _read(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, plan: ReplayPlan
) -> Iterator[tuple[DataFrame, list[DataFrame]]]:
    """All records with the watermark that the stream had, and the usable rows of each topic.

    Each topic is read once and stays cached as long as the context lasts.
    """
    value_bytes = F.coalesce(F.octet_length("_value"), F.lit(0))
    key_bytes = F.coalesce(F.octet_length("_key"), F.lit(0))
    wanted = {column for topic in pipeline.topics for column in topic.record_columns}
    unwanted = {"_topic", "_key", "_value"} - wanted
    parsed = []
    frames = read_topics(spark, settings, pipeline, plan.read_from, plan.end, plan.seams, plan.excluded)
    for frame in frames:
        sized = frame.withColumn("_bytes", value_bytes + key_bytes)
        parsed.append(sized.drop(*unwanted))
    if len(parsed) == 1:
        with session.cached(attribute(spark, parsed[0], plan, pipeline)) as rows:
            yield rows, [usable(rows)]
        return
    with ExitStack() as caches:
        topics = [caches.enter_context(session.cached(frame)) for frame in parsed]
        rows = attribute(spark, in_common(topics, _COMMON_COLUMNS), plan, pipeline)
        yield rows, [usable(frame) for frame in topics]


def _count(rows: DataFrame, pipeline: Pipeline, plan: ReplayPlan, run_id: str) -> Counted:
    # One row for each reason, null for usable rows: a single job gives the counts and the reasons.
    groups = [row.asDict() for row in rows.groupBy("_reason").agg(*_aggregates()).collect()]
    unplaced = sum(group["unplaced"] for group in groups)
    if unplaced:
        between = f"between {plan.read_from} and {plan.end}"
        raise ReplayFailedError(
            run_id=run_id,
            pipeline=pipeline.name,
            reason=f"{unplaced} records {between} belong to no batch of the ledger",
            cure="Look at `hindcast checkpoints` for a gap.",
        )
    sums: dict[str, Any] = {}
    for name in _SUMMED:
        sums[name] = sum(group[name] or 0 for group in groups)
    latency = None
    reasons: dict[str, int] = {}
    poison = 0
    for group in groups:
        if group["_reason"] is None:
            latency = group["latency"]  # of the usable rows: a poison record has no result to wait for
            continue
        poison += int(group["rows_read"])
        if group["dead_letters"]:
            reasons[str(group["_reason"])] = int(group["dead_letters"])
    p50, p95 = latency or (None, None)
    return Counted(
        **sums,
        output_rows=0,
        latency_p50_seconds=p50,
        latency_p95_seconds=p95,
        reasons=reasons,
        poison_read=poison,
    )


def _aggregates() -> list[Column]:
    """What :func:`_count` counts in each group of rows."""
    inside = F.col("_inside")
    poison = F.col("_reason").isNotNull()
    latency_us = F.unix_micros("_committed_at") - F.unix_micros("_timestamp")
    latency = F.when(inside, latency_us / 1_000_000)
    return [
        F.count("*").alias("rows_read"),
        F.count_if(inside).alias("input_rows"),
        F.sum(F.when(inside, F.col("_bytes"))).alias("input_bytes"),
        F.count_if(inside & poison).alias("dead_letters"),
        F.count_if(inside & (F.col("_windows_late") > 0)).alias("late_rows"),
        F.count_if(F.col("_windows_judged") > 0).alias("judged_rows"),
        F.count_if(F.col("_windows_late_judged") > 0).alias("late_judged_rows"),
        F.sum("_windows_judged").alias("pairs"),
        F.count_if(F.col("_late_us").isNull()).alias("unplaced"),
        F.percentile_approx(latency, [0.5, 0.95], 1000).alias("latency"),
    ]


def _side_rows(rows: DataFrame, pipeline: Pipeline, plan: ReplayPlan) -> DataFrame:
    """The poison and late records.

    Columns: kind (``poison`` or ``late``), partition, offset, inside, reason, windows. ``windows`` are the
    ends, in ms, of the windows that lack the row.
    """
    inside = F.col("_inside")
    poison = F.col("_reason").isNotNull()
    late_for_judged = F.col("_windows_late_judged") > 0
    windows = F.array().cast("array<long>")
    if pipeline.window is not None:
        lost = F.expr(f"transform({lost_windows(plan, pipeline)}, e -> e div 1000L)")
        windows = F.when(late_for_judged, lost).otherwise(windows)
    late = (F.col("_windows_late") > 0) & (inside | late_for_judged)
    return rows.where(poison | late).select(
        F.when(poison, "poison").otherwise("late").alias("kind"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        inside.alias("inside"),
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
    run_id: str,
    *,
    some_late: bool,
) -> Iterator[_Answers]:
    """Both answers. What they are read from lasts as long as the context."""
    if pipeline.window is not None:
        yield _answers_of_windows(pipeline, plan, rows, some_late=some_late)
    elif pipeline.re_execute:
        with _answers_of_batches(spark, settings, pipeline, plan, topics) as answers:
            yield answers
    elif plan.proof is not None:
        with _answers_from_state(spark, settings, pipeline, plan, run_id) as answers:
            yield answers
    else:
        yield _answers_of_rows(pipeline, topics)


def _answers_of_windows(
    pipeline: Pipeline, plan: ReplayPlan, rows: DataFrame, *, some_late: bool
) -> _Answers:
    """Both answers of a pipeline with windows.

    They differ only if rows came late, or if the pipeline has a function of its own for hindsight. Readers
    get that function's answer for a corrected window, so it is the online answer there, over the rows that
    the correction had read.
    """
    end_us = F.unix_micros("window.end")
    after_us = plan.windows_after_ms * 1000
    to_us = plan.windows_to_ms * 1000
    windowed = assign_windows(usable(rows).where(F.col("_windows_judged") > 0), pipeline)
    judged = windowed.where((end_us > after_us) & (end_us <= to_us))
    corrected = F.expr(is_corrected(plan, "unix_micros(window.end)"))
    in_time = end_us > F.col("_late_us")
    hindsight = _transformed([judged], pipeline, hindsight=True)
    if pipeline.hindsight is None:
        if not some_late:
            return hindsight, None
        return hindsight, _transformed([judged.where(in_time | corrected)], pipeline)
    online = _transformed([judged.where(in_time & ~corrected)], pipeline)
    if plan.corrected:
        # A corrected window has no other rows: what its correction had not read came after it was final.
        of_corrections = _transformed([judged.where(corrected)], pipeline, hindsight=True)
        online = online.unionByName(of_corrections)
    return hindsight, online


def _answers_of_rows(pipeline: Pipeline, topics: list[DataFrame]) -> _Answers:
    """Both answers of a pipeline that works row by row."""
    hindsight = _transformed(topics, pipeline, hindsight=True)
    if pipeline.hindsight is None:
        return hindsight, None
    return hindsight, _transformed(topics, pipeline)


@contextmanager
def _answers_of_batches(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, plan: ReplayPlan, topics: list[DataFrame]
) -> Iterator[_Answers]:
    """The answer in hindsight of a pipeline whose results depend on batches, and an online one without rows.

    The answer in hindsight comes from one batch query if that can tell, else from the streaming engine. A
    batch query has no state to begin in, so a range that begins with a proof is for the engine.
    """
    session.keep_state_for(spark, pipeline)
    hindsight: DataFrame | None = None
    if plan.proof is None:
        everything = _transformed(topics, pipeline, hindsight=True)
        hindsight = everything
        if not pipeline.hindsight:
            hindsight = hindsight_in_one_query.said(everything, pipeline, plan.recorded)
    # No rows yet, but columns: the table's columns have types that hold both answers.
    no_rows = transform(parsed_records.empty(spark, pipeline), pipeline)
    online = spark.createDataFrame([], no_rows.schema)
    if hindsight is not None:
        yield hindsight, online
        return
    with batches_of_range(
        spark, settings, pipeline, plan, plan.recorded, plan.proof, at_once=True
    ) as recorded:
        yield recorded.run(), online


@contextmanager
def _answers_from_state(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, plan: ReplayPlan, run_id: str
) -> Iterator[_Answers]:
    """The answer of a running result that goes on from a proof: what the range changed. It leaves a proof.

    Its function for hindsight, if it has one, needs all rows. So hindsight has the online answer.
    """
    planned = plan.to_record()
    batches = one_batch(plan)
    with batches_of_range(spark, settings, pipeline, plan, batches, plan.proof) as recorded:
        changed = recorded.run()
        leave_proof(settings, pipeline, run_id, planned, first_of(planned, plan.proof), recorded)
        yield changed, None


def _transformed(frames: Sequence[DataFrame], pipeline: Pipeline, *, hindsight: bool = False) -> DataFrame:
    window = ["window"] if pipeline.window else []
    given = []
    for topic, frame in zip(pipeline.topics, frames, strict=True):
        columns = [quoted(column) for column in topic.columns]
        given.append(frame.select(*columns, *given_columns(topic), *window))
    return transform(given, pipeline, hindsight=hindsight)


def _together(pipeline: Pipeline, hindsight: DataFrame, online: DataFrame | None) -> DataFrame:
    """Both answers in one frame. If they are the same, each row is computed once and stands there twice."""
    if ANSWER in hindsight.columns:
        problem = f"The pipeline {pipeline.name} has a result column named {ANSWER}"
        raise BadInputError(problem=problem, cure="A replay needs that name: rename the column.")
    if online is None:
        names = F.array(*[F.lit(answer.value) for answer in Answer])
        return hindsight.withColumn(ANSWER, F.explode(names))
    first = hindsight.withColumn(ANSWER, F.lit(Answer.HINDSIGHT.value))
    second = online.withColumn(ANSWER, F.lit(Answer.ONLINE.value))
    return first.unionByName(second)


def write_answer(settings: Settings, plan: ReplayPlan, run_id: str, frame: DataFrame, answer: Answer) -> int:
    """Write a frame as the run's only answer; return its rows."""
    named = frame.withColumn(ANSWER, F.lit(answer.value))
    written = _write(settings, named, answers_url(settings, plan.pipeline, run_id), by=ANSWER)
    return sum(file.rows for file in written)


def _write(
    settings: Settings, frame: DataFrame, url: str, by: str = "", *, empty: bool = False
) -> list[files.DataFile]:
    """Replace the table's content by the frame. Executors write files, and one commit names them, as in the
    sink.

    :param empty: the frame is known to have no rows, so that nothing need be computed
    """
    options = settings.storage_options
    schema = query_signature.table_schema(frame)
    partitions = [by] if by else []
    table = DeltaTable.create(
        url, schema, mode="overwrite", partition_by=partitions, storage_options=options or None
    )
    written: list[files.DataFile] = []
    if not empty:
        written = parquet_writer.write_files(frame, url, options, "part", by=by)
    table.create_write_transaction(
        [file.as_action() for file in written], "overwrite", table.schema(), partitions
    )
    return written
