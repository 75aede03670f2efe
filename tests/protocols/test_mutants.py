"""The protocols of streams in simulated worlds: faults built in must be found."""

from __future__ import annotations

import pytest
from protocols.mutants import MUTANTS, caught

#: Histories in which each mutant must be found.
HISTORIES = 300


@pytest.mark.drawn(8)  # each takes up to a minute of a slow core; `make simulate` runs all
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_by_an_oracle(name: str) -> None:
    """The oracles can fail: with this fault in the code one of them does."""
    found = caught(name, HISTORIES)
    assert found, f"{HISTORIES} histories do not tell the mutant from the code"
