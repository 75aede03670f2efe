"""What the demo, a benchmark or a test run leaves behind if SIGTERM ends it."""

from __future__ import annotations

import subprocess
import sys

_CHILD = """
import signal
from hindcast_sandbox.interruptible import interruptible
with interruptible():
    try:
        print("begun", flush=True)
        signal.pause()
    finally:
        print("ended what it began", flush=True)
"""


def test_sigterm_ends_what_was_begun() -> None:
    """`timeout` and a job that is cancelled send it."""
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    child.terminate()
    said, error = child.communicate(timeout=30)
    assert said == "ended what it began\n"
    assert "KeyboardInterrupt" in error
