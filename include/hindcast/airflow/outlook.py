"""What the supervisor has seen and when it must look again: the memory that passes from one of its runs to the next.

Airflow runs `supervise` again the moment a run ends, so a fault that stays must not end the run: only a *change* from what the
last reconciliation saw does. Three rules keep it from spinning:

- a fault that was seen wakes nobody; it must first go away and come back;
- a slot that reconciling did not fill is tried again, each time after a longer wait;
- workers that come up and die at once make the fault come and go, so the more often the supervisor woke within the last hour the
  longer it waits before it may wake for another fault. Empty slots, which it can fill, and faults that it can only report are
  counted apart: a query that fails again and again must not delay the replacement of a worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

#: The supervisor looks again after this long whatever happens.
HOUR = timedelta(hours=1)
#: A slot that is still empty this long after a launch is reconciled again: about twice what a worker takes to start on a busy machine.
RETRY_SECONDS = 60.0
#: So many faults an hour are met at once; from then on the wait doubles, up to an hour.
PROMPT_WAKES = 4
FIRST_WAIT_SECONDS = 15.0


def backoff_seconds(wakes_last_hour: int) -> float:
    """How long the supervisor stays asleep although a new fault is there, 0 to 3,600 seconds."""
    if wakes_last_hour < PROMPT_WAKES:
        return 0.0
    doublings = min(wakes_last_hour - PROMPT_WAKES, 16)
    return min(FIRST_WAIT_SECONDS * 2.0**doublings, HOUR.total_seconds())


def files_fingerprint(folder: Path) -> str:
    """Changes when a pipeline's file is added, removed or edited; equal on every host that has the same files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Faults and desired states that are known, and the instants before and after which the supervisor may wake.

    ``faults`` are keys as :func:`hindcast.airflow.fleet.faults` makes them; ``desired`` maps a pipeline to what is wanted of it.
    """

    faults: frozenset[str] = frozenset()
    desired: Mapping[str, str] = field(default_factory=dict)
    files: str = ""
    looked_at: datetime
    slots_not_before: datetime
    others_not_before: datetime
    wake_at: datetime
    retry_at: datetime | None = None

    @classmethod
    def after(
        cls,
        looked_at: datetime,
        *,
        faults: frozenset[str],
        desired: Mapping[str, str],
        files: str,
        empty_slots: bool,
        slot_wakes: int,
        other_wakes: int,
    ) -> Self:
        """The outlook of a reconciliation that left these faults behind.

        :param slot_wakes: how often the supervisor woke within the last hour because a slot was empty
        :param other_wakes: how often for another fault
        """
        wait = backoff_seconds(slot_wakes)
        return cls(
            faults=faults,
            desired=desired,
            files=files,
            looked_at=looked_at,
            slots_not_before=looked_at + timedelta(seconds=wait),
            others_not_before=looked_at + timedelta(seconds=backoff_seconds(other_wakes)),
            wake_at=looked_at + HOUR,
            retry_at=looked_at + timedelta(seconds=max(wait, RETRY_SECONDS)) if empty_slots else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: it travels through XCom and the trigger's arguments."""
        return {
            "faults": sorted(self.faults),
            "desired": dict(self.desired),
            "files": self.files,
            "looked_at": self.looked_at.isoformat(),
            "slots_not_before": self.slots_not_before.isoformat(),
            "others_not_before": self.others_not_before.isoformat(),
            "wake_at": self.wake_at.isoformat(),
            "retry_at": self.retry_at.isoformat() if self.retry_at else None,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(
            faults=frozenset(values["faults"]),
            desired=dict(values["desired"]),
            files=values["files"],
            looked_at=datetime.fromisoformat(values["looked_at"]),
            slots_not_before=datetime.fromisoformat(values["slots_not_before"]),
            others_not_before=datetime.fromisoformat(values["others_not_before"]),
            wake_at=datetime.fromisoformat(values["wake_at"]),
            retry_at=datetime.fromisoformat(values["retry_at"]) if values["retry_at"] else None,
        )
