"""What a worker's main thread does once it can consume: act on renewals, and look after its shards."""

from __future__ import annotations

import queue
from collections.abc import Mapping

import structlog

from hindcast.errors import BrokerUnavailableError
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.shards import resharding
from hindcast.shards.coordinator import Renewal
from hindcast.shards.desired_state import desired_of, rebuild_request
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.pipeline_row import DesiredState
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.stream.shard_creation import ShardCreation
from hindcast.stream.shard_sync import ShardSync
from hindcast.stream.version_sync import VersionSync
from hindcast.stream.warn_once import WarnOnce
from hindcast.stream.worker_threads import WorkerThreads
from hindcast.tables.event_log import EventKind

_log = structlog.get_logger(__name__)

#: How often the main thread looks at its queries.
TICK_SECONDS = 0.2


class MainLoop:
    """Serves the shards of one worker until the worker is to stop. The main thread calls all methods."""

    def __init__(
        self,
        shards: ShardSync,
        renewals: queue.SimpleQueue[Renewal],
        held: HeldLeases,
        threads: WorkerThreads,
        *,
        deployed: LoadedPipelines,
        creation: ShardCreation,
        versions: VersionSync,
        warnings: WarnOnce,
    ) -> None:
        """:param renewals: the renewal thread puts each renewal into it"""
        self.shards = shards
        self._renewals = renewals
        self._held = held
        self._threads = threads
        self._deployed = deployed
        self._creation = creation
        self._versions = versions
        self._warnings = warnings

    def serve(self) -> bool:
        """Until it is to stop: act on each renewal, look after the queries, start one that waits.

        A worker may gain hundreds of shards, so it acts on the changes of a renewal between any two starts.

        :returns: False if the slot was lost
        :raises Exception: what ended another thread of the worker
        """
        threads = self._threads
        flush_at = 0.0
        leaving = False
        while True:
            threads.come_round()
            threads.raise_failure()
            self.act_on_renewals()
            self.shards.tick()
            if threads.came_round_at >= flush_at:
                self.shards.flush()
                flush_at = threads.came_round_at + self._held.renewal_seconds
            if not leaving and (threads.stop.is_set() or self._held.slot is None):
                leaving = True
                message = "Stopping: the batches in hand end, then the leases are released."
                _log.info(message, worker=self._held.owner)
                for key in self._held.drain():
                    self.shards.close(key)
            if leaving and not self.shards.any:
                return threads.stop.is_set()
            if not self.shards.start_next():
                threads.woken.wait(TICK_SECONDS)
                threads.woken.clear()

    def act_on_renewals(self) -> None:
        """Act on the renewals since the last tick.

        Leases change hands renewal by renewal. For the wanted versions and the missing shards only the newest
        renewal counts.
        """
        newest: Renewal | None = None
        while not self._renewals.empty():
            newest = self._renewals.get()
            self._hand_over(newest)
        if newest is not None:
            self._look_after(newest)

    def _hand_over(self, renewal: Renewal) -> None:
        self.shards.superseded = frozenset(resharding.superseded(renewal.leases.values()))
        for key in renewal.lost:
            self.shards.lose(key)
        for key in renewal.close:
            self.shards.close(key, renewal.leases[key].epoch)
        for lease in renewal.gained:
            if lease.status_type is StatusType.SHARD and not self._held.draining:
                request = rebuild_request(renewal.leases, lease.key)
                self.shards.take(lease, request=request)

    def _look_after(self, renewal: Renewal) -> None:
        for name, version in self._deployed.look(renewal.leases.values()):
            wanted = f"{name} is wanted in version {version}"
            message = f"{wanted}, which this worker's pipelines folder does not declare."
            cure = f"Deploy version {version}, or want the declared one."
            case = f"version {version}"
            self._warnings.record(EventKind.PIPELINE_REFUSED, message, cure, name, case=case)
        self._versions.look(renewal.leases)
        try:
            self._change_shards(renewal.leases)
        except BrokerUnavailableError as error:  # each further question would wait as long for its answer
            message = "The broker does not answer; the next renewal asks again."
            _log.warning(message, worker=self._held.owner, reason=str(error))

    def _change_shards(self, leases: Mapping[LeaseKey, Lease]) -> None:
        """Rebuild, drain and create shards as it is wanted, as far as that needs the topics' offsets.

        :raises BrokerUnavailableError: the broker was not asked about the rest
        """
        shards = [row for row in leases.values() if row.status_type is StatusType.SHARD]
        mine = [row for row in shards if row.lease_owner == self._held.owner]
        for lease in mine:
            self.shards.rebuild(lease, rebuild_request(leases, lease.key))
        drained = set()
        for desired in desired_of(leases.values()).values():
            if desired.state is DesiredState.DRAINED:
                drained.add(desired.pipeline)
        for lease in mine:
            self.shards.drain_to_end(lease.key, wanted=lease.stream_id in drained)
        self._creation.create_missing(leases)
