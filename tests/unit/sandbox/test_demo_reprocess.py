"""What the demo of a reprocessing says of its own result."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hindcast.tables.ledger import LedgerRow
from hindcast_sandbox.demo_reprocess import failures, latency

AT = datetime(2026, 1, 1, tzinfo=UTC)
GOOD: dict[str, Any] = {"seam_missing": 0, "seam_duplicated": 0, "active_after_promotion": 2}


@pytest.mark.parametrize(
    ("summary", "says"),
    [
        (GOOD, []),
        ({**GOOD, "seam_missing": 3}, ["seam_missing is 3"]),
        (
            {**GOOD, "seam_duplicated": 1, "active_after_promotion": 1},
            ["seam_duplicated is 1", "readers had version 1 after the promotion"],
        ),
    ],
)
def test_a_demo_that_lost_or_doubled_a_window_fails(summary: dict[str, Any], says: list[str]) -> None:
    """Each thing that is not as it must be is said."""
    assert list(failures(summary)) == says


def batch(number: int, started: float, committed: float, shard: str = "v1.g0.s0") -> LedgerRow:
    return LedgerRow(
        pipeline="p",
        version=1,
        shard=shard,
        epoch=1,
        batch=number,
        worker="w",
        topic="t",
        start_offsets={0: number},
        end_offsets={0: number + 1},
        late_watermark_ms=0,
        watermark_ms=0,
        min_event_ms=0,
        max_event_ms=0,
        input_rows=1,
        poison_rows=0,
        output_rows=0,
        batch_seconds=1.0,
        cpu_seconds=1.0,
        sink_version=number,
        started_at=AT + timedelta(seconds=started),
        committed_at=AT + timedelta(seconds=committed),
    )


def test_latency_is_half_of_the_wait_for_a_batch_and_the_batch() -> None:
    """A record comes at any moment between the starts of two batches. The first seconds, and what came before
    a moment, are left out.
    """
    rows = [
        batch(1, 0.0, 5.0),
        batch(2, 10.0, 10.5),
        batch(3, 11.0, 11.5),
        batch(4, 13.0, 14.0),
        batch(1, 0.0, 9.0, "v1.g0.s1"),
    ]
    assert latency(rows, skip_seconds=6.0) == pytest.approx((1.0 + 2.0) / 2)
    assert latency(rows, since=AT + timedelta(seconds=12)) == pytest.approx(2.0)
    assert latency(rows, since=AT + timedelta(seconds=20)) is None
    assert latency([]) is None
