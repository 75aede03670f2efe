"""Two replays of the same range side by side: what they cost, and whether they say the same.

A replay is a benchmark: the same offsets under another version of the pipeline, of Spark or of the platform. Pure Python and deltalake; the
answers of both are held in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from hindcast.errors import BadInputError
from hindcast.pipeline import Pipeline
from hindcast.replay.batch import ANSWER, Answer
from hindcast.replay.run_table import Runs
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables, arrow_dataset

MEASURES = ("rows_per_second", "seconds", "cpu_seconds", "peak_memory_bytes")


@dataclass(frozen=True, kw_only=True)
class Results:
    """Rows of both answers in hindsight, by the sink's keys. ``changed_columns``: column -> in how many rows it differs.
    ``other_columns``: those that only one of them has.
    """

    rows: tuple[int, int]
    equal: int
    changed: int
    only_first: int
    only_second: int
    changed_columns: dict[str, int]
    other_columns: list[str]


@dataclass(frozen=True)
class RunComparison:
    """Both rows of ``runs``, and how their results compare."""

    first: Mapping[str, Any]
    second: Mapping[str, Any]
    results: Results

    def costs(self) -> list[dict[str, Any]]:
        """A row for each measure: the two values, and second / first."""
        return [
            {"measure": name, "first": self.first[name], "second": self.second[name], "ratio": self.second[name] / self.first[name]}
            for name in MEASURES
            if self.first[name] and self.second[name]
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: {first, second, costs, results}."""
        return {
            "first": _about(self.first),
            "second": _about(self.second),
            "costs": self.costs(),
            "results": {**vars(self.results), "rows": list(self.results.rows)},
        }


def compare_runs(settings: Settings, pipeline: Pipeline, first: str, second: str) -> RunComparison:
    """Compare two runs.

    :raises UnknownRunError: where one of them has not succeeded
    :raises BadInputError: where they are of other pipelines or ranges, or the answer of one was deleted
    """
    runs = Runs(ControlTables(settings))
    rows = runs.succeeded(first), runs.succeeded(second)
    for row in rows:
        if row["pipeline"] != pipeline.name:
            raise BadInputError(problem=f"The run {row['run_id']} is of {row['pipeline']}", cure=f"Name two runs of {pipeline.name}.")
    plans = [json.loads(row["plan"]) for row in rows]
    if different := [name for name in ("topic", "read_from", "start", "end") if plans[0][name] != plans[1][name]]:
        said = f"{first} and {second} did not do the same work: {', '.join(different)} differ"
        raise BadInputError(problem=said, cure="Replay one of them over the offsets of the other: `hindcast runs --output json` has them.")
    return RunComparison(*rows, results=_results(_answer(settings, rows[0]), _answer(settings, rows[1]), list(pipeline.sink.keys)))


def _answer(settings: Settings, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        table = DeltaTable(row["hindcast_url"], storage_options=settings.storage_options or None)
    except TableNotFoundError as error:
        raise BadInputError(
            problem=f"The answer of {row['run_id']} was deleted", cure=f"Replay it again: --run-id {row['run_id']}."
        ) from error
    dataset = arrow_dataset(table)
    columns = [name for name in dataset.schema.names if name != ANSWER]
    rows: list[dict[str, Any]] = dataset.to_table(columns=columns, filter=pc.field(ANSWER) == Answer.HINDSIGHT.value).to_pylist()
    return rows


def _results(first: list[dict[str, Any]], second: list[dict[str, Any]], keys: list[str]) -> Results:
    here, there = (set(rows[0]) if rows else set() for rows in (first, second))
    common = sorted((here & there) - set(keys)) if first and second else []
    if set(keys) <= here & there and keys:
        sides = [{_text([row[key] for key in keys]): row for row in rows} for rows in (first, second)]
        both = sides[0].keys() & sides[1].keys()
        differing = [[name for name in common if _text(sides[0][key][name]) != _text(sides[1][key][name])] for key in both]
        changed = sum(bool(names) for names in differing)
        only = len(sides[0].keys() - both), len(sides[1].keys() - both)
        equal, columns = len(both) - changed, Counter(name for names in differing for name in names)
    else:  # no keys: as multisets of whole rows
        bags = [Counter(_text({name: row[name] for name in common}) for row in rows) for rows in (first, second)]
        equal, changed, columns = (bags[0] & bags[1]).total(), 0, Counter[str]()
        only = (bags[0] - bags[1]).total(), (bags[1] - bags[0]).total()
    return Results(
        rows=(len(first), len(second)),
        equal=equal,
        changed=changed,
        only_first=only[0],
        only_second=only[1],
        changed_columns=dict(columns),
        other_columns=sorted(here ^ there),
    )


def _text(value: Any) -> str:
    return json.dumps(value, default=str, sort_keys=True)


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: row[name] for name in ("run_id", "pipeline", "version", "input_rows", "output_rows", "started_at")}
    return {**known, "versions": json.loads(row["versions"] or "{}")}
