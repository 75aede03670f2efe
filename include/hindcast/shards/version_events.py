"""Write one event for each change of a pipeline's versions.

A command may be killed after it has committed a change and before it has written the event. The next command
or worker that sees the change writes the event then.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hindcast.shards.active_version import Rollout
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from hindcast.tables.control_tables import ControlTables


def record_changes(tables: ControlTables, rollout: Rollout) -> Rollout:
    """Write the event of the last change, unless it is there already.

    :returns: the rollout that was given
    """
    change = rollout.change
    if change is None or _is_recorded(tables, rollout.pipeline, change.kind.value, change.id):
        return rollout
    severity = Severity.INFO
    cure = ""
    if change.despite:
        severity = Severity.WARNING
        cure = f"`hindcast back-out {rollout.pipeline}` returns to the version before."
    detail = change.to_json()
    del detail["kind"], detail["id"]
    known = {name: value for name, value in detail.items() if value not in (None, "")}
    EventLog(tables).record(
        EventKind(change.kind.value),
        f"{rollout.pipeline}: {change.sentence}",
        severity=severity,
        cure=cure,
        pipeline=rollout.pipeline,
        change=change.id,
        **known,
    )
    return rollout


def _is_recorded(tables: ControlTables, pipeline: str, kind: str, change: str) -> bool:
    rows = tables.rows(ControlTable.EVENTS, [("pipeline", "=", pipeline), ("kind", "=", kind)])
    return any(json.loads(row["detail"]).get("change") == change for row in rows)
