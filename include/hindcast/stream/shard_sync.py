"""The shards that one worker consumes: start, watch and stop their queries, and say when a lease may go.

The start of a query takes about a second, and a worker may gain hundreds of shards. So they wait in a queue:
the main thread starts one, acts on the renewals since, and starts the next.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from pyspark.sql import SparkSession

from hindcast.clock import Clock
from hindcast.errors import BrokerUnavailableError, HindcastError, StoreUnavailableError
from hindcast.installation import Installation
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.partitions import ShardId
from hindcast.recovery.raising_records import LeftOut, RaisingRecords
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.shard_row import ReportedDetail, ShardDetail
from hindcast.stream.audit_passes import AuditPasses
from hindcast.stream.failed_shards import FailedShards
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.stream.query_backoff import QueryBackoff
from hindcast.stream.query_errors import is_jvm_broken, is_refusal, may_be_of_a_record
from hindcast.stream.running_shard import RunningShard
from hindcast.stream.shard_events import ShardEvents
from hindcast.stream.shard_runner import ShardRunner
from hindcast.stream.shard_starter import ShardStarter
from hindcast.stream.shard_topics import ShardTopics
from hindcast.stream.start_pace import StartPace
from hindcast.stream.start_queue import StartQueue, WaitingShard
from hindcast.stream.takeover_priority import TakeoverPriority
from hindcast.tables.event_log import EventLog

_log = structlog.get_logger(__name__)


class ShardSync:
    """One query for each shard held.

    The worker's main thread calls all methods but :meth:`versions`, which the audit thread calls. What the
    audit thread runs, and what the main thread may ask of it, is :attr:`audit`.
    """

    def __init__(
        self,
        spark: SparkSession,
        installation: Installation,
        deployed: LoadedPipelines,
        held: HeldLeases,
        events: EventLog,
        clock: Clock,
        backoff: QueryBackoff,
        pace: StartPace,
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        """:param beat: called between any two starts or stops: the main thread is not stuck"""
        priority = TakeoverPriority(clock)
        self._held = held
        self._pace = pace
        self._beat = beat
        self._events = ShardEvents(events, held.owner)
        self._topics = ShardTopics(installation.settings, deployed)
        self._priority = priority
        self._starter = ShardStarter(spark, installation, deployed, held, self._topics, clock, priority)
        self._failures = FailedShards(held, self._events, self._topics, backoff, clock)
        self._queue = StartQueue()
        self._running: dict[LeaseKey, RunningShard] = {}
        self.audit = AuditPasses(self._running, held, self._events, priority.give_way)
        self.superseded: frozenset[LeaseKey] = frozenset()  # shards of an older generation: to be ended

    def versions(self) -> set[tuple[str, int]]:
        """The pipelines and versions that have shards here."""
        held = [*list(self._running), *self._queue.keys()]
        return {(key.stream_id, ShardId.parse(key.status_value).version) for key in held}

    @property
    def any(self) -> bool:
        """Whether a shard is consumed, or waits for its start."""
        return bool(self._running or self._queue)

    def waiting(self) -> list[WaitingShard]:
        """The shards that wait for their start, the first one first."""
        return self._queue.shards()

    def running(self) -> list[RunningShard]:
        """The shards whose queries were started."""
        return list(self._running.values())

    def take(self, lease: Lease, *, request: str = "", left_out: LeftOut | None = None) -> None:
        """Let a shard that was gained wait for its start.

        :param request: the newest request to rebuild the shard, empty if there is none
        :param left_out: records on which its function raises
        """
        running = self._running.get(lease.key)
        if running is not None:
            self._lose(running)  # of an earlier epoch: the shard was lost and taken again within one step
        self._queue.add(WaitingShard(lease, request, left_out or LeftOut()))

    def start_next(self) -> bool:
        """Start the shard that has waited longest; False if none waits."""
        if not self._queue:
            return False
        self._beat()
        waiting = self._queue.take_next()
        lease = waiting.lease
        key = lease.key
        if not self._held.holds(key, lease.epoch):
            self._held.mark_closed(key, lease.epoch)
            self._events.lost(lease)
            return True
        try:
            with self._pace.measured():
                self.start(
                    lease,
                    request=waiting.request,
                    superseded=key in self.superseded,
                    left_out=waiting.left_out,
                )
        finally:
            self._held.mark_started(key, lease.epoch)
        return True

    def start(
        self, lease: Lease, *, request: str = "", superseded: bool = False, left_out: LeftOut | None = None
    ) -> None:
        """Take the shard over and start its query; if that fails, say why and give the lease back.

        :param superseded: only end it: seal it, file its late and poison rows, and start no query
        """
        left_out = left_out or LeftOut()
        takeover = self._starter.prepare(lease, excluded=left_out.excluded)
        runner: ShardRunner | None = None
        try:
            if superseded:
                runner = takeover.seal()
            else:
                runner = self._starter.start(takeover, lease, _why_rebuild(lease, request))
            # After the start, for the shard stands still until then.
            audit = self._starter.audit_of(lease, takeover.app, left_out.tracebacks)
        except Exception as error:  # noqa: BLE001 - whatever Spark or a user's transformation raises
            if runner is not None:
                runner.stop()
            self._failures.give_back(lease, error)
            return
        running = RunningShard(runner, audit, rebuilt=request, draining=superseded, left_out=left_out)
        self._running[lease.key] = running
        self._events.taken(lease, superseded=superseded)
        if runner.rebuilt:
            running.met = request
            self._events.rebuilt(lease, runner.rebuilt)

    def rebuild(self, lease: Lease, request: str) -> None:
        """If the shard's query did not meet this request yet, start it again with a new state.

        The batch in hand ends first.
        """
        waiting = self._queue.get(lease.key)
        if waiting is not None:
            waiting.request = request
        running = self._running.get(lease.key)
        if running is None or running.draining or request in {running.rebuilt, ""}:
            return
        running.drain(restart=(lease, request))

    def close(self, key: LeaseKey, epoch: int | None = None) -> None:
        """Let the batch in hand end; :meth:`tick` then gives the lease away.

        A shard that waits for its start has no batch in hand.

        :param epoch: of the lease that is to be closed; if it is not known, that of the lease that is held
        """
        if key in self._queue and self._ends_here(key):
            return  # it is started to be ended
        self._queue.remove(key)
        running = self._running.get(key)
        if running is None:
            self._held.mark_closed(key, epoch)
            return
        running.drain()

    def _ends_here(self, key: LeaseKey) -> bool:
        """Whether this worker ends the shard. If it stops, the next owner ends superseded shards."""
        return key in self.superseded and not self._held.draining

    def drain_to_end(self, key: LeaseKey, *, wanted: bool) -> None:
        """If it is wanted, consume to the topic's end as of the first call, then mark the shard as drained.

        :raises BrokerUnavailableError: the topic's end is not known yet; ask again
        """
        running = self._running.get(key)
        if running is None:
            return
        if not wanted:
            running.drain_to = None
        elif running.drain_to is None:
            self._beat()
            try:
                latest = self._topics.latest(key)
            except BrokerUnavailableError:
                raise
            except HindcastError as error:
                message = "The topic's end is not known yet; asking again."
                _log.warning(message, shard=str(key), reason=str(error))
                return
            running.drain_to = {partition: latest[partition] for partition in running.runner.end_offsets}

    def lose(self, key: LeaseKey) -> None:
        """Stop at once: another worker owns the shard."""
        waiting = self._queue.remove(key)
        if waiting is not None:
            self._events.lost(waiting.lease)
        running = self._running.get(key)
        if running is not None:
            self._lose(running)

    def _lose(self, running: RunningShard) -> None:
        self._beat()
        if not self._remove(running):
            return
        running.runner.stop()
        if running.search is not None:
            running.search.stop()
        self.audit.settle(running)
        self._events.lost(running.runner.lease)

    def _remove(self, running: RunningShard) -> bool:
        """Consume the shard no longer; False if a pass of the audit has just ended it."""
        return self._running.pop(running.runner.lease.key, None) is not None

    def tick(self) -> None:
        """Look after every query: stop it if its lease is lost, report its failure, or give it away."""
        shards = list(self._running.items())  # the audit may end a shard meanwhile
        self._priority.keep(key for key, running in shards if running.stands_still)
        for key, running in shards:
            self._beat()
            self._look_after(key, running)

    def _look_after(self, key: LeaseKey, running: RunningShard) -> None:
        runner = running.runner
        lease = runner.lease
        failure = runner.failure
        if not self._held.holds(key, lease.epoch):
            self._lose(running)
            self._held.mark_closed(key, lease.epoch)
        elif running.search is not None:
            self._follow_search(running, running.search)
        elif failure is not None:
            self._failed(running, failure)
        elif running.draining and runner.drained:
            self._drained(running)
        elif running.reached_drain_end:
            self._held.report(key, lease.epoch, detail=ReportedDetail(drained=True))
        else:
            runner.go_on()

    def _failed(self, running: RunningShard, failure: BaseException) -> None:
        """A query has failed: search for the records that raise, or give the shard back."""
        runner = running.runner
        runner.stop()
        cause = self._failures.diagnose(runner.lease.key, runner.end_offsets, failure)
        if cause is failure and may_be_of_a_record(failure):
            running.search = self._starter.search(runner, failure, running.left_out.excluded)
        if running.search is None:
            self._give_back(running, cause)
        else:
            self._events.searching(runner.lease, failure)

    def _follow_search(self, running: RunningShard, search: RaisingRecords) -> None:
        """Once the records are found, start the shard again without them; if none is, give it back."""
        lease = running.runner.lease
        if running.draining:
            search.stop()
            running.search = None
            return
        if not search.ended:
            return
        if not search.found:
            running.search = None
            _log.info("No record is to blame.", shard=str(lease.key), reason=search.reason)
            cause = search.refusal or search.error
            if search.failure is not None and is_jvm_broken(search.failure):
                cause = search.failure
            self._give_back(running, cause)
            return
        if not self._remove(running):
            return
        self._events.excluded(lease, search.found.excluded)
        left_out = running.left_out.and_those(search.found)
        self.take(running.lease, request=running.rebuilt, left_out=left_out)

    def _give_back(self, running: RunningShard, cause: BaseException) -> None:
        if not self._remove(running):
            return
        if not is_refusal(cause):
            self.audit.settle(running)
        self._failures.give_back(running.runner.lease, cause)

    def _drained(self, running: RunningShard) -> None:
        """After the last batch: rebuild the state, end the shard, or give it away."""
        lease = running.runner.lease
        if self._ends_here(lease.key):
            if not running.ending:
                running.ending = True
                self.audit.due.set()  # the shard ends once all is filed
            return
        if not self._remove(running):
            return
        running.runner.stop()
        if running.restart:
            again, request = running.restart
            self.take(again, request=request)
            return
        self._held.mark_closed(lease.key, lease.epoch)
        self.audit.settle(running)
        self._events.released(lease)

    def flush(self) -> None:
        """Write the queued ledger rows of all shards; they stay queued while the store is away."""
        for running in self.running():  # the audit may end a shard meanwhile
            self._beat()
            try:
                running.runner.flush()
            except StoreUnavailableError as error:
                _log.warning("The ledger could not be written; its rows are kept.", reason=str(error))
            if running.runner.progressed:
                self._note_progress(running)

    def _note_progress(self, running: RunningShard) -> None:
        lease = running.runner.lease
        self._failures.recovered(lease.key)
        if running.met is not None and not running.met_is_reported:
            # The sink names the new checkpoint from now on.
            self._held.report(lease.key, lease.epoch, detail=ReportedDetail(rebuild=running.met, damaged=""))
            running.met_is_reported = True


def _why_rebuild(lease: Lease, request: str) -> str:
    """Why the shard's state is to be rebuilt when its query starts; empty if the query is to resume.

    :param request: the newest request to rebuild the shard
    """
    detail = ShardDetail.of(lease)
    if request and request != detail.rebuilt:
        return "it was asked for"
    return detail.damaged
