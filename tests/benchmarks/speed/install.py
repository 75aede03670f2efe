"""Install what only the speed benchmark needs, once: the client that sends the load, and Flink with its job."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.speed.sides import bench_folder

from hindcast.settings import Settings

_HERE = Path(__file__).parent
_JOB = _HERE / "flink" / "Windows.java"
_INPUTS = (_HERE / "requirements.txt", _HERE / "flink" / "pom.xml", _JOB)


def install(settings: Settings) -> None:
    """Fill the folder of the benchmark, unless it was filled from the same files.

    :raises SystemExit: if a program is missing or fails
    """
    folder = bench_folder(settings)
    stamp = folder / ".installed"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in _INPUTS)).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    print(f"Installing the client and Flink into {folder}: a minute or two, once ...", file=sys.stderr)  # noqa: T201 - progress
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(folder / "bin" / "pip"), "install", "-q", "--require-hashes", "-r", str(_INPUTS[0])])
    goal = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-f", str(_INPUTS[1])]
    _run([*goal, f"-DoutputDirectory={folder / 'flink'}"])
    _run(["javac", "-nowarn", "-cp", f"{folder / 'flink'}/*", "-d", str(folder / "classes"), str(_JOB)])
    stamp.write_text(digest)


def _run(arguments: list[str]) -> None:
    try:
        subprocess.run(arguments, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{arguments[0]} failed: {error}") from error
