"""Rewind a pipeline: take back what it wrote after one version of its sink, and let it read that again.

Nothing reads or writes the pipeline meanwhile: it is paused, and each step shuts one more door on an owner that was thought dead. A death
between two steps leaves what the next call of :func:`carry_on` goes on from; the pipeline stands until then.

1. One commit of the leases: the shards are TERMINATED, each in its next epoch, and those of a new generation WAIT, with the reset in
   their detail. Before it nothing has changed; from here on no worker can take any shard.
2. One commit of the sink: the files of the version that is kept, and no others; with it the fence of each shard rises to the new epoch, so
   that no batch of an older owner lands any more. What one has written until now goes with the rest.
3. The same fence for the late and poison rows, then those of the batches that were taken back are deleted.
4. The ledger is told, by a row for each shard: whoever reads it leaves the batches out, also those that an older owner still files.
5. One commit of the leases: the new shards are OPEN. They rewind for their state like those of a reshard
   (:mod:`hindcast.recovery.rebuild_state`).

Until step 2 has landed there is a way back (:func:`abandon`), for a rewind that somebody thinks better of, or that cannot be completed:

1. One commit of the sink that changes no row: the fence of step 2, and a mark that this reset was called off. It or step 2 lands, never
   both, so whoever is about to take step 2 takes no step any more.
2. One commit of the leases: the waiting shards are gone, and those that they were to follow are as they were, in the raised epoch.

A vacuum deletes the files of the version that is kept, once they were replaced longer ago than the retention of the sink. Step 2 names them
again, and a vacuum that has begun before it may still delete them then. (One that begins later is refused, or sees that they are named.) So
a version is refused while one of the files that must be named again is near the retention: by :data:`PLAN_MARGIN_HOURS` for a plan, and by
:data:`RESTORE_MARGIN_HOURS` for step 2, so that one that was cut short can be carried on for a day.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hindcast.delta.application_ids import applications
from hindcast.delta.commit import METADATA_KEY, commits_down
from hindcast.delta.files import filesystem
from hindcast.errors import FenceMovedError, OffsetsLostError, RewindRefusedError, StoreUnavailableError
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.lease import Lease
from hindcast.leases.store import LeaseStore
from hindcast.partitions import Offsets, app_id, offsets_to_json
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.recovery import rebuild_state, rewind_point
from hindcast.settings import Settings
from hindcast.shards.resharding import newest_of_version
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail
from hindcast.tables.compaction import COMPACTION
from hindcast.tables.control_tables import ControlTables, utc_from_ms
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable
from hindcast.tables.ledger import Ledger
from hindcast.tables.ledger_history import History
from hindcast.tables.schema import ControlTable

_ATTEMPTS = 20
#: The application id of a pipeline's shard (:func:`hindcast.shards.app_id`).
_SHARD = re.compile(r"(?P<pipeline>[^/]+)/v(?P<version>\d+)/[^/]+")
#: How far from the sink's retention a file must be that a rewind is to name again: when it is planned, and when its commit is made. The
#: second one covers the longest vacuum and what the clocks of two hosts differ by.
PLAN_MARGIN_HOURS, RESTORE_MARGIN_HOURS = 24, 1
#: Delta's own default of ``delta.deletedFileRetentionDuration``.
_RETENTION = "interval 1 week"
_RETENTION_FORM = re.compile(r"interval (\d+) (hour|day|week)s?")
_HOURS = {"hour": 1, "day": 24, "week": 168}
#: In the information of a commit of the sink: the reset that it is of.
_RESET_KEY = "hindcast_reset"
_FILED = (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS)


@dataclass(frozen=True, kw_only=True)
class RewindPlan:
    """What a rewind would do. ``to`` is what was asked; ``committed`` is up to where each partition is read now."""

    pipeline: str
    to: str
    cut: rewind_point.RewindPoint
    shards: tuple[Lease, ...]
    committed: Offsets
    rows_before: int
    rows_kept: int

    def as_dict(self) -> dict[str, Any]:
        """For people and programs; of JSON's types. Records are estimated from the ledger, offsets are exact."""
        known = [row.input_rows for row in self.cut.undone if row.input_rows is not None]
        final_ms = min(self.cut.floors.values(), default=0)
        return {
            "pipeline": self.pipeline,
            "to": self.to,
            "partitions": {str(p): [offset, self.committed.get(p, offset)] for p, offset in self.cut.offsets.items()},
            "records_estimated": sum(known) if len(known) == len(self.cut.undone) else self._offsets(),
            "batches_taken_back": len(self.cut.undone),
            "sink_version": self.cut.sink_version,
            "rows_replaced": self.rows_before - self.rows_kept,
            "rows_kept": self.rows_kept,
            "windows_after": utc_from_ms(final_ms).isoformat() if final_ms else None,
        }

    def _offsets(self) -> int:
        return sum(self.committed.get(p, offset) - offset for p, offset in self.cut.offsets.items())


def make_plan(settings: Settings, store: LeaseStore, pipeline: Pipeline, target: Mapping[int, int] | datetime | None) -> RewindPlan:
    """What it would take to rewind to these offsets, to the records of this broker timestamp, or (None) to the stream's beginning.

    :raises RewindRefusedError: where it would lead forward, the pipeline is not paused, or what was taken back could not be read again
    """
    to = "the beginning" if target is None else target.isoformat() if isinstance(target, datetime) else offsets_to_json(target)
    refused = {"pipeline": pipeline.name, "to": to}
    leases = store.read().leases
    if rewind_point.unfinished(leases, pipeline.name):
        problem = "an earlier rewind was cut short"
        cure = f"`hindcast rewind {pipeline.name}` carries it to its end; with --abandon it calls it off, if its table is not put back yet."
        raise RewindRefusedError(**refused, problem=problem, cure=cure)
    rewind_point.check_still(pipeline.name, pipeline.version, to, leases)
    shards = tuple(newest_of_version(leases.values(), pipeline.name, pipeline.version))
    rows = Ledger(ControlTables(settings)).batches(pipeline.name, pipeline.version)
    history = History.of(rows)
    with TopicOffsets(settings) as topic:
        earliest, latest = across(pipeline, topic.earliest), across(pipeline, topic.latest)
        if isinstance(target, datetime):
            if (at := target) > datetime.now(UTC):
                raise RewindRefusedError(**refused, problem="that time has not come", cure="A rewind leads back: give an earlier time.")
            places = across(pipeline, lambda name: topic.at_time(name, at))
            # A partition that no batch has read is no bound, whichever offset that time has there.
            target = {p: min(o, history.committed[p]) for p, o in places.items() if p in history.committed}
    if target is not None and (unknown := sorted(target.keys() - latest.keys())):
        cure = f"Its partitions are {', '.join(map(str, sorted(latest)))}."
        raise RewindRefusedError(**refused, problem=f"it has no partition {', '.join(map(str, unknown))}", cure=cure)
    for partition, offset in (target or {}).items():
        if offset > history.committed.get(partition, 0):
            problem = f"partition {pipeline.place(partition)} is read up to {history.committed.get(partition, 0)}, before {offset}"
            raise RewindRefusedError(**refused, problem=problem, cure="A rewind leads back: give smaller offsets.")
    found = rewind_point.find(rows, target, rewind_point.starts(shards))
    if not found.undone:
        raise RewindRefusedError(**refused, problem="nothing was read after it", cure="Give an earlier place.")
    _check_kind(pipeline, found, refused)
    _check_alone(settings, pipeline, refused)
    _check_refill(pipeline, found, earliest, latest, refused)
    _check_filed(settings, pipeline, found, shards, {row.shard: row.batch for row in rows}, refused)
    before = _sink(settings, pipeline)
    elsewhere = "Rewind to a later place, or to the beginning."
    kept = _kept_files(settings, pipeline, found.sink_version, {**refused, "cure": elsewhere})
    _check_age(before, kept, PLAN_MARGIN_HOURS, {**refused, "cure": elsewhere}, found.sink_version)
    rows_before = sum(pa.table(before.get_add_actions())["num_records"].to_pylist())
    return RewindPlan(
        pipeline=pipeline.name,
        to=to,
        cut=found,
        shards=shards,
        committed=history.committed,
        rows_before=rows_before,
        rows_kept=sum(rows for _, _, rows in kept),
    )


def _check_kind(pipeline: Pipeline, cut: rewind_point.RewindPoint, refused: dict[str, str]) -> None:
    cure = "Rewind it to the beginning (`--to earliest`), or raise its version, with a new sink table."
    if cut.kept and pipeline.re_execute:
        problem = "its state depends on which rows came together, so it can only begin anew"
        raise RewindRefusedError(**refused, problem=problem, cure=cure)
    if cut.kept and pipeline.late_sink is not None:
        problem = f"what its late rows have left in {pipeline.late_sink.name} does not say which batch it is of"
        raise RewindRefusedError(**refused, problem=problem, cure=cure)


def others(settings: Settings, pipeline: Pipeline) -> dict[str, str]:
    """Who else has written to the pipeline's tables, in words, and the table: their rows would go with those that are taken back."""
    found = {}
    for table in pipeline.tables:
        url = settings.table("sinks", table.name)
        for app in sorted(applications(url, settings.storage_options)):
            shard_of = _SHARD.fullmatch(app)
            if shard_of and (shard_of["pipeline"], int(shard_of["version"])) != (pipeline.name, pipeline.version):
                found[f"{shard_of['pipeline']}, version {shard_of['version']},"] = url
    return found


def _check_alone(settings: Settings, pipeline: Pipeline, refused: dict[str, str]) -> None:
    for who, url in others(settings, pipeline).items():
        problem = f"{who} has written to {url}, and its rows would be deleted with the others"
        cure = "Let one of the two write to a table of its own: raise its version, with a new sink table."
        raise RewindRefusedError(**refused, problem=problem, cure=cure)


def _check_refill(pipeline: Pipeline, cut: rewind_point.RewindPoint, earliest: Offsets, latest: Offsets, refused: dict[str, str]) -> None:
    """A stream reads its topic alone: what only the archive holds is the batch's to replay."""
    if lost := [p for p, offset in cut.offsets.items() if p not in latest or latest[p] < offset]:
        problem = f"the topic's partition {pipeline.place(lost[0])} does not reach offset {cut.offsets[lost[0]]}: it was made anew"
        raise RewindRefusedError(**refused, problem=problem, cure="Restore the topic, or give the pipeline a new version.")
    start = rebuild_state.start_of(pipeline, History.of(cut.kept), cut.offsets, cut.floors)
    try:
        rebuild_state.check_retained(pipeline, "all shards", start, {p: max(latest[p], o + 1) for p, o in start.items()}, earliest)
    except OffsetsLostError as error:
        archived = sorted(topic.name for topic in pipeline.topics if topic.archive)
        cure = f"Rewind to a later place: the topic begins at {offsets_to_json(earliest)}, and open windows need rows of before it."
        if archived:
            cure += f" What the archive of {', '.join(archived)} holds, `hindcast correct {pipeline.name}` replays as a batch."
        raise RewindRefusedError(**refused, problem=f"not all of it could be read again ({error})", cure=cure) from error


def _check_filed(
    settings: Settings,
    pipeline: Pipeline,
    cut: rewind_point.RewindPoint,
    shards: tuple[Lease, ...],
    last: Mapping[str, int],
    refused: dict[str, str],
) -> None:
    """What is kept must be whole: in the ledger, and its late and poison rows in their tables."""
    cure = f"`hindcast resume {pipeline.name}`, and pause it again after some seconds."
    for lease in shards:
        shard = lease.status_value
        table = FencedTable(settings.table("sinks", pipeline.sink.name), settings.storage_options, app_id(pipeline.name, shard))
        recorded = table.recorded()
        if recorded is not None and recorded.batch > last.get(shard, 0):
            raise RewindRefusedError(**refused, problem=f"the ledger lacks the last batch of {shard}", cure=cure)
        for filed in _accounts(settings, pipeline.name, shard):
            place = filed.recorded()
            if (place.batch if place else 0) < cut.last.get(shard, 0):
                raise RewindRefusedError(**refused, problem=f"late and poison rows of {shard} are not all filed yet", cure=cure)


def run(settings: Settings, store: LeaseStore, pipeline: Pipeline, plan: RewindPlan, *, by: str, reason: str) -> dict[str, Any]:
    """Do what was planned; return :meth:`RewindPlan.as_dict` as it was done.

    :raises RewindRefusedError: where the pipeline was resumed since, or another has written to its tables
    """
    _check_alone(settings, pipeline, {"pipeline": plan.pipeline, "to": plan.to})
    record = {**plan.as_dict(), "by": by, "reason": reason, "id": uuid.uuid4().hex}
    # Told before the first step: one that is cut short must not go unnoticed.
    _tell(settings, EventKind.PIPELINE_REWINDING, f"{by} rewinds {pipeline.name} to {plan.to}: {reason or 'no reason given'}.", record)
    reach("reset.1")  # 1. the leases: nobody can take what is to be taken back
    rewind_point.begin(store, pipeline.name, pipeline.version, plan.shards, plan.cut, record)
    done = carry_on(settings, store, pipeline)
    assert done is not None
    return done


@dataclass(frozen=True)
class Begun:
    """A reset that has begun and not ended.

    ``told``: what it keeps of itself; ``epochs``: shard that ended -> its new epoch; ``offsets``: where the new shards begin.
    """

    told: Mapping[str, Any]
    epochs: dict[str, int]
    offsets: Offsets


def _begun(store: LeaseStore, pipeline: Pipeline) -> Begun | None:
    leases = store.read().leases
    waiting = rewind_point.unfinished(leases, pipeline.name)
    if not waiting:
        return None
    ended = [lease for lease in leases.values() if any(lease.status_value in child.parent_shard_ids for child in waiting)]
    return Begun(
        told=ShardDetail.of(waiting[0]).rewind or {},
        epochs={lease.status_value: lease.epoch for lease in ended if lease.stream_id == pipeline.name},
        offsets={p: o for child in waiting for p, o in ShardCheckpoint.of(child).start_offsets.items()},
    )


def abandon(settings: Settings, store: LeaseStore, pipeline: Pipeline, *, by: str, reason: str) -> dict[str, Any] | None:
    """Call off a rewind that was cut short before its table was put back; what it kept of itself, or None if there is none.

    :raises RewindRefusedError: if its table is put back already
    :raises StoreUnavailableError: if a store is away; the same call again goes on
    """
    begun = _begun(store, pipeline)
    if begun is None:
        return None
    reach("abandon.1")  # 1. the sink: step 2 of the rewind lands no more
    _decided_anew(settings.table("sinks", pipeline.sink.name), lambda: _call_off(settings, pipeline, begun))
    reach("abandon.2")  # 2. the leases as they were
    rewind_point.undo(store, pipeline.name, str(begun.told["id"]))
    message = f"{by} called off the rewind of {pipeline.name} to {begun.told['to']}: {reason or 'no reason given'}."
    _tell(settings, EventKind.PIPELINE_REWIND_ABANDONED, message, begun.told)
    return dict(begun.told)


def carry_on(settings: Settings, store: LeaseStore, pipeline: Pipeline) -> dict[str, Any] | None:
    """Steps 2 to 5 of a reset that has begun; what it keeps of itself, or None where there is none.

    :raises RewindRefusedError: if files of the version that is kept are gone, or may go meanwhile; :func:`abandon` is the way back
    :raises StoreUnavailableError: where a store is away; the same call again goes on
    """
    begun = _begun(store, pipeline)
    if begun is None:
        return None
    told, epochs, offsets = begun.told, begun.epochs, begun.offsets
    tables = ControlTables(settings)

    reach("reset.2")  # 2. the sink as it was, and no batch of an older owner any more
    sink_version = _decided_anew(settings.table("sinks", pipeline.sink.name), lambda: _restore(settings, pipeline, begun))
    reach("reset.3")  # 3. late and poison rows
    for shard in {*told["last"], *epochs}:
        for name, filed in zip(_FILED, _accounts(settings, pipeline.name, shard), strict=True):
            if shard in epochs:
                _seal(filed, epochs[shard])
            _delete(tables, name, pipeline, shard, int(told["last"].get(shard, 0)))
    if pipeline.late_sink is not None:
        _empty(settings, pipeline, epochs)
    reach("reset.4")  # 4. the ledger
    kept = {**dict.fromkeys(epochs, 0), **{shard: int(batch) for shard, batch in told["last"].items()}}
    Ledger(tables).append(
        rewind_point.reset_row(
            pipeline.name, pipeline.version, pipeline.source.name, shard, batch, epochs.get(shard, 0), offsets, sink_version
        )
        for shard, batch in kept.items()
    )
    reach("reset.5")  # 5. the shards that read it again
    rewind_point.end(store, pipeline.name, str(told["id"]))
    message = f"{pipeline.name} was rewound to {told['to']} by {told['by']}: {told['reason'] or 'no reason given'}."
    _tell(settings, EventKind.PIPELINE_REWOUND, message, told)
    return dict(told)


def _restore(settings: Settings, pipeline: Pipeline, begun: Begun) -> int:
    """Step 2; return the version of its commit, also where that was there already.

    :raises RewindRefusedError: if the rewind was called off, or the files are gone or near the retention
    """
    table, told = _sink(settings, pipeline), begun.told
    refused = {"pipeline": pipeline.name, "to": str(told["to"]), "cure": f"`hindcast rewind {pipeline.name} --abandon` calls it off."}
    if _is_sealed(table, pipeline, begun):
        landed = _landed(table, told)
        if _CALLED_OFF in str(landed.get(METADATA_KEY)):
            raise RewindRefusedError(**refused, problem="it was called off")
        return int(landed["version"])
    files = _kept_files(settings, pipeline, int(told["sink_version"]), refused)
    _check_age(table, files, RESTORE_MARGIN_HOURS, refused, int(told["sink_version"]))
    kept = {path: (size, rows) for path, size, rows in files}
    found, now = set(pa.table(table.get_add_actions())["path"].to_pylist()), int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [
        AddAction(path, size, {}, now, True, f'{{"numRecords": {rows}}}') for path, (size, rows) in kept.items() if path not in found
    ]
    actions += [RemoveAction(path, True, now) for path in sorted(found - kept.keys())]
    # A compaction that is under way must not land beside it: it would bring back the rows of files that are gone.
    return _commit(table, pipeline, begun, "reset", actions, [Transaction(COMPACTION, table.version())])


def _call_off(settings: Settings, pipeline: Pipeline, begun: Begun) -> None:
    """Step 1 of the way back; nothing if that is done.

    :raises RewindRefusedError: if step 2 has landed
    """
    table = _sink(settings, pipeline)
    if not _is_sealed(table, pipeline, begun):
        _commit(table, pipeline, begun, "reset-abandoned", [], [])
    elif _CALLED_OFF not in str(_landed(table, begun.told).get(METADATA_KEY)):
        cure = f"`hindcast rewind {pipeline.name}` carries it to its end: it needs no file any more that could be gone."
        problem = "its table is put back already, so the rewind cannot be called off"
        raise RewindRefusedError(pipeline=pipeline.name, to=begun.told["to"], problem=problem, cure=cure)


#: What the commit of step 1 of the way back says of itself.
_CALLED_OFF = '"kind": "reset-abandoned"'


def _is_sealed(table: DeltaTable, pipeline: Pipeline, begun: Begun) -> bool:
    """Whether the fence of each shard stands in its new epoch: step 2 has landed, or the way back was taken."""
    recorded = {shard: Fence.of(table.transaction_version(app_id(pipeline.name, shard))) for shard in begun.epochs}
    return all(fence is not None and fence.epoch >= begun.epochs[shard] for shard, fence in recorded.items())


def _landed(table: DeltaTable, told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The commit of step 2, or of its way back."""
    for entry in commits_down(table):
        if entry.get(_RESET_KEY) == told["id"]:
            return entry
    raise StoreUnavailableError(table=table.table_uri, action="read", reason=f"its log has lost the commit of the rewind {told['id']}")


def _commit(
    table: DeltaTable, pipeline: Pipeline, begun: Begun, kind: str, actions: list[AddAction | RemoveAction], beside: list[Transaction]
) -> int:
    """One commit of the sink that raises the fence of each shard to its new epoch; return its version.

    :raises CommitFailedError: if anything has landed since the table was read
    """
    recorded = {shard: Fence.of(table.transaction_version(app_id(pipeline.name, shard))) for shard in begun.epochs}
    fences = [
        Transaction(app_id(pipeline.name, shard), Fence(epoch, fence.batch if (fence := recorded[shard]) else 0).number)
        for shard, epoch in begun.epochs.items()
    ]
    commit = BatchCommit(
        kind=kind,
        pipeline=pipeline.name,
        version=pipeline.version,
        shard="",
        epoch=0,
        batch=0,
        worker=str(begun.told["by"]),
        start_offsets=begun.offsets,
        end_offsets=begun.offsets,
        late_watermark_ms=0,
        watermark_ms=0,
    )
    properties = CommitProperties(
        custom_metadata={METADATA_KEY: commit.as_metadata(), _RESET_KEY: str(begun.told["id"])},
        max_commit_retries=0,
        app_transactions=[*fences, *beside],
    )
    version = table.version() + 1
    table.create_write_transaction(actions, "append", table.schema(), [], commit_properties=properties)
    return version


def _check_age(table: DeltaTable, kept: Sequence[tuple[str, int, int]], margin_hours: int, refused: dict[str, str], version: int) -> None:
    """:raises RewindRefusedError: if a vacuum could delete, within the margin, a file that must be named again"""
    named = set(pa.table(table.get_add_actions())["path"].to_pylist())
    again = {path.rsplit("/", 1)[-1]: path for path, _, _ in kept if path not in named}
    if not again:
        return
    hours = max(0, _retention_hours(table) - margin_hours)
    # The very rule of a vacuum, with a shorter retention.
    expiring = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True)
    if near := sorted(again.keys() & {path.rsplit("/", 1)[-1] for path in expiring}):
        problem = f"version {version} of its sink is too near to Delta's retention: a vacuum may delete {again[near[0]]} meanwhile"
        raise RewindRefusedError(**refused, problem=problem)


def _retention_hours(table: DeltaTable) -> int:
    """How long the table keeps files that were replaced; 0 if it is less than hours."""
    configured = table.metadata().configuration.get("delta.deletedFileRetentionDuration") or _RETENTION
    found = _RETENTION_FORM.fullmatch(configured.strip().lower())
    return int(found[1]) * _HOURS[found[2]] if found else 0


def _sink(settings: Settings, pipeline: Pipeline) -> DeltaTable:
    url = settings.table("sinks", pipeline.sink.name)
    try:
        return DeltaTable(url, storage_options=settings.storage_options or None)
    except (DeltaError, OSError) as error:
        raise StoreUnavailableError(table=url, action="opened", reason=error) from error


def _kept_files(settings: Settings, pipeline: Pipeline, version: int, refused: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(path, bytes, rows) of the files of a version of the sink; none for -1.

    :raises RewindRefusedError: where that version, or a file of it, is gone
    """
    if version < 0:
        return []
    url, problem = settings.table("sinks", pipeline.sink.name), f"version {version} of its sink is gone (Delta's retention)"
    asked = {name: str(refused[name]) for name in ("pipeline", "to", "cure")}
    try:
        actions = pa.table(DeltaTable(url, version=version, storage_options=settings.storage_options or None).get_add_actions())
    except (DeltaError, OSError) as error:
        raise RewindRefusedError(**asked, problem=problem) from error
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    files = [(str(path), int(size), int(rows)) for path, size, rows in zip(*columns, strict=True)]
    store = filesystem(url, settings.storage_options)
    if gone := [info.path for info in store.get_file_info([path for path, _, _ in files]) if not info.is_file]:
        raise RewindRefusedError(**asked, problem=f"{problem}: {gone[0]}")
    return files


def _accounts(settings: Settings, pipeline: str, shard: str) -> list[FencedTable]:
    tables = ControlTables(settings)
    for name in _FILED:
        tables.open(name)  # made on first use
    return [FencedTable(tables.url(name), settings.storage_options, app_id(pipeline, shard)) for name in _FILED]


def _seal(table: FencedTable, epoch: int) -> None:
    while (recorded := table.recorded()) is None or recorded.epoch < epoch:
        try:
            table.commit(Fence(epoch, recorded.batch if recorded else 0), [], after=recorded)
        except FenceMovedError:
            continue  # an older owner filed rows while we were reading: they are deleted with the rest


def _delete(tables: ControlTables, name: ControlTable, pipeline: Pipeline, shard: str, kept: int) -> None:
    quoted = [value.replace("'", "''") for value in (pipeline.name, shard)]
    where = f"pipeline = '{quoted[0]}' AND shard = '{quoted[1]}' AND batch > {kept}"
    _decided_anew(tables.url(name), lambda: tables.open(name).delete(where))


def _empty(settings: Settings, pipeline: Pipeline, epochs: Mapping[str, int]) -> None:
    """The table of the pipeline's own for its late rows: nothing of it is kept (see ``_check_kind``)."""
    assert pipeline.late_sink is not None
    url = settings.table("sinks", pipeline.late_sink.name)
    if not DeltaTable.is_deltatable(url, settings.storage_options or None):
        return
    for shard, epoch in epochs.items():
        _seal(FencedTable(url, settings.storage_options, app_id(pipeline.name, shard)), epoch)
    _decided_anew(url, lambda: DeltaTable(url, storage_options=settings.storage_options or None).delete())


def _decided_anew(url: str, work: Any) -> Any:
    """Do it on the newest version, until no other writer is faster."""
    retrying = Retrying(
        retry=retry_if_exception_type(CommitFailedError),
        wait=wait_random_exponential(multiplier=0.02, max=1.0),
        stop=stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    try:
        return retrying(work)
    except (DeltaError, OSError) as error:
        raise StoreUnavailableError(table=url, action="written", reason=error) from error


def _tell(settings: Settings, kind: EventKind, message: str, told: Mapping[str, Any]) -> None:
    begun = kind is EventKind.PIPELINE_REWINDING
    carry_on = f"`hindcast rewind {told['pipeline']}` carries it to its end, with --abandon it calls it off."
    cure = f"Nothing, if a {EventKind.PIPELINE_REWOUND} or {EventKind.PIPELINE_REWIND_ABANDONED} follows. Else {carry_on}"
    detail = {name: value for name, value in told.items() if name not in {"pipeline", "last", "states"}}
    severity = Severity.WARNING if begun else Severity.INFO
    EventLog(ControlTables(settings)).record(
        kind, message, severity=severity, cure=cure if begun else "", pipeline=told["pipeline"], **detail
    )
