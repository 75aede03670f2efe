"""What the pipeline is to reach beside the other sides, and whether a record says so."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.speed.jobs import COPY, WINDOWS
from benchmarks.speed.markdown import line, spread
from benchmarks.speed.record import OF_CONSUMER, OURS, Record


@dataclass(frozen=True)
class Goal:
    """A bound on a figure of ours, or on ours over a side's. ``rate``: it is asked at this rate alone, in records
    a second. ``job``: it is asked of this job alone.
    """

    what: str
    figure: str
    bound: float
    at_least: bool = False
    side: str = ""
    rate: float | None = None
    job: str = ""

    def measured(self, record: Record) -> list[float]:
        """The figure, or the ratio, of each run; none if the record has none."""
        if self.rate not in (None, record.rate) or self.job not in ("", record.job):
            return []
        if self.side and not record.measured([self.figure]):
            return []
        if self.side:
            if self.side not in record.sides:
                return []
            return record.ratios(self.side, self.figure)
        return [run[self.figure] for run in record.sides.get(OURS, ()) if self.figure in run]

    def met(self, found: list[float]) -> bool:
        """Whether the median keeps the bound."""
        keeps = operator.ge if self.at_least else operator.le
        return bool(keeps(statistics.median(found), self.bound))

    @property
    def wanted(self) -> str:
        word = "at least" if self.at_least else "at most"
        return f"{word} {self.bound:g}"


GOALS = (
    Goal("rows a second at once, ours / stock", "burst", 5.0, at_least=True, side="stock"),
    Goal("rows a second at once, ours / tuned", "burst", 3.0, at_least=True, side="tuned"),
    Goal("rows a second at once, ours / no sink", "burst", 0.9, at_least=True, side="no sink"),
    Goal(
        "rows for a CPU-second at once, ours / Kafka's consumer that counts bytes",
        OF_CONSUMER,
        0.2,
        at_least=True,
        job=WINDOWS.name,
    ),
    Goal(
        "rows for a CPU-second at once, ours / Kafka's consumer that counts bytes",
        OF_CONSUMER,
        0.5,
        at_least=True,
        job=COPY.name,
    ),
    Goal("p50 in seconds", "p50", 0.5, rate=10_000.0),
    Goal("p99 in seconds", "p99", 1.5, rate=10_000.0),
    Goal("p50, ours / tuned", "p50", 0.4, side="tuned"),
    Goal("p50, ours / flink", "p50", 1.0, side="flink"),
    Goal("rows for a CPU-second, ours / flink", "rows_per_cpu_second", 0.7, at_least=True, side="flink"),
)


def table_of_goals(record: Record) -> Iterator[str]:
    """The lines of a table in Markdown: each goal of which the record has a figure."""
    yield line(["goal", "wanted", "median, least to greatest", "reached"])
    yield line(["---"] * 4)
    for goal in GOALS:
        found = goal.measured(record)
        if found:
            reached = "yes" if goal.met(found) else "**no**"
            yield line([goal.what, goal.wanted, spread(found), reached])
