"""Stand-ins for the programs of ``hindcast.apps``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hindcast.processes import programs


def take_programs_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``NAME.py`` of this folder, which is made, started in the place of each program."""
    folder.mkdir()

    def command(name: str, *arguments: str) -> list[str]:
        return [sys.executable, str(folder / f"{name}.py"), *arguments]

    monkeypatch.setattr(programs, "command", command)
