"""``make demo-reprocess``: version 2 of a pipeline beside version 1 under load, proved, promoted and backed out, by the commands that a
person would give. Its last line of stdout is one JSON object.
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
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from hindcast import catalog
from hindcast.control.desired import DesiredState, DesiredStates
from hindcast.control.lease_table import LeaseTable
from hindcast.control.ledger import Ledger, LedgerRow
from hindcast.control.standing import BesideState
from hindcast.control.tables import ControlTables
from hindcast.control.versions import Versions
from hindcast.errors import HindcastError, ServiceError
from hindcast.local import doctor, stack
from hindcast.local.demo import shard_leases
from hindcast.local.load import Account, account_path, ensure_topic
from hindcast.serving.reading import Reading, read
from hindcast.settings import Settings

PIPELINE, OLD, NEW = "stock_stats", 1, 2
#: A stream's first batches, in a JVM that is warming up, say nothing about its latency.
WARM_UP_SECONDS = 30.0
_WAIT_SECONDS = 600.0
_POLL_SECONDS = 0.5
_TRY_LATER = 75


class Reprocessing:
    """One demo: its settings, and how long it streams before the new version begins."""

    def __init__(self, settings: Settings, seconds: float, rows_per_second: float) -> None:
        self.settings, self.seconds, self.rate = settings, seconds, rows_per_second
        self._began = time.monotonic()

    def say(self, line: str) -> None:
        """One line of progress on stderr."""
        print(f"{time.monotonic() - self._began:5.0f} s  {line}", file=sys.stderr, flush=True)

    def run(self) -> dict[str, Any]:
        """Everything, from nothing to the summary."""
        for warning in doctor.require(self.settings):
            self.say(f"{warning.what}: {warning.found}. {warning.cure}")
        self.settings = stack.up(self.settings, with_airflow=False, topic=None, say=self.say)
        self._want_running()
        stack.start_workers(self.settings, self.settings.workers, self.say)
        self._until(self._owned, "the workers to take all shards")
        topic = catalog.load(self.settings.pipelines_dir)[PIPELINE].source.name
        stack.start_load(self.settings, topic, self.rate, 1)
        self.say(f"Version {OLD} streams {self.rate:g} rows a second for {self.seconds:g} seconds.")
        time.sleep(self.seconds)  # the past that version 2 has to catch up with is made at the load's pace
        alone = (datetime.now(UTC), self._latency(WARM_UP_SECONDS))
        self._hindcast(
            "reprocess", PIPELINE, "--version", str(NEW), "--from", "earliest", "--new-table", "--by", "demo"
        )
        began = time.monotonic()
        self._until(self._caught_up, f"version {NEW} to catch up")
        caught_up_seconds = time.monotonic() - began
        backlog = sum(row.input_rows or 0 for row in self._batches(NEW))
        beside = self._latency(since=alone[0])
        self.say(f"Version {NEW} has read {backlog} rows in {caught_up_seconds:.1f} s.")
        self._until(self._judged, "a verdict on it")
        compared = self._hindcast("versions", "compare", PIPELINE)
        before = self._windows(read(PIPELINE, self.settings))
        promoted = self._hindcast("promote", PIPELINE, "--version", str(NEW), "--by", "demo", "--yes")
        reading = read(PIPELINE, self.settings)
        after = self._windows(reading)
        back = self._hindcast("back-out", PIPELINE, "--by", "demo", "--yes")
        returned = self._windows(read(PIPELINE, self.settings))
        stack.stop_loads(self.settings)
        sent = Account.read(account_path(self.settings, topic)).sent
        missing = {window for window, _ in before} - {window for window, _ in after}
        gone = {window for window, _ in before} - {window for window, _ in returned}
        return {
            "pipeline": PIPELINE,
            "rows_sent": sent,
            "rows": {
                str(version): sum(row.input_rows or 0 for row in self._batches(version))
                for version in (OLD, NEW)
            },
            "windows": {
                str(OLD): len({window for window, _ in before}),
                str(NEW): len({window for window, _ in after}),
            },
            "active_after_promotion": reading.pipeline.version,
            "compared_windows": compared["windows"],
            "differing_rows": {name: compared[name] for name in ("changed", "only_old", "only_new")},
            "differing_by_cause": compared["causes"],
            "differing_columns": compared["by_column"],
            "columns_new": compared["columns_only_new"],
            "seam_missing": len(missing | gone),
            "seam_duplicated": sum(count > 1 for count in (after | returned).values()),
            "catch_up_rows": backlog,
            "catch_up_seconds": round(caught_up_seconds, 1),
            "catch_up_speed": round(backlog / caught_up_seconds / self.rate, 1),
            "latency_alone_seconds": alone[1],
            "latency_beside_seconds": beside,
            "promote_seconds": promoted["seconds"],
            "promote_swap_seconds": promoted["swap_seconds"],
            "back_out_seconds": back["seconds"],
        }

    def _want_running(self) -> None:
        states, found = DesiredStates(LeaseTable(self.settings)), catalog.load(self.settings.pipelines_dir)
        for topic in found[PIPELINE].topics:
            ensure_topic(self.settings.bootstrap_servers, topic.name)
        for pipeline in found.values():
            states.declare(pipeline, self.settings.workers)
            states.set_state(
                pipeline.name, DesiredState.RUNNING if pipeline.name == PIPELINE else DesiredState.PAUSED
            )

    def _owned(self) -> bool:
        shards = shard_leases(LeaseTable(self.settings).leases(), PIPELINE)
        owners = {lease.lease_owner for lease in shards}
        return bool(shards) and "" not in owners and len(owners) >= min(self.settings.workers, len(shards))

    def _caught_up(self) -> bool:
        """Read here, and not by the command: a new Python twice a second would take the time that the versions need."""
        beside = Versions(LeaseTable(self.settings)).of(PIPELINE).beside
        return beside is not None and beside.state is BesideState.LIVE

    def _judged(self) -> bool:
        """Whether a verdict could be had; the stream files what is late some seconds after its batches."""
        done = self._command("validate", PIPELINE, "--version", str(NEW), "--all")
        if done.returncode == _TRY_LATER:  # what it is to judge is not filed yet
            return False
        if done.returncode:
            raise ServiceError(
                service="hindcast validate",
                problem=f"failed: {done.stderr.strip()[-500:]}",
                log=self.settings.logs_dir,
            )
        self.say("Its verdict passed.")
        return True

    def _batches(self, version: int) -> list[LedgerRow]:
        return Ledger(ControlTables(self.settings)).batches(PIPELINE, version)

    def _latency(self, skip_seconds: float = 0.0, since: datetime | None = None) -> float | None:
        """Median seconds from a record's arrival to its batch's commit: half of the time between two batches, and the batch itself."""
        found = []
        rows = self._batches(OLD)
        first = min((row.committed_at for row in rows if row.input_rows), default=datetime.now(UTC))
        for before, row in pairwise(rows):
            known = before.shard == row.shard and before.started_at and row.started_at and row.input_rows
            if (
                not known
                or (row.committed_at - first).total_seconds() < skip_seconds
                or (since and row.committed_at < since)
            ):
                continue
            assert before.started_at is not None and row.started_at is not None
            wait = (row.started_at - before.started_at).total_seconds() / 2
            found.append(wait + (row.committed_at - row.started_at).total_seconds())
        return round(statistics.median(found), 3) if found else None

    def _windows(self, reading: Reading) -> Counter[Any]:
        return Counter(
            (row["window"]["end"], row["ticker"])
            for row in reading.arrow().select(["window", "ticker"]).to_pylist()
        )

    def _hindcast(self, *arguments: str) -> Any:
        done = self._command(*arguments)
        if done.returncode:
            problem = f"ended with {done.returncode}: {done.stderr.strip()[-500:]}"
            raise ServiceError(
                service=f"hindcast {' '.join(arguments)}", problem=problem, log=self.settings.logs_dir
            )
        return json.loads(done.stdout)

    def _command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.say(f"$ hindcast {' '.join(arguments)}")
        command = [sys.executable, "-m", "hindcast.cli.app", *arguments, "--output", "json"]
        environment = {**os.environ, **self.settings.environment()}
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not done():
            if time.monotonic() >= deadline:
                problem = f"was waiting for {what} in vain. `hindcast events` may say why"
                raise ServiceError(service="The demo", problem=problem, log=self.settings.logs_dir)
            time.sleep(_POLL_SECONDS)


def failures(summary: dict[str, Any]) -> Iterable[str]:
    """What of it is not as it must be."""
    for name in ("seam_missing", "seam_duplicated"):
        if summary[name]:
            yield f"{name} is {summary[name]}"
    if summary["active_after_promotion"] != NEW:
        yield f"readers had version {summary['active_after_promotion']} after the promotion"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="stop everything at the end")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rows-per-second", type=float, default=2000.0)
    asked = parser.parse_args()
    demo = Reprocessing(Settings(), asked.seconds, asked.rows_per_second)
    try:
        summary = demo.run()
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
