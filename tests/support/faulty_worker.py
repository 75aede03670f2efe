"""A worker whose stores, wall clock or steps fail once a test says so. Run as a program, in the place of
``hindcast.apps.consume``.

It looks for ``<pid>.json`` in the folder ``FAULTS``, before each commit and each step; a test writes it with
:func:`support.warm_fleet.WarmFleet.arm` and takes it away again. Without it the worker is like any other. The
    stores behind it are the real ones. The file is an object of:

- ``lease``, ``sink``, ``ledger``, ``audit``: a store. ``before`` is the share of its commits that fail
  unwritten, ``after`` of those that are written and then fail, ``slow_seconds`` the longest wait before a
  commit;
- ``seed``: of these chances;
- ``wall_hours``: the wall clock is another one each second, up to so many hours ahead or behind;
- ``crash_at``: ``sink.4@7`` kills the process when it comes to this step for the seventh time; of all that
  are told the same ``token``, a file, only the first one dies.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake.table
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from hindcast import clock
from hindcast.delta.application_log import LocalLog
from hindcast.processes import crash_points
from hindcast.tables import control_tables

FAULTS = "FAULTS"
#: The stores whose commits fail, by what stands in their tables' addresses.
FOLDERS = {
    "/control/leases": "lease",
    "/sinks/": "sink",
    "/control/checkpoints": "ledger",
    "/control/late_rows": "audit",
    "/control/dead_letters": "audit",
}
#: Begins the line of each failure in the worker's log.
BROKEN = "The test broke the store"


class Told:
    """What the worker was told to do wrong, read again once the file has changed."""

    def __init__(self, file: Path) -> None:
        self._file, self._stamp = file, 0
        self._faults: dict[str, Any] = {}
        self.rng = random.Random(0)
        self.reached: Counter[str] = Counter()

    def __call__(self) -> dict[str, Any]:
        try:
            stamp = self._file.stat().st_mtime_ns
            if stamp != self._stamp:
                self._faults = json.loads(self._file.read_text())
                self.rng = random.Random(self._faults.get("seed", 0))
                self.reached.clear()
                self._stamp = stamp
        except FileNotFoundError:
            self._faults, self._stamp = {}, 0
        return self._faults


class Faults:
    """Put in the way of the real calls."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def committed(self, url: str, commit: Callable[[], Any]) -> Any:
        """Make a commit to the table, and fail as it was told."""
        store = next((store for folder, store in FOLDERS.items() if folder in url), "")
        chances = self._told().get(store)
        if not chances:
            return commit()
        time.sleep(self._told.rng.uniform(0.0, chances.get("slow_seconds", 0.0)))  # the store is slow
        self._perhaps(store, chances.get("before", 0.0), "nothing was written")
        done = commit()
        self._perhaps(store, chances.get("after", 0.0), "it was written")
        return done

    def _perhaps(self, store: str, share: float, truth: str) -> None:
        if self._told.rng.random() < share:
            print(f"{BROKEN} {store}: {truth}", flush=True)  # noqa: T201 - for the test to find in the log
            raise DeltaError(f"{BROKEN} {store}: {truth}")

    def reach(self, step: str) -> None:
        """Die at the step that the worker was told."""
        named, _, count = self._told().get("crash_at", "").partition("@")
        if step != named:
            return
        self._told.reached[step] += 1
        if self._told.reached[step] < int(count or 1):
            return
        try:
            os.close(os.open(self._told()["token"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def wall(self, real: datetime) -> datetime:
        """The wall clock's time: another jump each second."""
        hours = self._told().get("wall_hours")
        if hours is None:
            return real
        jump = random.Random(f"{self._told().get('seed', 0)} {int(time.monotonic())}").uniform(-hours, hours)
        return real + timedelta(hours=jump)


def arm(faults: Faults) -> None:
    """Put the faults in the way of the real calls. Before the worker's modules are loaded: they take some of
    these by name.
    """
    crash_points.reach = faults.reach
    really = DeltaTable.create_write_transaction
    merge_really, execute_really = DeltaTable.merge, deltalake.table.TableMerger.execute
    write_really = control_tables.write_deltalake
    put_really = LocalLog._put

    def put(log: LocalLog, *arguments: Any) -> None:
        faults.committed(log.url, lambda: put_really(log, *arguments))

    def transaction(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        faults.committed(table.table_uri, lambda: really(table, *arguments, **named))

    def merge(table: DeltaTable, *arguments: Any, **named: Any) -> Any:
        merger = merge_really(table, *arguments, **named)
        merger.of = table.table_uri  # type: ignore[attr-defined]
        return merger

    def execute(merger: Any) -> Any:
        return faults.committed(merger.of, lambda: execute_really(merger))

    def write(table: Any, *arguments: Any, **named: Any) -> Any:
        url = table.table_uri if isinstance(table, DeltaTable) else str(table)
        return faults.committed(url, lambda: write_really(table, *arguments, **named))

    DeltaTable.create_write_transaction = transaction  # type: ignore[method-assign]
    DeltaTable.merge = merge  # type: ignore[method-assign]
    deltalake.table.TableMerger.execute = execute  # type: ignore[method-assign]
    control_tables.write_deltalake = write
    LocalLog._put = put  # type: ignore[method-assign]
    now_really = clock.SystemClock.now
    clock.SystemClock.now = lambda self: faults.wall(now_really(self))  # type: ignore[method-assign]


if __name__ == "__main__":
    arm(Faults(Told(Path(os.environ[FAULTS]) / f"{os.getpid()}.json")))
    runpy.run_module("hindcast.apps.consume", run_name="__main__")
