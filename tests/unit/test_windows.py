"""Which windows an event is in: the formula against the definition."""

from __future__ import annotations

from datetime import timedelta

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hindcast import Window
from hindcast.windows import MICROSECOND, MILLISECOND, WindowEnds

numbers = st.integers(1, 60)


@given(length=numbers, slide=numbers, at=st.integers(-500, 500))
@example(length=5, slide=10, at=7)
@example(length=10, slide=5, at=0)
def test_an_event_is_in_the_windows_that_hold_it(length: int, slide: int, at: int) -> None:
    """A window holds its start and not its end. It begins at a multiple of the slide, also before the
    epoch.
    """
    starts = [start for start in range(-1200, 1200, 1) if start % slide == 0 and start <= at < start + length]
    windows = WindowEnds(length, slide)
    assert list(windows.ends(at)) == [start + length for start in starts]
    column = pd.Series([at, at + 1])
    assert list(windows.first(column)) == [windows.first(at), windows.first(at + 1)]
    assert list(windows.last(column)) == [windows.last(at), windows.last(at + 1)]


@pytest.mark.parametrize(
    ("window", "length_ms", "slide_ms"),
    [(Window("5 seconds"), 5000, 5000), (Window("1 minute", slide="10 seconds"), 60_000, 10_000)],
)
def test_durations_are_whole_units(window: Window, length_ms: int, slide_ms: int) -> None:
    """Without a slide one window begins where the one before it ends."""
    assert WindowEnds.of(window, MILLISECOND) == WindowEnds(length_ms, slide_ms)
    assert WindowEnds.of(window, MICROSECOND) == WindowEnds(length_ms * 1000, slide_ms * 1000)
    assert timedelta(seconds=0.001) == MILLISECOND
