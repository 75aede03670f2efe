"""SIGTERM ends a command as Ctrl-C does: what it started ends with it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt in the main thread, which must be the caller's.

    By default the process would be gone at once, and its brokers, workers and Airflow would live on: they
    have sessions of their own.
    """
    kept = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)
