"""Write the event of each change of a pipeline's versions, once: also that of a command that was killed before it could."""

from __future__ import annotations

import json

from hindcast.shards.active_version import Rollout
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.schema import ControlTable


def record_changes(tables: ControlTables, standing: Rollout) -> Rollout:
    """Write the event of the last change, unless it is there; return the standing."""
    change = standing.change
    if change is None or _told(tables, standing.pipeline, change.kind.value, change.id):
        return standing
    about = {name: value for name, value in change.to_json().items() if name not in {"kind", "id"} and value not in (None, "")}
    EventLog(tables).record(
        EventKind(change.kind.value),
        f"{standing.pipeline}: {change.sentence}",
        severity=Severity.WARNING if change.despite else Severity.INFO,
        cure=f"`hindcast back-out {standing.pipeline}` returns to the version before." if change.despite else "",
        pipeline=standing.pipeline,
        change=change.id,
        **about,
    )
    return standing


def _told(tables: ControlTables, pipeline: str, kind: str, change: str) -> bool:
    rows = tables.rows(ControlTable.EVENTS, [("pipeline", "=", pipeline), ("kind", "=", kind)])
    return any(json.loads(row["detail"]).get("change") == change for row in rows)
