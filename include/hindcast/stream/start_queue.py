"""The shards that a worker has gained and not started yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from hindcast.leases.lease import Lease, LeaseKey
from hindcast.recovery.raising_records import LeftOut


@dataclass
class WaitingShard:
    """A shard that is held and whose query is to be started."""

    lease: Lease
    request: str = ""  # the newest request to rebuild it
    left_out: LeftOut = field(default_factory=LeftOut)  # records on which the function raises


class StartQueue:
    """The shards that wait for their start, in the order in which they are started.

    The worker's main thread alone changes it. The audit thread may ask for :meth:`keys` at any time.
    """

    def __init__(self) -> None:
        self._waiting: dict[LeaseKey, WaitingShard] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, key: LeaseKey) -> bool:
        return key in self._waiting

    def keys(self) -> list[LeaseKey]:
        """The shards that wait, as they are at this moment."""
        return list(self._waiting)

    def shards(self) -> list[WaitingShard]:
        """The shards that wait, the first one first."""
        return list(self._waiting.values())

    def add(self, shard: WaitingShard) -> None:
        """Let a shard wait. One that waits already keeps its place, with the new lease and request."""
        self._waiting[shard.lease.key] = shard

    def get(self, key: LeaseKey) -> WaitingShard | None:
        """The shard, if it waits."""
        return self._waiting.get(key)

    def take_next(self) -> WaitingShard:
        """Remove the shard that has waited longest, and return it. There must be one."""
        return self._waiting.pop(next(iter(self._waiting)))

    def remove(self, key: LeaseKey) -> WaitingShard | None:
        """Remove the shard; return it if it waited."""
        return self._waiting.pop(key, None)
