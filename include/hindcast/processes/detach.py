"""Start a process that is nobody's child. A program of its own: reads one JSON object on stdin, prints one
on stdout.

:mod:`hindcast.processes.background_services` starts it in a new session, so that the kill of the starter's
process group cannot part the new process from its record. In order:

1. start the process in a new session, with no inherited file but its log;
2. write its record (pid and birth), atomically;
3. answer, and exit: the process is now a child of init.

Nothing of the request is an argument, because every user of the machine can read arguments.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STARTED_TICKS = 19  # the place of ``starttime`` among the fields after the program's name (proc(5))


def birth(pid: int) -> str | None:
    """What tells this process from a later one of the same pid; None if there is no such process, or a
    zombie.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists():
            return f"{process.create_time():.2f}"
        # Ticks since boot, not a wall-clock time: a corrected clock must not make a process seem another one.
        after_name = stat.read_text().rpartition(")")[2]
        ticks = after_name.split()[_STARTED_TICKS]
        boot = _BOOT_ID.read_text().strip()
    except (psutil.NoSuchProcess, OSError, IndexError):
        return None
    return f"{boot}:{ticks}"


def write_atomically(path: Path, content: str, mode: int = 0o644) -> None:
    """Replace the file in one step; a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    draft.replace(path)


def main() -> None:
    """Read the request, start the process, write its record and answer with it."""
    request = json.load(sys.stdin)
    _reset_signals()
    record = request["record"]
    try:
        process = _start(request, Path(record["log"]))
    except OSError as error:
        json.dump({"error": str(error)}, sys.stdout)
        return
    record |= {"pid": process.pid, "birth": birth(process.pid) or ""}
    write_atomically(Path(request["path"]), json.dumps(record, indent=2))
    json.dump(record, sys.stdout)


def _reset_signals() -> None:
    """A starter that ignores signals, as a shell's background job does, would pass that on to the process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _start(request: dict[str, Any], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            request["arguments"],
            env=request["environment"],
            cwd=request["folder"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
        )


if __name__ == "__main__":
    main()
