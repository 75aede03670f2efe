"""A worker whose lease store, sink or wall clock fails as ``FAULTS`` says. Run as a program, in the place of ``spark_apps/consume.py``.

``FAULTS`` is JSON: ``{"seed": 1, "lease": {...}, "sink": {...}, "wall_hours": 1}``. For a store, ``before`` is the share of commits
that fail unwritten, ``after`` of those that are written and then fail, ``slow_seconds`` the longest wait before a commit; ``times`` ends
it after so many failures, ``file`` makes it begin once that file is there. The store behind it is the real one. ``{"cold": true}``
is a worker that rehearses nothing.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from hindcast import clock
from hindcast.settings import project_root
from hindcast.stream import worker

FAULTS = "FAULTS"
#: The stores whose commits fail, by what stands in their tables' addresses.
FOLDERS = {"lease": "/control/leases/", "sink": "/sinks/"}
#: Begins the line of each failure in the worker's log.
BROKEN = "The test broke the store:"


@dataclass
class Failing:
    """A commit that fails by chance."""

    commit: Callable[..., Any]
    rng: random.Random
    before: float = 0.0
    after: float = 0.0
    slow_seconds: float = 0.0
    times: int = 1_000_000_000
    file: str = ""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.file and not Path(self.file).exists():
            return self.commit(*arguments, **named)
        time.sleep(self.rng.uniform(0.0, self.slow_seconds))  # the store is slow
        self._perhaps(self.before, "nothing was written")
        done = self.commit(*arguments, **named)
        self._perhaps(self.after, "it was written")
        return done

    def _perhaps(self, share: float, truth: str) -> None:
        if self.times > 0 and self.rng.random() < share:
            self.times -= 1
            print(f"{BROKEN} {truth}", flush=True)  # noqa: T201 - for the test to find in the log
            raise DeltaError(f"{BROKEN} {truth}")


def arm(faults: dict[str, Any]) -> None:
    """Put the faults in the way of the real calls."""
    rng = random.Random(faults.get("seed", 0))
    commit_really = DeltaTable.create_write_transaction
    failing = {folder: Failing(commit_really, rng, **faults[store]) for store, folder in FOLDERS.items() if store in faults}

    def commit(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        by = next((by for folder, by in failing.items() if folder in table.table_uri), commit_really)
        by(table, *arguments, **named)

    DeltaTable.create_write_transaction = commit  # type: ignore[method-assign]
    if "wall_hours" in faults:
        real = clock.SystemClock.now

        def ahead(self: clock.SystemClock) -> datetime:
            return real(self) + timedelta(hours=faults["wall_hours"])

        clock.SystemClock.now = ahead  # type: ignore[method-assign]
    if faults.get("cold"):
        worker.rehearse = lambda *_: None


if __name__ == "__main__":
    arm(json.loads(os.environ[FAULTS]))
    runpy.run_path(str(project_root() / "spark_apps" / "consume.py"), run_name="__main__")
