"""Wait for what real processes do: for a condition with a deadline, never for a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

#: How often a condition is looked at: less often where leases are longer, since a look may read many files.
LOOK_SECONDS = float(os.environ.get("TEST_LEASE_SECONDS", "3")) / 30


def wait_until(
    condition: Callable[[], object], seconds: float, what: str, *, every: float = LOOK_SECONDS
) -> None:
    """Wait for a condition, or fail saying what did not happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not so: {what}"
        time.sleep(every)  # between two looks at a real process
