"""What the supervisor has seen and when it must check again: one of its runs leaves this to the next.

Airflow runs `supervise` again as soon as a run ends. So a fault that stays must not end the run; only a
*change* since the last reconciliation does. Three rules keep the supervisor from spinning:

- A fault that the last reconciliation saw does not wake it, unless the fault goes away and comes back.
- A slot that reconciling did not fill is tried again, each time after a longer wait.
- Workers that start and die at once make a fault come and go. So the more often the supervisor woke within
  the last hour, the longer it waits before another fault may wake it. Empty slots, which it can fill, and
  faults that it can only report are counted apart: a query that keeps failing must not delay the
  replacement of a worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

#: The supervisor checks everything after this long, whatever happens.
HOUR = timedelta(hours=1)
#: A slot that is still empty this long after a launch is reconciled again: about twice what a worker takes to
#: start on a busy machine.
RETRY_SECONDS = 60.0
#: So many faults an hour are met at once; from then on the wait doubles, up to an hour.
PROMPT_WAKES = 4
FIRST_WAIT_SECONDS = 15.0
#: Enough to reach an hour, and few enough that the power stays a small number.
_MOST_DOUBLINGS = 16
#: Hexadecimal digits of a fingerprint: 64 bits tell the states of one folder apart.
_FINGERPRINT_DIGITS = 16


def backoff_seconds(wakes_last_hour: int) -> float:
    """How long a new fault does not wake the supervisor, 0 to 3,600 seconds."""
    if wakes_last_hour < PROMPT_WAKES:
        return 0.0
    doublings = min(wakes_last_hour - PROMPT_WAKES, _MOST_DOUBLINGS)
    wait = FIRST_WAIT_SECONDS * 2.0**doublings
    return min(wait, HOUR.total_seconds())


def files_fingerprint(folder: Path) -> str:
    """A text that changes with the pipelines' files and with what these import from folders beside them;
    equal on every host that has the same files.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        with suppress(FileNotFoundError):  # a file may go during the walk
            content = path.read_bytes()
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
            digest.update(content + b"\0")
    return digest.hexdigest()[:_FINGERPRINT_DIGITS]


@dataclass(frozen=True, kw_only=True)
class RestartBackoff:
    """Known faults and desired states, and the instants before and after which the supervisor may wake.

    ``faults`` are keys such as ``slot_empty:0`` (:class:`hindcast.airflow.supervision.conditions.Fault`).
    ``desired`` maps a pipeline to its desired state, as
    :func:`hindcast.airflow.supervision.conditions.describe` writes it.
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

        :param slot_wakes: how often an empty slot woke the supervisor within the last hour
        :param other_wakes: how often another fault did
        """
        slot_wait = backoff_seconds(slot_wakes)
        other_wait = backoff_seconds(other_wakes)
        retry_at = None
        if empty_slots:
            retry_at = looked_at + timedelta(seconds=max(slot_wait, RETRY_SECONDS))
        return cls(
            faults=faults,
            desired=desired,
            files=files,
            looked_at=looked_at,
            slots_not_before=looked_at + timedelta(seconds=slot_wait),
            others_not_before=looked_at + timedelta(seconds=other_wait),
            wake_at=looked_at + HOUR,
            retry_at=retry_at,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, for XCom and for the trigger's arguments."""
        retry_at = None
        if self.retry_at is not None:
            retry_at = self.retry_at.isoformat()
        return {
            "faults": sorted(self.faults),
            "desired": dict(self.desired),
            "files": self.files,
            "looked_at": self.looked_at.isoformat(),
            "slots_not_before": self.slots_not_before.isoformat(),
            "others_not_before": self.others_not_before.isoformat(),
            "wake_at": self.wake_at.isoformat(),
            "retry_at": retry_at,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        retry_at = None
        if values["retry_at"]:
            retry_at = datetime.fromisoformat(values["retry_at"])
        return cls(
            faults=frozenset(values["faults"]),
            desired=dict(values["desired"]),
            files=values["files"],
            looked_at=datetime.fromisoformat(values["looked_at"]),
            slots_not_before=datetime.fromisoformat(values["slots_not_before"]),
            others_not_before=datetime.fromisoformat(values["others_not_before"]),
            wake_at=datetime.fromisoformat(values["wake_at"]),
            retry_at=retry_at,
        )
