"""A change of a table is decided again until it lands."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from hindcast.errors import StoreUnavailableError
from hindcast.recovery.retried_commit import retry_commit


def attempt_after(failures: list[Exception]) -> str:
    """Fail with each of them, then land."""
    if failures:
        raise failures.pop()
    return "landed"


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that are waited between attempts; none passes."""
    seconds: list[float] = []
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=seconds.append))
    return seconds


def test_a_change_is_decided_again_until_it_lands(slept: list[float]) -> None:
    """After three faster writers the fourth attempt lands."""
    failures: list[Exception] = [CommitFailedError("a writer was faster")] * 3
    assert retry_commit("t", lambda: attempt_after(failures)) == "landed"
    assert len(slept) == 3


def test_a_change_that_never_lands_is_given_up(slept: list[float]) -> None:
    """It waits longer and longer, but never long, and the error names the table and the last reason."""
    failures: list[Exception] = [CommitFailedError("no luck")] * 100
    with pytest.raises(StoreUnavailableError, match="The table t could not be written: no luck"):
        retry_commit("t", lambda: attempt_after(failures))
    assert len(failures) == 100 - 40
    assert len(slept) == 39
    assert slept[0] <= 0.01
    assert 0.1 < max(slept) <= 0.5


@pytest.mark.parametrize("error", [DeltaError("no luck"), OSError("no luck")])
def test_another_failure_ends_a_change_at_once(slept: list[float], error: Exception) -> None:
    """What the store says is in the error."""
    failures = [error] * 2
    with pytest.raises(StoreUnavailableError, match="The table t could not be written: no luck"):
        retry_commit("t", lambda: attempt_after(failures))
    assert (len(failures), slept) == (1, [])
