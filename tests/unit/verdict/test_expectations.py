"""Great Expectations in whatever process a verdict runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hindcast.settings import project_root

PROGRAM = """
from pathlib import Path
from hindcast.verdict.expectations import _context
_context(Path({home!r}))
print("validated")
"""


def test_a_verdict_in_a_process_without_a_file_goes_on(tmp_path: Path) -> None:
    """Spark Connect, which Great Expectations imports, ends a process whose main module has no file, with
    exit code 0 (``python -c``).
    """
    program = PROGRAM.format(home=str(tmp_path))
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=project_root() / "include",
    )
    assert (run.returncode, run.stdout.strip().splitlines()[-1:]) == (0, ["validated"]), run.stderr
