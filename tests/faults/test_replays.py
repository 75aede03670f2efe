"""Replays and verdicts beside the live stream, while its tables are compacted and vacuumed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.check_all_oracles import CheckAllOracles
from support.evidence import COMPACTION, actions, log_files
from support.fleet import SHARDS, Worker
from support.upkeep import maintain_all
from support.warm_fleet import WarmStream

from hindcast.processes import programs
from hindcast.tables.compaction import compact
from hindcast.tables.table_names import ControlTable

REPLAY_SECONDS = 240.0


#: Older than the retention of any table.
AGED_DAYS = 8
DAY_SECONDS = 86_400


def compactions(sink: Path) -> int:
    return sum(
        entry.get("txn", {}).get("appId") == COMPACTION for path in log_files(sink) for entry in actions(path)
    )


def age(sink: Path) -> list[Path]:
    """Make the files that were taken out of a table so far, and one that no commit names, older than its
    retention; return them.
    """
    shift_ms = AGED_DAYS * DAY_SECONDS * 1000
    aged = [sink / "left-by-a-dead-worker.parquet"]
    aged[0].write_bytes(b"PAR1")
    for path in log_files(sink):
        entries = actions(path)
        for entry in entries:
            if "remove" in entry:
                entry["remove"]["deletionTimestamp"] -= shift_ms
                aged.append(sink / entry["remove"]["path"])
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    for file in aged:
        at = file.stat().st_mtime - AGED_DAYS * DAY_SECONDS
        os.utime(file, (at, at))
    return aged


@pytest.mark.row("F28")
def test_a_verdict_during_compaction_and_vacuum(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int, quick: bool
) -> None:
    """A verdict reads one version of the sink: batches that land, files that are compacted, and old ones that
    are deleted make no difference. What the retention protects stays: the files of that version, and of a
    batch that is not committed yet.
    """
    sink = Path(stream.settings.table("sinks", stream.name))
    for _ in range(2 if quick else 4):
        stream.send_more(150)
        stream.wait_read()
    stream.pause()
    compact(DeltaTable(sink), {})
    aged = age(sink)
    assert len(aged) > 1, "files were taken out of the table"
    under_way = sink / "of-a-batch-under-way.parquet"
    under_way.write_bytes(b"PAR1")
    stream.want()
    stream.send_more(150)
    stream.wait_read()
    arguments = ["judge", "--pipeline", stream.name, "--all"]
    command = programs.command("replay", *arguments)
    env = {**os.environ, **stream.settings.environment()}
    before, deleted, most_files = compactions(sink), 0, 0
    with (stream.settings.home / "replay.log").open("wb") as log:
        replay = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log)
        try:
            deadline = time.monotonic() + REPLAY_SECONDS
            while replay.poll() is None:
                assert time.monotonic() < deadline, "the replay has not ended"
                stream.send_more(20)
                done = {row["table"]: row for row in maintain_all(stream.settings)}
                of_sink = done[f"sinks/{stream.name}"]
                deleted += of_sink["files_deleted"]
                most_files = max(most_files, of_sink["files_before"])
            printed = replay.communicate()[0].decode()
        finally:
            replay.kill()
            replay.wait()
    assert replay.returncode == 0, (stream.settings.home / "replay.log").read_text()[-2000:]
    verdict = json.loads(printed.splitlines()[-1])
    assert verdict["unexplained"] == 0
    assert verdict["rows_compared"] > 0
    assert verdict["passed"]
    if stream.shape.upserts:
        assert most_files <= SHARDS, (
            "a commit that replaces rows joins the files that it touches, so nothing is left to compact"
        )
    else:
        assert compactions(sink) > before, "files were compacted meanwhile"
    assert deleted >= len(aged)
    assert not [path for path in aged if path.exists()], "old files were deleted meanwhile"
    assert under_way.exists(), "a young file that no commit names is left alone"
    prove(stream)
    (row,) = stream.fleet.rows(ControlTable.VERDICTS, ("pipeline", "=", stream.name))
    assert row["run_id"] == verdict["run_id"]
