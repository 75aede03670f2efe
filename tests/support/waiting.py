"""Wait for what real processes do: for a condition with a deadline, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float, what: str, *, every: float = 0.1) -> None:
    """Wait for a condition, or fail saying what did not happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not so: {what}"
        time.sleep(every)  # between two looks at a real process
