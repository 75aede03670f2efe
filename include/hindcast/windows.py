"""Which event-time windows an event is in: once as whole numbers, and once as Spark's own expressions.

A window of length L begins at each multiple of the slide S, includes its start and excludes its end. So the
windows of an event at t are those that start after t - L and at t or before it. They end at

- ``first`` = t - pmod(t - L, S) + S, the end of the earliest of them,
- first + S, first + 2 S, ...,
- ``last`` = t - pmod(t, S) + L, the end of the latest.

If S is greater than L, an event between two windows is in none: then ``last`` is S below ``first``, and the
count is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from hindcast.pipeline import Window

#: A whole number, or a pandas column of them.
_Whole = Any

MILLISECOND = timedelta(milliseconds=1)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class WindowEnds:
    """The ends of the windows of an event. All numbers, and the expressions' values, are in one unit of time.

    The methods whose name ends in ``_sql`` take expressions of Spark SQL with values of type long, and return
    one.
    """

    length: int
    slide: int

    @classmethod
    def of(cls, window: Window, unit: timedelta) -> Self:
        """:param unit: :data:`MILLISECOND` or :data:`MICROSECOND`"""
        return cls(window.length // unit, window.step // unit)

    def ends(self, at: int) -> range:
        """The ends of the windows of an event, in order."""
        return range(self.first(at), self.last(at) + 1, self.slide)

    def first(self, at: _Whole) -> _Whole:
        """The end of an event's earliest window, of a number or of a column of numbers."""
        return at - (at - self.length) % self.slide + self.slide

    def last(self, at: _Whole) -> _Whole:
        """The end of an event's latest window, of a number or of a column of numbers."""
        return at - at % self.slide + self.length

    def first_sql(self, at: str) -> str:
        """The end of an event's earliest window."""
        return f"({at} - pmod({at} - {self.length}L, {self.slide}L) + {self.slide}L)"

    def last_sql(self, at: str) -> str:
        """The end of an event's latest window."""
        return f"({at} - pmod({at}, {self.slide}L) + {self.length}L)"

    def ends_sql(self, at: str) -> str:
        """The array of the ends of an event's windows; the event is in at least one."""
        return f"sequence({self.first_sql(at)}, {self.last_sql(at)}, {self.slide}L)"

    def count_sql(self, at: str, limit: str | None = None) -> str:
        """How many windows of an event end at ``limit`` or before it; all of them without a limit.

        :param limit: null counts all
        """
        first = self.first_sql(at)
        last = self.last_sql(at)
        if limit is None:
            return f"(({last} - {first}) div {self.slide}L + 1)"
        windows = f"(least({limit}, {last}) - {first}) div {self.slide}L + 1"
        return f"(CASE WHEN {limit} < {first} THEN 0L ELSE {windows} END)"
