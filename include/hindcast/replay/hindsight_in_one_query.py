"""The answer in hindsight of a pipeline whose results depend on batches, from one batch query if that gives
the rows that the engine would give.

Spark runs the operators of its streams on a batch as well, without files, micro-batches or a state that
outlives the query. A batch knows no watermark, so it also emits rows that the stream still holds back. By
operator:

- a deduplication, an inner join, and a pipeline's own state without timers emit a row as soon as they can: a
  batch emits the same rows;
- one aggregation that is appended emits a group once the watermark has passed its time. Of the batch's rows
  those are taken whose time the watermark of the last recorded batch has passed. This works for one shard
  only, as shards have watermarks of their own;
- anything else (outer joins, timers, deduplication within the watermark, one aggregation after another,
  running results) is left to the engine (:meth:`hindcast.replay.recorded_batches.RecordedBatches.run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from hindcast.pipeline import Mode, Pipeline
from hindcast.spark import parsed_records, transformation
from hindcast.tables.ledger import LedgerRow

#: Operators of Spark's analysed plans that work row by row.
_STATELESS = frozenset(
    {"EventTimeWatermark", "Filter", "Generate", "Project", "StreamingRelationV2", "SubqueryAlias", "Union"}
)
#: Operators that wait for nothing: name -> the property that says so, and its value.
_PROMPT = {"TransformWithStateInPySpark": ("timeMode", "NoTime"), "Join": ("joinType", "Inner")}
#: How Spark marks the column whose time the watermark is compared with.
_EVENT_TIME = "spark.watermarkDelayMs"


def said(everything: DataFrame, pipeline: Pipeline, recorded: Sequence[LedgerRow]) -> DataFrame | None:
    """The rows of the batch query that a stream had emitted by the end of the recorded batches.

    None if a batch cannot tell which they are.
    """
    if pipeline.sink.mode is not Mode.APPEND:
        return None
    unread = parsed_records.unread(everything.sparkSession, pipeline)
    result = transformation.result(unread, pipeline, {})
    plan = result._jdf.queryExecution().analyzed()
    waiting = [node for node in _keeping_state(plan) if not _is_prompt(node)]
    if not waiting:
        return everything
    if [node.nodeName() for node in waiting] != ["Aggregate"]:
        return None
    timed = [field for field in result.schema.fields if _EVENT_TIME in field.metadata]
    if len(timed) != 1 or _event_times(waiting[0]) != 1:
        return None
    shards = {row.shard for row in recorded}
    if len(shards) != 1:
        return None
    end = F.col(f"`{timed[0].name}`")
    if isinstance(timed[0].dataType, StructType):
        end = end["end"]  # a window
    watermark_ms = max(row.watermark_ms for row in recorded)
    return everything.where(F.unix_micros(end) <= watermark_ms * 1000)


def _keeping_state(node: Any) -> Iterator[Any]:
    """The operators of a plan, a Scala tree, that see the stream and are not known to work row by row."""
    if not node.isStreaming():
        return
    listed = node.children()
    children = [listed.apply(position) for position in range(listed.size())]
    name = node.nodeName()
    joins_a_table = name == "Join" and not all(child.isStreaming() for child in children)
    if name not in _STATELESS and not joins_a_table:
        yield node
    for child in children:
        yield from _keeping_state(child)


def _is_prompt(node: Any) -> bool:
    """Whether the operator emits each row as soon as it can."""
    name = node.nodeName()
    if name in _PROMPT:
        operator_property, prompt_value = _PROMPT[name]
        return str(getattr(node, operator_property)()) == prompt_value
    return bool(name == "Deduplicate")


def _event_times(node: Any) -> int:
    """How many of the operator's columns have times that the watermark is compared with."""
    columns = node.output()
    found = 0
    for position in range(columns.size()):
        if columns.apply(position).metadata().contains(_EVENT_TIME):
            found += 1
    return found
