"""How long a version has been kept warm, by no clock that two hosts share.

A promotion says for how many seconds the old version is kept warm. Each worker observes, on its own monotonic clock, for how long it has
seen the row that says so unchanged. Now and then one of them adds what it has seen to the row itself, by compare-and-swap: then every
observer begins anew. Once the row and one observer together have seen the whole time, the version is warm no more.

So a version is never ended early. It is ended late by what nobody saw: the time without any worker, and what a worker had seen
and not yet written when it ended (:data:`NOTED_SECONDS` at most).
"""

from __future__ import annotations

from collections.abc import Iterable

from hindcast.clock import Clock
from hindcast.leases.lease import Lease
from hindcast.shards.active_version import Rollout, rollouts

#: A worker that has seen a version warm for so long writes it down: what its own end may lose, at the price of a commit.
NOTED_SECONDS = 600.0


class WarmTime:
    """What one process has seen of the warm versions."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, tuple[tuple[str, float], float]] = {}

    def seen(self, leases: Iterable[Lease]) -> list[tuple[Rollout, float]]:
        """The pipelines whose warm version has been seen for long enough to note it, or to end it, and for how many seconds it was.

        The first look at a row sees no time at all.
        """
        now = self._clock.monotonic()
        since: dict[str, tuple[tuple[str, float], float]] = {}
        found = []
        for name, standing in rollouts(leases).items():
            sign = standing.warm_sign
            if sign is None:
                continue
            known = self._since.get(name)
            since[name] = known if known is not None and known[0] == sign else (sign, now)
            seconds = now - since[name][1]
            if seconds >= min(standing.warm_seconds_left, NOTED_SECONDS):
                found.append((standing, seconds))
        self._since = since
        return found
