"""The plan that the table of runs keeps: written once, read once, whatever Hindcast wrote it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hindcast.replay.recorded_plan import Counted, RecordedPlan

offsets = st.dictionaries(st.integers(0, 2**31), st.integers(0, 2**53), min_size=1, max_size=4)
counts = st.builds(
    Counted,
    **dict.fromkeys(
        (
            "rows_read",
            "input_rows",
            "input_bytes",
            "dead_letters",
            "late_rows",
            "judged_rows",
            "late_judged_rows",
            "pairs",
            "output_rows",
        ),
        st.integers(0, 2**53),
    ),
    latency_p50_seconds=st.none() | st.floats(0, 1e6),
    latency_p95_seconds=st.none() | st.floats(0, 1e6),
    reasons=st.dictionaries(st.text(), st.integers(0, 9)),
)
plans = st.builds(
    RecordedPlan,
    asked=st.text(),
    topic=st.text(),
    start=offsets,
    end=offsets,
    read_from=offsets,
    seams=offsets,
    windows_after_ms=st.integers(-(2**53), 2**53),
    windows_to_ms=st.integers(-(2**53), 2**53),
    sink_version=st.integers(-1, 2**40),
    corrections_version=st.integers(-1, 2**40),
    batches=st.integers(0, 2**40),
    left_out=st.text(),
    counted=st.none() | counts,
)


@given(plans)
def test_a_plan_is_read_back_as_it_was_written(plan: RecordedPlan) -> None:
    """The text is JSON, with partitions as texts."""
    assert RecordedPlan.from_text(plan.text()) == plan
    assert json.loads(plan.text()) == plan.to_json()


@given(plans)
def test_a_plan_of_an_older_hindcast_lacks_the_later_parts(plan: RecordedPlan) -> None:
    """It had no archive, no corrections and left nothing out."""
    written = plan.to_json()
    for later in ("archive_to", "corrections_version", "left_out"):
        del written[later]
    found = RecordedPlan.from_text(json.dumps(written))
    assert (found.seams, found.corrections_version, found.left_out) == ({}, -1, "")
    assert found.range == plan.range
