"""Named steps of the protocols, so that a test can kill the process at exactly one of them.

``HINDCAST_CRASH_AT=sink.4`` makes the process kill itself with SIGKILL when it first reaches that step;
``sink.4@7`` the seventh time. Without the variable a step costs one comparison.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_step, _, _count = os.environ.get("HINDCAST_CRASH_AT", "").partition("@")
_reached: Counter[str] = Counter()


def reach(step: str) -> None:
    """Mark that the step is about to be taken."""
    if step != _step:
        return
    _reached[step] += 1
    if _reached[step] == int(_count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
