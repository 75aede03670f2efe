"""The matrix of faults: its rows, their choice on the command line, and the table at the end of a run."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from support import fault_runs
from support.shapes import SHAPES
from support.time_limit import was_left_out

ROWS = {
    "F1": "kill -9 of a worker and its JVM in the middle of a batch",
    "F2": "killed between the sink's commit and Spark's commit log",
    "F3": "killed between any two steps of a commit and of a take-over",
    "F4": "Python worker or gateway of the driver dies alone",
    "F5": "owner stopped for three leases, another takes over, it wakes",
    "F6": "pauses near the limit, repeated",
    "F7": "two, then four workers steal one lease at once",
    "F8": "a commit's outcome is unknown",
    "F9": "leases, sink, ledger or accounts slow, failing 10 to 90 %, read-only",
    "F10": "wall clocks jump each second, up to an hour ahead and back",
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
    "F31": "the function raises on a record; killed between any two steps of the search for it",
    "F32": "executors of a Spark cluster killed, standing still, gone with their machine, and added",
    "backfill": "the processes of Airflow and of its tasks killed in the middle of a backfill",
    "reprocess": "Airflow killed while a reprocessing waits for a person, and while it watches a promotion",
    "nemesis": "one to three faults at a time, healed, every oracle checked",
}
#: Rows whose faults are Airflow's: they bring a whole platform up.
WITH_AIRFLOW = frozenset({"F25", "F26", "F27", "reprocess"})
#: Rows that have a command of their own, or run for long: only where they are named.
NAMED_ONLY = frozenset({"backfill", "nemesis"})

#: Rows whose faults do not reach into the files of a local disk: these run with tables in an object store, too.
ON_STORE = frozenset({"F1", "F3", "F5", "F7", "F8", "F30"})


@dataclass
class Outcome:
    """What became of one test."""

    row: str
    what: str
    shape: str
    seed: int
    oracles: str
    seconds: float
    state: str
    why: str


@dataclass(eq=False)
class Matrix:
    """Registered as a plugin: keeps the tests of the wanted rows, in the matrix's order, and tells what
    became of them.

    ``quick`` keeps one test of each row for each seed, drawn by the seed; ``record`` adds what was run to the
    record of runs. With a time limit, ``until``, the first row is drawn, so that each row has its turn. With
    ``store`` the tables are in an object store.
    """

    rows: frozenset[str]
    shape: str = ""
    quick: bool = False
    record: bool = False
    until: float = 0.0
    store: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    _seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _began: tuple[str, bool] = ("", True)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Each test of a row runs once for each seed, also if it draws nothing: the machine's timing is never
        the same twice.
        """
        if metafunc.definition.get_closest_marker("row") is None:
            return
        if "seed" not in metafunc.fixturenames:
            metafunc.fixturenames.append("seed")
        first, times = metafunc.config.getoption("--seed"), metafunc.config.getoption("--repeat")
        metafunc.parametrize("seed", range(first, first + times), ids=lambda seed: f"seed={seed}")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """A test without a row is no fault; without --row every row runs but those that have a command of
        their own.
        """
        order = list(ROWS)
        kept = [item for item in items if self._wanted(item)]
        if self.quick:
            kept = self._drawn(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        if self.until:
            first = random.Random(config.getoption("--seed")).randrange(len(order))
            order = order[first:] + order[:first]
        items[:] = sorted(kept, key=lambda item: order.index(_row(item)))

    def _wanted(self, item: pytest.Item) -> bool:
        row = _row(item)
        possible = shapes_of(item)
        if not row or (self.shape and possible and self.shape not in possible):
            return False
        if self.store and row not in ON_STORE:
            return False
        if self.rows:
            return row in self.rows
        # The quick rows stand beside `make test`, which runs those of the other folders.
        return row not in NAMED_ONLY and not (
            self.quick and (item.path.parent.name != "faults" or row in WITH_AIRFLOW)
        )

    def _drawn(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """One test of each row for each seed. Those of a row that take minutes are not among them."""
        by_draw: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
        for item in items:
            if item.get_closest_marker("minutes") is None:
                by_draw[_row(item), seed_of(item)].append(item)
        return [random.Random(f"{row} {seed}").choice(found) for (row, seed), found in by_draw.items()]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[Any]:
        report = yield
        if was_left_out(report):
            return report  # the time limit names it
        self._seconds[item.nodeid] += report.duration
        failed_before = any(
            outcome.what == item.name and outcome.state == "failed" for outcome in self.outcomes
        )
        if report.when == "call" or (report.outcome != "passed" and not failed_before):
            state, why = "passed", ""
            if report.skipped and hasattr(report, "wasxfail"):
                state, why = "known to fail", report.wasxfail
            elif report.skipped:
                state, why = (
                    "cannot run here",
                    report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr),
                )
            elif report.failed:
                state, why = "failed", _first_words(report)
            oracles = str(dict(report.user_properties).get("oracles", ""))
            shape, seed = shape_of(item, self.shape), seed_of(item)
            # A teardown that fails is the end of a test that had passed.
            self.outcomes = [outcome for outcome in self.outcomes if outcome.what != item.name]
            self.outcomes.append(
                Outcome(_row(item), item.name, shape, seed, oracles, self._seconds[item.nodeid], state, why)
            )
        return report

    def pytest_sessionstart(self) -> None:
        """What is tested is what stands here now."""
        if self.record:
            self._began = fault_runs.work_tree()

    def pytest_sessionfinish(self) -> None:
        if not self.record:
            return
        commit, dirty = self._began
        dirty = (
            dirty or fault_runs.work_tree() != self._began
        )  # workers that started later have read other code
        at = datetime.now(UTC).isoformat(timespec="seconds")
        form = "quick" if self.quick else "long"
        made = [
            fault_runs.Run(
                one.row,
                one.what,
                one.shape,
                one.seed,
                form,
                commit,
                dirty,
                one.state,
                round(one.seconds, 1),
                at,
                one.why,
                store="s3" if self.store else "",
            )
            for one in self.outcomes
            if one.state in {"passed", "failed"}
        ]
        fault_runs.append(made)
        fault_runs.PAGE.write_text(fault_runs.page(ROWS, fault_runs.read()))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        write("")
        for outcome in self.outcomes:
            line = f"{outcome.row:<8}{outcome.shape:<10}{outcome.what:<82}{outcome.oracles:<24}{outcome.seconds:>7.1f} s  {outcome.state}"
            write(f"{line}: {outcome.why}" if outcome.why else line)
        states = Counter(outcome.state for outcome in self.outcomes)
        passed, failed = states.pop("passed", 0), states.pop("failed", 0)
        write("")
        write(
            ", ".join(
                [
                    f"{passed} passed, {failed} failed",
                    *(f"{count} {state}" for state, count in states.items()),
                ]
            )
        )


def shapes_of(item: pytest.Item) -> tuple[str, ...]:
    """The shapes of pipeline that a test makes sense for; none where it has no pipeline that it could
    change.
    """
    marker = item.get_closest_marker("shapes")
    if marker is not None:
        return marker.args
    return tuple(SHAPES) if "shape" in getattr(item, "fixturenames", ()) else ()


def shape_of(item: pytest.Item, wanted: str) -> str:
    """The shape that a test runs with: the wanted one, or the one that its seed draws; empty where it has
    none.
    """
    possible = shapes_of(item)
    if not possible:
        return ""
    return wanted or random.Random(f"shape {seed_of(item)}").choice(possible)


def seed_of(item: pytest.Item) -> int:
    callspec = getattr(item, "callspec", None)
    return int(callspec.params.get("seed", 0)) if callspec is not None else 0


def _row(item: pytest.Item) -> str:
    marker = item.get_closest_marker("row")
    return str(marker.args[0]) if marker else ""


def _first_words(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).splitlines()[0][:200]
