"""Reference ranges: how they are asked for, and which two of their replays are compared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hindcast import Table, Topic, pipeline
from hindcast.errors import BadInputError
from hindcast.pipeline import Pipeline
from hindcast.replay.benchmark import newest_pair, request_of
from hindcast.replay.recorded_plan import RecordedPlan

OFFSETS, TIMES = ('{"0": 1}', '{"0": 9}'), ("2026-01-05T12:00:00+00:00", "2026-01-05T13:00:00+00:00")


def declare(reference: tuple[str, str] | None) -> Pipeline:
    topic = Topic("t", schema="ts timestamp")
    return pipeline(
        source=topic, event_time="ts", watermark="1 second", sink=Table("s"), version=1, reference=reference
    )(_same)


def _same(frame: Any) -> Any:
    return frame


def run(run_id: str, *, version: int = 1, spark: str = "4.2", end: int = 9) -> dict[str, Any]:
    plan = RecordedPlan(asked="", topic="t", read_from={0: 1}, start={0: 1}, end={0: end}, sink_version=0)
    return {
        "run_id": run_id,
        "version": version,
        "versions": json.dumps({"pyspark": spark}),
        "plan": plan.text(),
    }


def test_a_reference_is_a_range_like_any_other() -> None:
    """Offsets or times; a pipeline without one is told how to pin it."""
    offsets, times = request_of(declare(OFFSETS)), request_of(declare(TIMES))
    assert (offsets.from_offsets, offsets.to_offsets) == ({0: 1}, {0: 9})
    assert times.from_time is not None and times.from_time.isoformat() == TIMES[0]
    with pytest.raises(BadInputError, match="reference="):
        request_of(declare(None))


@pytest.mark.parametrize(
    ("rows", "pair"),
    [
        ([run("c", version=2), run("b", version=2), run("a")], ("a", "c")),
        ([run("c", spark="4.3"), run("b"), run("a")], ("b", "c")),
        ([run("c", version=2), run("b", end=5), run("a")], ("a", "c")),
    ],
)
def test_the_newest_is_compared_with_the_newest_of_other_versions(
    rows: list[dict[str, Any]], pair: tuple[str, str]
) -> None:
    """Of the pipeline, of Spark or of the platform; over the same range."""
    assert newest_pair("p", rows) == pair


@pytest.mark.parametrize("rows", [[], [run("a")], [run("b"), run("a")]])
def test_one_version_alone_is_compared_with_nothing(rows: list[dict[str, Any]]) -> None:
    """And the refusal says what to do."""
    with pytest.raises(BadInputError, match="hindcast benchmark p"):
        newest_pair("p", rows)
