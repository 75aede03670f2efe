"""A time after which no long test begins: a build has a limit, and machines differ by a factor of two.

What was left out is named at the end of the run. The order of the tests is random, so over some runs each has
its turn.
"""

from __future__ import annotations

import time

import pytest

#: The beginning of the reason of a test that was not begun.
LEFT_OUT = "left out"
#: The tests without a mark of these take seconds in all. They run in any case.
LONG = ("integration", "acceptance", "faults")


def is_over(until: float) -> bool:
    """Whether that time, in seconds since 1970, is past; 0 is no limit."""
    return bool(until) and time.time() > until


class TimeLimit:
    """Registered as a plugin: skips each long test that would begin after ``until``, in seconds since 1970."""

    def __init__(self, until: float) -> None:
        self._until = until

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Comes before the fixtures, which may take long, too."""
        if is_over(self._until) and any(item.get_closest_marker(name) for name in LONG):
            pytest.skip(f"{LEFT_OUT}: the time for all tests is over")

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
    return report.skipped and LEFT_OUT in str(report.longrepr)
