"""The matrix of faults: its rows, their choice on the command line, and the table at the end of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

ROWS = {
    "F1": "kill -9 of a worker and its JVM in the middle of a batch",
    "F2": "killed between the sink's commit and Spark's commit log",
    "F3": "killed between any two steps of a commit and of a take-over",
    "F4": "Python worker or gateway of the driver dies alone",
    "F5": "owner stopped for three leases, another takes over, it wakes",
    "F6": "pauses near the limit, repeated",
    "F7": "two, then four workers steal one lease at once",
    "F8": "a commit's outcome is unknown",
    "F9": "lease store slow, failing 10 to 90 %, read-only",
    "F10": "a wall clock is an hour ahead, workers disagree",
    "F11": "torn, empty or missing _delta_log/N.json, stale _last_checkpoint",
    "F12": "torn, empty or missing Spark checkpoint files",
    "F13": "disk full, then freed",
    "F14": "broker killed and restarted, broker stopped",
    "F15": "topic deleted and created again with fewer offsets",
    "F16": "offsets expired under the checkpoint",
    "F17": "partitions 4 -> 8 during a run, keys move",
    "F18": "compacted topic, aborted transactions, holes, tombstones",
    "F19": "poison records",
    "F20": "schema change: field added, dropped, renamed, widened",
    "F21": "producer duplicates and reorders",
    "F22": "late rows around the watermark, far-future stamps, no stamps",
    "F23": "the query changed on an old checkpoint",
    "F24": "two queries on one checkpoint or one application id",
    "F25": "Airflow's parts killed, its database locked",
    "F26": "retry, clear, manual run, schedule and backfill at once",
    "F27": "SIGTERM, DAG paused, edited or deleted; stop all, start all",
    "F28": "replay and verdict beside the live stream, compaction and vacuum",
    "F29": "starved of memory, CPU, file handles",
    "F30": "several processes append to one sink table",
    "backfill": "the processes of Airflow and of its tasks killed in the middle of a backfill",
    "reprocess": "Airflow killed while a reprocessing waits for a person, and while it watches a promotion",
    "nemesis": "one to three faults at a time, healed, every oracle checked",
}


@dataclass
class Outcome:
    """What became of one test."""

    row: str
    what: str
    oracles: str
    seconds: float
    state: str
    why: str


@dataclass(eq=False)
class Matrix:
    """Registered as a plugin: keeps the tests of the wanted rows, in the matrix's order, and tells what became of them."""

    rows: frozenset[str]
    outcomes: list[Outcome] = field(default_factory=list)
    _seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """A test without a row is no fault; without --row every row runs but those that have a command of their own."""
        order = list(ROWS)
        wanted = self.rows or frozenset(ROWS) - {"backfill", "nemesis"}
        kept = [item for item in items if _row(item) in wanted]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = sorted(kept, key=lambda item: order.index(_row(item)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[Any]:
        report = yield
        self._seconds[item.nodeid] += report.duration
        failed_before = any(outcome.what == item.name and outcome.state == "failed" for outcome in self.outcomes)
        if report.when == "call" or (report.outcome != "passed" and not failed_before):
            state, why = "passed", ""
            if report.skipped and hasattr(report, "wasxfail"):
                state, why = "known to fail", report.wasxfail
            elif report.skipped:
                state, why = "cannot run here", report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            elif report.failed:
                state, why = "failed", _first_words(report)
            oracles = dict(report.user_properties).get("oracles", "")
            self.outcomes.append(Outcome(_row(item), item.name, str(oracles), self._seconds[item.nodeid], state, why))
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        write("")
        for outcome in self.outcomes:
            line = f"{outcome.row:<8}{outcome.what:<82}{outcome.oracles:<30}{outcome.seconds:>7.1f} s  {outcome.state}"
            write(f"{line}: {outcome.why}" if outcome.why else line)
        states = Counter(outcome.state for outcome in self.outcomes)
        passed, failed = states.pop("passed", 0), states.pop("failed", 0)
        write("")
        write(", ".join([f"{passed} passed, {failed} failed", *(f"{count} {state}" for state, count in states.items())]))


def _row(item: pytest.Item) -> str:
    marker = item.get_closest_marker("row")
    return str(marker.args[0]) if marker else ""


def _first_words(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).splitlines()[0][:200]
