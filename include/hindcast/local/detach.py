"""Start a process that is nobody's child. Run as a program of its own: reads one JSON object on stdin, prints one on stdout.

:mod:`hindcast.local.processes` starts this in a session of its own, so that the kill of the starter's process group cannot
part the new process from its record. In order:

1. start the process in a new session, with no inherited file but its log;
2. write its record (pid and birth), atomically;
3. answer, and exit: the process is now a child of init.

Nothing of the request is an argument, as arguments can be read by every user of the machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil


def birth(pid: int) -> str | None:
    """What tells this process from a later one of the same pid, or None where there is none (a zombie counts as none)."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists():
            return f"{process.create_time():.2f}"
        # Ticks since boot, not a wall-clock time: a corrected clock must not make a process look like another one.
        ticks = stat.read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{ticks}"
    except (psutil.NoSuchProcess, OSError, IndexError):
        return None


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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(
            number, signal.SIG_DFL
        )  # a starter that ignores them (a shell's background job) would hand that on
    record = request["record"]
    try:
        with Path(record["log"]).open("ab") as log:
            process = subprocess.Popen(
                request["arguments"], env=request["environment"], cwd=request["folder"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, close_fds=True,
            )  # fmt: skip
    except OSError as error:
        json.dump({"error": str(error)}, sys.stdout)
        return
    record |= {"pid": process.pid, "birth": birth(process.pid) or ""}
    write_atomically(Path(request["path"]), json.dumps(record, indent=2))
    json.dump(record, sys.stdout)


if __name__ == "__main__":
    main()
