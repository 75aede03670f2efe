"""Run Hindcast's commands as a person does, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil

from hindcast.settings import Settings

#: Longer than a command takes that starts Spark on a busy machine of two cores, and shorter than a test may.
COMMAND_SECONDS = 480.0


def run_command(
    settings: Settings, *arguments: str, seconds: float = COMMAND_SECONDS
) -> subprocess.CompletedProcess[str]:
    """The ended command with what it printed.

    :raises AssertionError: it did not end in time; with the stacks of its threads, those of its JVM too
    """
    command = [sys.executable, "-m", "hindcast.cli.main", *arguments]
    environment = {**os.environ, **settings.environment(), "PYTHONFAULTHANDLER": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            printed, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            said = _end(process)
            raise AssertionError(f"{' '.join(arguments)} did not end within {seconds} s. {said}") from None
    return subprocess.CompletedProcess(command, process.returncode, printed, said)


def _end(process: subprocess.Popen[str]) -> str:
    """End a command and all it started; what they said, and where they stood."""
    command = psutil.Process(process.pid)
    family = [command, *command.children(recursive=True)]
    for member in reversed(family):
        with suppress(psutil.NoSuchProcess):
            # On these signals they print the stacks of their threads.
            member.send_signal(signal.SIGQUIT if "java" in member.name() else signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=10)
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    return "\n".join(process.communicate())
