"""From the parsed rows of a pipeline's topics to its result: windows, what came too late, and the pipeline's
own function. Stream and batch share every line of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.ddl import quoted
from hindcast.pipeline import Lookup, Mode, Pipeline, Topic
from hindcast.spark.lookups import read_lookup
from hindcast.spark.parsed_records import SOURCE_COLUMNS, given_columns, usable
from hindcast.spark.user_code import call_user_code


def assign_windows(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """One row for each window that a row falls into, in the column ``window`` (struct of start and end).

    Without a window the rows stay as they are.
    """
    if pipeline.window is None:
        return rows
    duration = pipeline.window.duration
    slide = pipeline.window.slide or duration
    window = F.window(quoted(pipeline.event_time), duration, slide)
    return rows.withColumn("window", window)


def above_floors(windows: DataFrame, pipeline: Pipeline, floors: Mapping[int, int]) -> DataFrame:
    """Without the (row, window) pairs whose window was final for the row's partition before the query began.

    :param floors: by partition, in epoch milliseconds
    """
    if pipeline.window is None or not any(floors.values()):
        return windows
    pairs = []
    for partition, floor in sorted(floors.items()):
        pairs.append(F.lit(partition).cast("long"))
        pairs.append(F.lit(floor).cast("long"))
    floor_ms = F.element_at(F.create_map(*pairs), F.col("_partition").cast("long"))
    return windows.where(F.unix_micros("window.end") > floor_ms * F.lit(1000))


def result(
    parsed: Sequence[DataFrame],
    pipeline: Pipeline,
    floors: Mapping[int, int],
    again: Mapping[str, tuple[int, int]] | None = None,
) -> DataFrame:
    """What the pipeline's stream makes of the parsed records of its topics, in their order.

    The late filter sits between the windows and the transformation.

    :param again: by topic, the partition and offset of a record that only moves the topic's watermark
    """
    rows = []
    for topic, frame in zip(pipeline.topics, parsed, strict=True):
        good = usable(frame)
        if topic.watermark:
            good = good.withWatermark(quoted(pipeline.event_time_of(topic)), pipeline.watermark)
        if again and topic.name in again:
            good = good.where(_is_new(*again[topic.name]))
        rows.append(good)
    if pipeline.window is not None:
        rows = [above_floors(assign_windows(rows[0], pipeline), pipeline, floors)]
    return transform(rows, pipeline)


def _is_new(partition: int, offset: int) -> Column:
    """Whether a row is of another record than this one.

    Spark moves no condition with a random number to before the watermark, where the record would be gone. No
    offset is below 0, but Spark does not know that: it would see through a number of its own.
    """
    same = (F.col("_partition") == partition) & (F.col("_offset") == offset)
    return F.when(same, F.rand(0) + F.col("_offset") < 0).otherwise(F.lit(True))


def without_deleted(result: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The rows of a result that are in the table, with its columns: none that says its key is deleted."""
    name = pipeline.sink.deleted
    if not name:
        return result
    is_deleted = F.coalesce(F.col(quoted(name)), F.lit(False))
    return result.where(~is_deleted).drop(name)


def output_mode(pipeline: Pipeline) -> str:
    """Spark's output mode of the pipeline's query."""
    return "update" if pipeline.sink.mode is Mode.UPSERT else "append"


def transform(rows: Sequence[DataFrame], pipeline: Pipeline, *, hindsight: bool = False) -> DataFrame:
    """The pipeline's own transformation over the rows of its topics and the tables that it joins.

    :param hindsight: take the transformation that knows all, if the pipeline has one
    """
    function = pipeline.transform
    if hindsight and pipeline.hindsight:
        function = pipeline.hindsight
    frames = iter([_without_origin(*of_topic) for of_topic in zip(rows, pipeline.topics, strict=False)])
    first = next(frames)
    others = []
    for joined in pipeline.joined:
        if isinstance(joined, Lookup):
            others.append(read_lookup(first.sparkSession, joined))
        else:
            others.append(next(frames))
    return call_user_code(pipeline, function, first, *others)


def _without_origin(frame: DataFrame, topic: Topic) -> DataFrame:
    """The frame with the columns that a transformation gets."""
    given = given_columns(topic)
    hidden = [column for column in (*SOURCE_COLUMNS, "_event_at") if column not in given]
    return frame.drop(*hidden)
