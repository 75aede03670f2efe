"""Which owners are alive, judged by one observer on its own clock.

An owner that lives raises the counter of its leases. If an observer has seen the same counter for a whole
lease, on its own monotonic clock, it may call the lease expired. The wall clocks of two hosts are never
compared (the rule of KCL's and Tablestore's lease takers).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hindcast.clock import Clock
from hindcast.leases.lease import Lease, LeaseKey, StatusType


class _Sign(NamedTuple):
    """What of a lease changes if its owner renews it or another takes it."""

    owner: str
    epoch: int
    counter: int


class _Seen(NamedTuple):
    sign: _Sign
    since: float  # monotonic seconds


class Observer:
    """Remembers since when each lease has been seen as it is now."""

    def __init__(self, clock: Clock, lease_seconds: float) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._seen: dict[LeaseKey, _Seen] = {}

    def observe(self, leases: Iterable[Lease]) -> None:
        """Note all leases of a read that has just ended.

        The time is taken after the read, so that a lease never seems to be unchanged for longer than it is.
        """
        now = self._clock.monotonic()
        seen: dict[LeaseKey, _Seen] = {}
        for lease in leases:
            sign = _sign(lease)
            known = self._seen.get(lease.key)
            if known is None or known.sign != sign:
                known = _Seen(sign, now)
            seen[lease.key] = known
        self._seen = seen

    def unchanged_seconds(self, lease: Lease) -> float:
        """For how long the lease has been seen as it is now; 0 if it was not observed like this yet."""
        known = self._seen.get(lease.key)
        if known is None or known.sign != _sign(lease):
            return 0.0
        return self._clock.monotonic() - known.since

    def expired(self, lease: Lease) -> bool:
        """Whether an owned lease has been unchanged for a whole lease. A free one does not expire."""
        return not lease.free and self.unchanged_seconds(lease) >= self._lease_seconds

    def next_expiry(self, after: float) -> float:
        """The first moment later than ``after``, on this clock, at which an observed lease expires if no
        lease changes until then; infinity if none does.
        """
        first = math.inf
        for sign, since in self._seen.values():
            expires_at = since + self._lease_seconds
            if sign.owner and expires_at > after:
                first = min(first, expires_at)
        return first

    def still_seconds(self, stream_id: str, kind: StatusType) -> dict[str, float]:
        """By owner, for how long its lease of this stream and kind has been seen as it is now."""
        now = self._clock.monotonic()
        seconds: dict[str, float] = {}
        for key, (sign, since) in self._seen.items():
            if sign.owner and key.stream_id == stream_id and key.status_type == kind:
                seconds[sign.owner] = now - since
        return seconds

    def alive(self, lease: Lease) -> bool:
        """Whether the lease has an owner that may still be renewing it."""
        return not lease.free and not self.expired(lease)


def _sign(lease: Lease) -> _Sign:
    return _Sign(lease.lease_owner, lease.epoch, lease.lease_counter)
