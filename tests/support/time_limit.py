"""A time after which no long test begins: a build has a limit, and machines differ by a factor of two.

What was left out is named at the end of the run. The order of the tests is random, so over some runs each has
its turn.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import pytest

#: The beginning of the reason of a test that was not begun.
_LEFT_OUT = "left out"


class TimeLimit:
    """Registered as a plugin: skips each long test that would begin after a time.

    :param until: that time in seconds since 1970; 0 is no limit
    :param long: a test with one of these marks is a long one; all others run in any case
    """

    def __init__(self, until: float, long: Collection[str]) -> None:
        self._until = until
        self._long = long

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Comes before the fixtures, which may take long, too."""
        if not self._until or time.time() <= self._until:
            return
        if any(item.get_closest_marker(name) for name in self._long):
            pytest.skip(f"{_LEFT_OUT}: the time for all tests is over")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name what was left out."""
        skipped = terminalreporter.stats.get("skipped", [])
        names = sorted({report.nodeid for report in skipped if was_left_out(report)})
        if names:
            terminalreporter.write_line(f"{len(names)} tests were left out, as the time for all was over:")
            for name in names:
                terminalreporter.write_line(f"  {name}")


def was_left_out(report: pytest.TestReport) -> bool:
    """Whether this is the report of a test that a time limit left out."""
    return report.skipped and _LEFT_OUT in str(report.longrepr)
