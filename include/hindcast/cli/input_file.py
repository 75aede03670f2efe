"""Read the file that a command is given, or stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from hindcast.errors import BadInputError


def content_of(file: Path) -> bytes:
    """The content of a file; of stdin if its name is ``-``.

    :raises BadInputError: if it cannot be read
    """
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read()
        return file.read_bytes()
    except OSError as error:
        problem = f"{file} cannot be read: {error.strerror}"
        raise BadInputError(problem=problem, cure="Name another file, or - for stdin.") from error
