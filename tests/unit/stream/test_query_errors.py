"""What an error of a query means for its shard."""

from __future__ import annotations

import pytest

from hindcast.errors import CheckpointRefusedError, LeaseLostError, OffsetGapError, StoreUnavailableError
from hindcast.stream.query_errors import cause, is_refusal, is_state_lost


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
