"""A change of a Delta table that is decided again on the newest version until it lands, with one form of its
errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from deltalake.exceptions import DeltaError

from hindcast.delta.commit import until_it_lands
from hindcast.errors import StoreUnavailableError

_Result = TypeVar("_Result")


def retry_commit(url: str, attempt: Callable[[], _Result]) -> _Result:
    """Call ``attempt`` again while another commit is faster.

    :param attempt: opens the table, decides and commits
    :raises StoreUnavailableError: if no attempt landed, or the store does not answer
    """
    try:
        return until_it_lands(url, attempt)
    except (DeltaError, OSError) as error:
        raise StoreUnavailableError(table=url, action="written", reason=error) from error
