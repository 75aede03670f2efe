"""Replays and verdicts beside the live stream, while its tables are compacted and vacuumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from fleet import Stream, Worker
from proof import Prove

from hindcast.control.maintenance import maintain
from hindcast.control.schema import ControlTable
from hindcast.settings import project_root

REPLAY_SECONDS = 240.0


@pytest.mark.row("F28")
def test_a_verdict_during_compaction_and_vacuum(stream: Stream, pair: tuple[Worker, Worker], prove: Prove, seed: int) -> None:
    """A verdict reads one version of the sink: batches that land and files that are compacted meanwhile make no difference."""
    for _ in range(4):
        stream.send_more(150)
        stream.wait_read()
    arguments = ["judge", "--pipeline", stream.name, "--all"]
    command = [sys.executable, str(project_root() / "spark_apps" / "replay.py"), *arguments]
    env = {**os.environ, **stream.settings.environment()}
    with (stream.settings.home / "replay.log").open("wb") as log:
        replay = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log)
        try:
            compactions = 0
            deadline = time.monotonic() + REPLAY_SECONDS
            while replay.poll() is None:
                assert time.monotonic() < deadline, "the replay has not ended"
                stream.send_more(20)
                done = {row["table"]: row for row in maintain(stream.settings)}
                compactions += not done[f"sinks/{stream.name}"]["skipped"]
            printed = replay.communicate()[0].decode()
        finally:
            replay.kill()
            replay.wait()
    assert replay.returncode == 0, (stream.settings.home / "replay.log").read_text()[-2000:]
    verdict = json.loads(printed.splitlines()[-1])
    assert verdict["unexplained"] == 0
    assert verdict["rows_compared"] > 0
    assert verdict["passed"]
    assert compactions > 0
    prove(stream)
    (row,) = stream.fleet.rows(ControlTable.VERDICTS, ("pipeline", "=", stream.name))
    assert row["run_id"] == verdict["run_id"]
