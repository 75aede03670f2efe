"""Begin a new version of a pipeline beside the active one. All that could be wrong is found before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError

from hindcast import catalog
from hindcast.errors import BadRangeError, TryLaterError
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline, parse_start
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.active_version import tables_of
from hindcast.shards.pipeline_row import InactiveState, InactiveVersion
from hindcast.shards.shard_row import ShardCheckpoint
from hindcast.shards.version_changes import Refusal, Versions, check_room
from hindcast.shards.version_events import record_changes
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.ledger_history import History, may_hold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_FORM = 'Give --from earliest, a time with an offset from UTC, or offsets of each partition: {"0": 100, "1": 200}.'


def start_version(
    session: Callable[[], SparkSession], settings: Settings, name: str, version: int, start: str, *, new_table: bool = False, who: str = ""
) -> dict[str, Any]:
    """Begin the version as a shadow; its workers take it up within seconds.

    :param session: called once all else is well: its columns are known once Spark has analysed it
    :param start: ``earliest``, an ISO 8601 time with an offset from UTC, or offsets as JSON
    :param new_table: readers will see other columns once it is promoted, and that is meant
    :returns: {pipeline, version, active, tables, offsets, seam_ms, changes}
    :raises BadInputError: where any part of it is wrong; nothing was changed
    """
    found = catalog.load(settings.pipelines_dir)
    store = LeaseTable(settings)
    versions = Versions(store)
    standing = record_changes(ControlTables(settings), versions.of(name))
    pipeline, active = found.of(name, version), found.of(name, standing.active)
    check_room(standing, version)
    _check_unused(settings, pipeline)
    _check_topics(pipeline, active)
    history = History.of(Ledger(ControlTables(settings)).batches(name, active.version))
    offsets = start_offsets(settings, pipeline, start, datetime.now(UTC))
    seam_ms = seam_of(pipeline, active, history, offsets, began_at(store.leases(), active))
    before, after = columns_of(session, settings, active, stored=True), columns_of(session, settings, pipeline)
    new = _check_columns(pipeline, active, before, after, new_table=new_table, seam=seam_ms is not None)
    beside = InactiveVersion(
        version=version, state=InactiveState.CATCHING_UP, shards=pipeline.shards, tables=tables_of(pipeline), seam_ms=seam_ms
    )
    begun = record_changes(ControlTables(settings), versions.begin(name, beside, offsets, columns_from=active.version, who=who))
    return {
        "pipeline": name,
        "version": version,
        "active": begun.active,
        "tables": list(beside.tables),
        "offsets": {str(partition): offset for partition, offset in offsets.items()},
        "seam_ms": seam_ms,
        "changes": new,
    }


def start_offsets(settings: Settings, pipeline: Pipeline, text: str, now: datetime) -> Offsets:
    """Where the version begins, by partition.

    :raises BadRangeError: where it is no start, in the future, or the topic no longer holds it
    """
    try:
        start = parse_start(text)
    except ValueError as error:
        raise BadRangeError(range=text, problem=str(error), cure=START_FORM) from error
    if start == "latest":
        raise BadRangeError(range=text, problem="a version without a past can be compared with nothing", cure=START_FORM)
    if isinstance(start, datetime) and start > now:
        raise BadRangeError(range=text, problem="it is in the future", cure=START_FORM)
    with TopicOffsets(settings) as topics:
        earliest, latest = across(pipeline, topics.earliest), across(pipeline, topics.latest)
        if isinstance(start, datetime):
            found = across(pipeline, partial(topics.at_time, at=start))
            lost = [partition for partition, offset in found.items() if 0 < earliest[partition] == offset]
            _refuse_lost(pipeline, text, lost, earliest)
            return found
    if isinstance(start, str):
        return earliest
    if start.keys() != earliest.keys():
        raise BadRangeError(range=text, problem=f"the partitions are {', '.join(map(pipeline.place, earliest))}", cure=START_FORM)
    _refuse_lost(pipeline, text, [partition for partition, offset in start.items() if offset < earliest[partition]], earliest)
    if ahead := [partition for partition, offset in start.items() if offset > latest[partition]]:
        problem = f"it is in the future: partition {pipeline.place(ahead[0])} ends at {latest[ahead[0]]}"
        raise BadRangeError(range=text, problem=problem, cure=START_FORM)
    return start


def _refuse_lost(pipeline: Pipeline, text: str, lost: list[int], earliest: Offsets) -> None:
    if lost:
        place = f"partition {pipeline.place(lost[0])} begins at {earliest[lost[0]]} now"
        cure = "Give --from earliest: readers get what is older from the active version. (A stream reads no archive; replays do.)"
        raise BadRangeError(range=text, problem=f"it is past the topic's retention: {place}", cure=cure)


def began_at(leases: Iterable[Lease], active: Pipeline) -> Offsets:
    """By partition, where the shards of the active version began, its first generation before the others."""
    begun: Offsets = {}
    for lease in resharding.of_version(leases, active.name, active.version):
        for partition, offset in ShardCheckpoint.of(lease).start_offsets.items():
            begun[partition] = min(offset, begun.get(partition, offset))
    return begun


def seam_of(pipeline: Pipeline, active: Pipeline, history: History, start: Offsets, shards_began: Offsets | None = None) -> int | None:
    """The greatest end of a window, in epoch milliseconds, that may lack rows when it is read from ``start`` on; None where none does that
    the active version has: it began there, or later.

    :param shards_began: by partition, where the active version's shards began: the ledger does not know it of what they have not read yet
    :raises VersionRefusedError: where the pipeline has no windows at which readers could change over
    :raises TryLaterError: where the active version has not read as far, so that is not known yet
    """
    begun = {**(shards_began or {}), **history.first}
    first = {partition: offset for partition, offset in begun.items() if start.get(partition, 0) > offset}
    if not first:
        return None
    if pipeline.window is None or active.window is None:
        cure = f"Version {active.version} began at {first}: begin there, with --from earliest where the topic still holds it."
        raise Refusal(pipeline.name, pipeline.version, "started")("without windows it must begin where the active version did", cure)
    committed = {**first, **history.committed}
    if behind := [partition for partition in first if committed[partition] < start[partition]]:
        read = committed[behind[0]]
        raise TryLaterError(
            reason=f"Version {active.version} has read {pipeline.name}'s partition {pipeline.place(behind[0])} up to {read}, "
            f"and version {pipeline.version} is to begin at {start[behind[0]]}. Try again in a moment, or begin earlier."
        )
    read_before = History.reading(history, first, {partition: start[partition] for partition in first})
    newest = [_newest_event_ms(active, history, segment.row) for segment in read_before]
    length = max(pipeline.window.length, active.window.length)
    return max(newest) + int(length.total_seconds() * 1000)


def _newest_event_ms(active: Pipeline, history: History, row: LedgerRow) -> int:
    """No row of the batch happened later. Where that was not measured, the next batch's watermark says it."""
    if row.max_event_ms is not None:
        return row.max_event_ms
    if not may_hold(row, 0):
        return 0
    later = [other.watermark_ms for other in history.rows if other.shard == row.shard and other.batch > row.batch]
    if not later:
        raise TryLaterError(reason=f"The newest event of batch {row.batch} of {row.shard} is not known yet. Try again in a moment.")
    return later[0] + int(active.watermark_delay.total_seconds() * 1000)


def columns_of(session: Callable[[], SparkSession], settings: Settings, pipeline: Pipeline, *, stored: bool = False) -> dict[str, str]:
    """The columns of a version's table, each with its type as Delta has it: of the table where it is there already, else by analysing
    its query.
    """
    schema = None
    if stored:
        try:
            schema = DeltaTable(settings.table("sinks", pipeline.sink.name), storage_options=settings.storage_options or None).schema()
        except TableNotFoundError:
            schema = None
    if schema is None:
        from hindcast.spark.query_signature import signature_of

        schema = Schema.from_arrow(signature_of(session(), pipeline).schema)
    return {field.name: field.type.to_json().strip('"') for field in schema.fields}


def _check_columns(
    pipeline: Pipeline, active: Pipeline, before: dict[str, str], after: dict[str, str], *, new_table: bool, seam: bool
) -> list[str]:
    """What readers will see other than now: columns that come, go or change their type, and other keys."""
    retyped = [name for name in before if name in after and before[name] != after[name]]
    changed = [
        *(f"{name} comes" for name in after if name not in before),
        *(f"{name} goes" for name in before if name not in after),
        *(f"{name} is {after[name]}, not {before[name]}" for name in retyped),
    ]
    if (pipeline.sink.keys, pipeline.sink.mode) != (active.sink.keys, active.sink.mode):
        changed.append(f"its keys are {pipeline.sink.keys} ({pipeline.sink.mode.value})")
    refused = Refusal(pipeline.name, pipeline.version, "started")
    if changed and not new_table:
        cure = "Give --new-table where readers are meant to see that once it is promoted."
        raise refused(f"its table has another schema than version {active.version}'s: {'; '.join(changed)}", cure)
    if retyped and seam:
        cure = "Begin where the active version did: --from earliest."
        raise refused(f"readers would get two types in one column ({', '.join(retyped)}), older windows in the old one", cure)
    return changed


def _check_unused(settings: Settings, pipeline: Pipeline) -> None:
    refused = Refusal(pipeline.name, pipeline.version, "started")
    if Ledger(ControlTables(settings)).batches(pipeline.name, pipeline.version):
        cure = f"Declare it as version {pipeline.version + 1} or higher, with a table of its own."
        raise refused("it was consumed before, and the ledger keeps that as history", cure)
    for table in pipeline.tables:
        url = settings.table("sinks", table.name)
        if DeltaTable.is_deltatable(url, storage_options=settings.storage_options or None):
            raise refused(f"there is a table {url} already", "Name another table in its declaration, or remove that one.")


def _check_topics(pipeline: Pipeline, active: Pipeline) -> None:
    own, others = ([topic.name for topic in one.topics] for one in (pipeline, active))
    if own != others:
        problem = f"it reads {', '.join(own)}, version {active.version} reads {', '.join(others)}: they have no offsets in common"
        raise Refusal(pipeline.name, pipeline.version, "started")(problem, "Give it a name of its own: it is another pipeline.")
