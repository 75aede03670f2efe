"""What a plan depends on, as far as it is more than a look-up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hindcast import Table, Topic, Window, pipeline
from hindcast.replay.inputs import uncorrected_ends_ms
from hindcast.serving.corrected_windows import NOTHING, Corrected, CorrectedRange


@pipeline(
    source=Topic("trades", schema="ticker string, ts timestamp"),
    event_time="ts",
    watermark="10 seconds",
    window=Window("2 seconds", slide="1 second"),
    sink=Table("stats", keys=["window", "ticker"]),
    version=1,
)
def stats(frame: Any) -> Any:
    return frame


def late(*rows: tuple[int, int, str, int]) -> pd.DataFrame:
    """Late rows: partition, offset, event time in UTC, watermark in ms."""
    found = pd.DataFrame(rows, columns=["partition", "offset", "event_at", "watermark_ms"])
    times = found["event_at"].to_numpy().astype("datetime64[us]")
    return found.assign(event_at=pd.Series(times).dt.tz_localize("UTC"))


def test_the_late_windows_are_those_that_no_correction_has_with_the_row() -> None:
    """Of a row only the windows count that were final when it came, each window once, oldest first."""
    rows = late((0, 5, "1970-01-01T00:00:10.500", 11_000), (1, 7, "1970-01-01T00:00:03", 9_000))
    assert uncorrected_ends_ms(stats, rows, NOTHING) == [4_000, 5_000, 11_000]
    corrected = Corrected(
        1, (CorrectedRange(0, 4_000, "r", {1: 8}), CorrectedRange(4_000, 20_000, "r", {1: 7}))
    )
    assert uncorrected_ends_ms(stats, rows, corrected) == [5_000, 11_000]
    assert not uncorrected_ends_ms(stats, rows[:0], NOTHING)


def test_a_row_of_the_year_1_was_late_for_windows_before_the_epoch() -> None:
    """Event times are whole microseconds, so that none is out of bounds."""
    found = uncorrected_ends_ms(stats, late((0, 0, "0001-01-01", 0)), NOTHING)
    first = int(np.datetime64("0001-01-01", "ms").astype("int64"))
    assert found == [first + 1_000, first + 2_000]
