"""Call off a rewind that was cut short, for one that is no longer wanted or that cannot be completed.

There is this way back until step 2 of :mod:`hindcast.recovery.rewind` has landed:

1. One commit of the sink that changes no row: the fence of step 2, and a mark that this rewind was called
   off. It or step 2 lands, never both, so a process that is about to take step 2 takes no step any more.
2. One commit of the leases: the waiting shards are gone, and those that they were to follow are as they were,
   in the raised epoch.

A death between the two is harmless: the same call completes what is left.
"""

from __future__ import annotations

from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.recovery import rewind_events, rewind_point
from hindcast.recovery.begun_rewind import find_begun
from hindcast.recovery.restore_sink import SinkRestore
from hindcast.recovery.rewind_record import BegunRecord


def abandon(installation: Installation, pipeline: Pipeline, *, by: str, reason: str) -> BegunRecord | None:
    """Call off the rewind; return what it recorded of itself, or None if no rewind was cut short.

    :raises RewindRefusedError: if its table is restored already
    :raises StoreUnavailableError: if a store does not answer; the same call completes what is left
    """
    store = installation.lease_table
    begun = find_begun(store, pipeline.name)
    if begun is None:
        return None
    reach("abandon.1")  # 1. the sink: step 2 of the rewind lands no more
    SinkRestore(installation.settings, pipeline, begun).call_off()
    reach("abandon.2")  # 2. the leases as they were
    rewind_point.undo(store, pipeline.name, begun.id)
    rewind_events.record_abandonment(installation.event_log, begun.record, by=by, reason=reason)
    return begun.record
