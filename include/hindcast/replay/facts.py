"""Look up what a plan depends on: the ledger, the topic, the sink and how far the audit is. No JVM."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from hindcast.control.history import History
from hindcast.control.ledger import Ledger, LedgerRow, by_partition
from hindcast.control.schema import ControlTable
from hindcast.control.shards import app_id
from hindcast.control.tables import ControlTables
from hindcast.errors import RangeNotYetConsumedError, StoreUnavailableError
from hindcast.pipeline import Pipeline
from hindcast.replay.planner import Facts
from hindcast.replay.request import ReplayRequest
from hindcast.replay.runs import Runs
from hindcast.settings import Settings
from hindcast.topics.offsets import TopicOffsets, across

_BATCH_BITS = 32  # a transaction's version is epoch << 32 | batch; see hindcast.stream's commit protocol


def settle(request: ReplayRequest, runs: Runs) -> ReplayRequest:
    """A run that was planned before keeps its offsets, so that its retry gives the same rows although the stream has gone on."""
    plan = runs.recorded_plan(request.run_id, request.describe()) if request.run_id else None
    if plan is None or not (request.everything or request.since_last_verdict) or plan["start"] == plan["end"]:
        return request
    start, end = (by_partition(plan[name]) for name in ("start", "end"))
    return replace(request, from_offsets=start, to_offsets=end, everything=False, since_last_verdict=False)


def gather(settings: Settings, pipeline: Pipeline, request: ReplayRequest) -> Facts:
    """Read all facts. The sink's version is read after the ledger, so that it holds every batch that the ledger names.

    :raises RangeNotYetConsumedError: where the sink does not exist yet
    :raises UnknownTopicError, BrokerUnavailableError, StoreUnavailableError: where a source of facts is missing or away
    """
    tables = ControlTables(settings)
    rows = Ledger(tables).batches(pipeline.name, pipeline.version)
    filed = _filed(tables, rows)
    with TopicOffsets(settings) as topic:
        earliest, latest = across(pipeline, topic.earliest), across(pipeline, topic.latest)
        from_time, to_time = (
            across(pipeline, partial(topic.at_time, at=moment)) if moment else None for moment in (request.from_time, request.to_time)
        )
    sink = open_sink(settings, pipeline)
    return Facts(
        history=History.of(rows),
        earliest=earliest,
        latest=latest,
        filed=filed,
        sink_version=sink.version(),
        now=datetime.now(UTC),
        sink_commits=_batch_commits(sink) if pipeline.window is None else (),
        from_time_offsets=from_time,
        to_time_offsets=to_time,
        judged_to=Runs(tables).judged_to(pipeline.name, pipeline.version, without=request.run_id) if request.since_last_verdict else None,
    )


def open_sink(settings: Settings, pipeline: Pipeline) -> DeltaTable:
    """The pipeline's sink at its newest version.

    :raises RangeNotYetConsumedError: where it does not exist yet
    """
    url = settings.table("sinks", pipeline.sink.name)
    try:
        return DeltaTable(url, storage_options=settings.storage_options or None)
    except TableNotFoundError as error:
        raise RangeNotYetConsumedError(pipeline=pipeline.name, problem=f"there is no table {url} yet") from error
    except (DeltaError, OSError) as error:
        raise StoreUnavailableError(table=url, action="opened", reason=error) from error


def _filed(tables: ControlTables, rows: list[LedgerRow]) -> dict[str, int]:
    applications = {row.shard: app_id(row.pipeline, row.shard) for row in rows}
    filed = dict.fromkeys(applications, 2**_BATCH_BITS)
    for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
        table = tables.open(name)
        for shard, application in applications.items():
            version = table.transaction_version(application)
            filed[shard] = min(filed[shard], -1 if version is None else version % 2**_BATCH_BITS)
    return filed


def _batch_commits(sink: DeltaTable) -> list[int]:
    return [int(commit["version"]) for commit in sink.history() if _commit_kind(commit.get("hindcast")) == "batch"]


def _commit_kind(text: object) -> str:
    return str(json.loads(text).get("kind", "")) if isinstance(text, str) else ""
