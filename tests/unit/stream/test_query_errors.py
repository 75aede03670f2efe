"""What an error of a query means for its shard."""

from __future__ import annotations

import pytest

from hindcast.errors import (
    CheckpointRefusedError,
    LeaseLostError,
    OffsetGapError,
    RegistryUnavailableError,
    StoreUnavailableError,
)
from hindcast.stream.query_errors import cause, is_jvm_broken, is_refusal, is_state_lost, may_be_of_a_record


@pytest.mark.parametrize(
    "error",
    [
        "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.",
        "[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart streaming query: the state directory is empty or missing.",
    ],
)
def test_what_spark_says_of_lost_state_is_known(error: str) -> None:
    """Torn state files and a state folder that is gone both mean: rebuild the state, for no retry would
    mend it.
    """
    assert is_state_lost(RuntimeError(error))


def test_an_error_of_a_users_code_is_no_lost_state() -> None:
    """The shard is only started again."""
    assert not is_state_lost(ValueError("no such column"))


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        ("java.lang.UnsatisfiedLinkError: no snappyjava in java.library.path", True),
        ("java.lang.NoClassDefFoundError: Could not initialize class org.xerial.snappy.Snappy", True),
        ("java.lang.NoClassDefFoundError: org/example/InAJarThatIsNotThere", False),
        ("java.io.IOException: No space left on device", False),
    ],
)
def test_a_class_whose_first_use_failed_is_broken_for_good(error: str, broken: bool) -> None:
    """A class that is not there at all is a mistake of the deployment, and another process would lack it,
    too. No record is to blame for either.
    """
    assert is_jvm_broken(RuntimeError(error)) is broken
    assert may_be_of_a_record(RuntimeError(error)) is not broken


def test_a_registry_that_is_away_is_no_error_of_a_record() -> None:
    """Spark tells of an error in a process of an executor by its text alone. A record that raises is searched
    for only if the function may have raised it.
    """
    away = RegistryUnavailableError(url="http://r", asked="asked for schema 7", reason="no leader")
    text = f"[PYTHON_EXCEPTION] Traceback:\n  File ...\nhindcast.errors.RegistryUnavailableError: {away}"
    assert not may_be_of_a_record(RuntimeError(text))
    assert not may_be_of_a_record(away)
    assert may_be_of_a_record(RuntimeError("[PYTHON_EXCEPTION] Traceback:\nKeyError: 'RegistryUnavailable'"))


def test_a_cause_fits_into_an_event() -> None:
    """However long Spark's sentence is."""
    assert len(cause(ValueError("x" * 10_000))) == 300


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (OffsetGapError(pipeline="p"), True),
        (CheckpointRefusedError(pipeline="p", shard="s", path="x", problem="torn", cure="Mend it."), True),
        (LeaseLostError(owner="w"), False),
        (StoreUnavailableError(table="t"), False),
        (RuntimeError("a user's transformation"), False),
    ],
)
def test_only_what_an_operator_must_mend_is_a_refusal(error: Exception, refused: bool) -> None:
    """A passing fault, and an error of Spark or of a user's code, is tried again by itself."""
    assert is_refusal(error) is refused
