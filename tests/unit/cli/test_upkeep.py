"""``hindcast maintain`` does what the DAG of that name does, where there is no Airflow."""

from __future__ import annotations

import json
from pathlib import Path

from support.command_line import Hindcast

from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog
from hindcast.tables.table_names import ControlTable


def test_the_tables_are_kept_small_without_an_airflow(hindcast: Hindcast, settings: Settings) -> None:
    """What was appended in pieces is joined. A table that cannot be read is named, once all others are done."""
    tables = ControlTables(settings)
    events = EventLog(tables)
    for number in range(3):
        events.record(EventKind.WORKER_STARTED, f"worker {number}")
    tables.append(ControlTable.RUNS, [])
    ended = hindcast("maintain", "-o", "json")
    assert ended.returncode == 0, ended.stderr
    done = {row["table"]: row for row in json.loads(ended.stdout)}
    assert (done["events"]["files_before"], done["events"]["files_after"]) == (3, 1)
    log = Path(settings.table("control", "events")) / "_delta_log"
    torn = log / f"{tables.open(ControlTable.EVENTS).version() + 1:020d}.json"
    torn.write_text("no commit")
    ended = hindcast("maintain", "-o", "json")
    assert ended.returncode == 1
    assert "events could not be maintained" in ended.stderr
    assert "runs" in {row["table"] for row in json.loads(ended.stdout)}
