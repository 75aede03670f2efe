"""A pipeline's query as a session sees it: the columns of its result, and what its Spark checkpoints belong
to.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from hindcast.errors import PipelineError
from hindcast.pipeline import FORM, Mode, Pipeline
from hindcast.pipeline_checks import check_bounded_columns, check_served_columns
from hindcast.spark import parsed_records, transformation

#: No operator has so many columns, and no text is so long. By default the text of a plan leaves out what
#: comes after the 25th column.
_WHOLE_TEXTS = {
    "spark.sql.debug.maxToStringFields": 1_000_000,
    "spark.sql.maxPlanStringLength": 2_000_000_000,
}
#: Functions into which Spark puts a random seed of its own.
_SEEDS = re.compile(r"\b(randn?|random|randstr|uuid|shuffle)\([^()]*\)")


@dataclass(frozen=True)
class QuerySignature:
    """A pipeline's query as a session sees it: the sink's columns, and what its Spark checkpoints belong to,
    as a short hash.
    """

    schema: pa.Schema
    fingerprint: str


@cache
def signature_of(spark: SparkSession, pipeline: Pipeline) -> QuerySignature:
    """Analyse the transformation of no rows; once a session, as a shard that changes hands waits for it.

    The hash is of the analysed plan and the declaration around it. The plan's expression numbers (``ask#12``)
    and the seeds that Spark draws (``rand(42)``) differ between sessions and are left out.

    :raises PipelineError: where the transformation does not fit the source's columns, the sink's keys are not
        in its result, or a bound is of a column that is no number of it
    """
    frame = empty_result(spark, pipeline)
    plan = _SEEDS.sub(r"\1()", re.sub(r"#\d+L?", "", analysed_plan(frame)))
    topics = [
        replace(topic, parse=None) for topic in pipeline.topics
    ]  # what a parse function does is in the plan
    sink: tuple[object, ...] = (pipeline.sink.keys, pipeline.sink.mode)
    if pipeline.sink.deleted:
        sink = (*sink, pipeline.sink.deleted)
    declared: tuple[object, ...] = (
        topics,
        pipeline.event_time,
        pipeline.watermark,
        pipeline.window,
        sink,
        pipeline.max_future,
    )
    decoding = [(topic.registry, topic.message, topic.descriptor) for topic in topics if topic.is_decoded]
    if decoding:
        declared = (*declared, decoding)
    shuffles = spark.conf.get("spark.sql.shuffle.partitions")
    held = transformation.without_deleted(frame, pipeline)
    return QuerySignature(
        table_schema(held), hashlib.sha256(repr((declared, plan, shuffles)).encode()).hexdigest()[:16]
    )


@cache
def _patient(spark: SparkSession) -> SparkSession:
    """A session beside this one that writes the texts of plans whole."""
    patient = spark.newSession()
    for limit, value in _WHOLE_TEXTS.items():
        patient.conf.set(limit, str(value))
    return patient


def analysed_plan(frame: DataFrame) -> str:
    """The whole text of the frame's analysed plan.

    A process's session cuts such texts, since Spark writes one for each batch
    (:func:`hindcast.spark.session.build`). Spark asks the session that is active in the thread how much to
    write. So another one is active meanwhile.
    """
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    sessions.setActiveSession(_patient(spark)._jsparkSession)
    try:
        return str(frame._jdf.queryExecution().analyzed())
    finally:
        sessions.setActiveSession(spark._jsparkSession)


def table_schema(frame: DataFrame) -> pa.Schema:
    """The columns of a table that holds the frame's rows.

    Nullable throughout: whether Spark proves a column non-null depends on the plan, not on what the table
    promises.
    """
    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(frame.schema, timezone="UTC")])


def empty_result(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    try:
        rows = parsed_records.empty(spark, pipeline)
        result = transformation.transform(
            [transformation.assign_windows(rows[0], pipeline), *rows[1:]], pipeline
        )
        problem = "; ".join(
            f"the sink's key {key!r} is not a column of the result ({', '.join(result.columns)})"
            for key in pipeline.sink.keys
            if key not in result.columns
        )
        problem = problem or _no_flag(pipeline, result) or _undeclared_state(pipeline, result)
    except AnalysisException as error:
        problem = f"the transformation cannot be analysed: {str(error).splitlines()[0]}"
    if problem:
        raise PipelineError(
            file=pipeline.file, line=pipeline.line, pipeline=pipeline.name, problem=problem, form=FORM
        )
    types = {field.name: field.dataType.simpleString() for field in result.schema}
    check_bounded_columns(pipeline, types)
    check_served_columns(pipeline, types)
    return result


def _no_flag(pipeline: Pipeline, result: DataFrame) -> str:
    """What is wrong with the column that says a row is deleted; empty if nothing is."""
    name = pipeline.sink.deleted
    kinds = {field.name: field.dataType.simpleString() for field in result.schema}
    if not name or kinds.get(name) == "boolean":
        return ""
    return f"deleted={name!r} is no boolean column of the result ({', '.join(result.columns)})"


#: Operators that keep state, as the analysed plan names them.
_KEEPS_STATE = re.compile(
    r"^[\s:|+-]*(Aggregate|Deduplicate\w*|TransformWithState\w*|FlatMapGroups\w*|Join)\b", re.MULTILINE
)


def _undeclared_state(pipeline: Pipeline, result: DataFrame) -> str:
    """What is wrong where a rewinding, or a verdict, would take the query for another kind than it is; empty
    where nothing is.
    """
    if pipeline.window is not None or pipeline.re_execute:
        return ""
    found = set(_KEEPS_STATE.findall(analysed_plan(result)))
    allowed = {"Aggregate"} if pipeline.sink.mode is Mode.UPSERT else set()
    if len(pipeline.topics) == 1:
        allowed.add("Join")  # with a table that stands still
    if state := sorted(found - allowed):
        operators = ", ".join(state)
        problem = f"it keeps state ({operators}), so results depend on which rows come together"
        return f"{problem}: declare a window, or re_execute=True"
    return ""
