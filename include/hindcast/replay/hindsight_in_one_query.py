"""The answer in hindsight of a pipeline whose results depend on batches, from one batch query where that says what the engine would.

Spark runs the operators of its streams on a batch as well, without files, micro-batches or a state that outlives the query. A batch knows
no watermark, so it also says what the stream still waits to say. By operator:

- a deduplication, an inner join, and state of a pipeline's own without timers say a row as soon as they can: a batch says the same rows;
- one aggregation that is appended says a group once the watermark has passed its time: of the batch's rows those are taken whose time
  the watermark of the last recorded batch has passed. One shard only, as shards have watermarks of their own;
- anything else (outer joins, timers, deduplication within the watermark, one aggregation after another, running results) is left to the
  engine (:meth:`hindcast.replay.recorded_batches.RecordedBatches.run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from hindcast.pipeline import Mode, Pipeline
from hindcast.spark import kafka_source
from hindcast.tables.ledger import LedgerRow

#: Operators of Spark's analysed plans that work row by row.
_STATELESS = frozenset({"EventTimeWatermark", "Filter", "Generate", "Project", "StreamingRelationV2", "SubqueryAlias", "Union"})
#: Operators that wait for nothing: name -> the property that says so, and its value.
_PROMPT = {"TransformWithStateInPySpark": ("timeMode", "NoTime"), "Join": ("joinType", "Inner")}
#: How Spark marks the column whose time the watermark is compared with.
_EVENT_TIME = "spark.watermarkDelayMs"


def said(everything: DataFrame, pipeline: Pipeline, recorded: Sequence[LedgerRow]) -> DataFrame | None:
    """Of the batch query's rows those that a stream had said by the end of the recorded batches; None where a batch cannot tell."""
    if pipeline.sink.mode is not Mode.APPEND:
        return None
    result = kafka_source.result(kafka_source.unread(everything.sparkSession, pipeline), pipeline, {})
    waiting = [node for node in _keeping_state(result._jdf.queryExecution().analyzed()) if not _is_prompt(node)]
    if not waiting:
        return everything
    timed = [field for field in result.schema.fields if _EVENT_TIME in field.metadata]
    aggregated = [node.nodeName() for node in waiting] == ["Aggregate"] and _event_times(waiting[0]) == len(timed) == 1
    if not aggregated or len({row.shard for row in recorded}) != 1:
        return None
    time = F.col(f"`{timed[0].name}`")
    end = time["end"] if isinstance(timed[0].dataType, StructType) else time
    return everything.where(F.unix_micros(end) <= max(row.watermark_ms for row in recorded) * 1000)


def _keeping_state(node: Any) -> Iterator[Any]:
    """The operators of a plan, a Scala tree, that see the stream and are not known to work row by row."""
    if not node.isStreaming():
        return
    children = [node.children().apply(position) for position in range(node.children().size())]
    with_a_table = node.nodeName() == "Join" and not all(child.isStreaming() for child in children)
    if node.nodeName() not in _STATELESS and not with_a_table:
        yield node
    for child in children:
        yield from _keeping_state(child)


def _is_prompt(node: Any) -> bool:
    name = node.nodeName()
    if name in _PROMPT:
        told, value = _PROMPT[name]
        return str(getattr(node, told)()) == value
    return bool(name == "Deduplicate")


def _event_times(node: Any) -> int:
    columns = node.output()
    return sum(columns.apply(position).metadata().contains(_EVENT_TIME) for position in range(columns.size()))
