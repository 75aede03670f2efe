"""The table of corrections: any order of any runs leaves each window with the run that had read most, on real
Delta tables.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as budget
from hypothesis import strategies as st

from hindcast.pipeline import Table
from hindcast.serving.corrected_windows import (
    RUN_ID,
    WINDOW_END,
    Corrected,
    CorrectedRange,
    Corrections,
    stamped,
)
from hindcast.settings import Settings

PIPELINE: Any = SimpleNamespace(name="p", version=1, sink=Table("sink"))
INSTANT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("window", pa.struct([("start", INSTANT), ("end", INSTANT)])), ("n", pa.int64())])


def answers(value: int, count: int = 12) -> ds.Dataset:
    """A row for each window that ends at 1, 2, ... milliseconds."""
    moments = [datetime.fromtimestamp(end / 1000, UTC) for end in range(count + 1)]
    rows = [
        {"window": {"start": moments[end - 1], "end": moments[end]}, "n": value}
        for end in range(1, count + 1)
    ]
    return ds.dataset(pa.Table.from_pylist(rows, schema=SCHEMA))


def apply(corrections: Corrections, by: CorrectedRange, value: int) -> bool:
    end = pc.field("window", "end").cast(pa.int64())
    only = (end > by.after_ms * 1000) & (end <= by.to_ms * 1000)
    return corrections.replace(stamped(answers(value), only, by.run_id, ["window", "n"]), by)


def held(corrections: Corrections) -> dict[int, tuple[str, int]]:
    """Window end in ms -> (run, value); each window once."""
    current = corrections.current()
    if current.version < 0:
        return {}
    rows = corrections.open(current.version).to_pyarrow_table().to_pylist()
    found = {row[WINDOW_END] // 1000: (row[RUN_ID], row["n"]) for row in rows}
    assert len(found) == len(rows)
    return found


def covered(current: Corrected) -> dict[int, str]:
    found = {end: one.run_id for one in current.ranges for end in range(one.after_ms + 1, one.to_ms + 1)}
    assert len(found) == sum(one.to_ms - one.after_ms for one in current.ranges), "two ranges have one window"
    return found


Move = tuple[int, int, int]
MOVES = st.lists(st.tuples(st.integers(0, 11), st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=6)


@given(moves=MOVES)
@budget(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_leaves_each_window_with_a_run_that_had_read_most(
    tmp_path_factory: pytest.TempPathFactory, moves: list[Move]
) -> None:
    """Against a plain dict: a run replaces its windows, unless one of them was set by a run that had read
    further.
    """
    corrections = Corrections(Settings(home=tmp_path_factory.mktemp("corrections")), PIPELINE)
    expected: dict[int, tuple[str, int, int]] = {}
    for number, (after_ms, length, read) in enumerate(moves):
        by = CorrectedRange(after_ms, min(after_ms + length, 12), f"r{number}", {0: read})
        windows = range(by.after_ms + 1, by.to_ms + 1)
        further = any(expected[end][2] > read for end in windows if end in expected)
        assert apply(corrections, by, number) == (not further)
        assert not apply(corrections, by, number), "applied again it changed something"
        if not further:
            expected |= dict.fromkeys(windows, (by.run_id, number, read))
    assert held(corrections) == {end: (run, value) for end, (run, value, _) in expected.items()}
    assert covered(corrections.current()) == {end: run for end, (run, _, _) in expected.items()}


def test_two_at_once_are_both_there(settings: Settings) -> None:
    """Different windows: the second sees the first's commit, decides anew and lands on top."""
    apply(Corrections(settings, PIPELINE), CorrectedRange(0, 1, "first", {0: 1}), 0)
    threads = [
        threading.Thread(
            target=lambda n=n: apply(
                Corrections(settings, PIPELINE), CorrectedRange(n, n + 1, f"r{n}", {0: 1}), n
            )
        )
        for n in range(1, 7)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held(Corrections(settings, PIPELINE)) == {
        1: ("first", 0),
        **{n + 1: (f"r{n}", n) for n in range(1, 7)},
    }
    assert Corrections(settings, PIPELINE).current().intervals() == [(0, 7)]


def test_what_was_corrected_is_known_at_each_version(settings: Settings) -> None:
    """A reader that pinned a version goes on with it; joining files changes nothing of what is corrected."""
    corrections = Corrections(settings, PIPELINE)
    assert corrections.current() == Corrected(-1, ())
    apply(corrections, CorrectedRange(0, 4, "a", {0: 1}), 1)
    first = corrections.current()
    apply(corrections, CorrectedRange(2, 6, "b", {0: 2}), 2)
    corrections.open(corrections.current().version).optimize.compact()
    assert corrections.current(first.version) == first
    assert [(one.after_ms, one.to_ms, one.run_id) for one in corrections.current().ranges] == [
        (0, 2, "a"),
        (2, 6, "b"),
    ]
