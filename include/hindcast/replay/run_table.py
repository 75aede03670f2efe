"""The ``runs`` and ``verdicts`` tables as the replay uses them: the newest row of a run counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from hindcast.delta.arrow_dataset import Condition
from hindcast.errors import UnknownRunError
from hindcast.partitions import Offsets
from hindcast.replay.recorded_plan import RecordedPlan, instant_text
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Undone
from hindcast.tables.run_states import RunKind, RunState
from hindcast.tables.table_names import ControlTable


@dataclass(frozen=True)
class JudgedRange:
    """Where the range of a verdict ended: its offsets, the version of the sink that was judged, and the end
    of the last window that was judged, in epoch milliseconds; 0 for none.
    """

    end: Offsets
    sink_version: int
    windows_to_ms: int = 0


@dataclass(frozen=True)
class Runs:
    """Reads and appends runs."""

    tables: ControlTables

    def append(self, row: Mapping[str, Any]) -> None:
        self.tables.append(ControlTable.RUNS, [row])

    def answer(
        self, run_id: str, pipeline: str, version: int, kind: RunKind, state: RunState, note: str
    ) -> None:
        """Keep the row of a run that ended before it was planned."""
        now = datetime.now(UTC)
        named = {
            "run_id": run_id,
            "pipeline": pipeline,
            "version": version,
            "kind": kind.value,
            "state": state.value,
        }
        self.append({**named, "note": note, "started_at": now, "finished_at": now})

    def newest(self, run_id: str, state: RunState | None = None) -> dict[str, Any] | None:
        """The newest row of the run, of one state if given; None where there is none."""
        where: list[Condition] = [("run_id", "=", run_id)]
        where += [("state", "=", state.value)] if state else []
        return max(self.tables.rows(ControlTable.RUNS, where), key=_when, default=None)

    def succeeded(self, run_id: str) -> dict[str, Any]:
        """:raises UnknownRunError: where no replay of that id has succeeded"""
        row = self.newest(run_id, RunState.SUCCEEDED)
        if row is None:
            raise UnknownRunError(run_id=run_id)
        return row

    def planned_records(self, run_id: str) -> int:
        """How many records the newest plan of the run reads, those before its range that only feed windows
        included.

        :raises UnknownRunError: if no run of that id has a plan
        """
        row = self.newest(run_id)
        if row is None or not row["plan"]:
            raise UnknownRunError(run_id=run_id)
        return RecordedPlan.from_text(row["plan"]).records

    def recent(self, pipeline: str, kind: RunKind, count: int, *, without: str = "") -> list[dict[str, Any]]:
        """The last ``count`` runs of the kind that succeeded, newest first, leaving out the run
        ``without``.
        """
        rows = self.tables.rows(
            ControlTable.RUNS,
            [
                ("pipeline", "=", pipeline),
                ("kind", "=", kind.value),
                ("state", "=", RunState.SUCCEEDED.value),
            ],
        )
        newest = newest_by_run(row for row in rows if row["run_id"] != without)
        return sorted(newest, key=_when, reverse=True)[:count]

    def judged_ranges(
        self, pipeline: str, version: int, *, without: str = "", undone: Sequence[Undone] = ()
    ) -> list[JudgedRange]:
        """Where each verdict ended, passed or not, the one that reaches furthest last. Left out are the run
        ``without``, and verdicts on what was taken back.
        """
        of_version: list[Condition] = [("pipeline", "=", pipeline), ("version", "=", version)]
        succeeded = [*of_version, ("state", "=", RunState.SUCCEEDED.value)]
        columns = ["run_id", "plan", "started_at", "finished_at"]
        runs = newest_by_run(self.tables.read(ControlTable.RUNS, succeeded, columns=columns).to_pylist())
        plans = {run["run_id"]: RecordedPlan.from_text(run["plan"]) for run in runs}
        verdicts = self.tables.read(ControlTable.VERDICTS, of_version, columns=["run_id", "sink_version"])
        found = []
        for verdict in verdicts.to_pylist():
            plan = plans.get(verdict["run_id"])
            taken_back = any(reset.has(verdict["sink_version"]) for reset in undone)
            if plan is not None and verdict["run_id"] != without and not taken_back:
                found.append(JudgedRange(plan.end, verdict["sink_version"], plan.windows_to_ms))
        return sorted(found, key=lambda judged: (judged.windows_to_ms, judged.sink_version))

    def offsets_of(self, pipeline: str, version: int, at: datetime) -> Offsets | None:
        """The offsets that the first plan of this version found for a time; None if none has asked for it.

        :param at: aware
        """
        rows = self.tables.read(
            ControlTable.RUNS,
            [("pipeline", "=", pipeline), ("version", "=", version)],
            columns=["plan", "started_at"],
        )
        may_have_it = rows.filter(pc.match_substring(rows["plan"], instant_text(at)))
        for written in may_have_it.sort_by("started_at")["plan"].to_pylist():
            found = RecordedPlan.from_text(written).instants.get(at)
            if found is not None:
                return found
        return None

    def recorded_plan(self, run_id: str, asked: str) -> RecordedPlan | None:
        """The plan that this run was given before, if it answered the same request: a retry replays the same
        offsets.
        """
        row = self.newest(run_id)
        if row is None or not row["plan"]:
            return None
        plan = RecordedPlan.from_text(row["plan"])
        if plan.asked != asked:
            return None
        return plan


def newest_by_run(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The newest row of each run id."""
    newest: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["run_id"] not in newest or _when(row) >= _when(newest[row["run_id"]]):
            newest[row["run_id"]] = dict(row)
    return list(newest.values())


def _when(row: Mapping[str, Any]) -> Any:
    return row["finished_at"] or row["started_at"]
