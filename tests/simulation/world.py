"""A world of workers that share one lease store and one sink, and the faults that befall them. Everything
goes into its history.
"""

from __future__ import annotations

import copy
from collections import Counter
from datetime import timedelta

from simulation.history import Event, History, Kind, Op, Versioned
from simulation.oracles import Breach, check
from simulation.ports import BATCH, FAULTS, FaultyStore, Fence, FencedSink, Reached
from simulation.topic import MORE_PARTITIONS, PARTITIONS
from simulation.worker import SimulatedWorker, first_place, wanted

from hindcast.errors import HindcastError, VersionRefusedError
from hindcast.leases.lease import REMOVED, TAKEABLE, Lease, LeaseKey, ShardState, StatusType
from hindcast.partitions import ShardId
from hindcast.shards import resharding
from hindcast.shards.active_version import Rollout, caught_up
from hindcast.shards.coordinator import POLLS, LeaseCoordinator
from hindcast.shards.held_leases import RENEWALS, SETTLE_SECONDS
from hindcast.shards.pipeline_row import (
    DesiredState,
    InactiveState,
    InactiveVersion,
    PipelineRow,
    desired_key,
)
from hindcast.shards.version_changes import Versions, check_no_reshard
from hindcast.testing import FakeClock, Outcome
from hindcast.versions.catch_up import VersionPosition, position_by

LEASE_SECONDS = 10.0
PERIOD = LEASE_SECONDS / RENEWALS
#: I6: a lease and 30 s after the faults end, all is well again.
HEALING_SECONDS = LEASE_SECONDS + 30.0
#: Whoever lost shards asks for none for a while, by its own clock; then it takes as long as healing did until
#: they are even.
EVEN_SECONDS = HEALING_SECONDS + SETTLE_SECONDS / 0.97
#: Rounds without a hand-over after which the shards count as settled: an ask, a close and a transfer take
#: three.
QUIET_ROUNDS = 4
LEAST_SLOTS = 3
#: Rounds for which a promotion waits, at most.
WAITING_ROUNDS = 5
MOST_WORKERS, MOST_SHARDS, MOST_GENERATIONS = 5, 8, 3
FLEET, PIPELINE = "f", "p"
#: Hosts have started at different times, and their clocks run up to 3 % fast or slow.
BOOTED = (0.0, 1e6, 37.0, 5e4, 1e3)
RATES = (1.0, 1.03, 0.97, 1.01, 0.99)
WALLS = (0, 3600, -3600, 7, -40)
#: How many shards each takes before its main thread has come round to start them: some all, some few.
AT_ONCE = (8, 2, 8, 1, 3)


def _is_shard(lease: Lease) -> bool:
    return lease.status_type is StatusType.SHARD


class World:
    """Acts on one action after another; the same actions always give the same history."""

    def __init__(self, workers: int = 2, shards_: int = 1, *, steady: bool = False) -> None:
        """:param steady: all clocks run alike, for searches that compare states"""
        self.at = 0.0
        self.history: History = []
        self.steady = steady
        self.slots = 2 if steady else max(workers, LEAST_SLOTS)  # all are held while nobody dies or leaves
        self.store = FaultyStore(self._lease_landed)
        self.sink = FencedSink(self._sink_landed)
        self.workers: dict[str, SimulatedWorker] = {}
        self.born = 0
        self.generations: Counter[int] = Counter()
        self.partitions = PARTITIONS
        self.seams, self.discarded, self._opened = {1: 0}, frozenset[int](), frozenset[LeaseKey]()
        self._doubts: set[LeaseKey] = set()
        row = Lease(
            stream_id=PIPELINE,
            status_type=StatusType.PIPELINE,
            status_value=desired_key(PIPELINE).status_value,
            state=DesiredState.RUNNING,
            detail={"version": 1, "shards": shards_, "workers": workers},
        )
        self.store.commit(self.store.read(), [row])
        self.versions = Versions(self.store)
        self.keys = [
            lease.key
            for lease in resharding.create(
                self.store, PIPELINE, 1, shards_, dict.fromkeys(range(PARTITIONS), 0)
            )
        ]
        for _ in range(workers):
            self.join()

    def _row(self) -> PipelineRow:
        return PipelineRow.of(self.store.rows[desired_key(PIPELINE)])

    # -- what is written down
    # ------------------------------------------------------------------------------------------------

    def record(self, event: Event) -> None:
        self.history.append(event._replace(at=self.at))

    def _lease_landed(self, row: Lease) -> None:
        if row.status_type is StatusType.SLOT:
            self.record(Event(0.0, "", Op.SLOT, Kind.TRUTH, str(row.key), row.epoch, 0, (row.lease_owner,)))
            return
        if row.status_type is not StatusType.SHARD or row.state == REMOVED:
            return
        detail = (
            row.lease_owner,
            row.state,
            *(str(LeaseKey(row.stream_id, StatusType.SHARD, name)) for name in row.parent_shard_ids),
        )
        self.record(
            Event(
                0.0, "", Op.LEASE, Kind.TRUTH, str(row.key), row.epoch, row.checkpoint.get(BATCH, 0), detail
            )
        )

        if row.key not in self._opened and row.state != ShardState.WAIT:
            self._opened |= {row.key}
            begins = first_place(row)
            places = {
                partition: (at, at, begins.final_ms(partition))
                for partition, at in begins.end_offsets.items()
            }
            parents = tuple(row.parent_shard_ids)
            self.record(Event(0.0, "", Op.OPENED, Kind.TRUTH, str(row.key), row.epoch, 0, parents, places))

    def _sink_landed(
        self, key: LeaseKey, fence: Fence, seal: bool, start: Reached | None, reached: Reached | None
    ) -> None:
        places = None
        if start is not None and reached is not None:
            places = {
                p: (start.end_offsets[p], end, reached.final_ms(p)) for p, end in reached.end_offsets.items()
            }
        self.record(
            Event(
                0.0,
                "",
                Op.SEAL if seal else Op.BATCH,
                Kind.TRUTH,
                str(key),
                fence.epoch,
                fence.batch,
                places=places,
            )
        )

    def look(self) -> None:
        """Note each shard, and each slot, that two workers hold at once, each by its own clock."""
        holders: dict[LeaseKey, str] = {}
        for name, worker in self.workers.items():
            now = worker.clock.monotonic()
            for key, held in worker.coordinator.held.leases.items():
                if now >= held.valid_until or not worker.coordinator.held.holds(key, held.epoch):
                    continue
                if key in holders and key not in self._doubts:
                    self._doubts.add(key)
                    op = Op.DOUBT if key.status_type == StatusType.SHARD else Op.CROWD
                    self.record(Event(0.0, "", op, Kind.TRUTH, str(key), held.epoch, 0, (holders[key], name)))
                holders[key] = name

    def breaches(self) -> list[Breach]:
        return check(self.history)

    def copied(self) -> World:
        """The same world, apart from now on."""
        twin = copy.copy(self)
        twin.history, twin._doubts, twin.keys = list(self.history), set(self._doubts), list(self.keys)
        twin.generations, twin.seams = Counter(self.generations), dict(self.seams)
        twin.store, twin.sink = self.store.copied(twin._lease_landed), self.sink.copied(twin._sink_landed)
        twin.versions = Versions(twin.store)
        twin.workers = {
            name: worker.copied(twin.store, twin.sink, twin.record) for name, worker in self.workers.items()
        }
        return twin

    # -- time and processes
    # -------------------------------------------------------------------------------------------------------------

    def awake(self) -> list[SimulatedWorker]:
        return [worker for worker in self.workers.values() if worker.wakes_at <= self.at and not worker.busy]

    def pass_time(self, seconds: float) -> None:
        self.at += seconds
        for worker in self.workers.values():
            worker.clock.advance(seconds * worker.rate)

    def join(self, lease_seconds: float = LEASE_SECONDS) -> None:
        """Another process; it looks for a slot once and gives up if there is none yet, or if others have
        leases of another duration.
        """
        number, self.born = self.born, self.born + 1
        clock = FakeClock()
        clock.advance(0.0 if self.steady else BOOTED[number % len(BOOTED)] + self.at)
        clock.wall_offset = timedelta(seconds=WALLS[number % len(WALLS)])
        name = f"w{number}"
        coordinator = LeaseCoordinator(
            self.store,
            clock,
            owner=name,
            fleet=FLEET,
            slots=self.slots,
            lease_seconds=lease_seconds,
            wanted=wanted,
            start_limit=lambda: AT_ONCE[number % len(AT_ONCE)],
            sleep=lambda _: None,
        )
        rate = 1.0 if self.steady else RATES[number % len(RATES)]
        worker = SimulatedWorker(name, clock, rate, coordinator, self.sink, self.record)
        self.record(Event(0.0, name, Op.JOIN, Kind.INVOKE))
        self.workers[name] = worker
        try:
            found = coordinator.acquire_slot(self._wait)
        except HindcastError:
            found = False
        self.record(Event(0.0, name, Op.JOIN, Kind.OK if found else Kind.FAIL))
        if not found:
            del self.workers[name]

    def _wait(self, seconds: float) -> None:
        """While a newcomer waits for a slot the others go on."""
        self.pass_time(seconds)
        for worker in self.awake():
            if worker.coordinator.held.slot is not None:
                worker.step()
                self.run(worker)

    def die(self, worker: SimulatedWorker) -> None:
        self.record(Event(0.0, worker.name, Op.DIE, Kind.TRUTH))
        del self.workers[worker.name]

    def run(self, worker: SimulatedWorker) -> None:
        """The main thread comes round, unless it is stuck; a worker that has ended is gone."""
        if worker.stuck_until > self.at:
            return
        worker.work()
        if worker.ended and worker.name in self.workers:
            left = [str(row.key) for row in self.store.rows.values() if row.lease_owner == worker.name]
            ok = self.history[-1].kind is Kind.OK
            self.record(
                Event(
                    0.0, worker.name, Op.LEAVE, Kind.FAIL if ok and left else Kind.TRUTH, detail=tuple(left)
                )
            )
            del self.workers[worker.name]

    def step(self, worker: SimulatedWorker, fault: int = 0) -> None:
        self.store.plan = list(FAULTS[fault % len(FAULTS)])
        worker.busy = True
        worker.step()
        worker.busy = False
        self.store.plan, self.store.slow = [], {}

    def begin(self, worker: SimulatedWorker, key: LeaseKey) -> None:
        """A query begins a batch of what is there: a record a second in each partition."""
        worker.begin(key, 0 if self.steady else int(self.at) + 1)

    def round(self, seconds: float = PERIOD, first: int = 0) -> None:
        """A period in which everybody who is awake lands what is in hand, renews, works, looks, and begins a
        batch of each shard.
        """
        names = [worker.name for worker in self.awake()]
        first %= max(len(names), 1)
        for name in names[first:] + names[:first]:
            self.pass_time(seconds / len(names))
            worker = self.workers.get(name)
            if worker is None:
                continue
            for key in list(worker.consumers):
                worker.land(key, Outcome.OK, at_once=True)
            self.step(worker)
            self.run(worker)
            self._until_the_next_renewal(worker)
            for key in list(worker.consumers):
                self.begin(worker, key)
        if not names:
            self.pass_time(seconds)

    def _until_the_next_renewal(self, worker: SimulatedWorker) -> None:
        """As long as each look finds something to do, e.g. a shard to take now that the last one has started,
        it steps at once.
        """
        for _ in range(POLLS // RENEWALS):
            if worker.ended or not worker.coordinator.poll():
                return
            self.step(worker)
            self.run(worker)

    # -- generations
    # ---------------------------------------------------------------------------------------------------------

    def reshard(self, count: int, *, newer: bool = False) -> None:
        """An operator wants another number of shards: a new generation, which waits for the newest one to
        end.

        :param newer: of the inactive version, if there is one
        """
        active, *beside = self._row().wanted_versions
        version = beside[0] if newer and beside else active
        if self.generations[version] < MOST_GENERATIONS - 1:
            added = resharding.reshard(
                self.store, PIPELINE, version, count, dict.fromkeys(range(self.partitions), 0)
            )
            self.keys += [lease.key for lease in added]
            self.generations[version] += bool(added)

    def grow(self, count: int) -> None:
        """The topic gets more partitions, and each version a generation that has them."""
        self.partitions = MORE_PARTITIONS
        for version in self._row().wanted_versions:
            added = resharding.reshard(
                self.store, PIPELINE, version, count, dict.fromkeys(range(self.partitions), 0)
            )
            self.keys += [lease.key for lease in added]

    # -- versions
    # --------------------------------------------------------------------------------------------------------------

    def operate(self, whim: int) -> None:
        """An operator takes the next step with a pipeline's versions: begin, promote, back out, and now and
        then let go of one.
        """
        rollout = self.versions.of(PIPELINE)
        beside = rollout.beside
        try:
            if beside is None:
                self._begin_version(rollout, whim)
            elif beside.leaving:
                self._remove_version(beside.version)
            elif beside.state is InactiveState.WARM and whim % 5:
                self._changed(self.versions.back_out(PIPELINE))
            elif beside.state is InactiveState.WARM:
                self._changed(self.versions.keep_warm(rollout, rollout.warm_seconds_left))
            elif whim % 9 == 0:
                self._changed(self.versions.leave(PIPELINE, beside.version))
            else:
                self._promote(rollout, beside)
        except VersionRefusedError:
            return

    def _begin_version(self, rollout: Rollout, whim: int) -> None:
        version, late = max(self.seams) + 1, whim % 3
        at = (0, int(self.at) // 2, int(self.at))[late]
        seam_ms = at * 1000 + 1 if late else None
        beside = InactiveVersion(
            version=version, state=InactiveState.CATCHING_UP, shards=1 + whim % 4, tables=(), seam_ms=seam_ms
        )
        begun = self.versions.begin(
            PIPELINE, beside, dict.fromkeys(range(self.partitions), at), columns_from=rollout.active
        )
        self.seams[version] = seam_ms or 0
        self.keys += [
            lease.key for lease in resharding.of_version(self.store.rows.values(), PIPELINE, version)
        ]
        self._changed(begun)

    def _promote(self, rollout: Rollout, beside: InactiveVersion) -> None:
        """As :func:`hindcast.versions.promote.promote` does: wait for a while until the version has read what
        the active one had.
        """
        for seen in caught_up(self.store.rows.values()):
            rollout = self.versions.note_caught_up(seen) or rollout
        check_no_reshard(rollout, self.store.rows.values())
        assert rollout.change is not None
        barrier = self.position(rollout.active)
        self.record(Event(0.0, "", Op.BARRIER, Kind.TRUTH))
        rounds = 0
        while not self.position(beside.version).covers(barrier) and rounds < WAITING_ROUNDS:
            self.round()
            self.look()
            rounds += 1
        if self.position(beside.version).covers(barrier):
            since = rollout.change.id
            promoted = self.versions.promote(
                PIPELINE, beside.version, (), warm_seconds=60.0, barrier=barrier.offsets, since=since
            )
            self._changed(promoted)

    def position(self, version: int) -> VersionPosition:
        """How far a version is, by the sink and the leases."""
        return position_by(
            self.store.rows.values(), PIPELINE, version, lambda lease: self.sink.reached.get(lease.key)
        )

    def _remove_version(self, version: int) -> None:
        own = resharding.of_version(self.store.rows.values(), PIPELINE, version)
        if not any(lease.lease_owner in self.workers for lease in own):
            gone = self.versions.remove(PIPELINE, version)
            self.discarded |= {version}
            self.keys = [key for key in self.keys if key in self.store.rows]
            self._changed(gone)

    def _changed(self, rollout: Rollout | None) -> None:
        if rollout is not None and rollout.change is not None:
            earlier = tuple((one.version, one.to_ms) for one in rollout.earlier)
            said = Versioned(
                rollout.active, rollout.change.kind.value, earlier, dict(self.seams), self.discarded
            )
            self.record(Event(0.0, "", Op.ROLLOUT, Kind.TRUTH, PIPELINE, places=said))

    def _sink_batch(self, key: LeaseKey) -> int:
        recorded = self.sink.recorded.get(key)
        return recorded.batch if recorded else 0

    # -- healing
    # -------------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """The faults end. Within the bound everything is owned and moves, and then nothing is handed over any
        more.
        """
        self.record(Event(0.0, "", Op.HEAL, Kind.TRUTH))
        self.store.plan, self.store.slow = [], {}
        for worker in self.workers.values():
            worker.wakes_at, worker.stuck_until, worker.busy = 0.0, 0.0, False
        self._attend()
        before, deadline = {key: self._sink_batch(key) for key in self.keys}, self.at + HEALING_SECONDS
        unwell = self._unwell(before)
        while unwell and self.at < deadline and self.workers:
            self.round()
            self.look()
            self._attend()
            unwell = self._unwell(before)
        self.record(Event(0.0, "", Op.HEALED, Kind.FAIL if unwell else Kind.OK, detail=tuple(unwell)))
        if unwell:
            return
        self._settle()

    def _attend(self) -> None:
        """Somebody starts a worker where there is none: the last ones may have been told to leave long before
        they do.
        """
        if not self.workers:
            self.join()

    def _settle(self) -> None:
        """Play on until nothing was handed over for some rounds and the loads differ by one at most."""
        deadline, quiet, moved = self.at + EVEN_SECONDS, 0, {}
        epochs = {key: row.epoch for key, row in self.store.rows.items()}
        while (quiet < QUIET_ROUNDS or self._uneven()) and self.at < deadline:
            self.round()
            self._attend()
            before, epochs = epochs, {key: row.epoch for key, row in self.store.rows.items()}
            moved = {key for key, epoch in epochs.items() if epoch != before.get(key)}
            quiet = 0 if moved else quiet + 1
        wrong = [] if quiet >= QUIET_ROUNDS else [f"{key} was handed over" for key in moved]
        wrong += [f"the loads are {load}"] if (load := self._uneven()) else []
        self.record(Event(0.0, "", Op.SETTLED, Kind.FAIL if wrong else Kind.OK, detail=tuple(wrong)))

    def _uneven(self) -> dict[str, int]:
        """What each worker has, where one has two leases more than another."""
        load = Counter(dict.fromkeys(self.workers, 0))
        load.update(
            row.lease_owner
            for row in self.store.rows.values()
            if _is_shard(row) and row.state in TAKEABLE and self._wanted(row)
        )
        return dict(load) if load and max(load.values()) - min(load.values()) > 1 else {}

    def _wanted(self, row: Lease) -> bool:
        return ShardId.parse(row.status_value).version in self._row().wanted_versions

    def _unwell(self, before: dict[LeaseKey, int]) -> list[str]:
        """The shards that are not consumed, and the workers that do not stop, and why."""
        found = [
            f"{name} was told to stop and does not" for name, worker in self.workers.items() if worker.leaving
        ]
        superseded = resharding.superseded(self.store.rows.values())
        for key, row in self.store.rows.items():
            if not _is_shard(row) or row.state == ShardState.TERMINATED or not self._wanted(row):
                continue
            if key in superseded:
                found.append(f"{key} does not end")
            elif row.lease_owner not in self.workers:
                found.append(f"{key} is {row.state} and owned by {row.lease_owner or 'nobody'}")
            elif self._sink_batch(key) <= before.get(key, 0):
                found.append(f"{key} does not move")
        return found
