"""Rewind a pipeline: take back what it wrote after one version of its sink, and let it read that again.

The pipeline is paused, so nothing reads or writes it meanwhile, and each step shuts out one more way of an
owner that was thought dead. After a death between two steps the next call of :func:`complete` takes the steps
that are left; until then the pipeline does not run.

1. One commit of the leases: the shards are TERMINATED, each in its next epoch, and those of a new generation
   WAIT, with the record of the rewind in their detail. Before it nothing has changed; from here on no worker
   can take any shard.
2. One commit of the sink: the files of the version that is kept, and no others. With it the fence of each
   shard rises to the new epoch, so that no batch of an older owner lands any more. What one has written until
   now is taken back with the rest.
3. The same fence for the late and poison rows, then those of the batches that were taken back are deleted.
4. The ledger gets a row for each shard: readers leave out the batches that were taken back, also those that
   an older owner still files.
5. One commit of the leases: the new shards are OPEN. They rebuild their state like those of a reshard
   (:mod:`hindcast.recovery.rebuild_state`).

Until step 2 has landed, :mod:`hindcast.recovery.abandon_rewind` is the way back.
"""

from __future__ import annotations

import uuid

from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.recovery import rewind_events, rewind_point
from hindcast.recovery.begun_rewind import BegunRewind, find_begun
from hindcast.recovery.delete_late_and_dead_rows import delete_late_and_dead_rows, empty_late_sink
from hindcast.recovery.plan_rewind import RewindPlan, check_only_writer
from hindcast.recovery.restore_sink import SinkRestore
from hindcast.recovery.rewind_record import BegunRecord, RewindRecord
from hindcast.tables.ledger import Ledger


def run(
    installation: Installation, pipeline: Pipeline, plan: RewindPlan, *, by: str, reason: str
) -> BegunRecord:
    """Carry out a plan; return what the rewind recorded of itself.

    Another person's :func:`complete` may take the steps that are left, before this call or beside it.

    :raises RewindRefusedError: if the pipeline was resumed since, another has written to its tables, or
        another person has called the rewind off meanwhile
    :raises StoreUnavailableError: if a store does not answer; :func:`complete` takes the steps that are left
    """
    check_only_writer(installation.settings, pipeline, plan.request)
    record: RewindRecord = {**plan.as_dict(), "by": by, "reason": reason, "id": uuid.uuid4().hex}
    rewind_events.record_begin(installation.event_log, record)
    reach("reset.1")  # 1. the leases: nobody can take what is to be taken back
    store = installation.lease_table
    begun_record = rewind_point.begin(store, pipeline.name, pipeline.version, plan.shards, plan.point, record)
    begun = find_begun(store, pipeline.name)
    if begun is None or begun.id != record["id"]:
        _check_completed(installation, pipeline, plan, begun_record)
        return begun_record
    _take_steps(installation, pipeline, begun)
    return begun_record


def complete(installation: Installation, pipeline: Pipeline) -> BegunRecord | None:
    """Take steps 2 to 5 of a rewind that has begun; return what it recorded, or None if there is none.

    :raises RewindRefusedError: if files of the version that is kept are gone, or may go meanwhile;
        :mod:`hindcast.recovery.abandon_rewind` is the way back
    :raises StoreUnavailableError: if a store does not answer; the same call takes the steps that are left
    """
    begun = find_begun(installation.lease_table, pipeline.name)
    if begun is None:
        return None
    _take_steps(installation, pipeline, begun)
    return begun.record


def _check_completed(
    installation: Installation, pipeline: Pipeline, plan: RewindPlan, record: BegunRecord
) -> None:
    """Tell in which way another process has ended this rewind. The sink's log says it.

    :raises RewindRefusedError: if it was called off
    """
    epochs = {lease.status_value: lease.epoch + 1 for lease in plan.shards}
    ended = BegunRewind(record, epochs, dict(plan.point.offsets))
    if SinkRestore(installation.settings, pipeline, ended).was_called_off():
        cure = "If it is still wanted, give the command again: it makes a new plan."
        raise plan.request.refused("another person has called it off since it began", cure)


def _take_steps(installation: Installation, pipeline: Pipeline, begun: BegunRewind) -> None:
    """Steps 2 to 5. Two processes may take them at once: each finds done what the other did."""
    settings = installation.settings
    reach("reset.2")  # 2. the sink as it was, and no batch of an older owner any more
    sink_version = SinkRestore(settings, pipeline, begun).restore()
    reach("reset.3")  # 3. late and poison rows
    delete_late_and_dead_rows(installation, pipeline, begun)
    empty_late_sink(settings, pipeline, begun.epochs)
    reach("reset.4")  # 4. the ledger
    _take_back_batches(installation.ledger, pipeline, begun, sink_version)
    reach("reset.5")  # 5. the shards that read it again
    rewind_point.end(installation.lease_table, pipeline.name, begun.id)
    rewind_events.record_end(installation.event_log, begun.record)


def _take_back_batches(ledger: Ledger, pipeline: Pipeline, begun: BegunRewind, sink_version: int) -> None:
    rows = []
    for shard, kept in begun.kept_batches.items():
        # A shard of an older generation has batches, and no owner that could write.
        epoch = begun.epochs.get(shard, 0)
        rows.append(
            rewind_point.reset_row(
                pipeline.name,
                pipeline.version,
                pipeline.source.name,
                shard,
                kept,
                epoch,
                begun.offsets,
                sink_version,
            )
        )
    ledger.append(rows)
