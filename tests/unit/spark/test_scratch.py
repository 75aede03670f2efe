"""Spark's own files are kept below the home, and those of a process that was killed are removed by the next
one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hindcast.settings import Settings, project_root
from hindcast.spark import scratch

CLAIM = """
import sys, signal
from pathlib import Path
from hindcast.spark import scratch
folder = scratch.claim(Path(sys.argv[1]))
(folder / "blocks").mkdir()
print(folder, flush=True)
signal.pause()
"""


def other_process(home: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has claimed a folder and lives."""
    env = {"PYTHONPATH": str(project_root() / "include")}
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(home)], env=env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_and_a_living_ones_stays(settings: Settings) -> None:
    """The next claim removes what kill -9 left, and nothing that is in use."""
    killed, left = other_process(settings.home)
    killed.kill()
    killed.wait()
    alive, in_use = other_process(settings.home)
    try:
        assert not left.exists()
        mine = scratch.claim(settings.home)
        assert mine.is_dir()
        assert (in_use / "blocks").is_dir()
        assert len(list(mine.parent.iterdir())) == 4, "two folders with their locks"
    finally:
        alive.send_signal(signal.SIGKILL)
        alive.wait()
        for process in (killed, alive):
            assert process.stdout is not None
            process.stdout.close()


def test_two_claims_of_one_process_are_two_folders(settings: Settings) -> None:
    """A second session of the process has files of its own."""
    first, second = scratch.claim(settings.home), scratch.claim(settings.home)
    assert first != second
    assert first.is_dir()
    assert second.is_dir()


def test_a_cluster_s_shared_folder_is_beside_the_checkpoints(
    settings_factory: Callable[..., Settings],
) -> None:
    """Below the home, below the checkpoints' URL where they have one, or where a setting says."""
    at_home = settings_factory()
    assert at_home.scratch() == f"{at_home.home}/hindcast-scratch"
    assert (
        settings_factory(checkpoints_url="hdfs://store/points/").scratch()
        == "hdfs://store/points/hindcast-scratch"
    )
    assert (
        settings_factory(checkpoints_url="s3://store/points", scratch_url="/mnt/shared/").scratch()
        == "/mnt/shared"
    )
