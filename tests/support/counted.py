"""What a replay counted, for rows of ``runs`` that tests make by hand."""

from __future__ import annotations

from hindcast.replay.recorded_plan import Counted

#: A replay that read nothing. A test changes what it is about.
NOTHING_COUNTED = Counted(
    rows_read=0,
    input_rows=0,
    input_bytes=0,
    dead_letters=0,
    late_rows=0,
    judged_rows=0,
    late_judged_rows=0,
    pairs=0,
    output_rows=0,
    latency_p50_seconds=None,
    latency_p95_seconds=None,
)
