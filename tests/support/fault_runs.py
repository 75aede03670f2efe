"""The record of the matrix's runs, and ``docs/runs.md``, the page that adds them up.

Each run of a row with ``--record`` appends one line to ``runs.jsonl``. As a program this writes the page from
those lines; with ``--cause`` it first notes why a recorded failure failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/faults/runs.jsonl"
PAGE = ROOT / "docs" / "runs.md"
#: What a run itself changes: it makes no work tree dirty.
OWN_FILES = frozenset({"tests/faults/runs.jsonl", "docs/runs.md"})
#: n clean runs bound the rate of failure by this over n, with 95 % confidence.
RULE_OF_THREE = 3.0


@dataclass(frozen=True)
class Run:
    """One test of one row, run once."""

    row: str
    test: str
    shape: str  # empty: the test has no pipeline
    seed: int
    form: str  # quick or long
    commit: str
    dirty: bool
    state: str  # passed or failed
    seconds: float
    at: str
    why: str = ""
    cause: str = ""
    store: str = ""  # empty: tables and checkpoints were on the local disk

    @property
    def counts(self) -> bool:
        """What ran on a work tree with changes cannot be run again by anybody else."""
        return not self.dirty

    @property
    def clean(self) -> bool:
        return self.counts and self.state == "passed"

    @property
    def failed(self) -> bool:
        return self.counts and self.state == "failed"


def work_tree(root: Path = ROOT) -> tuple[str, bool]:
    """The short hash of the commit that is checked out, and whether the work tree differs from it."""
    commit = _git(root, "rev-parse", "--short=8", "HEAD").strip()
    changed = [line[3:] for line in _git(root, "status", "--porcelain").splitlines()]
    return commit, any(path not in OWN_FILES for path in changed)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def read(record: Path = RECORD) -> list[Run]:
    if not record.exists():
        return []
    return [Run(**json.loads(line)) for line in record.read_text().splitlines() if line.strip()]


def append(runs: Iterable[Run], record: Path = RECORD) -> None:
    with record.open("a") as file:
        file.writelines(json.dumps(asdict(run), ensure_ascii=False) + "\n" for run in runs)


def note_cause(cause: str, row: str, seed: int, record: Path = RECORD) -> int:
    """Give the row's failures of the seed that have no cause this one; return how many there were."""
    noted, lines = 0, []
    for run in read(record):
        values = asdict(run)
        if run.state == "failed" and not run.cause and (run.row, run.seed) == (row, seed):
            values["cause"] = cause
            noted += 1
        lines.append(json.dumps(values, ensure_ascii=False) + "\n")
    record.write_text("".join(lines))
    return noted


# -- the page
# --------------------------------------------------------------------------------------------------------------

HEAD = """# Runs of the matrix of faults

Written by `make runs` from `tests/faults/runs.jsonl`. `make faults RECORD=1` and `make faults-quick RECORD=1` add to it; see
[how to break it](how-to/break-it.md).

A run counts if the work tree had no changes. Runs of all commits add up, and a quick form counts as a long one does. No failure in n runs
bounds the rate of failure by 3/n with 95 % confidence. A failure stays here with its cause, and the bound is that of the clean runs since.

"""


IN_STORE = """## With tables and checkpoints in an object store

`make faults STORE=1`: the store speaks S3's interface and decides a conditional put in one step, as S3 does.

"""


def page(rows: dict[str, str], runs: Sequence[Run]) -> str:
    """The page as Markdown. ``rows`` are the matrix's, name to meaning."""
    local = [run for run in runs if not run.store]
    stored = [run for run in runs if run.store]
    parts = [
        HEAD + _by_row(rows, local),
        "## By shape\n\n" + _by_shape(rows, local),
        "## Failures\n\n" + _failures(rows, local),
    ]
    if stored:
        tried = {row: meaning for row, meaning in rows.items() if any(run.row == row for run in stored)}
        parts += [
            IN_STORE + _by_row(tried, stored),
            "### By shape in the store\n\n" + _by_shape(rows, stored),
            "### Failures in the store\n\n" + _failures(rows, stored),
        ]
    return "\n".join(parts)


def _by_row(rows: dict[str, str], runs: Sequence[Run]) -> str:
    lines = ["| row | fault | clean | quick | long | failed | bound |", "|---|---|---:|---:|---:|---:|---:|"]
    for row, meaning in rows.items():
        mine = [run for run in runs if run.row == row]
        clean = [run for run in mine if run.clean]
        quick = sum(run.form == "quick" for run in clean)
        failed = sum(run.failed for run in mine)
        lines.append(
            f"| {row} | {meaning} | {len(clean)} | {quick} | {len(clean) - quick} | {failed} | {bound(mine)} |"
        )
    dirty = sum(run.dirty for run in runs)
    if dirty:
        lines += ["", f"{dirty} more ran on a work tree with changes, and count for nothing."]
    return "\n".join(lines) + "\n"


def bound(runs: Sequence[Run]) -> str:
    """The rate of failure that the clean runs since the last failure leave possible."""
    clean = 0
    for run in sorted((run for run in runs if run.counts), key=lambda run: run.at):
        clean = clean + 1 if run.clean else 0
    return f"{min(100.0, 100 * RULE_OF_THREE / clean):.0f} %" if clean else "-"


def _by_shape(rows: dict[str, str], runs: Sequence[Run]) -> str:
    counted: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if run.clean:
            counted[run.row, run.shape].append(run)
    if not counted:
        return "None yet.\n"
    lines = ["| row | shape | clean | seeds | commits |", "|---|---|---:|---|---|"]
    order = list(rows)
    for row, shape in sorted(counted, key=lambda key: (order.index(key[0]), key[1])):
        found = counted[row, shape]
        commits = list(dict.fromkeys(run.commit for run in found))
        seeds = ranges({run.seed for run in found})
        lines.append(f"| {row} | {shape or '-'} | {len(found)} | {seeds} | {', '.join(commits)} |")
    return "\n".join(lines) + "\n"


def ranges(seeds: Iterable[int]) -> str:
    """``1-3, 7`` for 1, 2, 3 and 7."""
    found = []
    for _, group in groupby(enumerate(sorted(seeds)), key=lambda pair: pair[1] - pair[0]):
        run = [seed for _, seed in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(found)


def _failures(rows: dict[str, str], runs: Sequence[Run]) -> str:
    failed = [run for run in runs if run.failed and run.row in rows]
    if not failed:
        return "None.\n"
    lines = [
        "| row | test | shape | seed | form | commit | what was seen | cause |",
        "|---|---|---|---:|---|---|---|---|",
    ]
    for run in sorted(failed, key=lambda run: run.at):
        seen, cause = (text.replace("|", "\\|") for text in (run.why, run.cause or "not known yet"))
        lines.append(
            f"| {run.row} | {run.test} | {run.shape or '-'} | {run.seed} | {run.form} | {run.commit} | {seen} | {cause} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    from support.fault_matrix import ROWS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cause", help="why a recorded failure failed; needs --row and --seed")
    parser.add_argument("--row")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args(arguments)
    if options.cause:
        if options.row is None or options.seed is None:
            parser.error("name the failure: --row F5 --seed 7")
        if not note_cause(options.cause, options.row, options.seed):
            parser.error(
                f"{RECORD.name} has no failure of {options.row} with the seed {options.seed} that lacks a cause"
            )
    PAGE.write_text(page(ROWS, read()))
    print(f"{PAGE.relative_to(ROOT)} is written.")  # noqa: T201 - the program's answer
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
