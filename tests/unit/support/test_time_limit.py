"""After its time no long test begins, and what was left out is named."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

WITHOUT_PLUGINS = ("-p", "no:randomly", "-p", "no:asyncio")
A_TEST_FILE = """
    import pytest

    @pytest.fixture
    def dear():
        open("made", "w").close()

    @pytest.mark.integration
    def test_a_long_one(dear):
        pass

    def test_a_short_one():
        pass
"""
CONFTEST = """
    from support.time_limit import TimeLimit

    def pytest_configure(config):
        config.addinivalue_line("markers", "integration: long")
        config.pluginmanager.register(TimeLimit({until}, ["integration"]))
"""


@pytest.mark.parametrize("hours", [None, 1.0])
def test_all_tests_begin_before_the_time(pytester: pytest.Pytester, hours: float | None) -> None:
    """Also without a limit."""
    until = time.time() + hours * 3_600.0 if hours else 0.0
    pytester.makeconftest(CONFTEST.format(until=until))
    pytester.makepyfile(A_TEST_FILE)
    result = pytester.runpytest_inprocess(*WITHOUT_PLUGINS)
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*left out*")


def test_a_long_test_after_the_time_is_left_out_and_named(pytester: pytest.Pytester) -> None:
    """A short one runs, and no fixture of the long one is made."""
    pytester.makeconftest(CONFTEST.format(until=1.0))
    pytester.makepyfile(A_TEST_FILE)
    result = pytester.runpytest_inprocess(*WITHOUT_PLUGINS)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["1 tests were left out*", "*::test_a_long_one"])
    assert not (Path(pytester.path) / "made").exists()
