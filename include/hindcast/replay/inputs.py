"""Look up what a plan depends on: the ledger, the topic and its archive, the sink, and how far the audit is.

It starts no JVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd
import pyarrow.compute as pc

from hindcast.archive.held_records import archived_ranges, archives_of, offsets_at
from hindcast.archive.snapshot import ArchiveSnapshot
from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline
from hindcast.replay.planner import ReplayInputs, not_yet
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_table import Runs
from hindcast.replay.wait_for_stream import filed_batches
from hindcast.serving.corrected_windows import NOTHING, Corrected, Corrections
from hindcast.settings import Settings
from hindcast.shards.shard_row import awaiting_rewind
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.excluded_records import together
from hindcast.tables.fenced_sink import FencedTable, SinkEnd, sink_end
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.ledger_bases import LedgerBases, LedgerSnapshot, fenced_by
from hindcast.tables.ledger_history import History
from hindcast.tables.proofs import Proof, Proofs
from hindcast.tables.table_names import ControlTable
from hindcast.windows import MILLISECOND, WindowEnds


def settle(request: ReplayRequest, plan: RecordedPlan | None) -> ReplayRequest:
    """The request with the offsets that an earlier try of the same run planned, if its own would move.

    So the retry gives the same rows although the stream has read further.

    :param plan: what the earlier try planned, if there was one
    """
    moving = request.everything or request.since_last_verdict or request.late
    if plan is None or not moving or plan.start == plan.end:
        return request
    return replace(
        request,
        from_offsets=plan.start,
        to_offsets=plan.end,
        everything=False,
        since_last_verdict=False,
        late=False,
    )


def read_ledger(installation: Installation, pipeline: Pipeline) -> LedgerSnapshot:
    """What the ledger says now. Take the first of its histories from which a plan can be made.

    :raises StoreUnavailableError: if the store does not answer
    """
    settings = installation.settings
    url = settings.sink(pipeline)
    fenced = fenced_by(url, settings.storage_options, pipeline.name, pipeline.version)
    return LedgerBases(installation.tables).snapshot(pipeline.name, pipeline.version, fenced)


def read_inputs(
    installation: Installation,
    pipeline: Pipeline,
    request: ReplayRequest,
    ledger: LedgerSnapshot,
    history: History,
) -> ReplayInputs:
    """Read all else that a plan depends on.

    The sink's version is read after the ledger, so that the sink holds every batch that the ledger names.
    What it holds beyond them is compared with the same moment of the ledger that the history is of: a batch
    that has come into the ledger since is unknown to the history.

    :param history: one that the ledger gives
    :raises RangeNotYetConsumedError: if a rewind is under way
    :raises UnknownTopicError, BrokerUnavailableError, StoreUnavailableError: if a source is missing or away
    """
    settings = installation.settings
    tables = installation.tables
    undone = ledger.undone()
    excluding = ledger.excluding()
    filed = filed_batches(tables, pipeline.name, history.shards)
    with TopicOffsets(settings) as topic:
        earliest = across(pipeline, topic.earliest)
        latest = across(pipeline, topic.latest)
        archives = archives_of(settings, pipeline, topic, earliest)
        from_time_offsets = None
        if request.from_time is not None:
            from_time_offsets = _offsets_of(request.from_time, tables, pipeline, topic, archives, latest)
        to_time_offsets = None
        if request.to_time is not None:
            to_time_offsets = _offsets_of(request.to_time, tables, pipeline, topic, archives, latest)
    # If the stream has not begun there is none: the planner knows whether that matters.
    sink = sink_end(settings.sink(pipeline), settings.storage_options)
    corrected = NOTHING
    if pipeline.window is not None:
        corrected = Corrections(settings, pipeline).current()
    sink_version = -1
    if sink is not None:
        sink_version = sink.version
    check_not_rewound(installation, pipeline, ledger)
    now = datetime.now(UTC)
    sink_commits: Sequence[int] = ()
    if sink is not None and pipeline.window is None:
        sink_commits = unknown_commits(settings, pipeline, sink, ledger.reached())
    late_ends_ms: Sequence[int] = ()
    if request.late:
        late_ends_ms = uncorrected_ends_ms(pipeline, _late_rows(tables, pipeline), corrected)
    judged = Runs(tables).judged_ranges(
        pipeline.name, pipeline.version, without=request.run_id, undone=undone
    )
    proofs: Sequence[Proof] = ()
    if pipeline.window is None:
        proofs = Proofs(tables).of_version(pipeline.name, pipeline.version, undone)
    return ReplayInputs(
        history=history,
        earliest=earliest,
        latest=latest,
        filed=filed,
        sink_version=sink_version,
        now=now,
        sink_commits=sink_commits,
        from_time_offsets=from_time_offsets,
        to_time_offsets=to_time_offsets,
        archived=archived_ranges(pipeline, archives),
        corrected=corrected,
        late_ends_ms=late_ends_ms,
        judged=judged,
        proofs=proofs,
        excluded=together(row.excluded for row in excluding),
    )


def _offsets_of(
    at: datetime,
    tables: ControlTables,
    pipeline: Pipeline,
    topic: TopicOffsets,
    archives: Mapping[str, ArchiveSnapshot],
    latest: Offsets,
) -> Offsets:
    """The offsets that a time stands for: those of the first plan that asked for it, so that a range which
    begins at a time begins where the one before ended.

    Of a partition without a record from that time on, it is the latest offset. A record may still come there
    that is stamped earlier, by a producer or by a broker whose clock is behind. Then the broker has another
    answer, and what came in between would be in no range.

    :param latest: of each partition that there is now
    """
    planned = Runs(tables).offsets_of(pipeline.name, pipeline.version, at)
    if planned is None:
        return offsets_at(at, pipeline, topic, archives)
    # A partition that the first plan did not know held nothing then.
    return {partition: planned.get(partition, 0) for partition in latest}


def check_not_rewound(installation: Installation, pipeline: Pipeline, ledger: LedgerSnapshot) -> None:
    """The sink and the ledger must tell the same past. A rewind takes batches out of the sink first and out
    of the ledger later, so none may be under way, or have ended since the ledger was read.

    Call it after the sink's version was read: a rewind that had changed that version is found by the shards
    that wait for it, or if it has ended since, by its rows of the ledger.

    :raises RangeNotYetConsumedError: if there was a rewind
    :raises StoreUnavailableError: if a store does not answer
    """
    if awaiting_rewind(installation.lease_table.leases_if_any(), pipeline.name):
        raise not_yet(pipeline, "a rewind of it has begun and not ended", rewind=True)
    resets = installation.ledger.resets(pipeline.name, pipeline.version)
    if len(resets) != len(ledger.resets):
        raise not_yet(pipeline, "a rewind of it has ended just now", rewind=True)


def _late_rows(tables: ControlTables, pipeline: Pipeline) -> pd.DataFrame:
    own = (pc.field("pipeline") == pipeline.name) & (pc.field("version") == pipeline.version)
    columns = ["partition", "offset", "event_at", "watermark_ms"]
    dataset = arrow_dataset(tables.open(ControlTable.LATE_ROWS))
    frame: pd.DataFrame = dataset.to_table(columns=columns, filter=own).to_pandas()
    return frame


def uncorrected_ends_ms(pipeline: Pipeline, late: pd.DataFrame, corrected: Corrected) -> Sequence[int]:
    """The ends of the windows that one of these rows was late for and that no correction has with that row,
    in order.

    :param late: partition, offset, event_at (UTC), watermark_ms of each late row
    """
    if pipeline.window is None or late.empty:
        return ()
    windows = WindowEnds.of(pipeline.window, MILLISECOND)
    event_us = late["event_at"].astype("int64")
    event_ms = event_us // 1000  # a window's borders are whole milliseconds
    latest_end = windows.last(event_ms)
    most_per_row = -(-windows.length // windows.slide)
    found: set[int] = set()
    for back in range(most_per_row):
        end = latest_end - back * windows.slide
        waits = (end > event_ms) & (end <= late["watermark_ms"])
        for one in corrected.ranges:
            in_range = (end > one.after_ms) & (end <= one.to_ms)
            has_row = late["offset"] < late["partition"].map(one.end).fillna(0)
            waits &= ~(in_range & has_row)
        found.update(end[waits].unique().tolist())
    return sorted(found)


def unknown_commits(
    settings: Settings, pipeline: Pipeline, sink: SinkEnd, reached: Mapping[str, LedgerRow]
) -> list[int]:
    """The first version of the sink, for each shard, that is a batch which the ledger did not have yet.

    Only the commits after the ledger's last row of a shard are read, and only if the sink has more batches.

    :param reached: shard -> its last batch in the ledger, also one that a rewind took back
    """
    url = settings.sink(pipeline)
    options = settings.storage_options
    prefix = f"{pipeline.name}/v{pipeline.version}/"
    versions = []
    for app, fence in sink.fences.items():
        if not app.startswith(prefix):
            continue
        known = reached.get(app.removeprefix(prefix))
        filed = 0
        first = 0
        if known is not None:
            filed = known.batch
            first = known.sink_version + 1
        if fence.batch <= filed:
            continue
        _, missing = FencedTable(url, options, app).since(fence, sink.version, known)
        if missing:
            first = missing[0].sink_version
        # If the log has lost them, no version after the ledger's last row is whole.
        versions.append(first)
    return versions
