"""SIGTERM ends a benchmark or a test run as Ctrl-C does: what it started ends with it."""

from __future__ import annotations

import signal
import threading


def end_in_order() -> None:
    """Raise KeyboardInterrupt in the main thread at SIGTERM. By default the process would be gone at once, and
    its brokers, workers and Airflow would live on: they have sessions of their own.
    """
    if threading.current_thread() is threading.main_thread():  # no other thread may set what a signal does
        signal.signal(signal.SIGTERM, signal.default_int_handler)
