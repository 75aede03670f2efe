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
   (:mod:`hindcast.stream.rewind`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hindcast.control import reset
from hindcast.control.applications import applications
from hindcast.control.commits import METADATA_KEY, commits_down
from hindcast.control.events import EventKind, EventLog, Severity
from hindcast.control.history import History
from hindcast.control.leases import Lease
from hindcast.control.ledger import Ledger, Offsets, by_partition, offsets_to_json
from hindcast.control.schema import ControlTable
from hindcast.control.shards import RESET, app_id, newest_of_version
from hindcast.control.store import LeaseStore
from hindcast.control.tables import ControlTables, utc_from_ms
from hindcast.control.upkeep import COMPACTION
from hindcast.errors import FenceMovedError, OffsetsLostError, RewindRefusedError, StoreUnavailableError
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.steps import reach
from hindcast.stream import rewind
from hindcast.stream.fenced_table import BatchCommit, Fence, FencedTable
from hindcast.stream.files import filesystem
from hindcast.topics.offsets import TopicOffsets, across

_ATTEMPTS = 20
#: The application id of a pipeline's shard (:func:`hindcast.control.shards.app_id`).
_SHARD = re.compile(r"(?P<pipeline>[^/]+)/v(?P<version>\d+)/[^/]+")
_FILED = (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a rewind would do. ``to`` is what was asked; ``committed`` is up to where each partition is read now."""

    pipeline: str
    to: str
    cut: reset.Cut
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


def make_plan(settings: Settings, store: LeaseStore, pipeline: Pipeline, target: Mapping[int, int] | datetime | None) -> Plan:
    """What it would take to rewind to these offsets, to the records of this broker timestamp, or (None) to the stream's beginning.

    :raises RewindRefusedError: where it would lead forward, the pipeline is not paused, or what was taken back could not be read again
    """
    to = "the beginning" if target is None else target.isoformat() if isinstance(target, datetime) else offsets_to_json(target)
    refused = {"pipeline": pipeline.name, "to": to}
    leases = store.read().leases
    if reset.unfinished(leases, pipeline.name):
        problem = "an earlier rewind was cut short"
        raise RewindRefusedError(**refused, problem=problem, cure=f"`hindcast rewind {pipeline.name}` carries it to its end.")
    reset.check_still(pipeline.name, pipeline.version, to, leases)
    shards = tuple(newest_of_version(leases.values(), pipeline.name, pipeline.version))
    rows = Ledger(ControlTables(settings)).batches(pipeline.name, pipeline.version)
    history = History.of(rows)
    with TopicOffsets(settings) as topic:
        earliest, latest = across(pipeline, topic.earliest), across(pipeline, topic.latest)
        if isinstance(target, datetime):
            if (at := target) > datetime.now(UTC):
                raise RewindRefusedError(**refused, problem="that time has not come", cure="A rewind leads back: give an earlier time.")
            target = {p: min(o, history.committed.get(p, o)) for p, o in across(pipeline, lambda name: topic.at_time(name, at)).items()}
    if target is not None and (unknown := sorted(target.keys() - latest.keys())):
        cure = f"Its partitions are {', '.join(map(str, sorted(latest)))}."
        raise RewindRefusedError(**refused, problem=f"it has no partition {', '.join(map(str, unknown))}", cure=cure)
    for partition, offset in (target or {}).items():
        if offset > history.committed.get(partition, 0):
            problem = f"partition {pipeline.place(partition)} is read up to {history.committed.get(partition, 0)}, before {offset}"
            raise RewindRefusedError(**refused, problem=problem, cure="A rewind leads back: give smaller offsets.")
    found = reset.cut(rows, target, reset.starts(shards))
    if not found.undone:
        raise RewindRefusedError(**refused, problem="nothing was read after it", cure="Give an earlier place.")
    _check_kind(pipeline, found, refused)
    _check_alone(settings, pipeline, refused)
    _check_refill(pipeline, found, earliest, latest, refused)
    _check_filed(settings, pipeline, found, shards, {row.shard: row.batch for row in rows}, refused)
    before, kept = _sink(settings, pipeline), _kept_files(settings, pipeline, found.sink_version, refused)
    rows_before = sum(pa.table(before.get_add_actions())["num_records"].to_pylist())
    return Plan(
        pipeline=pipeline.name,
        to=to,
        cut=found,
        shards=shards,
        committed=history.committed,
        rows_before=rows_before,
        rows_kept=sum(rows for _, _, rows in kept),
    )


def _check_kind(pipeline: Pipeline, cut: reset.Cut, refused: dict[str, str]) -> None:
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


def _check_refill(pipeline: Pipeline, cut: reset.Cut, earliest: Offsets, latest: Offsets, refused: dict[str, str]) -> None:
    """A stream reads its topic alone: what only the archive holds is the batch's to replay."""
    if lost := [p for p, offset in cut.offsets.items() if p not in latest or latest[p] < offset]:
        problem = f"the topic's partition {pipeline.place(lost[0])} does not reach offset {cut.offsets[lost[0]]}: it was made anew"
        raise RewindRefusedError(**refused, problem=problem, cure="Restore the topic, or give the pipeline a new version.")
    start = rewind.start_of(pipeline, History.of(cut.kept), cut.offsets, cut.floors)
    try:
        rewind.check_retained(pipeline, "all shards", start, {p: max(latest[p], o + 1) for p, o in start.items()}, earliest)
    except OffsetsLostError as error:
        archived = sorted(topic.name for topic in pipeline.topics if topic.archive)
        cure = f"Rewind to a later place: the topic begins at {offsets_to_json(earliest)}, and open windows need rows of before it."
        if archived:
            cure += f" What the archive of {', '.join(archived)} holds, `hindcast correct {pipeline.name}` replays as a batch."
        raise RewindRefusedError(**refused, problem=f"not all of it could be read again ({error})", cure=cure) from error


def _check_filed(
    settings: Settings, pipeline: Pipeline, cut: reset.Cut, shards: tuple[Lease, ...], last: Mapping[str, int], refused: dict[str, str]
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


def run(settings: Settings, store: LeaseStore, pipeline: Pipeline, plan: Plan, *, by: str, reason: str) -> dict[str, Any]:
    """Do what was planned; return :meth:`Plan.as_dict` as it was done.

    :raises RewindRefusedError: where the pipeline was resumed since, or another has written to its tables
    """
    _check_alone(settings, pipeline, {"pipeline": plan.pipeline, "to": plan.to})
    record = {**plan.as_dict(), "by": by, "reason": reason, "id": f"{plan.pipeline}.{plan.shards[0].status_value}.{plan.cut.sink_version}"}
    # Told before the first step: one that is cut short must not go unnoticed.
    _tell(settings, EventKind.PIPELINE_REWINDING, f"{by} rewinds {pipeline.name} to {plan.to}: {reason or 'no reason given'}.", record)
    reach("reset.1")  # 1. the leases: nobody can take what is to be taken back
    reset.begin(store, pipeline.name, pipeline.version, plan.shards, plan.cut, record)
    done = carry_on(settings, store, pipeline)
    assert done is not None
    return done


def carry_on(settings: Settings, store: LeaseStore, pipeline: Pipeline) -> dict[str, Any] | None:
    """Steps 2 to 5 of a reset that has begun; what it keeps of itself, or None where there is none.

    :raises StoreUnavailableError: where a store is away; the same call again goes on
    """
    leases = store.read().leases
    waiting = reset.unfinished(leases, pipeline.name)
    if not waiting:
        return None
    told: dict[str, Any] = waiting[0].detail[RESET]
    ended = [lease for lease in leases.values() if any(lease.status_value in child.parent_shard_ids for child in waiting)]
    epochs = {lease.status_value: lease.epoch for lease in ended if lease.stream_id == pipeline.name}
    offsets = {p: o for child in waiting for p, o in by_partition(child.checkpoint["start_offsets"]).items()}
    tables = ControlTables(settings)

    reach("reset.2")  # 2. the sink as it was, and no batch of an older owner any more
    sink_version = _decided_anew(settings.table("sinks", pipeline.sink.name), lambda: _restore(settings, pipeline, told, epochs, offsets))
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
        reset.reset_row(pipeline.name, pipeline.version, pipeline.source.name, shard, batch, epochs.get(shard, 0), offsets, sink_version)
        for shard, batch in kept.items()
    )
    reach("reset.5")  # 5. the shards that read it again
    reset.end(store, pipeline.name)
    message = f"{pipeline.name} was rewound to {told['to']} by {told['by']}: {told['reason'] or 'no reason given'}."
    _tell(settings, EventKind.PIPELINE_REWOUND, message, told)
    return told


def _restore(settings: Settings, pipeline: Pipeline, told: Mapping[str, Any], epochs: Mapping[str, int], offsets: Offsets) -> int:
    """Step 2; return the version of its commit, also where that was there already."""
    table = _sink(settings, pipeline)
    recorded = {shard: Fence.of(table.transaction_version(app_id(pipeline.name, shard))) for shard in epochs}
    if all(fence is not None and fence.epoch >= epochs[shard] for shard, fence in recorded.items()):
        return next(int(entry["version"]) for entry in commits_down(table) if '"kind": "reset"' in str(entry.get(METADATA_KEY)))
    kept = {path: (size, rows) for path, size, rows in _kept_files(settings, pipeline, int(told["sink_version"]), {**told})}
    found, now = set(pa.table(table.get_add_actions())["path"].to_pylist()), int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [
        AddAction(path, size, {}, now, True, f'{{"numRecords": {rows}}}') for path, (size, rows) in kept.items() if path not in found
    ]
    actions += [RemoveAction(path, True, now) for path in sorted(found - kept.keys())]
    fences = [
        Transaction(app_id(pipeline.name, shard), Fence(epoch, fence.batch if (fence := recorded[shard]) else 0).number)
        for shard, epoch in epochs.items()
    ]
    commit = BatchCommit(
        kind="reset",
        pipeline=pipeline.name,
        version=pipeline.version,
        shard="",
        epoch=0,
        batch=0,
        worker=str(told["by"]),
        start_offsets=offsets,
        end_offsets=offsets,
        late_watermark_ms=0,
        watermark_ms=0,
    )
    properties = CommitProperties(
        custom_metadata={METADATA_KEY: commit.as_metadata()},
        max_commit_retries=0,
        # A compaction that is under way must not land beside it: it would bring back the rows of files that are gone.
        app_transactions=[*fences, Transaction(COMPACTION, table.version())],
    )
    version = table.version() + 1
    table.create_write_transaction(actions, "append", table.schema(), [], commit_properties=properties)
    return version


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
    asked = {name: str(refused[name]) for name in ("pipeline", "to")}
    try:
        actions = pa.table(DeltaTable(url, version=version, storage_options=settings.storage_options or None).get_add_actions())
    except (DeltaError, OSError) as error:
        raise RewindRefusedError(**asked, problem=problem, cure="Rewind to a later place, or to the beginning.") from error
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    files = [(str(path), int(size), int(rows)) for path, size, rows in zip(*columns, strict=True)]
    store = filesystem(url, settings.storage_options)
    if gone := [info.path for info in store.get_file_info([path for path, _, _ in files]) if not info.is_file]:
        raise RewindRefusedError(**asked, problem=f"{problem}: {gone[0]}", cure="Rewind to a later place, or to the beginning.")
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
    cure = f"Nothing, where a {EventKind.PIPELINE_REWOUND} follows. Else `hindcast rewind {told['pipeline']}` carries it to its end."
    detail = {name: value for name, value in told.items() if name not in {"pipeline", "last"}}
    severity = Severity.WARNING if begun else Severity.INFO
    EventLog(ControlTables(settings)).record(
        kind, message, severity=severity, cure=cure if begun else "", pipeline=told["pipeline"], **detail
    )
