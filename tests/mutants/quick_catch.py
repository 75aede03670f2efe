"""A plugin of pytest for mutmut's runs: it makes a catch quick.

The quickest tests come first, as most mutants are caught by the first test that meets them: mutmut forks a
mutant's process from a server that has run no test, and names the tests to it in no order. And Hypothesis,
once it has found an example that fails, looks for no shorter one. It draws the same examples each time.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import Phase, settings

#: What mutmut writes once it has run all tests without a mutant, in the folder in which it runs them.
STATS = Path("mutmut-stats.json")
PROFILE = "mutants"

settings.register_profile(
    PROFILE, derandomize=True, deadline=None, database=None, phases=(Phase.explicit, Phase.generate)
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the seconds that each test took without a mutant."""
    if STATS.is_file():
        seconds = json.loads(STATS.read_text())["duration_by_test"]
        items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
