"""How long a worker waits before it starts a failed query again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hindcast.leases.lease import LeaseKey

#: A query that failed is started again by this worker after 1, 2, 4 ... seconds, at most this.
MAX_BACKOFF_SECONDS = 60.0
#: Enough to reach the longest wait. More would make the power too large for a float, after 1,024 failures.
_MOST_DOUBLINGS = 6


@dataclass
class QueryBackoff:
    """When a shard that failed here may be tried here again.

    The worker's main thread notes failures and successes. The renewal thread may ask at any time.
    """

    failures: dict[LeaseKey, int] = field(default_factory=dict)
    until: dict[LeaseKey, float] = field(default_factory=dict)

    def failed(self, key: LeaseKey, now: float) -> float:
        """Note a failure; return the seconds to wait."""
        earlier = self.failures.get(key, 0)
        self.failures[key] = earlier + 1
        doublings = min(earlier, _MOST_DOUBLINGS)
        seconds = min(2.0**doublings, MAX_BACKOFF_SECONDS)
        self.until[key] = now + seconds
        return seconds

    def succeeded(self, key: LeaseKey) -> None:
        """The shard's query has committed a batch."""
        self.failures.pop(key, None)
        self.until.pop(key, None)

    def next_end(self, after: float) -> float:
        """The first moment after this one at which a shard may be tried again; infinity if none waits."""
        later = [until for until in list(self.until.values()) if until > after]
        return min(later, default=math.inf)

    def over(self, key: LeaseKey, now: float) -> bool:
        """Whether the shard may be tried now."""
        return now >= self.until.get(key, 0.0)
