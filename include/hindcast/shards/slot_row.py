"""What the lease of a slot says, in its column ``detail``, of the worker that holds it. No other module knows
the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hindcast.leases.lease import Lease


@dataclass(frozen=True, kw_only=True)
class SlotHolder:
    """The worker that holds a slot.

    :param pid: of its process, on its host; None if it is not known
    :param started_at: when the process began, in ISO 8601
    :param starting: whether it cannot consume yet: it takes no shard, and the others share the shards as if
        it were not there
    :param lease_seconds: after how many seconds without a renewal its leases have expired; None if an older
        Hindcast wrote the row
    """

    pid: int | None = None
    host: str = ""
    started_at: str = ""
    starting: bool = False
    lease_seconds: float | None = None

    @classmethod
    def of(cls, lease: Lease) -> Self:
        """The holder of a slot, or who held it last."""
        return cls.from_json(lease.detail)

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Self:
        seconds = recorded.get("lease_seconds")
        return cls(
            pid=recorded.get("pid"),
            host=str(recorded.get("host") or ""),
            started_at=str(recorded.get("started_at") or ""),
            starting=bool(recorded.get("starting")),
            lease_seconds=None if seconds is None else float(seconds),
        )

    def to_json(self) -> dict[str, Any]:
        """The detail of the row."""
        return {
            "pid": self.pid,
            "host": self.host,
            "started_at": self.started_at,
            "starting": self.starting,
            "lease_seconds": self.lease_seconds,
        }
