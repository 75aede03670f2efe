"""What the lease table says about a fleet: which slots are empty, which shards lag, what is wanted. Pure functions of what was read.

Neither this module nor :mod:`hindcast.airflow.outlook` imports Airflow: the supervisor's judgement is tested without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from hindcast.airflow.outlook import Outlook
from hindcast.clock import Clock
from hindcast.control.desired import Desired, DesiredState, desired_of
from hindcast.control.events import EventKind
from hindcast.control.leases import Lease, ShardState, StatusType
from hindcast.control.observer import Observer
from hindcast.control.schema import ControlTable
from hindcast.control.tables import ControlTables
from hindcast.settings import Settings

#: Events by which a worker says that a shard's query has failed.
FAILURES = frozenset({EventKind.QUERY_FAILED, EventKind.OFFSETS_LOST, EventKind.SHARD_REFUSED})
#: The sign of an owner at one renewal: owner, epoch, counter. An equal sign later means that nothing was renewed since.
Sign = tuple[str, int, int]


class Fault(StrEnum):
    """What may be wrong with a fleet. A fault's key is ``<fault>:<what it befell>``."""

    SLOT_EMPTY = "slot_empty"
    SHARD_LAGS = "shard_lags"
    QUERY_FAILED = "query_failed"


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


#: Reasons that count towards a back-off, as something was wrong: what launching a worker may mend, and what can only be reported.
SLOT_TROUBLE = frozenset({WakeReason.WORKER_LOST, WakeReason.SLOT_FREE, WakeReason.NOT_MENDED})
OTHER_TROUBLE = frozenset({WakeReason.QUERY_FAILED, WakeReason.LAG_OVER_LIMIT})
TROUBLE = SLOT_TROUBLE | OTHER_TROUBLE


@dataclass(frozen=True, kw_only=True)
class Wake:
    """Why the supervisor must act. ``lost`` maps a slot to the sign its dead owner left."""

    reason: WakeReason
    message: str
    faults: list[str]
    lost: dict[str, Sign]

    def to_json(self) -> dict[str, Any]:
        return {
            "reason": self.reason.value,
            "message": self.message,
            "faults": self.faults,
            "lost": {slot: list(sign) for slot, sign in self.lost.items()},
        }


def sign(lease: Lease) -> Sign:
    return (lease.lease_owner, lease.epoch, lease.lease_counter)


def slots_wanted(leases: Iterable[Lease], settings: Settings) -> list[str]:
    """The slots that should have a worker: all of the fleet, or none while no pipeline is to run."""
    running = any(desired.state is not DesiredState.PAUSED for desired in desired_of(leases).values())
    return [str(number) for number in range(settings.workers)] if running else []


def slot_leases(leases: Iterable[Lease], settings: Settings) -> dict[str, Lease]:
    """The slot rows of the fleet by number; a slot that no worker ever took has no row."""
    return {lease.status_value: lease for lease in leases if lease.status_type is StatusType.SLOT and lease.stream_id == settings.fleet}


def empty_slots(leases: Collection[Lease], settings: Settings, alive: Callable[[Lease], bool]) -> list[str]:
    """The wanted slots that are free or whose owner is not alive."""
    known = slot_leases(leases, settings)
    return [slot for slot in slots_wanted(leases, settings) if slot not in known or not alive(known[slot])]


def lagging_shards(leases: Collection[Lease], settings: Settings) -> dict[str, int]:
    """Shards of running pipelines that are further behind than the limit, as ``pipeline/shard`` to records."""
    wanted = desired_of(leases)
    lagging: dict[str, int] = {}
    for lease in leases:
        desired = wanted.get(lease.stream_id)
        if lease.status_type is not StatusType.SHARD or desired is None or desired.state is not DesiredState.RUNNING:
            continue
        lag = int(lease.detail.get("lag_records") or 0)
        if (
            lag > settings.lag_limit_records
            and lease.state != ShardState.TERMINATED
            and lease.status_value.startswith(f"v{desired.version}.")
        ):
            lagging[str(lease.key)] = lag
    return lagging


def desired_lines(leases: Iterable[Lease]) -> dict[str, str]:
    """What is wanted of each pipeline, as one comparable line."""
    return {name: describe(desired) for name, desired in desired_of(leases).items()}


def describe(desired: Desired) -> str:
    return f"{desired.state.value} at version {desired.version}, {desired.shards} shards, {desired.workers} workers"


def recent_failures(tables: ControlTables, since: datetime) -> list[dict[str, Any]]:
    """Events since then by which a worker says that a query failed, the oldest first."""
    rows = tables.rows(ControlTable.EVENTS, [("at", ">=", since), ("kind", "in", sorted(FAILURES))])
    return sorted(rows, key=lambda row: row["at"])


def settle(
    read: Callable[[], list[Lease]], settings: Settings, clock: Clock, wait: Callable[[float], None], lost: Mapping[str, Sign]
) -> tuple[list[Lease], list[str]]:
    """Read until each held slot was seen to renew or to be still for a whole lease: one read cannot tell the living from the dead.

    Takes a fraction of a lease in a healthy fleet and a little over one lease at most.

    :param lost: the signs of owners that the trigger has already watched for a whole lease; they are not waited for again
    :returns: the leases of the last read and the wanted slots that are empty
    """
    observer = Observer(clock, settings.lease_seconds)
    first: dict[str, Sign] = {}

    def alive(lease: Lease) -> bool:
        return observer.alive(lease) and lost.get(lease.status_value) != sign(lease)

    deadline = clock.monotonic() + settings.lease_seconds * 1.25
    while True:
        leases = read()
        observer.observe(leases)
        unknown = []
        for slot, lease in slot_leases(leases, settings).items():
            first.setdefault(slot, sign(lease))
            if sign(lease) == first[slot] and alive(lease):
                unknown.append(slot)
        if not unknown or clock.monotonic() >= deadline:
            return leases, empty_slots(leases, settings, alive)
        wait(min(settings.lease_seconds / 10, 1.0))


class Watcher:
    """Compares look after look with what the last reconciliation saw, and says when the supervisor must act."""

    def __init__(self, outlook: Outlook, settings: Settings, clock: Clock) -> None:
        self._outlook = outlook
        self._settings = settings
        self._clock = clock
        self._observer = Observer(clock, settings.lease_seconds)
        self._known = set(outlook.faults)
        self._first: dict[str, Sign] = {}

    def look(self, leases: Collection[Lease], failures: Collection[Mapping[str, Any]], files: str) -> Wake | None:
        """One look; None while there is nothing to do that was not tried already."""
        self._observer.observe(leases)
        empty = empty_slots(leases, self._settings, self._observer.alive)
        lags = lagging_shards(leases, self._settings)
        failed = {f"{Fault.QUERY_FAILED}:{row['event_id']}": row for row in failures}
        faults = {*(f"{Fault.SLOT_EMPTY}:{slot}" for slot in empty), *(f"{Fault.SHARD_LAGS}:{shard}" for shard in lags), *failed}
        slots = slot_leases(leases, self._settings)
        self._known &= faults | self._unproven(slots)  # what went away and comes back is a change
        now = self._clock.now()
        new = sorted(fault for fault in faults - self._known if now >= self._not_before(fault))
        lost = {slot: sign(slots[slot]) for slot in empty if slot in slots and not slots[slot].free}

        def wake(reason: WakeReason, message: str) -> Wake:
            return Wake(reason=reason, message=message, faults=sorted(faults), lost=lost)

        if (desired := desired_lines(leases)) != self._outlook.desired:
            changed = sorted(
                name for name in desired.keys() | self._outlook.desired.keys() if desired.get(name) != self._outlook.desired.get(name)
            )
            return wake(
                WakeReason.DESIRED_CHANGED,
                "The desired state changed: " + "; ".join(f"{name} is to be {desired.get(name, 'gone')}" for name in changed) + ".",
            )
        if files != self._outlook.files:
            return wake(WakeReason.PIPELINES_CHANGED, "The files of the pipelines changed.")
        if new:
            return wake(*self._explain(new, empty, slots, lags, failed))
        if empty and self._outlook.retry_at and now >= self._outlook.retry_at:
            return wake(WakeReason.NOT_MENDED, f"Slots {', '.join(empty)} still have no worker although workers were launched.")
        if now >= self._outlook.wake_at:
            return wake(WakeReason.HOUR_GONE, "An hour has gone: a look at everything.")
        return None

    def _not_before(self, fault: str) -> datetime:
        return self._outlook.slots_not_before if fault.startswith(Fault.SLOT_EMPTY) else self._outlook.others_not_before

    def _unproven(self, slots: Mapping[str, Lease]) -> set[str]:
        """Slots whose owner was not seen to renew yet: to a watch that has just begun, the dead look alive for one lease."""
        unproven = set()
        for slot, lease in slots.items():
            if self._first.setdefault(slot, sign(lease)) == sign(lease):
                unproven.add(f"{Fault.SLOT_EMPTY}:{slot}")
        return unproven

    def _explain(
        self, new: list[str], empty: list[str], slots: Mapping[str, Lease], lags: Mapping[str, int], failed: Mapping[str, Mapping[str, Any]]
    ) -> tuple[WakeReason, str]:
        fault, _, what = next((key for key in new if key.startswith(Fault.SLOT_EMPTY)), new[0]).partition(":")
        if fault == Fault.SLOT_EMPTY:
            gone = [slots[slot].lease_owner for slot in empty if slot in slots and not slots[slot].free]
            if gone:
                return WakeReason.WORKER_LOST, f"No sign of life from {', '.join(gone)} for {self._settings.lease_seconds:g} seconds."
            return WakeReason.SLOT_FREE, f"Slots {', '.join(empty)} of the fleet {self._settings.fleet} have no worker."
        if fault == Fault.SHARD_LAGS:
            return WakeReason.LAG_OVER_LIMIT, f"{what} lags by {lags[what]} records; the limit is {self._settings.lag_limit_records}."
        return WakeReason.QUERY_FAILED, str(failed[f"{Fault.QUERY_FAILED}:{what}"]["message"])
