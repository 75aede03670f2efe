"""Create the shards of a new version, and reshard a pipeline for another number of shards or new
partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from hindcast.archive.held_records import archives_of, held_records, offsets_at
from hindcast.delta.open_table import find_table
from hindcast.errors import BadRangeError, BrokerUnavailableError, ForeignStreamError, HindcastError
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.leases.store import Snapshot
from hindcast.pipeline import Pipeline, parse_start
from hindcast.recovery import rebuild_state
from hindcast.replay.inputs import read_ledger
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.pipeline_row import rows_of
from hindcast.shards.shard_row import ShardDetail
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.stream.warn_once import WarnOnce
from hindcast.tables.event_log import EventKind, EventLog


class ShardCreation:
    """Writes the rows of new shards.

    Any worker may do it: the first one wins, and the others find nothing to do.
    """

    def __init__(
        self,
        installation: Installation,
        deployed: LoadedPipelines,
        events: EventLog,
        warnings: WarnOnce,
        beat: Callable[[], object],
    ) -> None:
        """:param beat: called before each pipeline: the main thread is not stuck"""
        self._installation = installation
        self._settings = installation.settings
        self._store = installation.lease_table
        self._deployed = deployed
        self._events = events
        self._warnings = warnings
        self._beat = beat

    def create_missing(self, leases: Mapping[LeaseKey, Lease]) -> None:
        """Create the shards of wanted versions without any, and reshard if another number is wanted.

        :raises BrokerUnavailableError: the broker was not asked about the rest
        """
        for name, version, count in resharding.pipelines_without_shards(Snapshot(leases)):
            self._beat()
            self._create(name, version, count)
        for name, version, count in resharding.to_reshard(leases.values()):
            self._beat()
            self._reshard(name, version, count)

    def reshard_for_new_partitions(self, held: Collection[tuple[str, int]]) -> None:
        """Reshard each of these pipelines and versions if its topic has partitions that no shard has.

        :raises HindcastError: the leases could not be read, or the topics' partitions could not be counted
        """
        leases = self._store.leases()
        wanted = {}
        for row in rows_of(leases):
            for version, count in row.wanted_versions.items():
                wanted[row.pipeline, version] = count
        with TopicOffsets(self._settings) as offsets:
            for name, version in wanted.keys() & held:
                current = resharding.newest_of_version(leases, name, version)
                if not current:
                    continue
                had: set[int] = set()
                for lease in current:
                    had.update(ShardDetail.of(lease).partitions)
                earliest = across(self._deployed.of(name, version), offsets.earliest)
                if earliest.keys() - had:
                    self._reshard(name, version, wanted[name, version])

    def _create(self, name: str, version: int, count: int) -> None:
        if not self._deployed.has(name, version):
            return
        pipeline = self._deployed.of(name, version)
        try:
            _check_new_table(self._settings, pipeline)
            with TopicOffsets(self._settings) as offsets:
                start = _start_of(self._settings, pipeline, offsets)
            created = resharding.create(self._store, name, version, count, start)
        except HindcastError as error:
            message = f"The shards of {name} could not be created: {error}"
            cure = "It is tried again at each renewal."
            case = _case(version, error)
            self._warnings.record(EventKind.SHARD_REFUSED, message, cure, name, case=case)
            if isinstance(error, BrokerUnavailableError):
                raise
            return
        if created:
            message = f"{name} version {version} has {len(created)} shards from offsets {start}."
            self._events.record(EventKind.SHARDS_CREATED, message, pipeline=name)

    def _reshard(self, name: str, version: int, count: int) -> None:
        """Write the next generation, if the topic still holds the rows from which it would make its state."""
        if not self._deployed.has(name, version):
            return
        pipeline = self._deployed.of(name, version)
        try:
            with TopicOffsets(self._settings) as offsets:
                held = held_records(self._settings, pipeline, offsets)
            earliest = held.earliest
            leases = resharding.of_version(self._store.leases(), name, version)
            ledger = read_ledger(self._installation, pipeline)
            ledger.answer(lambda history: rebuild_state.check_reshard(pipeline, history, leases, held))
            created = resharding.reshard(self._store, name, version, count, earliest)
        except HindcastError as error:
            message = f"{name} could not be resharded: {error}"
            cure = "It is tried again at each renewal: nothing has changed."
            case = _case(version, error)
            self._warnings.record(EventKind.RESHARD_REFUSED, message, cure, name, case=case)
            if isinstance(error, BrokerUnavailableError):
                raise
            return
        if created:
            parts = [f"{lease.status_value} has {ShardDetail.of(lease).partitions}" for lease in created]
            dealt = "; ".join(parts)
            message = f"{name} is resharded for {len(earliest)} partitions: {dealt}."
            self._events.record(EventKind.SHARDS_CREATED, message, pipeline=name)


def _check_new_table(settings: Settings, pipeline: Pipeline) -> None:
    """:raises ForeignStreamError: if the table of its own place has rows of which no shard knows: reading
    the topic from its beginning would add them once more
    """
    url = pipeline.sink.url
    if not url or find_table(url, settings.storage_options) is None:
        return
    problem = f"there is a table {url} already, and no shard has written it"
    cure = f"`hindcast adopt {pipeline.name} --checkpoint FOLDER` goes on where the query that writes it is. "
    cure += "For a result of its own, name another table."
    raise ForeignStreamError(pipeline=pipeline.name, problem=problem, cure=cure)


def _case(version: int, error: HindcastError) -> str:
    return f"version {version}: {type(error).__name__}"


def _start_of(settings: Settings, pipeline: Pipeline, topics: TopicOffsets) -> dict[int, int]:
    """Where a new version begins.

    :raises BadRangeError: if the declared offsets are not of the topic's partitions, or not within what it
        and its archive hold
    """
    start = parse_start(pipeline.start)
    if isinstance(start, datetime):
        archives = archives_of(settings, pipeline, topics, across(pipeline, topics.earliest))
        return offsets_at(start, pipeline, topics, archives)
    held = held_records(settings, pipeline, topics)
    if start == "earliest":
        return held.first()
    if isinstance(start, str):
        return held.latest
    within = start.keys() == held.earliest.keys()
    if within:
        within = all(
            offset <= held.latest[partition] and not held.missing(partition, offset, held.latest[partition])
            for partition, offset in start.items()
        )
    if not within:
        problem = f"the topic's partitions hold {held.earliest} to {held.latest}"
        cure = "Name each partition, with an offset that it or its archive holds, or its end."
        raise BadRangeError(range=pipeline.start, problem=problem, cure=cure)
    return start
