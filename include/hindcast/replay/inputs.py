"""Look up what a plan depends on: the ledger, the topic and its archive, the sink and how far the audit is. No JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pandas as pd
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from hindcast.archive.snapshot import ArchiveSnapshot, read_snapshot
from hindcast.delta.commit import METADATA_KEY, newest_commits
from hindcast.errors import RangeNotYetConsumedError, StoreUnavailableError
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.replay.planner import ReplayInputs
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_table import Runs
from hindcast.serving.corrected_windows import NOTHING, Corrected, Corrections
from hindcast.settings import Settings
from hindcast.shards.shard_names import app_id
from hindcast.tables.control_tables import ControlTables, arrow_dataset
from hindcast.tables.ledger import Ledger, LedgerRow, Offsets, Undone, by_partition
from hindcast.tables.ledger_history import History
from hindcast.tables.schema import ControlTable

_BATCH_BITS = 32  # a transaction's version is epoch << 32 | batch; see hindcast.stream's commit protocol


def settle(request: ReplayRequest, runs: Runs) -> ReplayRequest:
    """A run that was planned before keeps its offsets, so that its retry gives the same rows although the stream has gone on."""
    plan = runs.recorded_plan(request.run_id, request.describe()) if request.run_id else None
    moving = request.everything or request.since_last_verdict or request.late
    if plan is None or not moving or plan["start"] == plan["end"]:
        return request
    start, end = (by_partition(plan[name]) for name in ("start", "end"))
    return replace(request, from_offsets=start, to_offsets=end, everything=False, since_last_verdict=False, late=False)


def read_inputs(settings: Settings, pipeline: Pipeline, request: ReplayRequest) -> ReplayInputs:
    """Read all facts. The sink's version is read after the ledger, so that it holds every batch that the ledger names.

    :raises UnknownTopicError, BrokerUnavailableError, StoreUnavailableError: where a source of facts is missing or away
    """
    tables = ControlTables(settings)
    ledger = Ledger(tables)
    rows, undone = ledger.batches(pipeline.name, pipeline.version), ledger.undone(pipeline.name, pipeline.version)
    filed = audited_batches(tables, rows)
    with TopicOffsets(settings) as topic:
        earliest, latest = across(pipeline, topic.earliest), across(pipeline, topic.latest)
        archives = _archives(settings, pipeline, topic, earliest)
        times = [
            across(pipeline, partial(_at_time, topic, archives, at=moment)) if moment else None
            for moment in (request.from_time, request.to_time)
        ]
    try:
        sink = open_sink(settings, pipeline)
    except RangeNotYetConsumedError:  # the stream has not begun: the planner knows whether that matters
        sink = None
    corrected = Corrections(settings, pipeline).current() if pipeline.window is not None else NOTHING
    return ReplayInputs(
        history=History.of(rows),
        earliest=earliest,
        latest=latest,
        filed=filed,
        sink_version=-1 if sink is None else sink.version(),
        now=datetime.now(UTC),
        sink_commits=_batch_commits(sink, undone) if sink is not None and pipeline.window is None else (),
        from_time_offsets=times[0],
        to_time_offsets=times[1],
        archived=across(pipeline, lambda name: archives[name].ranges if name in archives else {}),
        corrected=corrected,
        late_from_ms=first_uncorrected_ms(pipeline, _late_rows(tables, pipeline), corrected) if request.late else None,
        judged_to=Runs(tables).judged_to(pipeline.name, pipeline.version, without=request.run_id, undone=undone)
        if request.since_last_verdict
        else None,
    )


def _archives(settings: Settings, pipeline: Pipeline, topic: TopicOffsets, earliest: Offsets) -> dict[str, ArchiveSnapshot]:
    """By topic what its archive holds, of those topics that have dropped records and have an archive."""
    dropped = {pipeline.topics[partition // TOPIC_STRIDE].name for partition, offset in earliest.items() if offset > 0}
    found = {name: read_snapshot(settings, name) for name in dropped}
    return {name: held for name, held in found.items() if held is not None and held.is_of(topic.identity(name))}


def _at_time(topic: TopicOffsets, archives: Mapping[str, ArchiveSnapshot], name: str, at: datetime) -> Offsets:
    """The first offset of each partition at or after a moment, of what the topic and its archive hold."""
    found = topic.at_time(name, at)
    if name not in archives:
        return found
    return {**found, **archives[name].at_time(at, topic.earliest(name))}


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


def _late_rows(tables: ControlTables, pipeline: Pipeline) -> pd.DataFrame:
    where = (pc.field("pipeline") == pipeline.name) & (pc.field("version") == pipeline.version)
    columns = ["partition", "offset", "event_at", "watermark_ms"]
    frame: pd.DataFrame = arrow_dataset(tables.open(ControlTable.LATE_ROWS)).to_table(columns=columns, filter=where).to_pandas()
    return frame


def first_uncorrected_ms(pipeline: Pipeline, late: pd.DataFrame, corrected: Corrected) -> int | None:
    """The end of the first window that one of these rows was late for and that no correction has with that row; None where all have.

    :param late: partition, offset, event_at (UTC), watermark_ms of each late row
    """
    if pipeline.window is None or late.empty:
        return None
    length, slide = (int(duration / timedelta(milliseconds=1)) for duration in (pipeline.window.length, pipeline.window.step))
    event_ms = late["event_at"].astype("int64") // 1000  # of microseconds; a window's borders are whole milliseconds
    newest_start, found = event_ms - event_ms % slide, list[int]()
    for end in (newest_start - back * slide + length for back in range(-(-length // slide))):
        waits = (end > event_ms) & (end <= late["watermark_ms"])
        for one in corrected.ranges:
            has = late["offset"] < late["partition"].map(one.end).fillna(0)
            waits &= ~((end > one.after_ms) & (end <= one.to_ms) & has)
        if waits.any():
            found.append(int(end[waits].min()))
    return min(found, default=None)


def audited_batches(tables: ControlTables, rows: list[LedgerRow]) -> dict[str, int]:
    applications = {row.shard: app_id(row.pipeline, row.shard) for row in rows}
    filed = dict.fromkeys(applications, 2**_BATCH_BITS)
    for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
        table = tables.open(name)
        for shard, application in applications.items():
            version = table.transaction_version(application)
            filed[shard] = min(filed[shard], -1 if version is None else version % 2**_BATCH_BITS)
    return filed


def _batch_commits(sink: DeltaTable, undone: Sequence[Undone]) -> list[int]:
    versions = [int(commit["version"]) for commit in newest_commits(sink) if _commit_kind(commit.get(METADATA_KEY)) == "batch"]
    return [version for version in versions if not any(reset.has(version) for reset in undone)]


def _commit_kind(text: object) -> str:
    return str(json.loads(text).get("kind", "")) if isinstance(text, str) else ""
