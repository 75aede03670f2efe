"""A worker's fair share of the shards: which it accepts, takes, asks other workers for, and must give up.

It decides and writes nothing; :class:`hindcast.shards.coordinator.LeaseCoordinator` commits what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from hindcast.leases import balance
from hindcast.leases.expired_owners import Observer
from hindcast.leases.lease import Lease, LeaseKey, ShardState, StatusType
from hindcast.leases.store import Snapshot
from hindcast.shards.held_leases import HeldLeases
from hindcast.shards.slot_row import SlotHolder


class FairShare:
    """What one worker may have of the shards.

    It has no lock of its own: its callers hold ``held.lock``, which guards all that it reads.
    """

    def __init__(
        self,
        held: HeldLeases,
        observer: Observer,
        *,
        fleet: str,
        wanted: Callable[[Lease, Snapshot], bool],
        start_limit: Callable[[], int],
    ) -> None:
        """:param wanted: whether a shard is to be consumed at all, e.g. because its pipeline is running
        :param start_limit: how many shards may wait here for the start of their consumers
        """
        self._held = held
        self._observer = observer
        self._fleet = fleet
        self._wanted = wanted
        self._start_limit = start_limit

    def live_workers(self, snapshot: Snapshot) -> set[str]:
        """The workers of the fleet that share the shards: those that live and can consume, and this one."""
        live = {self._held.owner}
        for row in snapshot.leases.values():
            if row.status_type is not StatusType.SLOT or row.stream_id != self._fleet:
                continue
            if self._observer.alive(row) and not SlotHolder.of(row).starting:
                live.add(row.lease_owner)
        return live

    def room(self) -> int:
        """How many more shards may wait here for the start of their consumers."""
        return max(self._start_limit() - self._held.unstarted(), 0)

    def is_due(self, snapshot: Snapshot, room: int) -> bool:
        """Whether this worker would accept or take a shard now."""
        wanted = self._wanted_shards(snapshot.leases, snapshot)
        if any(self._is_given(row) for row in wanted):
            return True
        return room > 0 and bool(self._free(wanted, self.live_workers(snapshot)))

    def adopted(self, rows: Mapping[LeaseKey, Lease], snapshot: Snapshot, now: datetime) -> list[Lease]:
        """The shards that their owners have given to this worker because it asked for them.

        If one was paused in between, it would keep an owner that never consumes it. So it is declined.

        :param rows: the leases as the renewal leaves them so far
        :param snapshot: the leases as they were read
        """
        adopted = []
        for row in rows.values():
            if not self._is_given(row):
                continue
            if self._wanted(row, snapshot):
                adopted.append(row.renewed(updated_at=now))
            else:
                adopted.append(self.declined(row))
        return adopted

    def declined(self, row: Lease) -> Lease:
        """The row if this worker stops, or does not want the shard any more.

        What was given to it is free at once. What it has asked for, it asks for no more.
        """
        if row.lease_owner == self._held.owner:
            return row.renewed(lease_owner="", lease_stealer="")
        return row.evolve(lease_stealer="")

    def taken(
        self, rows: Mapping[LeaseKey, Lease], snapshot: Snapshot, live: Collection[str], now: datetime
    ) -> list[Lease]:
        """The shards that this worker takes, or, if none is free, those that it asks other workers for.

        :param rows: the leases as the renewal leaves them so far
        :param snapshot: the leases as they were read
        :param live: :meth:`live_workers` of the snapshot
        """
        me = self._held.owner
        room = self.room()
        wanted = self._wanted_shards(rows, snapshot)
        free = self._free(wanted, live)
        if free:
            return [row.given_to(me, state=ShardState.OPEN, updated_at=now) for row in free[:room]]
        if not self._held.settled():
            return []
        asked = sum(row.lease_stealer == me for row in wanted)
        more = max(room - asked, 0)
        stolen = balance.to_steal(wanted, me, live, self._observer)
        # The counter stays as it is: only the owner may prove that the owner lives.
        return [row.evolve(lease_stealer=me) for row in stolen[:more]]

    def must_close(self, row: Lease, snapshot: Snapshot, superseded: Collection[LeaseKey]) -> bool:
        """Whether this worker must give this lease up: a shard that is superseded, asked for or unwanted."""
        if row.status_type is not StatusType.SHARD:
            return False
        return row.key in superseded or bool(row.lease_stealer) or not self._wanted(row, snapshot)

    def _free(self, wanted: Collection[Lease], live: Collection[str]) -> list[Lease]:
        return balance.to_take(wanted, self._held.owner, live, self._observer)

    def _is_given(self, row: Lease) -> bool:
        """Whether another worker has given this shard to this one, which does not hold it yet."""
        if row.status_type is not StatusType.SHARD or row.lease_owner != self._held.owner:
            return False
        return row.key not in self._held.leases

    def _wanted_shards(self, rows: Mapping[LeaseKey, Lease], snapshot: Snapshot) -> list[Lease]:
        shards = [row for row in rows.values() if row.status_type is StatusType.SHARD]
        return [row for row in shards if self._wanted(row, snapshot)]
