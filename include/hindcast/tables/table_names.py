"""The names of the control tables. :mod:`hindcast.tables.schema` has their columns, and imports Arrow."""

from __future__ import annotations

from enum import StrEnum

#: Of every row that this Hindcast writes.
SCHEMA_VERSION = 1


class ControlTable(StrEnum):
    """The control tables, each named as its folder."""

    LEASES = "leases"
    CHECKPOINTS = "checkpoints"
    RUNS = "runs"
    VERDICTS = "verdicts"
    DIFFERENCES = "differences"
    LATE_ROWS = "late_rows"
    DEAD_LETTERS = "dead_letters"
    MENDED_LETTERS = "mended_letters"
    EVENTS = "events"
    VERDICT_TRENDS = "verdict_trends"
    PROOFS = "proofs"
    LEDGER_BASES = "ledger_bases"
