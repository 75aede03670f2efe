"""End a process that has written Delta tables, by itself or with the one that it works for."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import NoReturn

#: Set where a task of Airflow's holds the other end of this process's stdin.
FOLLOWS = "HINDCAST_FOLLOWS_STDIN"


def follow() -> None:
    """Where a task started this process, end with all of its group as soon as the task is gone, even by SIGKILL.

    Nobody tells a child that its parent was killed. The task is tried again: the two would share the cores, and no bound on the number of
    replays would hold.
    """
    if os.environ.get(FOLLOWS):
        threading.Thread(target=_end_with_stdin, daemon=True).start()


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def leave(exit_code: int) -> NoReturn:
    """Flush what was printed and end now, without the interpreter's own taking down.

    A thread of delta-rs may still hold on to an Arrow buffer when a write has returned. Where it lets go while the interpreter is
    being taken down, the process aborts ("terminate called without an active exception", delta-rs issue 2184) and a command that
    did its work exits with 134: measured 7 times of 60 on a busy machine. Call it last, once all is closed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
