"""What a benchmark of the control tables measures: figures with their bounds, and reads by a process that
knows nothing.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One measured figure and the bound that it is held to."""

    name: str
    value: float
    bound: float | None = None
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.bound is None or self.value <= self.bound


_COLD = """
import os, sys, time
import pyarrow.dataset, pyarrow.parquet  # else the first read would import them
from hindcast.leases.delta_store import LeaseTable
from hindcast.tables.table_names import ControlTable
from hindcast.tables.control_tables import ControlTables
from hindcast.settings import Settings
settings = Settings(home=sys.argv[1])
read = LeaseTable(settings).leases if sys.argv[2] == "leases" else lambda: ControlTables(settings).rows(ControlTable(sys.argv[2]))
started = time.perf_counter()
read()
print(time.perf_counter() - started, flush=True)
os._exit(0)
"""


def cold_reads(homes: dict[str, Path], table: str, rounds: int = 25) -> dict[str, list[float]]:
    """Seconds of the first read in a new process, imports left out; the homes take turns."""
    found: dict[str, list[float]] = {name: [] for name in homes}
    for _ in range(rounds):
        for name, home in homes.items():
            done = subprocess.run(
                [sys.executable, "-c", _COLD, str(home), table], capture_output=True, text=True, check=True
            )
            found[name].append(float(done.stdout))
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least this share of the values does not exceed."""
    return sorted(values)[max(math.ceil(len(values) * share) - 1, 0)]


def print_figures(figures: Iterable[Figure]) -> int:
    """Print each figure as it comes, and all of them as one JSON object in the last line.

    :returns: the exit code: 0 if every figure holds
    """
    found: dict[str, float] = {}
    passed = True
    for figure in figures:
        bound = ""
        if figure.bound is not None:
            bound = f"at most {figure.bound:g}  {'ok' if figure.holds else 'MISSED'}"
        print(f"{figure.name:48} {figure.value:12.2f} {figure.unit:6} {bound}", flush=True)  # noqa: T201 -- the result
        passed &= figure.holds
        found[figure.name] = round(figure.value, 3)
    print(json.dumps({"passed": passed, **found}))  # noqa: T201 -- the result
    return 0 if passed else 1


def expect(what: bool, sentence: str) -> None:
    """:raises SystemExit: where a check's result is wrong, so its figures mean nothing"""
    if not what:
        raise SystemExit(f"The result is wrong; it should be that {sentence}.")
