"""Two replays of the same range side by side: what they cost, and whether their results are the same.

A replay is a benchmark: the same offsets under another version of the pipeline, of Spark or of the platform.
The comparison is pure Python and deltalake, and holds the answers of both in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pyarrow.compute as pc

from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.delta.open_table import find_table
from hindcast.errors import BadInputError
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.replay.batch import ANSWER, Answer
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.replay.run_table import Runs

MEASURES = ("rows_per_second", "seconds", "cpu_seconds", "peak_memory_bytes")
#: A row of an answer: column -> value.
_Row = dict[str, Any]
#: Parts of a plan that say which records it reads.
_OF_THE_RANGE = ("topic", "read_from", "start", "end")


@dataclass(frozen=True, kw_only=True)
class Results:
    """Rows of both answers in hindsight, by the sink's keys.

    ``changed_columns``: column -> in how many rows it differs. ``other_columns``: those that only one of them
    has.
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
        rows = []
        for name in MEASURES:
            first = self.first[name]
            second = self.second[name]
            if first and second:
                rows.append({"measure": name, "first": first, "second": second, "ratio": second / first})
        return rows

    def as_dict(self) -> dict[str, Any]:
        """For JSON: {first, second, costs, results}."""
        return {
            "first": _about(self.first),
            "second": _about(self.second),
            "costs": self.costs(),
            "results": {**vars(self.results), "rows": list(self.results.rows)},
        }


def compare_runs(installation: Installation, pipeline: Pipeline, first: str, second: str) -> RunComparison:
    """Compare two runs.

    :raises UnknownRunError: if one of them has not succeeded
    :raises BadInputError: if they are of other pipelines or ranges, or the answer of one was deleted
    :raises StoreUnavailableError: if the store does not answer
    """
    runs = Runs(installation.tables)
    first_row = runs.succeeded(first)
    second_row = runs.succeeded(second)
    for row in (first_row, second_row):
        if row["pipeline"] != pipeline.name:
            problem = f"The run {row['run_id']} is of {row['pipeline']}"
            raise BadInputError(problem=problem, cure=f"Name two runs of {pipeline.name}.")
    first_plan = RecordedPlan.from_text(first_row["plan"])
    second_plan = RecordedPlan.from_text(second_row["plan"])
    different = [name for name in _OF_THE_RANGE if getattr(first_plan, name) != getattr(second_plan, name)]
    if different:
        problem = f"{first} and {second} did not do the same work: {', '.join(different)} differ"
        cure = "Replay one of them over the offsets of the other: `hindcast runs --output json` has them."
        raise BadInputError(problem=problem, cure=cure)
    storage_options = installation.settings.storage_options
    first_answer = _answer(first_row, storage_options)
    second_answer = _answer(second_row, storage_options)
    results = _results(first_answer, second_answer, list(pipeline.sink.keys))
    return RunComparison(first_row, second_row, results)


def _answer(row: Mapping[str, Any], storage_options: dict[str, str]) -> list[_Row]:
    table = find_table(row["hindcast_url"], storage_options)
    if table is None:
        problem = f"The answer of {row['run_id']} was deleted"
        raise BadInputError(problem=problem, cure=f"Replay it again: --run-id {row['run_id']}.")
    dataset = arrow_dataset(table)
    columns = [name for name in dataset.schema.names if name != ANSWER]
    in_hindsight = pc.field(ANSWER) == Answer.HINDSIGHT.value
    rows: list[_Row] = dataset.to_table(columns=columns, filter=in_hindsight).to_pylist()
    return rows


def _results(first: list[_Row], second: list[_Row], keys: list[str]) -> Results:
    first_columns = _columns(first)
    second_columns = _columns(second)
    both_have = first_columns & second_columns
    common: list[str] = []
    if first and second:
        common = sorted(both_have - set(keys))
    if keys and both_have.issuperset(keys):
        matched = _match_by_keys(first, second, keys, common)
    else:
        matched = _match_whole_rows(first, second, common)
    return Results(
        rows=(len(first), len(second)),
        equal=matched.equal,
        changed=matched.changed,
        only_first=matched.only_first,
        only_second=matched.only_second,
        changed_columns=dict(matched.changed_columns),
        other_columns=sorted(first_columns ^ second_columns),
    )


def _columns(rows: list[_Row]) -> set[str]:
    if not rows:
        return set()
    return set(rows[0])


@dataclass(frozen=True, kw_only=True)
class _Matched:
    """How the rows of two answers match; see :class:`Results`."""

    equal: int
    changed: int
    only_first: int
    only_second: int
    changed_columns: Counter[str]


def _match_by_keys(first: list[_Row], second: list[_Row], keys: list[str], common: list[str]) -> _Matched:
    """Match rows that have the same keys, and compare their common columns.

    Of keys with several rows equal ones are matched first, then the others in order.
    """
    first_rows = _by_keys(first, keys)
    second_rows = _by_keys(second, keys)
    equal = 0
    changed = 0
    only_first = 0
    only_second = 0
    changed_columns = Counter[str]()
    for key in first_rows.keys() | second_rows.keys():
        ones = first_rows.get(key, [])
        others = second_rows.get(key, [])
        lone_ones = _without(ones, others, common)
        lone_others = _without(others, ones, common)
        equal += len(ones) - len(lone_ones)
        pairs = min(len(lone_ones), len(lone_others))
        changed += pairs
        only_first += len(lone_ones) - pairs
        only_second += len(lone_others) - pairs
        for one, other in zip(lone_ones, lone_others, strict=False):
            changed_columns.update(name for name in common if _text(one[name]) != _text(other[name]))
    return _Matched(
        equal=equal,
        changed=changed,
        only_first=only_first,
        only_second=only_second,
        changed_columns=changed_columns,
    )


def _without(rows: list[_Row], others: list[_Row], columns: list[str]) -> list[_Row]:
    """The rows of a key, in order, without those that have an equal among the others, each for one."""
    equals = _as_multiset(others, columns)
    left: list[tuple[str, _Row]] = []
    for row in rows:
        text = _row_text(row, columns)
        if equals[text]:
            equals[text] -= 1
        else:
            left.append((text, row))
    left.sort(key=itemgetter(0))
    return [row for _, row in left]


def _match_whole_rows(first: list[_Row], second: list[_Row], common: list[str]) -> _Matched:
    """Without keys, match the rows as multisets of whole rows."""
    first_rows = _as_multiset(first, common)
    second_rows = _as_multiset(second, common)
    return _Matched(
        equal=(first_rows & second_rows).total(),
        changed=0,
        only_first=(first_rows - second_rows).total(),
        only_second=(second_rows - first_rows).total(),
        changed_columns=Counter[str](),
    )


def _by_keys(rows: list[_Row], keys: list[str]) -> dict[str, list[_Row]]:
    """The rows by the text of their keys."""
    found: dict[str, list[_Row]] = {}
    for row in rows:
        values = [row[key] for key in keys]
        found.setdefault(_text(values), []).append(row)
    return found


def _as_multiset(rows: list[_Row], columns: list[str]) -> Counter[str]:
    """The texts of the rows, and how often each is there."""
    return Counter(_row_text(row, columns) for row in rows)


def _row_text(row: _Row, columns: list[str]) -> str:
    return _text({name: row[name] for name in columns})


def _text(value: Any) -> str:
    return json.dumps(value, default=str, sort_keys=True)


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("run_id", "pipeline", "version", "input_rows", "output_rows", "started_at")
    about = {name: row[name] for name in names}
    about["versions"] = json.loads(row["versions"] or "{}")
    return about
