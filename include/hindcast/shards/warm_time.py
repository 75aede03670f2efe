"""For how long a version has been kept warm, by no clock that two hosts share.

A promotion says for how many seconds the old version is kept warm. Each worker observes on its own monotonic
clock for how long the row that says so has not changed. Now and then one of them adds what it has seen to the
row itself, by compare-and-swap: then every observer counts from zero again. Once the row and one observer
together have seen the whole time, the version is warm no more.

So a version never ends early. It may end late, by the time that nobody saw: the time without any worker, and
what a worker had seen and not yet noted when it ended (:data:`NOTED_SECONDS` at most).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hindcast.clock import Clock
from hindcast.leases.lease import Lease
from hindcast.shards.active_version import Rollout, rollouts

#: A worker that has seen a version warm for so long notes it in the row. That is what the worker's own end
#: may lose, at the price of one commit.
NOTED_SECONDS = 600.0


@dataclass(frozen=True)
class _Sighting:
    """What an observer saw of a warm version, and since when."""

    sign: tuple[str, float]  # of the row: it changes if another observer has noted its time
    since: float  # on this process's monotonic clock


class WarmTime:
    """What one process has seen of the warm versions."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sightings: dict[str, _Sighting] = {}

    def seen(self, leases: Iterable[Lease]) -> list[tuple[Rollout, float]]:
        """The pipelines whose warm version was seen for long enough to note or end it, each with its seconds.

        The first observation of a row has seen no time at all.
        """
        now = self._clock.monotonic()
        sightings: dict[str, _Sighting] = {}
        found = []
        for name, rollout in rollouts(leases).items():
            sign = rollout.warm_sign
            if sign is None:
                continue
            sighting = self._sightings.get(name)
            if sighting is None or sighting.sign != sign:
                sighting = _Sighting(sign, now)
            sightings[name] = sighting
            seconds = now - sighting.since
            if seconds >= min(rollout.warm_seconds_left, NOTED_SECONDS):
                found.append((rollout, seconds))
        self._sightings = sightings
        return found
