"""The programs that run Spark, as commands. Each is a module of ``hindcast.apps``."""

from __future__ import annotations

import sys


def command(name: str, *arguments: str) -> list[str]:
    """The command that starts the program with these arguments, on this Python.

    :param name: of the module, e.g. ``"replay"``
    """
    # -P: a file in the working directory takes the place of no library.
    return [sys.executable, "-P", "-m", f"hindcast.apps.{name}", *arguments]
