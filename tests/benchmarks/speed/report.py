"""What the runs of a benchmark come to: a table, pictures, and the figures of ``docs/performance.md``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[3]
RECORDS = Path(__file__).with_name("records")
PAGE = ROOT / "docs" / "performance.md"
OURS = "hindcast"
#: Between these lines of the page are the figures.
BEGIN, END = "<!-- figures: make bench RECORD=1 -->", "<!-- end of the figures -->"

#: Figure of a run -> its heading, and how it is written.
FIGURES = {
    "p50": ("p50, s", "{:.2f}"),
    "p99": ("p99, s", "{:.2f}"),
    "rows_per_cpu_second": ("rows for a CPU-second", "{:,.0f}"),
    "cpu": ("cores", "{:.2f}"),
    "burst": ("rows a second at once", "{:,.0f}"),
    "burst_per_cpu_second": ("for a CPU-second", "{:,.0f}"),
}
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


def table(record: Record) -> list[str]:
    """The lines of a table in Markdown: each side's medians, and ours over them with the least and the greatest
    of the pairs.
    """
    names = record.measured(FIGURES)
    compared = record.measured(COMPARED)
    headings = ["side", "runs", *(FIGURES[name][0] for name in names)]
    headings += [f"ours / its {FIGURES[name][0].split(',')[0]}" for name in compared]
    lines = [_line(headings), _line(["---"] * len(headings))]
    for side, runs in record.sides.items():
        cells = [side, str(len(runs))]
        cells += [FIGURES[name][1].format(record.median(side, name)) for name in names]
        cells += [_spread(record.ratios(side, name)) for name in compared]
        lines.append(_line(cells))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    median = f"{statistics.median(ratios):.2f}"
    if len(ratios) == 1:
        return median
    return f"{median} ({min(ratios):.2f} to {max(ratios):.2f})"


def figures(records: Sequence[Record]) -> Iterator[str]:
    """The lines of the page between its marks."""
    for record in sorted(records, key=lambda record: record.rate):
        pairs = max(len(runs) for runs in record.sides.values())
        state = record.commit
        if record.dirty:
            state = f"{state} with changes"
        yield ""
        yield f"### {record.rate:,.0f} records a second"
        yield ""
        yield f"Runs of each side, by turns: {pairs}, of {record.seconds:.0f} s each after {record.warm_up:.0f} s,"
        yield f"on {record.cpus} cores; commit {state}, {record.on}."
        yield ""
        yield from table(record)
        yield ""
        yield from picture(record, "p50", "Median latency, seconds")
        yield from picture(record, "rows_per_cpu_second", "Rows for a CPU-second")
    yield ""


def picture(record: Record, figure: str, title: str) -> Iterator[str]:
    """The lines of a bar chart."""
    names = ", ".join(f'"{side}"' for side in record.sides)
    medians = [record.median(side, figure) for side in record.sides]
    values = ", ".join(f"{median:.2f}" for median in medians)
    yield "```mermaid"
    yield "xychart-beta"
    yield f'    title "{title}, at {record.rate:.0f} records a second"'
    yield f"    x-axis [{names}]"
    yield f"    y-axis 0 --> {max(medians) * 1.1:.2f}"
    yield f"    bar [{values}]"
    yield "```"
    yield ""


def write_page(page: Path = PAGE, records: Path = RECORDS) -> None:
    """Put the figures of all records into the page.

    :raises ValueError: if the page lacks its marks
    """
    before, mark, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{page} lacks {BEGIN!r} or {END!r}")
    found = [Record.read(path) for path in sorted(records.glob("*.json"))]
    page.write_text("\n".join([before + mark, *figures(found), end + after]))


def record_of(results: Mapping[str, Sequence[Mapping[str, Any]]], **about: Any) -> Record:
    """The record of what runs have measured."""
    sides = {}
    for side, runs in results.items():
        sides[side] = [{name: round(float(run[name]), 4) for name in FIGURES if name in run} for run in runs]
    return Record(sides=sides, **about)
