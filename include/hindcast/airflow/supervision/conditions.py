"""What the lease table says about a fleet: empty slots, lagging shards, desired states.

Neither this module nor :mod:`hindcast.airflow.supervision.restart_backoff` imports Airflow, so their tests
need none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hindcast.airflow.supervision.restart_backoff import RestartBackoff
from hindcast.clock import Clock
from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import Lease, ShardState, StatusType
from hindcast.settings import Settings
from hindcast.shards.desired_state import desired_of
from hindcast.shards.pipeline_row import DesiredState, PipelineRow
from hindcast.shards.shard_row import ShardDetail
from hindcast.tables.event_log import EventKind
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from hindcast.tables.control_tables import ControlTables

#: Events by which a worker says that a shard's query has failed.
FAILURES = frozenset({EventKind.QUERY_FAILED, EventKind.OFFSETS_LOST, EventKind.SHARD_REFUSED})
#: What an owner shows of itself at one renewal: owner, epoch, counter. If it is equal later, nothing was
#: renewed.
Heartbeat = tuple[str, int, int]
#: Reconciling waits this many leases at most for owners to renew: one, and some time to read the table.
_SETTLE_LEASES = 1.25
#: Between two reads while it waits: a tenth of a lease, and at most a second.
_READS_PER_LEASE = 10
_MOST_READ_WAIT_SECONDS = 1.0


class Fault(StrEnum):
    """What may be wrong with a fleet. A fault's key is ``<fault>:<slot, shard or event>``."""

    SLOT_EMPTY = "slot_empty"
    SHARD_LAGS = "shard_lags"
    QUERY_FAILED = "query_failed"

    def key(self, what: str) -> str:
        return f"{self.value}:{what}"


class WakeReason(StrEnum):
    """Why the supervisor woke."""

    WORKER_LOST = "worker_lost"
    SLOT_FREE = "slot_free"
    QUERY_FAILED = "query_failed"
    LAG_OVER_LIMIT = "lag_over_limit"
    DESIRED_CHANGED = "desired_changed"
    PIPELINES_CHANGED = "pipelines_changed"
    NOT_MENDED = "not_mended"
    HOUR_GONE = "hour_gone"


#: Reasons that count towards a back-off. A new worker may help against the first three; the supervisor can
#: only report the others.
SLOT_TROUBLE = frozenset({WakeReason.WORKER_LOST, WakeReason.SLOT_FREE, WakeReason.NOT_MENDED})
OTHER_TROUBLE = frozenset({WakeReason.QUERY_FAILED, WakeReason.LAG_OVER_LIMIT})
TROUBLE = SLOT_TROUBLE | OTHER_TROUBLE


@dataclass(frozen=True, kw_only=True)
class Wake:
    """Why the supervisor must act. ``lost`` maps a slot to the last sign of its dead owner."""

    reason: WakeReason
    message: str
    faults: list[str]
    lost: dict[str, Heartbeat]

    def to_json(self) -> dict[str, Any]:
        lost = {slot: list(last_sign) for slot, last_sign in self.lost.items()}
        return {"reason": self.reason.value, "message": self.message, "faults": self.faults, "lost": lost}


def heartbeat(lease: Lease) -> Heartbeat:
    return (lease.lease_owner, lease.epoch, lease.lease_counter)


def slots_wanted(leases: Iterable[Lease], settings: Settings) -> list[str]:
    """The slots that should have a worker: all of the fleet, or none if every pipeline is paused."""
    for desired in desired_of(leases).values():
        if desired.state is not DesiredState.PAUSED:
            return [str(number) for number in range(settings.workers)]
    return []


def slot_leases(leases: Iterable[Lease], settings: Settings) -> dict[str, Lease]:
    """The slot rows of the fleet by number; a slot that no worker ever took has no row."""
    slots: dict[str, Lease] = {}
    for lease in leases:
        if lease.status_type is StatusType.SLOT and lease.stream_id == settings.fleet:
            slots[lease.status_value] = lease
    return slots


def empty_slots(leases: Collection[Lease], settings: Settings, alive: Callable[[Lease], bool]) -> list[str]:
    """The wanted slots that are free or whose owner is not alive."""
    known = slot_leases(leases, settings)
    wanted = slots_wanted(leases, settings)
    return [slot for slot in wanted if slot not in known or not alive(known[slot])]


def lagging_shards(leases: Collection[Lease], settings: Settings) -> dict[str, int]:
    """Shards of running pipelines whose lag exceeds the limit, as ``pipeline/shard`` to records."""
    desired_by_name = desired_of(leases)
    lagging: dict[str, int] = {}
    for lease in leases:
        if lease.status_type is not StatusType.SHARD or lease.state == ShardState.TERMINATED:
            continue
        desired = desired_by_name.get(lease.stream_id)
        if desired is None or desired.state is not DesiredState.RUNNING:
            continue
        if not lease.status_value.startswith(f"v{desired.version}."):
            continue
        lag = ShardDetail.of(lease).lag_records or 0
        if lag > settings.lag_limit_records:
            lagging[str(lease.key)] = lag
    return lagging


def fault_keys(empty: Iterable[str], lagging: Iterable[str]) -> set[str]:
    """The keys of these empty slots and lagging shards."""
    keys = {Fault.SLOT_EMPTY.key(slot) for slot in empty}
    keys.update(Fault.SHARD_LAGS.key(shard) for shard in lagging)
    return keys


def desired_lines(leases: Iterable[Lease]) -> dict[str, str]:
    """The desired state of each pipeline, as one comparable line."""
    return {name: describe(desired) for name, desired in desired_of(leases).items()}


def describe(desired: PipelineRow) -> str:
    state = f"{desired.state.value} at version {desired.version}"
    return f"{state}, {desired.shards} shards, {desired.workers} workers"


def recent_failures(tables: ControlTables, since: datetime) -> list[dict[str, Any]]:
    """Events since then by which a worker says that a query failed, the oldest first."""
    rows = tables.rows(ControlTable.EVENTS, [("at", ">=", since), ("kind", "in", sorted(FAILURES))])
    return sorted(rows, key=lambda row: row["at"])


def settle(
    read: Callable[[], list[Lease]],
    settings: Settings,
    clock: Clock,
    wait: Callable[[float], None],
    lost: Mapping[str, Heartbeat],
) -> tuple[list[Lease], list[str]]:
    """Read until each owner of a slot has renewed, or has not renewed for a whole lease.

    One read cannot tell the living from the dead. A healthy fleet takes a fraction of a lease, any other a
    little more than one lease.

    :param lost: the signs of owners that the trigger has watched for a whole lease already, by slot
    :returns: the leases of the last read and the wanted slots that are empty
    """
    observer = Observer(clock, settings.lease_seconds)
    first_signs: dict[str, Heartbeat] = {}
    deadline = clock.monotonic() + settings.lease_seconds * _SETTLE_LEASES
    pause = min(settings.lease_seconds / _READS_PER_LEASE, _MOST_READ_WAIT_SECONDS)

    def alive(lease: Lease) -> bool:
        return observer.alive(lease) and lost.get(lease.status_value) != heartbeat(lease)

    while True:
        leases = read()
        observer.observe(leases)
        unknown = False
        for slot, lease in slot_leases(leases, settings).items():
            first = first_signs.setdefault(slot, heartbeat(lease))
            if heartbeat(lease) == first and alive(lease):
                unknown = True
        if not unknown or clock.monotonic() >= deadline:
            return leases, empty_slots(leases, settings, alive)
        wait(pause)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What one poll found.

    :param slots: the slot rows by number
    :param empty: the wanted slots without a live owner
    :param lags: shards over the limit, as ``pipeline/shard`` to records
    :param failed: the key of a failed query's fault to the event that reports it
    """

    slots: Mapping[str, Lease]
    empty: list[str]
    lags: Mapping[str, int]
    failed: Mapping[str, Mapping[str, Any]]

    @property
    def faults(self) -> set[str]:
        return fault_keys(self.empty, self.lags) | self.failed.keys()

    @property
    def lost(self) -> dict[str, Heartbeat]:
        """The empty slots that still have a dead owner, with its last sign."""
        lost: dict[str, Heartbeat] = {}
        for slot in self.empty:
            lease = self.slots.get(slot)
            if lease is not None and not lease.free:
                lost[slot] = heartbeat(lease)
        return lost


class Watcher:
    """Compares each poll with what the last reconciliation saw, and says when the supervisor must act."""

    def __init__(self, outlook: RestartBackoff, settings: Settings, clock: Clock) -> None:
        self._outlook = outlook
        self._settings = settings
        self._clock = clock
        self._observer = Observer(clock, settings.lease_seconds)
        self._known = set(outlook.faults)
        self._first_signs: dict[str, Heartbeat] = {}

    def look(
        self, leases: Collection[Lease], failures: Collection[Mapping[str, Any]], files: str
    ) -> Wake | None:
        """Judge one poll; None if there is nothing to do that was not tried already.

        :param failures: as :func:`recent_failures` returns them
        :param files: the fingerprint of the pipelines' files
        """
        self._observer.observe(leases)
        seen = self._seen(leases, failures)
        faults = seen.faults
        # A known fault that went away is forgotten: if it comes back, that is a change.
        self._known &= faults | self._unproven(seen.slots)
        found = self._reason(seen, desired_lines(leases), files)
        if found is None:
            return None
        reason, message = found
        return Wake(reason=reason, message=message, faults=sorted(faults), lost=seen.lost)

    def _seen(self, leases: Collection[Lease], failures: Collection[Mapping[str, Any]]) -> _Seen:
        return _Seen(
            slots=slot_leases(leases, self._settings),
            empty=empty_slots(leases, self._settings, self._observer.alive),
            lags=lagging_shards(leases, self._settings),
            failed={Fault.QUERY_FAILED.key(row["event_id"]): row for row in failures},
        )

    def _unproven(self, slots: Mapping[str, Lease]) -> set[str]:
        """Faults of slots whose owner has not renewed since this watch began.

        For one lease a new watch takes the dead for living, so it cannot say yet that such a fault went away.
        """
        unproven = set()
        for slot, lease in slots.items():
            first = self._first_signs.setdefault(slot, heartbeat(lease))
            if heartbeat(lease) == first:
                unproven.add(Fault.SLOT_EMPTY.key(slot))
        return unproven

    def _reason(self, seen: _Seen, desired: Mapping[str, str], files: str) -> tuple[WakeReason, str] | None:
        """Why the supervisor must wake, with a message for people. The first of several reasons counts."""
        now = self._clock.now()
        if desired != self._outlook.desired:
            return WakeReason.DESIRED_CHANGED, self._desired_change(desired)
        if files != self._outlook.files:
            return WakeReason.PIPELINES_CHANGED, "The files of the pipelines changed."
        new = self._new_faults(seen.faults, now)
        if new:
            return self._explain(new, seen)
        retry_at = self._outlook.retry_at
        if seen.empty and retry_at is not None and now >= retry_at:
            slots = ", ".join(seen.empty)
            return (
                WakeReason.NOT_MENDED,
                f"Slots {slots} still have no worker although workers were launched.",
            )
        if now >= self._outlook.wake_at:
            return WakeReason.HOUR_GONE, "An hour has passed; everything is checked again."
        return None

    def _desired_change(self, desired: Mapping[str, str]) -> str:
        before = self._outlook.desired
        changes = []
        for name in sorted(desired.keys() | before.keys()):
            if desired.get(name) == before.get(name):
                continue
            if name in desired:
                changes.append(f"{name}: desired state is now {desired[name]}")
            else:
                changes.append(f"{name}: there is no desired state any more")
        return "; ".join(changes) + "."

    def _new_faults(self, faults: set[str], now: datetime) -> list[str]:
        """The faults that are not known and whose back-off is over."""
        new = []
        for fault in sorted(faults - self._known):
            not_before = self._outlook.others_not_before
            if fault.startswith(Fault.SLOT_EMPTY):
                not_before = self._outlook.slots_not_before
            if now >= not_before:
                new.append(fault)
        return new

    def _explain(self, new: list[str], seen: _Seen) -> tuple[WakeReason, str]:
        """The reason and the message for these new faults.

        An empty slot comes first: a worker may fill it.
        """
        for key in new:
            if key.startswith(Fault.SLOT_EMPTY):
                return self._explain_empty(seen)
        fault, _, what = new[0].partition(":")
        if fault == Fault.SHARD_LAGS:
            limit = self._settings.lag_limit_records
            return (
                WakeReason.LAG_OVER_LIMIT,
                f"{what} lags by {seen.lags[what]} records; the limit is {limit}.",
            )
        return WakeReason.QUERY_FAILED, str(seen.failed[new[0]]["message"])

    def _explain_empty(self, seen: _Seen) -> tuple[WakeReason, str]:
        owners = [owner for owner, _, _ in seen.lost.values()]
        if owners:
            seconds = f"{self._settings.lease_seconds:g} seconds"
            return WakeReason.WORKER_LOST, f"No sign of life from {', '.join(owners)} for {seconds}."
        slots = ", ".join(seen.empty)
        return WakeReason.SLOT_FREE, f"Slots {slots} of the fleet {self._settings.fleet} have no worker."
