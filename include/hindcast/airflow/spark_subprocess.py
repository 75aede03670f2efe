"""Run a program of ``hindcast.apps`` as a child process: progress on its stderr, one JSON object as the last
line of stdout.

The child gets a process group of its own, so that killing the task also ends the JVM. It gets none of
Airflow's variables: it has no business with Airflow's database or keys. It ends with its task, even if
SIGKILL ends that (:mod:`hindcast.processes.end_with_parent`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hindcast.processes import programs
from hindcast.processes.end_with_parent import FOLLOWS
from hindcast.processes.environment import child_environment
from hindcast.settings import Settings

#: Between asking a child to end and killing it: a Spark session takes some seconds to stop.
GRACE_SECONDS = 15.0
#: Lines of stderr that are kept for an error's message.
KEPT_LINES = 20


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    :param result: the JSON object it printed; None if it printed none
    :param last_lines: the end of its stderr
    """

    exit_code: int
    result: dict[str, Any] | None
    last_lines: list[str]

    @property
    def reason(self) -> str:
        """The last line of its stderr, for an error's message."""
        if not self.last_lines:
            return "it said nothing"
        return self.last_lines[-1]


class SparkSubprocess:
    """One child process. A signal handler may call :meth:`kill` while :meth:`run` waits."""

    def __init__(self, settings: Settings, program: str, arguments: Sequence[str]) -> None:
        """:param program: as :func:`hindcast.processes.programs.command` names it"""
        self._command = programs.command(program, *arguments)
        self._environment = {**child_environment(settings), "NO_COLOR": "1", FOLLOWS: "1"}
        self._process: subprocess.Popen[str] | None = None

    def run(self, tell: Callable[[str], None]) -> Ended:
        """Run to the end; pass every line of stderr to ``tell`` as it comes."""
        printed: deque[str] = deque(maxlen=1)
        said: deque[str] = deque(maxlen=KEPT_LINES)
        with self._start() as process:
            self._process = process
            assert process.stdout is not None
            assert process.stderr is not None
            # Both pipes are read at once: a full one would block the child.
            reader = threading.Thread(target=_keep_lines, args=(process.stdout, printed), daemon=True)
            reader.start()
            try:
                for line in process.stderr:
                    text = line.rstrip()
                    if text:
                        said.append(text)
                        tell(text)
                exit_code = process.wait()
                reader.join()
            finally:
                self.kill()  # if an exception interrupted this task
        return Ended(exit_code, _json_object(printed), list(said))

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            env=self._environment,
            cwd=Path.cwd(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )

    def kill(self) -> None:
        """End the process and its whole group: first by SIGTERM, then by SIGKILL. Nothing if it has ended."""
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
    for line in stream:
        text = line.strip()
        if text:
            lines.append(text)


def _json_object(lines: Iterable[str]) -> dict[str, Any] | None:
    """The first line that is JSON; None if there is none, or if it is no object."""
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
        return None
    return None
