"""Start a new version of a pipeline while the active one runs on.

All that could be wrong is found before anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from deltalake import Schema

from hindcast.archive.archive_or_live import HeldRecords
from hindcast.archive.held_records import archived_ranges, archives_of, offsets_at
from hindcast.delta.open_table import find_table
from hindcast.errors import BadRangeError, TryLaterError
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets, as_json_object
from hindcast.pipeline import Pipeline, parse_start
from hindcast.replay.inputs import read_ledger
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.active_version import tables_of
from hindcast.shards.pipeline_row import InactiveState, InactiveVersion
from hindcast.shards.shard_row import ShardCheckpoint
from hindcast.shards.version_changes import Refusal, Versions, check_room
from hindcast.shards.version_events import record_changes
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.ledger_history import History, may_hold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_FORM = (
    "Give --from earliest, a time with an offset from UTC, "
    'or offsets of each partition: {"0": 100, "1": 200}.'
)


def start_version(
    session: Callable[[], SparkSession],
    installation: Installation,
    name: str,
    version: int,
    start: str,
    *,
    new_table: bool = False,
    who: str = "",
) -> dict[str, Any]:
    """Start the version as a shadow of the active one. Workers take up its shards within seconds.

    :param session: called only if all else is right; the columns of a query are known once Spark has analysed
        it
    :param start: ``earliest``, an ISO 8601 time with an offset from UTC, or offsets as JSON
    :param new_table: accept that readers will see other columns or keys once it is promoted
    :param who: who starts it, for the event
    :returns: {pipeline, version, active, tables, offsets, seam_ms, changes}
    :raises BadInputError: if any part of it is wrong; nothing was changed
    :raises TryLaterError: if its seam is not known yet; nothing was changed
    """
    settings = installation.settings
    found = installation.catalog
    tables = installation.tables
    store = installation.lease_table
    versions = Versions(store)
    rollout = record_changes(tables, versions.of(name))
    pipeline = found.of(name, version)
    active = found.of(name, rollout.active)
    check_room(rollout, version)
    _check_unused(installation, pipeline)
    _check_topics(pipeline, active)
    offsets = start_offsets(settings, pipeline, start, datetime.now(UTC))
    shards_began = began_at(store.leases(), active)
    ledger = read_ledger(installation, active)
    seam_ms = ledger.answer(lambda history: seam_of(pipeline, active, history, offsets, shards_began))
    old_columns = stored_columns(session, settings, active)
    new_columns = query_columns(session, pipeline)
    changes = _changes_for_readers(pipeline, active, old_columns, new_columns)
    if changes and not new_table:
        problem = f"its table has another schema than version {active.version}'s: {'; '.join(changes)}"
        cure = "Give --new-table if readers are to see that once it is promoted."
        raise _refused(pipeline)(problem, cure)
    if seam_ms is not None:
        _check_types(pipeline, old_columns, new_columns)
    shadow = InactiveVersion(
        version=version,
        state=InactiveState.CATCHING_UP,
        shards=pipeline.shards,
        tables=tables_of(pipeline),
        seam_ms=seam_ms,
    )
    started = versions.begin(name, shadow, offsets, columns_from=active.version, who=who)
    record_changes(tables, started)
    return {
        "pipeline": name,
        "version": version,
        "active": started.active,
        "tables": list(shadow.tables),
        "offsets": as_json_object(offsets),
        "seam_ms": seam_ms,
        "changes": changes,
    }


def _refused(pipeline: Pipeline) -> Refusal:
    return Refusal(pipeline.name, pipeline.version, "started")


def _check_unused(installation: Installation, pipeline: Pipeline) -> None:
    """Check that neither the version's number nor any of its tables was ever used."""
    settings = installation.settings
    refused = _refused(pipeline)
    if installation.ledger.batches(pipeline.name, pipeline.version):
        cure = f"Declare it as version {pipeline.version + 1} or higher, with a table of its own."
        raise refused("it was consumed before, and the ledger keeps that as history", cure)
    for table in pipeline.tables:
        url = table.url or settings.table("sinks", table.name)
        if find_table(url, settings.storage_options) is not None:
            cure = "Name another table in its declaration, or remove that one."
            raise refused(f"there is a table {url} already", cure)


def _check_topics(pipeline: Pipeline, active: Pipeline) -> None:
    own = _topic_names(pipeline)
    others = _topic_names(active)
    if own != others:
        versions = f"it reads {own}, version {active.version} reads {others}"
        cure = "Give it a name of its own: it is another pipeline."
        raise _refused(pipeline)(f"{versions}: they have no offsets in common", cure)


def _topic_names(pipeline: Pipeline) -> str:
    """In the order in which the pipeline reads them: its partitions are numbered in that order."""
    return ", ".join(topic.name for topic in pipeline.topics)


# -- where it starts -------------------------------------------------------------------------------------


def start_offsets(settings: Settings, pipeline: Pipeline, text: str, now: datetime) -> Offsets:
    """The offset of each partition at which the version starts, in its topics or in their archives.

    :raises BadRangeError: if it is no start, lies in the future, or neither the topic nor its archive holds
        it any more
    """
    start = _parse_start(text, now)
    with TopicOffsets(settings) as topics:
        earliest = across(pipeline, topics.earliest)
        archives = archives_of(settings, pipeline, topics, earliest)
        latest = across(pipeline, topics.latest)
        held = HeldRecords(earliest, latest, archived_ranges(pipeline, archives))
        if isinstance(start, datetime):
            offsets = offsets_at(start, pipeline, topics, archives)
            _check_time_retained(pipeline, text, offsets, held)
            return offsets
    if isinstance(start, str):
        return held.first()
    _check_offsets(pipeline, text, start, held)
    return start


def _parse_start(text: str, now: datetime) -> str | datetime | Offsets:
    """``earliest``, a time that is not in the future, or offsets."""
    try:
        start = parse_start(text)
    except ValueError as error:
        raise _bad_start(text, str(error)) from error
    if start == "latest":
        raise _bad_start(text, "a version without a past can be compared with nothing")
    if isinstance(start, datetime) and start > now:
        raise _bad_start(text, "it is in the future")
    return start


def _check_time_retained(pipeline: Pipeline, text: str, offsets: Offsets, held: HeldRecords) -> None:
    """Refuse a time whose first record is the first that is held, if records before it are gone: the time may
    be that of a lost record.
    """
    first = held.first()
    for partition, offset in offsets.items():
        if 0 < first[partition] == offset:
            raise _lost(pipeline, text, partition, held)
        _check_held(pipeline, text, partition, offset, held)


def _check_offsets(pipeline: Pipeline, text: str, start: Offsets, held: HeldRecords) -> None:
    """Check that the start names each partition, and in each of them a record that is there or comes next."""
    if start.keys() != held.earliest.keys():
        partitions = ", ".join(map(pipeline.place, held.earliest))
        raise _bad_start(text, f"the partitions are {partitions}")
    for partition, offset in start.items():
        if offset > held.latest[partition]:
            end = f"partition {pipeline.place(partition)} ends at {held.latest[partition]}"
            raise _bad_start(text, f"it is in the future: {end}")
        _check_held(pipeline, text, partition, offset, held)


def _check_held(pipeline: Pipeline, text: str, partition: int, offset: int, held: HeldRecords) -> None:
    if held.missing(partition, offset, held.latest[partition]):
        raise _lost(pipeline, text, partition, held)


def _lost(pipeline: Pipeline, text: str, partition: int, held: HeldRecords) -> BadRangeError:
    first = held.first()[partition]
    begins = f"partition {pipeline.place(partition)} begins at {first} now"
    archived = "the topic has no archive"
    if held.archived.get(partition):
        archived = "its archive has no more"
    cure = "Give --from earliest: readers get what is older from the active version."
    return _bad_start(text, f"it is past the topic's retention: {begins}, and {archived}", cure)


def _bad_start(text: str, problem: str, cure: str = START_FORM) -> BadRangeError:
    return BadRangeError(range=text, problem=problem, cure=cure)


# -- the seam --------------------------------------------------------------------------------------------


def began_at(leases: Iterable[Lease], active: Pipeline) -> Offsets:
    """The offset of each partition at which the shards of the active version began.

    It is the least over all generations: the first generation began before the others.
    """
    began: Offsets = {}
    for lease in resharding.of_version(leases, active.name, active.version):
        for partition, offset in ShardCheckpoint.of(lease).start_offsets.items():
            began[partition] = min(offset, began.get(partition, offset))
    return began


def seam_of(
    pipeline: Pipeline,
    active: Pipeline,
    history: History,
    start: Offsets,
    shards_began: Offsets | None = None,
) -> int | None:
    """The seam of a version that starts at ``start``, in epoch milliseconds.

    It is the greatest end of a window that may lack rows in the new version. None if it lacks nothing that
    the active version has, because the active version began there or later.

    :param history: of the active version
    :param shards_began: by partition, where the active version's shards began; the ledger does not know that
        of partitions that they have not read yet
    :raises VersionRefusedError: if it lacks rows and one of the two has no windows, so that there is nothing
        at which readers could change over
    :raises TryLaterError: if the active version has not read as far, so that the seam is not known yet
    """
    began = {**(shards_began or {}), **history.first}
    lacking_from: Offsets = {}
    lacking_to: Offsets = {}
    for partition, offset in began.items():
        if start.get(partition, 0) > offset:
            lacking_from[partition] = offset
            lacking_to[partition] = start[partition]
    if not lacking_from:
        return None
    if pipeline.window is None or active.window is None:
        problem = "without windows it must begin where the active version did"
        place = f"Version {active.version} began at {lacking_from}"
        raise _refused(pipeline)(
            problem, f"{place}: give --from earliest if the topic or its archive holds that."
        )
    _check_read(pipeline, active, {**lacking_from, **history.committed}, lacking_to)
    lacking = history.reading(lacking_from, lacking_to)
    newest_ms = max(_newest_event_ms(active, history, segment.row) for segment in lacking)
    longest = max(pipeline.window.length, active.window.length)
    return newest_ms + int(longest.total_seconds() * 1000)


def _check_read(pipeline: Pipeline, active: Pipeline, committed: Offsets, needed: Offsets) -> None:
    """Check that the active version has committed all that the new one lacks."""
    for partition, end in needed.items():
        if committed[partition] < end:
            place = f"{pipeline.name}'s partition {pipeline.place(partition)}"
            read = f"Version {active.version} has read {place} up to {committed[partition]}"
            wish = f"version {pipeline.version} is to begin at {end}"
            raise TryLaterError(reason=f"{read}, and {wish}. Try again in a moment, or begin earlier.")


def _newest_event_ms(active: Pipeline, history: History, row: LedgerRow) -> int:
    """No row of the batch has a later event time. If that was not measured, the next batch's watermark says
    it.
    """
    if row.max_event_ms is not None:
        return row.max_event_ms
    if not may_hold(row, 0):
        return 0
    for later in history.rows:
        if later.shard == row.shard and later.batch > row.batch:
            return later.watermark_ms + int(active.watermark_delay.total_seconds() * 1000)
    reason = f"The newest event of batch {row.batch} of {row.shard} is not known yet. Try again in a moment."
    raise TryLaterError(reason=reason)


# -- what readers will see -------------------------------------------------------------------------------


def stored_columns(
    session: Callable[[], SparkSession], settings: Settings, pipeline: Pipeline
) -> dict[str, str]:
    """The columns of a version's table, each with its type as Delta has it; those of its query if there is no
    table yet.
    """
    table = find_table(settings.sink(pipeline), settings.storage_options)
    if table is None:
        return query_columns(session, pipeline)
    return _types(table.schema())


def query_columns(session: Callable[[], SparkSession], pipeline: Pipeline) -> dict[str, str]:
    """The columns of the result of a version's query, each with its type as Delta will have it."""
    from hindcast.spark.query_signature import signature_of

    signature = signature_of(session(), pipeline)
    return _types(Schema.from_arrow(signature.schema))


def _types(schema: Schema) -> dict[str, str]:
    return {field.name: field.type.to_json().strip('"') for field in schema.fields}


def _changes_for_readers(
    pipeline: Pipeline, active: Pipeline, old: dict[str, str], new: dict[str, str]
) -> list[str]:
    """What readers will see changed: columns that are added, removed or get another type, and other keys."""
    changes = [f"{name} is added" for name in new if name not in old]
    changes += [f"{name} is removed" for name in old if name not in new]
    changes += [f"{name} is {new[name]}, not {old[name]}" for name in _retyped(old, new)]
    keys = pipeline.sink.keys
    mode = pipeline.sink.mode
    if (keys, mode) != (active.sink.keys, active.sink.mode):
        changes.append(f"its keys are {keys} ({mode.value})")
    return changes


def _check_types(pipeline: Pipeline, old: dict[str, str], new: dict[str, str]) -> None:
    """Refuse that older windows come with the old types and newer ones with the new types."""
    retyped = ", ".join(_retyped(old, new))
    if retyped:
        problem = f"readers would get two types in one column ({retyped}), older windows in the old one"
        cure = "Begin where the active version did: --from earliest."
        raise _refused(pipeline)(problem, cure)


def _retyped(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """The columns of both that have different types."""
    return [name for name in old if name in new and old[name] != new[name]]
