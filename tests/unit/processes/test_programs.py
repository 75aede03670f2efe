"""The programs that run Spark are started as modules."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hindcast.processes import programs


@pytest.mark.parametrize("name", ["archive", "consume", "replay", "versions"])
def test_a_program_starts_from_any_folder(tmp_path: Path, name: str) -> None:
    """A file in the working directory takes the place of no library."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')\n")
    command = programs.command(name, "--help")
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.startswith("usage:")
