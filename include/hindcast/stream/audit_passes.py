"""File the late and poison rows of all shards of one worker, pass after pass.

How the rows of one shard are filed is in :mod:`hindcast.stream.late_and_dead_rows`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from deltalake.exceptions import TableNotFoundError

from hindcast.errors import JvmBrokenError, LeaseLostError, StoreUnavailableError
from hindcast.leases.lease import LeaseKey
from hindcast.shards.held_leases import HeldLeases
from hindcast.stream.query_errors import PASSING, cause, is_jvm_broken
from hindcast.stream.running_shard import RunningShard
from hindcast.stream.shard_events import ShardEvents

_log = structlog.get_logger(__name__)


class AuditPasses:
    """Passes over the shards that a worker consumes, and over those that it has just given up.

    The worker's audit thread calls :meth:`run`. The main thread calls :meth:`settle`, sets :attr:`due`, and
    calls :meth:`run` once more when the worker stops. A lock lets one pass run at a time.
    """

    def __init__(
        self,
        running: dict[LeaseKey, RunningShard],
        held: HeldLeases,
        events: ShardEvents,
        give_way: Callable[[], object],
    ) -> None:
        """:param running: the shards that are consumed. The main thread adds and removes them; a pass removes
            only superseded ones that have ended
        :param give_way: called before each shard; may wait
        """
        self.due = threading.Event()  # a shard waits for its late and poison rows to be filed
        self._running = running
        self._held = held
        self._events = events
        self._give_way = give_way
        # Given up or lost, with rows still to be filed; of each shard the last life, which files all of them.
        self._settling: dict[LeaseKey, RunningShard] = {}
        self._settling_changes = threading.Lock()
        self._unfiled: dict[LeaseKey, str] = {}  # why the last pass over a shard failed
        self._auditing = threading.Lock()

    def settle(self, shard: RunningShard) -> None:
        """Finish a shard that was given up or lost: file its rows in the next passes, until one goes well."""
        with self._settling_changes:
            self._settling[shard.runner.lease.key] = shard

    def run(self) -> None:
        """File late and poison rows of every shard held, and of those just given up.

        A shard that was given up, or lost, is finished here, since nobody may take it for long: its pipeline
        may be paused. If a worker does take it, that worker seals these tables with its first pass, and then
        refuses ours.
        """
        with self._auditing:
            self.due.clear()
            for shard in list(self._running.values()):
                if shard.ending:
                    shard.runner.stop()  # this also writes its last ledger rows
                self._audit(shard, to_the_end=shard.ending)
                if shard.ending:
                    self._end(shard)
            for shard in self._still_settling():
                if self._audit(shard, to_the_end=True):
                    self._settled(shard)

    def _still_settling(self) -> list[RunningShard]:
        with self._settling_changes:
            return list(self._settling.values())

    def _settled(self, shard: RunningShard) -> None:
        """All its rows are filed, or are another worker's; unless the shard was given up again meanwhile."""
        key = shard.runner.lease.key
        with self._settling_changes:
            if self._settling[key] is shard:
                del self._settling[key]

    def _audit(self, shard: RunningShard, *, to_the_end: bool) -> bool:
        """Run one pass; return whether it went well. The next pass repeats one that fails, which must never
        end the stream.
        """
        lease = shard.runner.lease
        self._give_way()
        try:
            if not _file(shard, to_the_end=to_the_end):
                return True  # another worker files them now
        except LeaseLostError:
            return True  # another worker files them already
        except TableNotFoundError:
            return True  # its version was discarded, and the table for its late rows with it
        except PASSING as error:
            message = "Late and poison rows could not be filed; the next pass will."
            _log.warning(message, shard=str(lease.key), reason=str(error))
            return False
        except Exception as error:  # whatever Spark raises
            if is_jvm_broken(error):
                raise JvmBrokenError(reason=cause(error)) from error
            message = f"Late and poison rows of {lease.key} could not be filed: {cause(error)}"
            if self._unfiled.get(lease.key) != message:  # said once, not at each pass
                self._events.audit_failed(lease, message)
            self._unfiled[lease.key] = message
            return False
        self._unfiled.pop(lease.key, None)
        return True

    def _end(self, shard: RunningShard) -> None:
        """Give a superseded shard up for good, once every late and poison row of it is filed."""
        runner = shard.runner
        lease = runner.lease
        try:
            filed = shard.audit.filed()
        except StoreUnavailableError as error:
            message = "Whether all rows are filed is not known; the next pass asks again."
            _log.warning(message, shard=str(lease.key), reason=str(error))
            return
        if filed < runner.batch or self._running.pop(lease.key, None) is None:
            return
        self._held.mark_closed(lease.key, lease.epoch, ended=True)
        self._events.ended(lease, runner.end_offsets)


def _file(shard: RunningShard, *, to_the_end: bool) -> bool:
    """File rows of the shard's batches, as many as one pass takes, or all of them.

    :returns: False if a pass moved nothing
    :raises StoreUnavailableError: if the last ledger rows of a shard that was given up cannot be written: the
        rows of their batches are not filed before that
    """
    if to_the_end and not shard.ending:
        shard.runner.flush()  # if the store was away when the shard stopped, they still wait
    if shard.filed is None:
        shard.filed = shard.audit.filed()
    batches = shard.runner.unfiled(shard.filed)
    shard.filed = shard.audit.run(batches)
    while to_the_end and batches and shard.filed < batches[-1].batch:
        before = shard.filed
        shard.filed = shard.audit.run(batches)
        if shard.filed <= before:
            return False
    return True
