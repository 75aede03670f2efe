"""Kill a worker as a crash would, and see when the shards it had are committed again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil

from hindcast.control.leases import Lease, StatusType
from hindcast.control.ledger import LedgerRow
from hindcast.local.processes import Services, members
from hindcast.settings import Settings


@dataclass(frozen=True)
class Killed:
    """A worker that is no more: the epochs in which it held its shards, and the moment it died."""

    worker: str
    pid: int
    epochs: dict[str, int]
    at: datetime

    def failover_seconds(self, rows: Iterable[LedgerRow]) -> float | None:
        """Seconds from the death until the last of its shards was committed by another owner; None until then."""
        heirs: dict[str, datetime] = {}
        for row in rows:
            if row.epoch > self.epochs.get(row.shard, row.epoch):
                heirs[row.shard] = min(row.committed_at, heirs.get(row.shard, row.committed_at))
        if heirs.keys() != self.epochs.keys():
            return None
        return (max(heirs.values()) - self.at).total_seconds()


def kill_an_owner(settings: Settings, pipeline: str, leases: list[Lease]) -> Killed | None:
    """Send SIGKILL to the whole of one local worker that holds shards of the pipeline; None where there is none."""
    pids = {
        lease.lease_owner: lease.detail.get("pid")
        for lease in leases
        if lease.status_type is StatusType.SLOT and lease.lease_owner
    }
    services = {service.pid: service for service in Services(settings.home).workers() if service.running}
    shards = [
        lease for lease in leases if lease.status_type is StatusType.SHARD and lease.stream_id == pipeline
    ]
    for worker, pid in sorted(pids.items()):
        epochs = {lease.status_value: lease.epoch for lease in shards if lease.lease_owner == worker}
        if not epochs or pid not in services:
            continue
        processes = members(services[pid])
        at = datetime.now(UTC)
        for process in processes:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return Killed(worker, pid, epochs, at)
    return None
