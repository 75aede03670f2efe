"""What a worker's audit thread does: file late and poison rows, commit to consumer groups how far shards are,
and look for new partitions of topics.
"""

from __future__ import annotations

import structlog

from hindcast.errors import HindcastError
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.stream.group_commits import GroupCommits
from hindcast.stream.shard_creation import ShardCreation
from hindcast.stream.shard_sync import ShardSync
from hindcast.stream.worker_threads import WorkerThreads

_log = structlog.get_logger(__name__)


class AuditLoop:
    """Runs a pass of the audit every few seconds, or once a shard waits for it. The audit thread calls it."""

    def __init__(
        self,
        shards: ShardSync,
        creation: ShardCreation,
        coordinator: LeaseCoordinator,
        threads: WorkerThreads,
        groups: GroupCommits,
        audit_seconds: float,
    ) -> None:
        """:param audit_seconds: the longest wait between two passes"""
        self._shards = shards
        self._creation = creation
        self._coordinator = coordinator
        self._threads = threads
        self._groups = groups
        self._audit_seconds = audit_seconds

    def run(self) -> None:
        """Run passes until the worker has ended."""
        ended = self._threads.ended
        while not ended.is_set():
            self._shards.audit.due.wait(self._audit_seconds)
            # A pass takes seconds. If a worker may have died, its shards may be taken over before that.
            while self._coordinator.suspects() and not ended.is_set():
                ended.wait(self._coordinator.poll_seconds)
            if ended.is_set():
                return
            self._shards.audit.run()
            self._groups.commit(self._shards.running())
            try:
                self._creation.reshard_for_new_partitions(self._shards.versions())
            except HindcastError as error:
                message = "The topics' partitions could not be counted; the next look will."
                _log.warning(message, worker=self._coordinator.held.owner, reason=str(error))
