"""``make demo-reprocess``: version 2 of a pipeline runs under load while version 1 is active. It is proved,
promoted and backed out, by the commands that a person would give. The last line of stdout is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from hindcast.errors import HindcastError, ServiceError
from hindcast.installation import Installation
from hindcast.serving.reading import Reading, read
from hindcast.settings import Settings
from hindcast.shards.pipeline_row import InactiveState
from hindcast.shards.version_changes import Versions
from hindcast.tables.ledger import LedgerRow
from hindcast_sandbox import doctor, stack
from hindcast_sandbox.demo import all_owned, run_only, shard_leases
from hindcast_sandbox.load import LoadReport, report_path

PIPELINE = "stock_stats"
OLD = 1
NEW = 2
#: A stream's first batches, in a JVM that is warming up, say nothing about its latency.
WARM_UP_SECONDS = 30.0
_WAIT_SECONDS = 600.0
_POLL_SECONDS = 0.5
_TRY_LATER = 75
_SEED = 1


@dataclass
class Reprocessing:
    """One demo: where it runs, and how long it streams before the new version begins."""

    installation: Installation
    seconds: float
    rows_per_second: float
    began: float = field(default_factory=time.monotonic)

    @property
    def settings(self) -> Settings:
        return self.installation.settings

    def say(self, line: str) -> None:
        """One line of progress on stderr."""
        seconds = time.monotonic() - self.began
        print(f"{seconds:5.0f} s  {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class CatchUp:
    """What version 2 read until it had caught up, how long that took, and version 1's latency meanwhile."""

    rows: int
    seconds: float
    latency_beside_seconds: float | None


def run(demo: Reprocessing) -> dict[str, Any]:
    """Everything, from nothing to the summary."""
    topic = _start(demo)
    # The past that version 2 has to catch up with is made at the load's pace.
    time.sleep(demo.seconds)
    began_at = datetime.now(UTC)
    latency_alone = latency(_batches(demo, OLD), skip_seconds=WARM_UP_SECONDS)
    caught_up = _catch_up(demo, began_at)
    _until(demo, lambda: _judged(demo), "a verdict on it")
    compared = _hindcast(demo, "versions", "compare", PIPELINE)
    before = _windows(read(PIPELINE, demo.settings))
    promoted = _hindcast(demo, "promote", PIPELINE, "--version", str(NEW), "--by", "demo", "--yes")
    reading = read(PIPELINE, demo.settings)
    after = _windows(reading)
    back = _hindcast(demo, "back-out", PIPELINE, "--by", "demo", "--yes")
    returned = _windows(read(PIPELINE, demo.settings))
    stack.stop_loads(demo.settings)
    report = LoadReport.read(report_path(demo.settings, topic))
    speed = caught_up.rows / caught_up.seconds / demo.rows_per_second
    return {
        "pipeline": PIPELINE,
        "rows_sent": report.sent,
        "rows": {str(version): _rows_read(demo, version) for version in (OLD, NEW)},
        "windows": {str(OLD): len(_ends(before)), str(NEW): len(_ends(after))},
        "active_after_promotion": reading.pipeline.version,
        "compared_windows": compared["windows"],
        "differing_rows": {name: compared[name] for name in ("changed", "only_old", "only_new")},
        "differing_by_cause": compared["causes"],
        "differing_columns": compared["by_column"],
        "columns_new": compared["columns_only_new"],
        "seam_missing": _missing(before, after, returned),
        "seam_duplicated": _duplicated(after, returned),
        "catch_up_rows": caught_up.rows,
        "catch_up_seconds": round(caught_up.seconds, 1),
        "catch_up_speed": round(speed, 1),
        "latency_alone_seconds": latency_alone,
        "latency_beside_seconds": caught_up.latency_beside_seconds,
        "promote_seconds": promoted["seconds"],
        "promote_swap_seconds": promoted["swap_seconds"],
        "back_out_seconds": back["seconds"],
    }


def _start(demo: Reprocessing) -> str:
    """Start the services, the workers of version 1 and the load; returns the topic."""
    for warning in doctor.require(demo.settings):
        demo.say(f"{warning.what}: {warning.found}. {warning.cure}")
    demo.installation = Installation(stack.up(demo.settings, with_airflow=False, topic=None, say=demo.say))
    pipeline = demo.installation.catalog[PIPELINE]
    run_only(demo.installation, pipeline)
    stack.start_workers(demo.installation, demo.settings.workers, demo.say)
    _until(demo, lambda: _owned(demo), "the workers to take all shards")
    topic = pipeline.source.name
    stack.start_load(demo.settings, topic, demo.rows_per_second, _SEED)
    demo.say(f"Version {OLD} streams {demo.rows_per_second:g} rows a second for {demo.seconds:g} seconds.")
    return topic


def _catch_up(demo: Reprocessing, began_at: datetime) -> CatchUp:
    """Begin version 2 and wait until it has caught up."""
    _hindcast(
        demo,
        "reprocess",
        PIPELINE,
        "--version",
        str(NEW),
        "--from",
        "earliest",
        "--new-table",
        "--by",
        "demo",
    )
    began = time.monotonic()
    _until(demo, lambda: _caught_up(demo), f"version {NEW} to catch up")
    seconds = time.monotonic() - began
    rows = _rows_read(demo, NEW)
    latency_beside = latency(_batches(demo, OLD), since=began_at)
    demo.say(f"Version {NEW} has read {rows} rows in {seconds:.1f} s.")
    return CatchUp(rows, seconds, latency_beside)


def _owned(demo: Reprocessing) -> bool:
    shards = shard_leases(demo.installation.lease_table.leases(), PIPELINE)
    expected = max(len(shards), 1)
    return all_owned(shards, expected, demo.settings.workers)


def _caught_up(demo: Reprocessing) -> bool:
    """Read from the table and not by the command: a new Python twice a second would take the versions'
    processor time.
    """
    beside = Versions(demo.installation.lease_table).of(PIPELINE).beside
    return beside is not None and beside.state is InactiveState.LIVE


def _judged(demo: Reprocessing) -> bool:
    """Whether the verdict passed; False while the stream has not filed its late rows, some seconds after
    its batches.

    :raises ServiceError: if the verdict failed
    """
    done = _command(demo, "validate", PIPELINE, "--version", str(NEW), "--all")
    if done.returncode == _TRY_LATER:
        return False
    if done.returncode:
        problem = f"failed: {_end_of(done.stderr)}"
        raise ServiceError(service="hindcast validate", problem=problem, log=demo.settings.logs_dir)
    demo.say("Its verdict passed.")
    return True


def _batches(demo: Reprocessing, version: int) -> list[LedgerRow]:
    return demo.installation.ledger.batches(PIPELINE, version)


def _rows_read(demo: Reprocessing, version: int) -> int:
    return sum(row.input_rows or 0 for row in _batches(demo, version))


def latency(rows: list[LedgerRow], skip_seconds: float = 0.0, since: datetime | None = None) -> float | None:
    """Median seconds from a record's arrival to its batch's commit; None without batches.

    A record waits for half of the time between the starts of two batches, in the mean, and then for its
    batch.

    :param rows: the batches in the order (shard, batch)
    :param skip_seconds: leave out the batches of so long after the first commit
    :param since: leave out the batches that were committed before it
    """
    filled = [row.committed_at for row in rows if row.input_rows]
    if not filled:
        return None
    first_commit = min(filled)
    found = []
    for before, row in pairwise(rows):
        if before.shard != row.shard or not row.input_rows:
            continue
        if before.started_at is None or row.started_at is None:
            continue
        if (row.committed_at - first_commit).total_seconds() < skip_seconds:
            continue
        if since is not None and row.committed_at < since:
            continue
        wait_seconds = (row.started_at - before.started_at).total_seconds() / 2
        batch_seconds = (row.committed_at - row.started_at).total_seconds()
        found.append(wait_seconds + batch_seconds)
    if not found:
        return None
    return round(statistics.median(found), 3)


def _windows(reading: Reading) -> Counter[Any]:
    """How many rows readers get of each (end of the window, ticker)."""
    rows = reading.arrow().select(["window", "ticker"]).to_pylist()
    return Counter((row["window"]["end"], row["ticker"]) for row in rows)


def _ends(windows: Iterable[tuple[Any, Any]]) -> set[Any]:
    return {end for end, _ in windows}


def _missing(before: Counter[Any], after: Counter[Any], returned: Counter[Any]) -> int:
    """How many windows readers lost by the promotion or by the back-out."""
    lost = _ends(before) - _ends(after)
    gone = _ends(before) - _ends(returned)
    return len(lost | gone)


def _duplicated(after: Counter[Any], returned: Counter[Any]) -> int:
    most = after | returned
    return sum(count > 1 for count in most.values())


def _hindcast(demo: Reprocessing, *arguments: str) -> Any:
    """The JSON that a command prints.

    :raises ServiceError: if it fails
    """
    done = _command(demo, *arguments)
    if done.returncode:
        problem = f"ended with {done.returncode}: {_end_of(done.stderr)}"
        service = f"hindcast {' '.join(arguments)}"
        raise ServiceError(service=service, problem=problem, log=demo.settings.logs_dir)
    return json.loads(done.stdout)


def _end_of(text: str) -> str:
    return text.strip()[-500:]


def _command(demo: Reprocessing, *arguments: str) -> subprocess.CompletedProcess[str]:
    demo.say(f"$ hindcast {' '.join(arguments)}")
    command = [sys.executable, "-m", "hindcast.cli.main", *arguments, "--output", "json"]
    environment = os.environ | demo.settings.environment()
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def _until(demo: Reprocessing, done: Callable[[], bool], what: str) -> None:
    """:raises ServiceError: if it is not done in time"""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not done():
        if time.monotonic() >= deadline:
            problem = f"was waiting for {what} in vain. `hindcast events` may say why"
            raise ServiceError(service="The demo", problem=problem, log=demo.settings.logs_dir)
        time.sleep(_POLL_SECONDS)


def failures(summary: dict[str, Any]) -> Iterable[str]:
    """What in the summary is not as it must be."""
    for name in ("seam_missing", "seam_duplicated"):
        if summary[name]:
            yield f"{name} is {summary[name]}"
    active = summary["active_after_promotion"]
    if active != NEW:
        yield f"readers had version {active} after the promotion"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="stop everything at the end")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rows-per-second", type=float, default=2000.0)
    asked = parser.parse_args()
    demo = Reprocessing(Installation(), asked.seconds, asked.rows_per_second)
    try:
        summary = run(demo)
    except HindcastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        if asked.once:
            stack.down(demo.settings, say=demo.say)
    wrong = list(failures(summary))
    for line in wrong:
        demo.say(line)
    print(json.dumps(summary), flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
