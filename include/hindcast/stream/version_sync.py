"""What a worker does for the versions of pipelines beyond consuming them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import structlog

from hindcast.clock import Clock
from hindcast.errors import HindcastError
from hindcast.installation import Installation
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.shards.active_version import caught_up
from hindcast.shards.version_changes import Versions
from hindcast.shards.version_events import record_changes
from hindcast.shards.warm_time import WarmTime

_log = structlog.get_logger(__name__)


class VersionSync:
    """Notes which shadows have caught up, and ends warm versions whose time is over.

    The worker's main thread calls it after a renewal.
    """

    def __init__(self, installation: Installation, clock: Clock) -> None:
        self._tables = installation.tables
        self._versions = Versions(installation.lease_table)
        self._warm_time = WarmTime(clock)

    def look(self, leases: Mapping[LeaseKey, Lease]) -> None:
        """Make the changes that are due. Every worker tries; the first one does it."""
        changes = [
            (seen, partial(self._versions.note_caught_up, seen)) for seen in caught_up(leases.values())
        ]
        warm = self._warm_time.seen(leases.values())
        changes += [(seen, partial(self._versions.keep_warm, seen, seconds)) for seen, seconds in warm]
        for seen, change in changes:
            try:
                # The worker that made the change before may have been killed before it recorded that.
                record_changes(self._tables, seen)
                rollout = change()
                if rollout is not None:
                    record_changes(self._tables, rollout)
            except HindcastError as error:
                message = "What has become of a version could not be noted; the next renewal tries again."
                _log.warning(message, reason=str(error))
