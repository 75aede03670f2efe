"""The events of a rewind: a warning when it begins, and how it ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hindcast.recovery import rewind_events
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventLog
from hindcast.tables.table_names import ControlTable

RECORD = {
    "pipeline": "bar",
    "to": "the place",
    "by": "me",
    "reason": "a test",
    "id": "one",
    "last": {"v1.g0.s0": 3},
    "states": {"v1.g0.s0": "CLOSED"},
}


def event(settings: Settings) -> dict[str, Any]:
    """The only event; it is of the pipeline, and its detail is the record without what is too long."""
    (row,) = ControlTables(settings).rows(ControlTable.EVENTS)
    assert row["pipeline"] == "bar"
    assert json.loads(row["detail"]) == {"to": "the place", "by": "me", "reason": "a test", "id": "one"}
    return row


def test_a_rewind_that_begins_is_a_warning(settings: Settings) -> None:
    """With the ways out, if no event of its end follows."""
    rewind_events.record_begin(EventLog(ControlTables(settings)), RECORD)
    row = event(settings)
    assert (row["kind"], row["severity"]) == ("pipeline_rewinding", "warning")
    assert row["message"] == "me rewinds bar to the place: a test."
    assert "pipeline_rewound" in row["cure"]
    assert "pipeline_rewind_abandoned" in row["cure"]
    assert "`hindcast rewind bar` completes it" in row["cure"]
    assert "`hindcast rewind bar --abandon` calls it off" in row["cure"]


def test_a_rewind_that_has_ended_needs_no_cure(settings: Settings) -> None:
    """It is named with who began it, and why."""
    rewind_events.record_end(EventLog(ControlTables(settings)), RECORD)
    row = event(settings)
    assert (row["kind"], row["severity"], row["cure"]) == ("pipeline_rewound", "info", "")
    assert row["message"] == "bar was rewound to the place by me: a test."


def test_a_rewind_that_was_called_off_names_who_did_it(settings: Settings) -> None:
    """Another one may have begun it, who is in the detail."""
    rewind_events.record_abandonment(EventLog(ControlTables(settings)), RECORD, by="you", reason="too far")
    row = event(settings)
    assert (row["kind"], row["severity"], row["cure"]) == ("pipeline_rewind_abandoned", "info", "")
    assert row["message"] == "you called off the rewind of bar to the place: too far."


@pytest.mark.parametrize("kind", ["begin", "end", "abandonment"])
def test_a_missing_reason_is_said(settings: Settings, kind: str) -> None:
    """A reason is never required."""
    record = {**RECORD, "reason": ""}
    if kind == "begin":
        rewind_events.record_begin(EventLog(ControlTables(settings)), record)
    elif kind == "end":
        rewind_events.record_end(EventLog(ControlTables(settings)), record)
    else:
        rewind_events.record_abandonment(EventLog(ControlTables(settings)), record, by="you", reason="")
    (row,) = ControlTables(settings).rows(ControlTable.EVENTS)
    assert row["message"].endswith(": no reason given.")
