"""Rows of the ledger, made by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hindcast.partitions import Offsets
from hindcast.tables.ledger import LedgerRow

AT = datetime(2026, 1, 1, tzinfo=UTC)


def batch(number: int, start: Offsets, end: Offsets, watermark_ms: int = 0, **fields: Any) -> LedgerRow:
    """A committed batch of one shard, each in a version of the sink of its own."""
    known = {
        "pipeline": "p",
        "version": 1,
        "shard": "s0",
        "epoch": 1,
        "worker": "w",
        "topic": "t",
        "late_watermark_ms": 0,
    }
    measured = {
        "min_event_ms": None,
        "max_event_ms": None,
        "input_rows": 1,
        "poison_rows": 0,
        "started_at": None,
    }
    done = {
        "output_rows": 0,
        "batch_seconds": 0.0,
        "cpu_seconds": 0.0,
        "sink_version": number,
        "committed_at": AT,
    }
    values = {**known, **measured, **done, **fields}
    return LedgerRow(batch=number, start_offsets=start, end_offsets=end, watermark_ms=watermark_ms, **values)
