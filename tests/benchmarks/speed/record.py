"""What the runs of a benchmark have measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.speed.jobs import WINDOWS

OURS = "hindcast"

#: Figure of a run -> its heading, and how it is written.
FIGURES = {
    "p50": ("p50, s", "{:.2f}"),
    "p99": ("p99, s", "{:.2f}"),
    "rows_per_cpu_second": ("rows for a CPU-second", "{:,.0f}"),
    "cpu": ("cores", "{:.2f}"),
    "memory": ("MiB in the end", "{:,.0f}"),
    "burst": ("rows a second at once", "{:,.0f}"),
    "burst_per_cpu_second": ("for a CPU-second", "{:,.0f}"),
}
#: Of ours alone: what it reads at once for a CPU-second, over what Kafka's own consumer reads.
OF_CONSUMER = "of_consumer"
#: Those of which a ratio of ours to another side's is given.
COMPARED = ("p50", "p99", "rows_per_cpu_second", "burst")


@dataclass(frozen=True)
class Record:
    """The runs on one load. ``sides``: of each side its runs, by the number of their pair; a run is figure ->
    value. Times are in seconds, ``rate`` in records a second.
    """

    rate: float
    warm_up: float
    seconds: float
    commit: str
    dirty: bool
    on: str
    cpus: int
    sides: Mapping[str, Sequence[Mapping[str, float]]]
    job: str = WINDOWS.name

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def measured(self, names: Iterable[str]) -> list[str]:
        """Those of the figures that every run has: a load need not have a burst."""
        runs = [run for of_side in self.sides.values() for run in of_side]
        return [name for name in names if all(name in run for run in runs)]

    def median(self, side: str, figure: str) -> float:
        return statistics.median(run[figure] for run in self.sides[side])

    def ratios(self, side: str, figure: str) -> list[float]:
        """Ours over the other side's, pair by pair; none for ours."""
        if side == OURS or OURS not in self.sides:
            return []
        pairs = zip(self.sides[OURS], self.sides[side], strict=False)
        return [ours[figure] / theirs[figure] for ours, theirs in pairs]


def record_of(results: Mapping[str, Sequence[Mapping[str, Any]]], **about: Any) -> Record:
    """The record of what runs have measured."""
    sides = {}
    for side, runs in results.items():
        sides[side] = [
            {name: round(float(run[name]), 4) for name in (*FIGURES, OF_CONSUMER) if name in run}
            for run in runs
        ]
    return Record(sides=sides, **about)
