"""Kill a worker as a crash would, and measure when its shards are committed again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psutil

from hindcast.leases.lease import Lease, StatusType
from hindcast.processes.background_services import Services, members
from hindcast.settings import Settings
from hindcast.shards.slot_row import SlotHolder
from hindcast.tables.ledger import LedgerRow


@dataclass(frozen=True)
class Killed:
    """A worker that was killed: the epochs in which it held its shards, shard to epoch, and the moment it
    died.
    """

    worker: str
    pid: int
    epochs: dict[str, int]
    at: datetime

    def failover_seconds(self, rows: Iterable[LedgerRow]) -> float | None:
        """Seconds from the death until another owner had committed the last of its shards; None until
        then.
        """
        first_commits: dict[str, datetime] = {}
        for row in rows:
            own_epoch = self.epochs.get(row.shard)
            if own_epoch is None or row.epoch <= own_epoch:
                continue
            known = first_commits.get(row.shard, row.committed_at)
            first_commits[row.shard] = min(row.committed_at, known)
        if first_commits.keys() != self.epochs.keys():
            return None
        last = max(first_commits.values())
        return (last - self.at).total_seconds()


def kill_an_owner(settings: Settings, pipeline: str, leases: list[Lease]) -> Killed | None:
    """Send SIGKILL to all processes of one local worker that holds shards of the pipeline.

    :returns: None if there is no such worker
    """
    services = {service.pid: service for service in Services(settings.home).workers() if service.running}
    for worker, pid in sorted(_pids(leases).items()):
        epochs = _epochs(leases, worker, pipeline)
        if not epochs or pid not in services:
            continue
        processes = members(services[pid])
        at = datetime.now(UTC)
        for process in processes:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                os.kill(process.pid, signal.SIGKILL)
        return Killed(worker, pid, epochs, at)
    return None


def _pids(leases: list[Lease]) -> dict[str, Any]:
    """Worker -> pid, of the workers that hold a slot."""
    pids = {}
    for lease in leases:
        if lease.status_type is StatusType.SLOT and lease.lease_owner:
            pids[lease.lease_owner] = SlotHolder.of(lease).pid
    return pids


def _epochs(leases: list[Lease], worker: str, pipeline: str) -> dict[str, int]:
    """Shard -> epoch, of the pipeline's shards that the worker holds."""
    epochs = {}
    for lease in leases:
        of_pipeline = lease.status_type is StatusType.SHARD and lease.stream_id == pipeline
        if of_pipeline and lease.lease_owner == worker:
            epochs[lease.status_value] = lease.epoch
    return epochs
