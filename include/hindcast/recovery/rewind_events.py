"""The events of a rewind: that it begins, and how it ends."""

from __future__ import annotations

from typing import Any

from hindcast.recovery.rewind_record import RewindRecord
from hindcast.tables.event_log import EventKind, EventLog, Severity

#: Too long for an event, or in a column of its own.
_NOT_IN_DETAIL = frozenset({"pipeline", "last", "states"})


def record_begin(events: EventLog, record: RewindRecord) -> None:
    """Warn before the first step, with the ways out: a rewind that is cut short must not go unnoticed.

    :param record: what the rewind records of itself
    """
    name = record["pipeline"]
    message = f"{record['by']} rewinds {name} to {record['to']}: {_reason(record['reason'])}."
    cure = (
        f"Nothing, if a {EventKind.PIPELINE_REWOUND} or {EventKind.PIPELINE_REWIND_ABANDONED} follows. "
        f"Otherwise `hindcast rewind {name}` completes it; `hindcast rewind {name} --abandon` calls it off."
    )
    _record(events, EventKind.PIPELINE_REWINDING, message, record, Severity.WARNING, cure)


def record_end(events: EventLog, record: RewindRecord) -> None:
    by = record["by"]
    message = f"{record['pipeline']} was rewound to {record['to']} by {by}: {_reason(record['reason'])}."
    _record(events, EventKind.PIPELINE_REWOUND, message, record)


def record_abandonment(events: EventLog, record: RewindRecord, *, by: str, reason: str) -> None:
    """:param by: who called the rewind off; another one may have begun it"""
    message = f"{by} called off the rewind of {record['pipeline']} to {record['to']}: {_reason(reason)}."
    _record(events, EventKind.PIPELINE_REWIND_ABANDONED, message, record)


def _reason(given: str) -> str:
    return given or "no reason given"


def _record(
    events: EventLog,
    kind: EventKind,
    message: str,
    record: RewindRecord,
    severity: Severity = Severity.INFO,
    cure: str = "",
) -> None:
    detail: dict[str, Any] = {name: value for name, value in record.items() if name not in _NOT_IN_DETAIL}
    events.record(kind, message, severity=severity, cure=cure, pipeline=record["pipeline"], **detail)
