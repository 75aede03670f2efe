"""End a process that has written Delta tables, by itself or together with its parent."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import NoReturn

#: Set if a task of Airflow's holds the other end of this process's stdin.
FOLLOWS = "HINDCAST_FOLLOWS_STDIN"


def end_with_parent() -> None:
    """If a task started this process, end it and all of its group as soon as the task is gone, even by
    SIGKILL.

    A child is not told that its parent was killed. Airflow retries the task: the two would share the cores,
    and no bound on the number of replays would hold.
    """
    if os.environ.get(FOLLOWS):
        threading.Thread(target=_end_with_stdin, daemon=True).start()


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def exit_now(exit_code: int) -> NoReturn:
    """Flush the output and end now, without the interpreter's own shutdown.

    A thread of delta-rs may still hold an Arrow buffer after a write has returned. If it releases it during
    the shutdown, the process aborts ("terminate called without an active exception", delta-rs issue 2184),
    and a command that did its work exits with 134: measured 7 times of 60 on a busy machine. Call this last,
    once all is closed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
