"""Warnings that come up at each renewal and are recorded once."""

from __future__ import annotations

from hindcast.tables.event_log import EventKind, EventLog, Severity


class WarnOnce:
    """Records a warning in the log of events the first time, and never again while this worker lives."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._recorded: set[tuple[EventKind, str, str]] = set()

    def record(self, kind: EventKind, message: str, cure: str, pipeline: str, *, case: str) -> None:
        """:param case: what tells this warning from others of its kind and pipeline. The message does not: it
        may hold figures that move
        """
        warning = (kind, pipeline, case)
        if warning in self._recorded:
            return
        self._recorded.add(warning)
        self._events.record(kind, message, severity=Severity.WARNING, cure=cure, pipeline=pipeline)
