"""A warning that comes up at each renewal is recorded once."""

from __future__ import annotations

from hindcast.installation import Installation
from hindcast.stream.warn_once import WarnOnce
from hindcast.tables.event_log import EventKind, EventLog
from hindcast.tables.table_names import ControlTable


def test_a_warning_is_recorded_once_however_its_figures_move(installation: Installation) -> None:
    """The end of a live topic is in its message. At four renewals a lease that would be an event each few
    seconds.
    """
    warnings = WarnOnce(EventLog(installation.tables))
    for end in range(3):
        message = f"The topic's partitions hold 0 to {end}."
        warnings.record(EventKind.SHARD_REFUSED, message, "Mend it.", "p", case="version 1: BadRangeError")
    (event,) = installation.tables.rows(ControlTable.EVENTS)
    assert (event["message"], event["cure"], event["pipeline"]) == (
        "The topic's partitions hold 0 to 0.",
        "Mend it.",
        "p",
    )


def test_each_kind_pipeline_and_case_has_its_own(installation: Installation) -> None:
    """What is wrong with one pipeline hides nothing of another."""
    warnings = WarnOnce(EventLog(installation.tables))
    for kind, pipeline, case in (
        (EventKind.SHARD_REFUSED, "p", "one"),
        (EventKind.RESHARD_REFUSED, "p", "one"),
        (EventKind.SHARD_REFUSED, "q", "one"),
        (EventKind.SHARD_REFUSED, "p", "two"),
    ):
        warnings.record(kind, "It is wrong.", "Mend it.", pipeline, case=case)
    assert len(installation.tables.rows(ControlTable.EVENTS)) == 4
