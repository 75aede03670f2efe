"""Faults built into the code on purpose. Each is one alteration of the real thing, and each must be caught by
an oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from simulation import world
from simulation.ports import Fence, FencedSink
from simulation.worker import Consumer, SimulatedWorker

from hindcast.errors import CommitConflictError, CommitUnknownError
from hindcast.leases import balance, store
from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import Lease, LeaseKey, ShardState, StatusType
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.shards import coordinator, fleet_slots, held_leases, resharding, version_changes
from hindcast.shards.active_version import Rollout
from hindcast.shards.coordinator import LeaseCoordinator, Renewal
from hindcast.shards.fleet_slots import SlotAcquisition
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.pipeline_row import PipelineRow, desired_key
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail
from hindcast.shards.version_changes import Versions

Mutate = Callable[[pytest.MonkeyPatch], None]


def _skip_the_epoch_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FencedSink, "refuses", lambda *_: False)


def _trust_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    def unchanged_seconds(self: Observer, lease: Lease) -> float:
        return (self._clock.now() - lease.updated_at).total_seconds() if lease.updated_at else 0.0

    patch.setattr(Observer, "unchanged_seconds", unchanged_seconds)


def _swap_by(patch: pytest.MonkeyPatch, swapped: Callable[..., list[Lease]]) -> None:
    patch.setattr(coordinator, "swap", swapped)
    patch.setattr(fleet_slots, "swap", swapped)


def _retry_an_unknown_commit_blindly(patch: pytest.MonkeyPatch) -> None:
    def blind(leases: LeaseStore, decide: Callable[[Snapshot], Iterable[Lease]], **_: Any) -> list[Lease]:
        decided: list[Lease] = []

        def again(snapshot: Snapshot) -> list[Lease]:
            return decided or list(decide(snapshot))

        def one(snapshot: Snapshot) -> list[Lease]:
            changes = again(snapshot)
            try:
                if changes:
                    leases.commit(snapshot, changes)
            except CommitUnknownError:
                decided[:] = changes
                raise
            return changes

        for _attempt in range(store.ATTEMPTS):
            try:
                return one(leases.read())
            except (CommitConflictError, CommitUnknownError):
                continue
        raise CommitConflictError(table="memory")

    _swap_by(patch, blind)


def _take_an_unknown_commit_for_written(patch: pytest.MonkeyPatch) -> None:
    def trusting(
        leases: LeaseStore, decide: Callable[[Snapshot], Iterable[Lease]], **options: Any
    ) -> list[Lease]:
        decided: list[Lease] = []

        def remember(snapshot: Snapshot) -> list[Lease]:
            decided[:] = decide(snapshot)
            try:
                if decided:
                    leases.commit(snapshot, decided)
            except CommitUnknownError:
                pass
            return []

        swap(leases, remember, **options)
        return decided

    _swap_by(patch, trusting)


def _take_before_expiry(patch: pytest.MonkeyPatch) -> None:
    def expired(self: Observer, lease: Lease) -> bool:
        return not lease.free and self.unchanged_seconds(lease) >= self._lease_seconds / 2

    patch.setattr(Observer, "expired", expired)


def _open_a_child_before_its_parent_ends(patch: pytest.MonkeyPatch) -> None:
    opened = resharding.opened

    def hasty(leases: Mapping[LeaseKey, Lease]) -> list[Lease]:
        ended = {
            key: lease if lease.state == ShardState.WAIT else lease.evolve(state=ShardState.TERMINATED)
            for key, lease in leases.items()
        }
        return opened(ended)

    patch.setattr(resharding, "opened", hasty)


def _do_not_seal_on_take_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Consumer, "seal", lambda self, sink: sink.recorded.get(self.key))


def _fence_oneself_after_expiry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(held_leases, "SELF_FENCE", 1.3)


def _take_without_raising_the_epoch(patch: pytest.MonkeyPatch) -> None:
    def given_to(self: Lease, owner: str, **changes: Any) -> Lease:
        return self.renewed(lease_owner=owner, lease_stealer="", **changes)

    patch.setattr(Lease, "given_to", given_to)


def _report_a_checkpoint_after_the_lease_was_lost(patch: pytest.MonkeyPatch) -> None:
    report = SimulatedWorker.report

    def anyway(self: SimulatedWorker, consumer: Consumer) -> None:
        unreported = consumer.unreported
        checkpoint = consumer.checkpoint()
        report(self, consumer)
        if unreported and consumer.key not in self.coordinator.held.leases:
            leases = self.coordinator._store
            row = leases.read().leases[consumer.key]
            late = row.evolve(checkpoint={**row.checkpoint, **checkpoint})
            leases.commit(leases.read(), [late])

    patch.setattr(SimulatedWorker, "report", anyway)


def _report_under_a_later_epoch(patch: pytest.MonkeyPatch) -> None:
    report = HeldLeases.report

    def any_epoch(self: HeldLeases, key: LeaseKey, epoch: int, **options: Any) -> None:
        held = self.leases.get(key)
        report(self, key, held.epoch if held else epoch, **options)

    patch.setattr(HeldLeases, "report", any_epoch)


def _never_adopt_what_was_handed_over(patch: pytest.MonkeyPatch) -> None:
    decide = LeaseCoordinator._decide

    def decided(self: LeaseCoordinator, snapshot: Snapshot) -> list[Lease]:
        given = {
            key
            for key, row in snapshot.leases.items()
            if row.lease_owner == self.held.owner and key not in self.held.leases
        }
        return [row for row in decide(self, snapshot) if row.key not in given]

    patch.setattr(LeaseCoordinator, "_decide", decided)


def _never_see_a_dead_workers_slot_as_expired(patch: pytest.MonkeyPatch) -> None:
    expired = Observer.expired
    patch.setattr(
        Observer,
        "expired",
        lambda self, lease: lease.status_type is not StatusType.SLOT and expired(self, lease),
    )


def _renew_for_ever_what_is_closed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldLeases, "mark_closed", lambda *_, **__: None)


def _let_a_clean_stop_wait_for_expiry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseCoordinator, "leave", lambda _: None)


def _keep_what_was_taken_while_told_to_stop(patch: pytest.MonkeyPatch) -> None:
    apply = LeaseCoordinator._apply

    def unaware(self: LeaseCoordinator, *arguments: Any) -> Renewal:
        draining, self.held.draining = self.held.draining, False
        try:
            return apply(self, *arguments)
        finally:
            self.held.draining = draining

    patch.setattr(LeaseCoordinator, "_apply", unaware)


def _steal_for_a_difference_of_one(patch: pytest.MonkeyPatch) -> None:
    def greedy(leases: list[Lease], me: str, live: set[str], observer: Observer) -> list[Lease]:
        load = balance.loads(leases, live, observer)
        richest = max(sorted(load), key=lambda owner: load[owner])
        theirs = [lease for lease in leases if lease.lease_owner == richest and not lease.lease_stealer]
        return theirs[:1] if load[richest] > load[me] else []

    patch.setattr(balance, "to_steal", greedy)


def _number_batches_from_zero_after_a_take_over(patch: pytest.MonkeyPatch) -> None:
    seal = Consumer.seal

    def restarted(self: Consumer, sink: FencedSink) -> Fence:
        seal(self, sink)
        sink.recorded[self.key] = Fence(self.epoch, 0)
        return Fence(self.epoch, 0)

    patch.setattr(Consumer, "seal", restarted)


def _join_whatever_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotAcquisition, "_seconds_of", lambda self, _: self._held.lease_seconds)


def _wait_for_ever_for_a_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldLeases, "mark_started", lambda *_: None)


def _see_nothing_to_do_between_renewals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseCoordinator, "poll", lambda _: False)


def _report_before_the_sink_has_it(patch: pytest.MonkeyPatch) -> None:
    begin = SimulatedWorker.begin

    def early(self: SimulatedWorker, key: LeaseKey, topic_end: int = 0) -> None:
        begin(self, key, topic_end)
        if (consumer := self.consumers.get(key)) is not None and consumer.in_hand is not None:
            consumer.unreported = consumer.in_hand.batch
            self.report(consumer)

    patch.setattr(SimulatedWorker, "begin", early)


def _take_a_slot_in_its_old_epoch(patch: pytest.MonkeyPatch) -> None:
    decide = SlotAcquisition._decide

    def decided(self: SlotAcquisition, snapshot: Snapshot) -> list[Lease]:
        before = {key: row.epoch for key, row in snapshot.leases.items()}
        return [row.evolve(epoch=before.get(row.key, row.epoch)) for row in decide(self, snapshot)]

    patch.setattr(SlotAcquisition, "_decide", decided)


def _take_a_slot_that_is_held(patch: pytest.MonkeyPatch) -> None:
    decide = SlotAcquisition._decide

    def decided(self: SlotAcquisition, snapshot: Snapshot) -> list[Lease]:
        found = decide(self, snapshot)
        if any(row.lease_owner == self._held.owner for row in found):
            return found
        held = [
            row for row in snapshot.leases.values() if row.status_type is StatusType.SLOT and not row.free
        ]
        return [held[0].given_to(self._held.owner)] if held else found

    patch.setattr(SlotAcquisition, "_decide", decided)


def _take_shards_without_a_slot(patch: pytest.MonkeyPatch) -> None:
    acquire = LeaseCoordinator.acquire_slot

    def anyway(self: LeaseCoordinator, wait: Callable[[float], object]) -> bool:
        if acquire(self, wait):
            return True
        extra = Lease(stream_id=self._fleet, status_type=StatusType.SLOT, status_value="one more")
        self.held.gain_slot(extra, self._clock.monotonic())
        return True

    decide = LeaseCoordinator._decide

    def decided(self: LeaseCoordinator, snapshot: Snapshot) -> list[Lease]:
        slot = self.held.slot
        if slot is None or slot.status_value != "one more":
            return decide(self, snapshot)
        row = Lease(
            stream_id=slot.stream_id,
            status_type=StatusType.SLOT,
            status_value=slot.status_value,
            lease_owner=self.held.owner,
        )
        changes = decide(self, Snapshot({**snapshot.leases, slot: row}, snapshot.token))
        return [change for change in changes if change.key != slot]

    patch.setattr(LeaseCoordinator, "acquire_slot", anyway)
    patch.setattr(LeaseCoordinator, "_decide", decided)


def _count_the_deadline_from_after_the_commit(patch: pytest.MonkeyPatch) -> None:
    apply = LeaseCoordinator._apply

    def late(self: LeaseCoordinator, snapshot: Snapshot, changes: list[Lease], began: float) -> Renewal:
        return apply(self, snapshot, changes, self._clock.monotonic())

    patch.setattr(LeaseCoordinator, "_apply", late)


def _forget_the_seam_on_back_out(patch: pytest.MonkeyPatch) -> None:
    back_out = Versions.back_out

    def forgetful(self: Versions, name: str, **options: Any) -> Rollout:
        back_out(self, name, **options)
        row = self._store.read().leases[desired_key(name)]
        known = PipelineRow.of(row)
        rollout = Rollout.of(known)
        assert rollout.beside is not None
        forgotten = replace(rollout, beside=replace(rollout.beside, seam_ms=None))
        self._store.commit(self._store.read(), [forgotten.written(row, known.written_by)])
        return forgotten

    patch.setattr(Versions, "back_out", forgetful)


def _begin_from_the_least_floor(patch: pytest.MonkeyPatch) -> None:
    begun = resharding._begun

    def least(child: Lease, parents: list[Lease]) -> Lease:
        found = begun(child, parents)
        had = {partition for parent in parents for partition in ShardDetail.of(parent).partitions}
        floor = min(ShardCheckpoint.of(parent).all_final_ms for parent in parents)
        floors = {p: known if int(p) in had else floor for p, known in found.checkpoint["floors"].items()}
        return found.evolve(checkpoint={**found.checkpoint, "floors": floors})

    patch.setattr(resharding, "_begun", least)


def _end_a_superseded_shard_before_its_last_batch(patch: pytest.MonkeyPatch) -> None:
    drop = SimulatedWorker.work

    def hasty(self: SimulatedWorker) -> None:
        for consumer in list(self.consumers.values()):
            if consumer.draining and consumer.key in self.superseded and not self.leaving:
                self._stop(consumer, ended=True)
                self.consumers[consumer.key] = consumer
        drop(self)

    patch.setattr(SimulatedWorker, "work", hasty)


def _seal_over_whatever_is_recorded(patch: pytest.MonkeyPatch) -> None:
    def blind(self: Consumer, sink: FencedSink, fence: Fence, recorded: Fence | None) -> None:
        sink.commit(self.key, fence, sink.recorded.get(self.key), seal=True)

    patch.setattr(Consumer, "put_seal", blind)


def _promote_in_the_middle_of_a_reshard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(version_changes, "check_no_reshard", lambda *_: None)
    patch.setattr(world, "check_no_reshard", lambda *_: None)
    patch.setattr(resharding, "reading", resharding.newest_of_version)


#: The mutants by what they do wrong. The last ones are faults that other lease libraries have had.
MUTANTS: dict[str, Mutate] = {
    "skip the epoch check in the sink": _skip_the_epoch_check,
    "trust the wall clock for expiry": _trust_the_wall_clock,
    "retry an unknown commit blindly": _retry_an_unknown_commit_blindly,
    "take an unknown commit for written": _take_an_unknown_commit_for_written,
    "take before expiry": _take_before_expiry,
    "open a child before its parent ends": _open_a_child_before_its_parent_ends,
    "no seal on take-over": _do_not_seal_on_take_over,
    "self-fence later than expiry": _fence_oneself_after_expiry,
    "take without raising the epoch": _take_without_raising_the_epoch,
    "checkpoint reported after the lease was lost": _report_a_checkpoint_after_the_lease_was_lost,
    "checkpoint reported under a later epoch": _report_under_a_later_epoch,
    "checkpoint reported before the sink has it": _report_before_the_sink_has_it,
    "a lease that was handed over is never adopted": _never_adopt_what_was_handed_over,
    "a dead worker keeps its slot for ever": _never_see_a_dead_workers_slot_as_expired,
    "heartbeat kept for a closed lease": _renew_for_ever_what_is_closed,
    "a clean stop waits out the lease": _let_a_clean_stop_wait_for_expiry,
    "what is taken while told to stop is kept": _keep_what_was_taken_while_told_to_stop,
    "a slot is taken in its old epoch": _take_a_slot_in_its_old_epoch,
    "a slot is taken that is held": _take_a_slot_that_is_held,
    "shards are taken without a slot": _take_shards_without_a_slot,
    "the deadline is counted from after the commit": _count_the_deadline_from_after_the_commit,
    "a back-out forgets the seam": _forget_the_seam_on_back_out,
    "a reshard takes the least floor": _begin_from_the_least_floor,
    "a superseded shard ends before its last batch": _end_a_superseded_shard_before_its_last_batch,
    "a seal over whatever is recorded": _seal_over_whatever_is_recorded,
    "a promotion in the middle of a reshard": _promote_in_the_middle_of_a_reshard,
    "a shard that has started counts as waiting for ever": _wait_for_ever_for_a_start,
    "a look finds nothing to do between renewals": _see_nothing_to_do_between_renewals,
    "steal for a difference of one": _steal_for_a_difference_of_one,
    "a worker joins whatever its lease": _join_whatever_the_lease,
    "batches restart at zero after a take-over": _number_batches_from_zero_after_a_take_over,
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The code with this mutant in it, for as long as the context lasts."""
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name](patch)
        yield
