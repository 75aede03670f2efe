"""What the runs of a benchmark come to: a table, pictures, and the figures of ``docs/performance.md``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.speed.goals import table_of_goals
from benchmarks.speed.jobs import JOBS
from benchmarks.speed.markdown import line, spread
from benchmarks.speed.record import COMPARED, FIGURES, Record

ROOT = Path(__file__).resolve().parents[3]
RECORDS = Path(__file__).with_name("records")
PAGE = ROOT / "docs" / "performance.md"
#: Between these lines of the page are the figures.
BEGIN, END = "<!-- figures: make bench RECORD=1 -->", "<!-- end of the figures -->"


def table(record: Record) -> list[str]:
    """The lines of a table in Markdown: each side's medians, and ours over them with the least and the greatest
    of the pairs.
    """
    names = record.measured(FIGURES)
    compared = record.measured(COMPARED)
    headings = ["side", "runs", *(FIGURES[name][0] for name in names)]
    headings += [f"ours / its {FIGURES[name][0].split(',')[0]}" for name in compared]
    lines = [line(headings), line(["---"] * len(headings))]
    for side, runs in record.sides.items():
        cells = [side, str(len(runs))]
        cells += [FIGURES[name][1].format(record.median(side, name)) for name in names]
        cells += [spread(record.ratios(side, name)) for name in compared]
        lines.append(line(cells))
    return lines


def figures(records: Sequence[Record]) -> Iterator[str]:
    """The lines of the page between its marks."""
    by_job = {name: number for number, name in enumerate(JOBS)}
    for record in sorted(records, key=lambda record: (by_job[record.job], record.rate)):
        heading = f"{JOBS[record.job].heading}, {record.rate:,.0f} records a second"
        pairs = max(len(runs) for runs in record.sides.values())
        state = record.commit
        if record.dirty:
            state = f"{state} with changes"
        yield ""
        yield f"### {heading}"
        yield ""
        yield f"Runs of each side, by turns: {pairs}, of {record.seconds:.0f} s each after {record.warm_up:.0f} s,"
        yield f"on {record.cpus} cores; commit {state}, {record.on}."
        yield ""
        yield from table(record)
        yield ""
        yield from table_of_goals(record)
        yield ""
        yield from picture(record, "p50", f"{heading}: median latency, seconds")
        yield from picture(record, "rows_per_cpu_second", f"{heading}: rows for a CPU-second")
    yield ""


def picture(record: Record, figure: str, title: str) -> Iterator[str]:
    """The lines of a bar chart."""
    names = ", ".join(f'"{side}"' for side in record.sides)
    medians = [record.median(side, figure) for side in record.sides]
    values = ", ".join(f"{median:.2f}" for median in medians)
    yield "```mermaid"
    yield "xychart-beta"
    yield f'    title "{title}"'
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
