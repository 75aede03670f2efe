"""Run one of spark_apps/ as a child process: progress on its stderr, one JSON object as the last line of its stdout.

It gets a process group of its own, so that killing the task also ends the JVM, and none of Airflow's variables: it has no business
with Airflow's database or keys. It follows its stdin: a task that is killed with SIGKILL takes it along (:mod:`hindcast.leave`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hindcast.leave import FOLLOWS
from hindcast.local.processes import inherited_environment
from hindcast.settings import Settings, project_root

#: Between asking a child to end and killing it: a Spark session takes some seconds to stop.
GRACE_SECONDS = 15.0
KEPT_LINES = 20


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, the JSON object it printed (None where it printed none) and the end of its stderr."""

    exit_code: int
    result: dict[str, Any] | None
    last_lines: list[str]

    @property
    def reason(self) -> str:
        """The last thing it said, for an error's message."""
        return self.last_lines[-1] if self.last_lines else "it said nothing"


class Child:
    """One child process; :meth:`kill` may be called from a signal handler while :meth:`run` waits."""

    def __init__(self, settings: Settings, script: str, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, str(project_root() / "spark_apps" / script), *arguments]
        self._environment = {**inherited_environment(), **settings.environment(), "NO_COLOR": "1", FOLLOWS: "1"}
        self._process: subprocess.Popen[str] | None = None

    def run(self, tell: Callable[[str], None]) -> Ended:
        """Run to the end; every line of stderr goes to ``tell`` as it comes."""
        printed: deque[str] = deque(maxlen=1)
        said: deque[str] = deque(maxlen=KEPT_LINES)
        with subprocess.Popen(
            self._command, env=self._environment, cwd=Path.cwd(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            self._process = process
            assert process.stdout is not None
            assert process.stderr is not None
            reader = threading.Thread(target=_keep_lines, args=(process.stdout, printed), daemon=True)
            reader.start()
            try:
                for line in process.stderr:
                    if text := line.rstrip():
                        said.append(text)
                        tell(text)
                exit_code = process.wait()
                reader.join()
            finally:
                self.kill()  # should this task have been interrupted
        return Ended(exit_code, _json_object(printed), list(said))

    def kill(self) -> None:
        """End the process and all of its group: first asked, then killed. Does nothing where it has ended."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _keep_lines(stream: IO[str], lines: deque[str]) -> None:
    lines.extend(line.strip() for line in stream if line.strip())


def _json_object(lines: Iterable[str]) -> dict[str, Any] | None:
    for line in lines:
        with suppress(ValueError):
            found = json.loads(line)
            return found if isinstance(found, dict) else None
    return None
