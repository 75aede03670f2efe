"""What the verdicts of each version come to: the worst figures ever, and the newest ones for the trend.

One row a version, of bounded size, which each verdict replaces. So neither a verdict nor a listing depends on
how many verdicts there were, and the worst figure outlives the verdict that it is of.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

from hindcast.delta.arrow_dataset import Condition
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable

#: Verdicts whose figures are kept for the trend: two days of hourly ones.
RECENT = 50
#: Measures of which a smaller value is worse.
_LESS_IS_WORSE = frozenset({"captured", "captured_results"})
#: Measures of which the value that is farther from 1 is worse. Of all others the greater one is.
_FAR_IS_WORSE = ("ratio_worst.", "ratio_mean.")
#: What is measured against each kind of bound.
_BOUNDED = {"ratio_bound": "ratio_greatest", "tolerance": "difference_greatest"}
_PER_ROWS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    """The figures of one verdict. ``figures``: measure -> value; the measures of a column are written as
    ``ratio_worst.trucks``.
    """

    run_id: str
    judged_at: str  # ISO 8601
    passed: bool
    figures: dict[str, float]

    def as_json_object(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "judged_at": self.judged_at,
            "passed": self.passed,
            "figures": self.figures,
        }


@dataclass(frozen=True, kw_only=True)
class WorstFigure:
    """The worst value that a measure ever had, and of which verdict."""

    value: float
    run_id: str
    judged_at: str

    def as_json_object(self) -> dict[str, Any]:
        return {"value": self.value, "run_id": self.run_id, "judged_at": self.judged_at}


@dataclass(frozen=True)
class VerdictTrend:
    """What the verdicts of one version come to. ``recent`` is in the order in which they were given.

    ``verdicts`` counts them; one that is judged again while it is recent counts once.
    """

    pipeline: str
    version: int
    verdicts: int = 0
    worst: dict[str, WorstFigure] = field(default_factory=dict)
    recent: tuple[TrendPoint, ...] = ()

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> VerdictTrend:
        worst = {name: WorstFigure(**found) for name, found in json.loads(row["worst"]).items()}
        recent = tuple(TrendPoint(**point) for point in json.loads(row["recent"]))
        return cls(row["pipeline"], row["version"], row["verdicts"], worst, recent)

    def as_row(self) -> dict[str, Any]:
        worst = {name: found.as_json_object() for name, found in self.worst.items()}
        return {
            "pipeline": self.pipeline,
            "version": self.version,
            "verdicts": self.verdicts,
            "worst": json.dumps(worst),
            "recent": json.dumps([point.as_json_object() for point in self.recent]),
            "updated_at": datetime.now(UTC),
        }

    def adding(self, point: TrendPoint) -> VerdictTrend:
        """The trend with one more verdict. If its run was judged before, the newer figures count; the worst
        ones stay, because they were measured.
        """
        others = [known for known in self.recent if known.run_id != point.run_id]
        is_new = len(others) == len(self.recent)
        worst = dict(self.worst)
        for name, value in point.figures.items():
            known = worst.get(name)
            if known is None or is_worse(name, value, known.value):
                worst[name] = WorstFigure(value=value, run_id=point.run_id, judged_at=point.judged_at)
        recent = (*others, point)[-RECENT:]
        return VerdictTrend(self.pipeline, self.version, self.verdicts + is_new, worst, recent)

    def measures(self) -> list[dict[str, Any]]:
        """A row for each measure: {pipeline, version, measure, column, newest, median, worst, worst_run,
        worst_at, verdicts, recent}. ``recent`` are the values of the newest verdicts, oldest first; None if a
        verdict had none.
        """
        return [self._measure(name) for name in sorted(self.worst)]

    def _measure(self, name: str) -> dict[str, Any]:
        measure, _, column = name.partition(".")
        recent = [point.figures.get(name) for point in self.recent]
        known = [value for value in recent if value is not None]
        middle = None
        if known:
            middle = median(known)
        worst = self.worst[name]
        return {
            "pipeline": self.pipeline,
            "version": self.version,
            "measure": measure,
            "column": column,
            "newest": recent[-1],
            "median": middle,
            "worst": worst.value,
            "worst_run": worst.run_id,
            "worst_at": datetime.fromisoformat(worst.judged_at),
            "verdicts": self.verdicts,
            "recent": recent,
        }


def is_worse(measure: str, value: float, than: float) -> bool:
    if measure in _LESS_IS_WORSE:
        return value < than
    if measure.startswith(_FAR_IS_WORSE):
        return abs(value - 1) > abs(than - 1)
    return value > than


def point_of(verdict: Mapping[str, Any], run: Mapping[str, Any]) -> TrendPoint:
    """The figures of a verdict and of the replay that it judged: what was captured, the ratios of each
    column, what was measured against each bound, the stream's latency, and the CPU-seconds of stream and
    batch for a million rows. What was not measured is left out.

    :param verdict: the row of ``verdicts``
    :param run: the row of ``runs``
    """
    figures: dict[str, float | None] = {name: verdict[name] for name in sorted(_LESS_IS_WORSE)}
    for column, ratios in json.loads(verdict["ratios"]).items():
        if isinstance(ratios, dict):
            for name, value in ratios.items():
                figures[f"ratio_{name}.{column}"] = value
    for kind, columns in json.loads(verdict["bounds"]).items():
        for column, found in columns.items():
            figures[f"{_BOUNDED[kind]}.{column}"] = found["greatest"]
    for name in ("latency_p50_seconds", "latency_p95_seconds"):
        figures[name] = run.get(name)
    rows = run.get("input_rows")
    for name, column in (("stream", "stream_cpu_seconds"), ("batch", "cpu_seconds")):
        seconds = run.get(column)
        if rows and seconds is not None:
            figures[f"{name}_cpu_seconds_per_million_rows"] = seconds / rows * _PER_ROWS
    measured: dict[str, float] = {}
    for name, value in figures.items():
        if value is not None and math.isfinite(value):
            measured[name] = float(value)
    return TrendPoint(
        run_id=verdict["run_id"],
        judged_at=verdict["judged_at"].isoformat(),
        passed=bool(verdict["passed"]),
        figures=measured,
    )


@dataclass(frozen=True)
class VerdictTrends:
    """Reads and writes the trends."""

    tables: ControlTables

    def add(self, pipeline: str, version: int, point: TrendPoint) -> None:
        """Add the figures of a verdict. To add them again changes nothing but the newest figures.

        :raises StoreUnavailableError: if they could not be written
        """

        def with_point(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            known = VerdictTrend(pipeline, version)
            if rows:
                known = VerdictTrend.of_row(rows[0])
            return [known.adding(point).as_row()]

        of_version: dict[str, str | int] = {"pipeline": pipeline, "version": version}
        self.tables.replace(ControlTable.VERDICT_TRENDS, of_version, with_point)

    def read(self, pipeline: str = "") -> list[VerdictTrend]:
        """The trends of all versions, or of one pipeline's, in the order of names and versions."""
        where: list[Condition] = []
        if pipeline:
            where.append(("pipeline", "=", pipeline))
        return _in_order(self.tables.rows(ControlTable.VERDICT_TRENDS, where))


def _in_order(rows: Iterable[Mapping[str, Any]]) -> list[VerdictTrend]:
    trends = [VerdictTrend.of_row(row) for row in rows]
    return sorted(trends, key=lambda trend: (trend.pipeline, trend.version))
