"""Plan a rewind: what it would take back, and why it must not be done.

A plan changes nothing. A person reads it before :func:`hindcast.recovery.rewind.run` carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from hindcast.archive.archive_or_live import HeldRecords
from hindcast.archive.held_records import held_records
from hindcast.clock import utc_from_ms
from hindcast.delta.application_ids import applications
from hindcast.delta.open_table import open_table
from hindcast.errors import OffsetsLostError
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.lease import Lease
from hindcast.partitions import AppShard, Offsets, app_id, offsets_to_json
from hindcast.pipeline import Pipeline
from hindcast.recovery import rebuild_state, rewind_point
from hindcast.recovery.delete_late_and_dead_rows import last_filed_batch
from hindcast.recovery.restorable_version import find_version, live_files
from hindcast.recovery.rewind_point import RewindPoint, RewindRequest
from hindcast.recovery.rewind_record import PlannedRewind
from hindcast.settings import Settings
from hindcast.shards.resharding import newest_of_version
from hindcast.shards.shard_row import awaiting_rewind
from hindcast.tables.fenced_sink import FencedTable
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.ledger_history import History

#: How far from the sink's retention a file must be that the rewind is to name again: a rewind that is cut
#: short can be completed for a day.
PLAN_MARGIN_HOURS = 24


@dataclass(frozen=True, kw_only=True)
class RewindPlan:
    """What a rewind would do.

    ``committed``: by partition, up to where it is read now; ``rows_before`` and ``rows_kept``: rows of the
    sink before and after.
    """

    request: RewindRequest
    point: RewindPoint
    shards: tuple[Lease, ...]
    committed: Offsets
    rows_before: int
    rows_kept: int

    @property
    def to(self) -> str:
        """Where the rewind leads, in words."""
        return self.request.to

    def as_dict(self) -> PlannedRewind:
        """For people and programs. Records are estimated from the ledger, offsets are exact."""
        partitions = {}
        for partition, offset in self.point.offsets.items():
            partitions[str(partition)] = [offset, self._read_to(partition)]
        return {
            "pipeline": self.request.pipeline,
            "to": self.to,
            "partitions": partitions,
            "records_estimated": self._records(),
            "batches_taken_back": len(self.point.undone),
            "sink_version": self.point.sink_version,
            "rows_replaced": self.rows_before - self.rows_kept,
            "rows_kept": self.rows_kept,
            "windows_after": self._windows_after(),
        }

    def _windows_after(self) -> str | None:
        """The instant after which windows end that are computed again; None if all are."""
        if not self.point.floors:
            return None
        final_ms = min(self.point.floors.values())
        return utc_from_ms(final_ms).isoformat() if final_ms else None

    def _read_to(self, partition: int) -> int:
        """Up to where the partition is read now; if no batch has read it, where the rewind leads."""
        return self.committed.get(partition, self.point.offsets[partition])

    def _records(self) -> int:
        """How many records are read again: by the batches that were measured, or by offsets if one was
        not.
        """
        records = 0
        for row in self.point.undone:
            if row.input_rows is None:
                return self._offsets()
            records += row.input_rows
        return records

    def _offsets(self) -> int:
        return sum(self._read_to(partition) - offset for partition, offset in self.point.offsets.items())


def make_plan(
    installation: Installation, pipeline: Pipeline, target: Mapping[int, int] | datetime | None
) -> RewindPlan:
    """What it would take to rewind a pipeline.

    :param target: the offsets or the broker timestamp to read from again; None for the stream's beginning
    :raises RewindRefusedError: if it would lead forward, the pipeline is not paused, or what was taken back
        could not be read again
    """
    request = RewindRequest(pipeline.name, _named(target))
    if pipeline.sink.url:
        problem = f"its table {pipeline.sink.url} stands in a lake of your own, where nothing is taken back"
        cure = f"`hindcast reprocess {pipeline.name}` begins a version in the past, with another table."
        raise request.refused(problem, cure)
    leases = installation.lease_table.read().leases
    if awaiting_rewind(leases.values(), pipeline.name):
        command = f"`hindcast rewind {pipeline.name}"
        cure = (
            f"{command}` completes it. {command} --abandon` calls it off, if its table is not restored yet."
        )
        raise request.refused("an earlier rewind was cut short", cure)
    rewind_point.check_still(pipeline.name, pipeline.version, request.to, leases)
    shards = tuple(newest_of_version(leases.values(), pipeline.name, pipeline.version))
    return _Planner(installation, pipeline, request, shards).plan(target)


def _named(target: Mapping[int, int] | datetime | None) -> str:
    if target is None:
        return "the beginning"
    if isinstance(target, datetime):
        return target.isoformat()
    return offsets_to_json(target)


class _Planner:
    """Plans one rewind of a pipeline that is paused."""

    def __init__(
        self,
        installation: Installation,
        pipeline: Pipeline,
        request: RewindRequest,
        shards: tuple[Lease, ...],
    ) -> None:
        self._installation = installation
        self._settings = installation.settings
        self._pipeline = pipeline
        self._request = request
        self._shards = shards
        self._sink_url = self._settings.sink(pipeline)
        self._batches = installation.ledger.batches(pipeline.name, pipeline.version)
        self._committed = History.of(self._batches).committed

    def plan(self, target: Mapping[int, int] | datetime | None) -> RewindPlan:
        with TopicOffsets(self._settings) as topic:
            held = held_records(self._settings, self._pipeline, topic)
            if isinstance(target, datetime):
                target = self._offsets_at(topic, target)
        if target is not None:
            self._check_backward(target, held.latest)
        point = rewind_point.find(self._batches, target, rewind_point.starts(self._shards))
        if not point.undone:
            raise self._request.refused("nothing was read after it", "Give an earlier place.")
        self._check_kind(point)
        check_only_writer(self._settings, self._pipeline, self._request)
        self._check_readable(point, held)
        self._check_filed(point)
        return self._plan_to(point)

    def _offsets_at(self, topic: TopicOffsets, at: datetime) -> Offsets:
        """The offsets of the first records from that time on, but no further than the stream has read."""
        if at > datetime.now(UTC):
            raise self._request.refused(
                "that time has not come", "A rewind leads back: give an earlier time."
            )
        places = across(self._pipeline, lambda name: topic.at_time(name, at))
        target = {}
        for partition, offset in places.items():
            # A partition that no batch has read is no bound, whichever offset that time has there.
            if partition in self._committed:
                target[partition] = min(offset, self._committed[partition])
        return target

    def _check_backward(self, target: Mapping[int, int], latest: Offsets) -> None:
        unknown = sorted(target.keys() - latest.keys())
        if unknown:
            raise self._request.refused(
                f"it has no partition {_listed(unknown)}", f"Its partitions are {_listed(sorted(latest))}."
            )
        for partition, offset in target.items():
            read_to = self._committed.get(partition, 0)
            if offset > read_to:
                place = self._pipeline.place(partition)
                problem = f"partition {place} has been read up to {read_to} only, not up to {offset}"
                raise self._request.refused(problem, "A rewind leads back: give smaller offsets.")

    def _check_kind(self, point: RewindPoint) -> None:
        """Refuse to keep a part of what cannot be parted."""
        if not point.kept:
            return
        cure = "Rewind it to the beginning (`--to earliest`), or raise its version, with a new sink table."
        if self._pipeline.re_execute:
            problem = "its state depends on which rows came together, so only the beginning is possible"
            raise self._request.refused(problem, cure)
        if self._pipeline.late_sink is not None:
            problem = f"the rows in {self._pipeline.late_sink.name} do not say which batch they are of"
            raise self._request.refused(problem, cure)

    def _check_readable(self, point: RewindPoint, held: HeldRecords) -> None:
        """Check that the topic and its archive hold all that must be read again."""
        latest = held.latest
        for partition, offset in point.offsets.items():
            if partition not in latest or latest[partition] < offset:
                place = self._pipeline.place(partition)
                problem = f"the topic's partition {place} ends before offset {offset}: it was created again"
                cure = "Restore the topic, or give the pipeline a new version."
                raise self._request.refused(problem, cure)
        kept = History.of(point.kept)
        start = rebuild_state.start_of(self._pipeline, kept, point.offsets, point.floors)
        try:
            rebuild_state.check_retained(self._pipeline, "all shards", start, latest, held)
        except OffsetsLostError as error:
            problem = f"not all of it could be read again ({error})"
            raise self._request.refused(problem, self._cure_of_lost_offsets(held)) from error

    def _cure_of_lost_offsets(self, held: HeldRecords) -> str:
        begins = offsets_to_json(held.first())
        cause = f"what is held begins at {begins}, and open windows need rows of before it"
        return f"Rewind to a later place: {cause}."

    def _check_filed(self, point: RewindPoint) -> None:
        """What is kept must be whole: in the ledger, and its late and poison rows in their tables."""
        name = self._pipeline.name
        cure = f"`hindcast resume {name}`, and pause it again after some seconds."
        in_ledger = _last_batches(self._batches)
        for lease in self._shards:
            shard = lease.status_value
            sink = FencedTable(self._sink_url, self._settings.storage_options, app_id(name, shard))
            recorded = sink.recorded()
            if recorded is not None and recorded.batch > in_ledger.get(shard, 0):
                raise self._request.refused(f"the ledger lacks the last batch of {shard}", cure)
            if last_filed_batch(self._installation, name, shard) < point.last.get(shard, 0):
                problem = f"late and poison rows of {shard} are not all filed yet"
                raise self._request.refused(problem, cure)

    def _plan_to(self, point: RewindPoint) -> RewindPlan:
        options = self._settings.storage_options
        refused = partial(self._request.refused, cure="Rewind to a later place, or to the beginning.")
        sink = open_table(self._sink_url, options)
        kept = find_version(self._sink_url, options, point.sink_version, refused)
        kept.check_age(sink, PLAN_MARGIN_HOURS, refused)
        return RewindPlan(
            request=self._request,
            point=point,
            shards=self._shards,
            committed=self._committed,
            rows_before=sum(file.rows for file in live_files(sink)),
            rows_kept=kept.rows,
        )


def _listed(partitions: list[int]) -> str:
    return ", ".join(map(str, partitions))


def _last_batches(rows: list[LedgerRow]) -> dict[str, int]:
    """Shard -> its last batch. A shard's rows are in the order of its batches."""
    return {row.shard: row.batch for row in rows}


def other_writers(settings: Settings, pipeline: Pipeline) -> dict[tuple[str, int], str]:
    """Which other (pipeline, version) has written to the pipeline's tables, and to which table."""
    found = {}
    for table in pipeline.tables:
        url = settings.table("sinks", table.name)
        for application in sorted(applications(url, settings.storage_options)):
            app = AppShard.parse(application)
            if app is None:
                continue
            writer = (app.pipeline, app.version)
            if writer != (pipeline.name, pipeline.version):
                found[writer] = url
    return found


def check_only_writer(settings: Settings, pipeline: Pipeline, request: RewindRequest) -> None:
    """:raises RewindRefusedError: if another has written to a table: its rows would be deleted with the
    others
    """
    for (name, version), url in sorted(other_writers(settings, pipeline).items()):
        problem = (
            f"{name}, version {version}, has written to {url}, and its rows would be deleted with the others"
        )
        cure = "Let one of the two write to a table of its own: raise its version, with a new sink table."
        raise request.refused(problem, cure)
