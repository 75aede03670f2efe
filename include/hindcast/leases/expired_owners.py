"""Who is alive, judged by one observer on its own clock.

An owner raises its counter. An observer that has seen the same counter for a whole lease, on its own monotonic clock, may call the
lease expired. Two hosts' wall clocks are never compared (the rule of KCL's and Tablestore's lease takers).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hindcast.clock import Clock
from hindcast.leases.lease import Lease, LeaseKey, StatusType


class Observer:
    """Remembers when each lease was last seen to change."""

    def __init__(self, clock: Clock, lease_seconds: float) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._seen: dict[LeaseKey, tuple[tuple[str, int, int], float]] = {}

    def observe(self, leases: Iterable[Lease]) -> None:
        """Note the leases of a read that has just ended: the time is taken after it, so that a lease never seems older than it is."""
        now = self._clock.monotonic()
        seen: dict[LeaseKey, tuple[tuple[str, int, int], float]] = {}
        for lease in leases:
            sign = (lease.lease_owner, lease.epoch, lease.lease_counter)
            known = self._seen.get(lease.key)
            seen[lease.key] = known if known is not None and known[0] == sign else (sign, now)
        self._seen = seen

    def unchanged_seconds(self, lease: Lease) -> float:
        """For how long the lease has been seen as it is now; 0 for one not observed yet."""
        known = self._seen.get(lease.key)
        if known is None or known[0] != (lease.lease_owner, lease.epoch, lease.lease_counter):
            return 0.0
        return self._clock.monotonic() - known[1]

    def expired(self, lease: Lease) -> bool:
        """Whether an owned lease has been still for a whole lease. A free one is not expired, it is free."""
        return not lease.free and self.unchanged_seconds(lease) >= self._lease_seconds

    def next_expiry(self, after: float) -> float:
        """When, on this clock, the next of the observed leases expires that has not by ``after``, if none changes; infinity for never."""
        owned = (since + self._lease_seconds for (owner, _, _), since in self._seen.values() if owner)
        return min((at for at in owned if at > after), default=math.inf)

    def still_seconds(self, stream_id: str, kind: StatusType) -> dict[str, float]:
        """By owner, for how long its leases of a stream and kind have been seen as they are now."""
        now = self._clock.monotonic()
        found = (
            (owner, now - since)
            for key, ((owner, _, _), since) in self._seen.items()
            if owner and (key.stream_id, key.status_type) == (stream_id, kind)
        )
        return dict(found)

    def alive(self, lease: Lease) -> bool:
        """Whether the lease has an owner that may still be renewing it."""
        return not lease.free and not self.expired(lease)
