"""A simulated worker of one shard: the real take-over, and after it what a worker's main thread does."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from protocols.scheduler import Process
from protocols.simulated_spark import RaisedError
from protocols.topic import places, raises

from hindcast.errors import HindcastError, StoreUnavailableError
from hindcast.leases.lease import Lease, LeaseKey, ShardState
from hindcast.leases.store import Snapshot, swap
from hindcast.shards import resharding
from hindcast.shards.held_leases import HeldLease, HeldLeases
from hindcast.stream.batch_cpu import CpuMeter
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.stream.shard_runner import ShardRunner
from hindcast.stream.shard_takeover import ShardTakeover
from hindcast.tables.excluded_records import Excluded, together

if TYPE_CHECKING:
    from protocols.world import World


class Owner:
    """The owner of one shard in one epoch. Its lease never ends by its own clock, so that it goes on whatever
    others do: the fence alone stands between it and a newer owner.
    """

    def __init__(self, world: World, process: Process, key: LeaseKey) -> None:
        self._world = world
        self._process = process
        self._key = key
        self._epoch = 0
        self._held = HeldLeases(world.clock, owner=process.name, lease_seconds=math.inf)

    def run(self) -> None:
        """The main thread."""
        try:
            lease = self._take()
            if lease is not None:
                self._consume(lease)
        except HindcastError as error:
            self._world.said(self._process, error)

    def _take(self) -> Lease | None:
        """Take the lease from whoever has it; None if the shard has no owner any more."""
        before: list[str] = []

        def decide(snapshot: Snapshot) -> list[Lease]:
            lease = snapshot.leases.get(self._key)
            if lease is None or lease.lease_owner == self._process.name:
                return []  # the commit's own earlier attempt
            before.append(lease.lease_owner)
            if lease.state in {ShardState.WAIT, ShardState.TERMINATED} or self._world.paused(snapshot):
                return []
            return [lease.given_to(self._process.name, state=ShardState.OPEN)]

        swap(self._world.leases, decide)
        lease = self._world.leases.read().leases.get(self._key)
        if lease is None or lease.lease_owner != self._process.name:
            return None  # a rewind that was called off removes the shards that were to follow
        if self._world.lives(before[-1]):
            self._world.seen["a seal over a living owner"] += 1
        self._epoch = lease.epoch
        self._held.leases[self._key] = HeldLease(lease.epoch, math.inf, lease.checkpoint, lease.detail)
        return lease

    def _consume(self, lease: Lease) -> None:
        """Consume the shard, again without the records that raise each time some are found."""
        left_out: Excluded = {}
        while True:
            found = self._consume_without(left_out, lease)
            if not found:
                return
            left_out = together([left_out, found])

    def _consume_without(self, left_out: Excluded, lease: Lease) -> Excluded:
        """One life of the shard's query.

        :returns: records on which the function has raised; none if the lease was given back
        """
        world = self._world
        meter = CpuMeter(world.clock, read=lambda: 0.0)
        takeover = ShardTakeover(
            world.spark,
            world.installation,
            world.pipeline,
            lease,
            self._held,
            world.clock,
            meter,
            excluded=left_out,
        )
        ends = self._key in resharding.superseded(world.leases.read().leases.values())
        if ends:
            runner = takeover.seal()
        else:
            rebuild = "an operator wants it" if world.rng.random() < world.rebuilt_share else ""
            runner = takeover.start(rebuild, held=world.topic.held)
        audit = Audit(world.spark, world.installation, world.pipeline, takeover.app, lease.epoch)
        while not ends:
            self._look_after(runner, audit)
            if runner.failure is not None:
                runner.stop()
                found = self._search(runner, left_out)
                if not found:
                    self._release()
                return found
            snapshot = world.leases.read()
            if world.paused(snapshot):
                runner.drain()
                if runner.drained:
                    self._finish(runner, audit)
                    self._release()
                    return {}
            ends = self._key in resharding.superseded(snapshot.leases.values())
        runner.drain()
        while not runner.drained:
            world.scheduler.pause("draining")
        self._finish(runner, audit)
        self._end()
        return {}

    def _search(self, runner: ShardRunner, left_out: Excluded) -> Excluded:
        """The records of the batch that failed on which the function raises; none if it failed for another
        reason.
        """
        planned = runner.planned_next()
        if planned is None or not isinstance(runner.failure, RaisedError):
            return {}
        self._world.scheduler.pause("a search for records that raise")
        found: Excluded = {}
        for partition, offset in places(*planned):
            if raises(partition, offset) and offset not in left_out.get(partition, {}):
                found.setdefault(partition, {})[offset] = "RaisedError"
        return found

    def _finish(self, runner: ShardRunner, audit: Audit) -> None:
        """Write the last ledger rows, and file the last late rows."""
        runner.stop()
        runner.flush()
        while self._filed(runner, audit) < runner.batch:
            self._world.scheduler.pause("the last audit")

    def _filed(self, runner: ShardRunner, audit: Audit) -> int:
        """File the late rows of the batches in the ledger; return the last batch whose rows are filed."""
        return audit.run(runner.unfiled(audit.filed()))

    def _look_after(self, runner: ShardRunner, audit: Audit) -> None:
        what = self._world.rng.choice((self._renew, runner.flush, lambda: self._filed(runner, audit)))
        with suppress(StoreUnavailableError):  # a worker tries again with its next renewal
            what()
        self._world.scheduler.pause("the main thread")

    def _renew(self) -> None:
        """Write what the query has reported, and open the shards whose parents have ended."""

        def decide(snapshot: Snapshot) -> list[Lease]:
            changed = resharding.opened(snapshot.leases)
            lease = snapshot.leases.get(self._key)
            if lease is not None and lease.epoch == self._epoch and lease.lease_owner == self._process.name:
                changed.append(lease.renewed(checkpoint=self._held.leases[self._key].checkpoint))
            return changed

        swap(self._world.leases, decide)

    def _release(self) -> None:
        """Give the lease back, with how far the shard is."""
        self._give_back(ShardState.CLOSED)

    def _end(self) -> None:
        """The shard is consumed to its end, for good."""
        self._give_back(ShardState.TERMINATED)

    def _give_back(self, state: ShardState) -> None:
        def decide(snapshot: Snapshot) -> list[Lease]:
            lease = snapshot.leases.get(self._key)
            if lease is None or lease.epoch != self._epoch or lease.lease_owner != self._process.name:
                return []
            checkpoint = self._held.leases[self._key].checkpoint
            return [lease.moved(state).renewed(lease_owner="", checkpoint=checkpoint)]

        swap(self._world.leases, decide)
