"""Compare the stream's table with both answers of a replay, key by key: one shuffle for all three.

Of large tables most rows are the same on all sides. Fingerprints tell which parts are, in one scan
(:mod:`hindcast.verdict.fingerprints`), and only the rows of the other parts are compared.

If a key has several rows on a side, its rows are compared one by one (:mod:`hindcast.verdict.number_rows`):
a second pass, over the rows of such keys alone.

The stream against the *online* answer is the verdict: any difference is unexplained, except rounding, which
is counted apart. The stream against the answer in *hindsight* is the price of deciding online. A value that
is null on both sides is equal; so is not-a-number.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, NumericType, StructType

from hindcast.spark.session import bytes_of, cached
from hindcast.verdict.bounds import BoundFound
from hindcast.verdict.compare_values import (
    absolute_difference,
    finite,
    relative_difference,
    rounding_limit,
    value_state,
)
from hindcast.verdict.fingerprints import Parts, Same
from hindcast.verdict.number_rows import number_rows

# The three sides of a comparison, as the names of the columns below begin or end: `n_s` counts a key's rows
# in the stream, `s_row` is the least of them.
_STREAM = "s"
_ONLINE = "o"
_HINDSIGHT = "h"

#: The key by which windows are told apart, and what the columns of all other keys begin with.
_WINDOW = "window"
_KEY = "key_"

#: Tables whose sides have fewer bytes together are compared key by key at once: a scan for their fingerprints
#: would cost more than it can save.
FINGERPRINTED_BYTES = 16 << 20


class Kind(StrEnum):
    """What differs. The first five are of rows; the others name what cannot be compared row by row."""

    MISSING = "missing"  # the stream lacks the row
    EXTRA = "extra"  # only the stream has the row
    CHANGED = "changed"
    DOUBLED = "doubled"  # the stream has the row more often
    RATIO = "ratio"  # the row costs more, against hindsight, than was declared
    COLUMNS = "columns"
    LATE_ROWS_TABLE = "late_rows_table"
    DEAD_LETTERS_TABLE = "dead_letters_table"


class Cause(StrEnum):
    LATE_ROWS = "late_rows"
    ONLINE = "online"  # decided before what came later was known
    ROUNDING = "rounding"
    BOUND = "bound"  # beyond a bound that the pipeline declares
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One sample. ``keys`` is JSON. ``column`` is empty if the whole row differs. Values are JSON or ""."""

    kind: Kind
    cause: Cause
    keys: str
    column: str = ""
    stream_value: str = ""
    hindcast_value: str = ""
    late_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Exact counts and some samples. Rows are counted as often as they stand in a table. Of a key with
    several rows those are paired that are equal, then those that differ by rounding, then the others.

    ``by_column``: column -> in how many rows it differs from the online answer by more than rounding.
    ``unexplained_late``: the rows with unexplained differences in windows that had late rows.

    ``ratios``: numeric column -> ``worst`` (farthest from 1) and ``mean`` of stream / hindsight over the rows
    that both hold.

    ``ratio_bounds``: of each column with a bound, the greatest ratio of stream / hindsight over the rows that
    both hold, and how many are beyond the bound. ``tolerances``: of each column with a tolerance, the
    greatest difference from the online answer, and how many rows are beyond it.
    """

    windows_compared: int
    rows_compared: int
    missing: int
    extra: int
    changed: int
    doubled: int
    late_differences: int
    rounding: int
    greatest_rounding: float
    nondeterministic: int
    captured_results: float
    ratios: dict[str, dict[str, float]]
    by_column: dict[str, int]
    unexplained_late: int
    samples: tuple[Difference, ...]
    ratio_bounds: dict[str, BoundFound] = field(default_factory=dict)
    tolerances: dict[str, BoundFound] = field(default_factory=dict)

    @property
    def unexplained(self) -> int:
        return self.missing + self.extra + self.changed + self.doubled + self.nondeterministic


@dataclass(frozen=True)
class Sides:
    """The three frames, with the same columns.

    ``hindsight``: the same frame as ``online`` if both answers are known to be the same. It is then read
    once.

    ``late``: a window's ``end_ms`` and the ``late_rows`` it had; None without windows.

    ``foresight``: hindsight may differ without any late row, because it knows what came later.

    ``tolerance``: column -> the greatest absolute difference that counts as rounding. ``ratio_bound``: column
    -> the greatest ratio of stream / hindsight.
    """

    stream: DataFrame
    online: DataFrame
    hindsight: DataFrame
    keys: Sequence[str]
    late: DataFrame | None = None
    foresight: bool = False
    tolerance: Mapping[str, float] = field(default_factory=dict)
    ratio_bound: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_one_answer(self) -> bool:
        """Whether the answer in hindsight is the online one."""
        return self.hindsight is self.online


def compare(sides: Sides, samples: int) -> Comparison:
    """Count every difference. Keep up to ``samples`` rows of them: unexplained ones first, then those beyond
    a bound, then in the order of the keys.
    """
    names = list(sides.keys) or list(sides.online.columns)
    values = [column for column in sides.online.columns if column not in names]
    kinds = {name: sides.online.schema[name].dataType for name in values}
    all_rows = _all_rows(sides, names, kinds)
    keys = [_key_column(name) for name in names]
    if bytes_of(all_rows) >= FINGERPRINTED_BYTES:
        totals, kept = _compare_large(all_rows, sides, keys, kinds, samples)
    else:
        # Where rows came late some differ. If both answers are one, none is expected to differ.
        expects_some = not sides.has_one_answer
        totals, kept = _compare_by_key(all_rows, sides, keys, kinds, samples, expects_some=expects_some)
    return _comparison(totals, sides, kinds, kept)


def _compare_large(
    all_rows: DataFrame, sides: Sides, keys: list[str], kinds: dict[str, DataType], samples: int
) -> tuple[dict[str, Any], tuple[Difference, ...]]:
    """As :func:`_compare_by_key` does, but of the parts that are the same on all sides no row is compared."""
    parts = Parts(all_rows, keys, list(_frames(sides)), _counted(sides, kinds))
    with ExitStack() as caches:
        fingerprints = caches.enter_context(cached(parts.fingerprints()))
        same = parts.same(fingerprints)
        if same.different_rows >= same.rows:
            # Picking rows out of most parts costs more than it saves.
            return _compare_by_key(all_rows, sides, keys, kinds, samples, expects_some=True)
        totals: dict[str, Any] = {}
        kept: tuple[Difference, ...] = ()
        if same.different_parts:
            rows = caches.enter_context(cached(parts.different_rows(fingerprints)))
            totals, kept = _compare_by_key(rows, sides, keys, kinds, samples, expects_some=True)
    return _with_same(totals, same, sides, kinds), kept


def _compare_by_key(
    all_rows: DataFrame,
    sides: Sides,
    keys: list[str],
    kinds: dict[str, DataType],
    samples: int,
    *,
    expects_some: bool,
) -> tuple[dict[str, Any], tuple[Difference, ...]]:
    """The aggregates of :func:`_totals` over these rows, and samples of the differences.

    :param expects_some: whether some rows are expected to differ, so that they will be asked for again
    """
    found = _by_key(all_rows, sides, keys, kinds)
    with ExitStack() as caches:
        if expects_some:
            found = caches.enter_context(cached(found))
        totals = _totals_of(found, sides, keys, kinds)
        # Rows without values are equal if their keys are: then their number says all.
        if kinds and totals["several"]:
            found = caches.enter_context(cached(found))
            row_by_row = _row_by_row(all_rows, found.where(_several()), sides, keys, kinds)
            row_by_row = caches.enter_context(cached(row_by_row))
            found = found.where(~_several()).unionByName(row_by_row)
            totals = _totals_of(found, sides, keys, kinds)
        kept: list[Difference] = []
        if totals["different"]:
            if not expects_some:
                # So the samples have a small plan of their own. In one with the comparison's, Spark would put
                # the expressions into each other.
                found = caches.enter_context(cached(found))
            for row in _most_telling(found, keys, samples):
                kept.extend(_samples(row))
    return totals.asDict(), tuple(kept)


def _frames(sides: Sides) -> dict[str, DataFrame]:
    """By their names the frames that are read, the stream's first."""
    frames = {_STREAM: sides.stream, _ONLINE: sides.online}
    if not sides.has_one_answer:
        frames[_HINDSIGHT] = sides.hindsight
    return frames


def _counted(sides: Sides, kinds: dict[str, DataType]) -> dict[str, Column]:
    """What is counted of rows that are the same on all sides: those with a ratio, and with one of costs."""
    conditions: dict[str, Column] = {}
    for name in _numeric(kinds):
        value = F.col("_row")[name].cast("double")
        conditions[f"finite {name}"] = finite(value)
        if name in sides.ratio_bound:
            conditions[f"cost {name}"] = finite(value) & (value >= 0)
    return conditions


def _with_same(
    of_others: Mapping[str, Any], same: Same, sides: Sides, kinds: dict[str, DataType]
) -> dict[str, Any]:
    """The aggregates over all rows, from those over the rows of parts that differ; empty if none does."""
    totals: dict[str, Any] = defaultdict(lambda: None, of_others)
    totals["windows_compared"] = same.windows
    for name in ("rows_compared", "held", "n_h"):
        totals[name] = _count(totals, name) + same.rows
    for name in _numeric(kinds):
        equal = same.counts[f"finite {name}"]
        if not equal:
            continue
        totals[f"ratios_{name}"] = _count(totals, f"ratios_{name}") + equal
        totals[f"sum_{name}"] = (totals[f"sum_{name}"] or 0.0) + equal
        if totals[f"worst_{name}"] is None:
            totals[f"worst_{name}"] = 1.0
        if name in sides.tolerance and totals[f"greatest_difference_{name}"] is None:
            totals[f"greatest_difference_{name}"] = 0.0
        if name in sides.ratio_bound and same.counts[f"cost {name}"]:
            totals[f"greatest_ratio_{name}"] = max(totals[f"greatest_ratio_{name}"] or 1.0, 1.0)
    return totals


def _most_telling(found: DataFrame, keys: list[str], most: int) -> list[Row]:
    """The rows that differ, as many as are kept, with their keys as JSON."""
    columns = [F.col(f"`{key}`").alias(_key_name(key)) for key in keys]
    as_json = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
    order = [
        F.col("unexplained").desc(),
        F.col("nondeterministic").desc(),
        F.col("beyond_bound").desc(),
        F.col("rounding").desc(),
        F.col("keys"),
    ]
    return found.where("different").withColumn("keys", as_json).orderBy(*order).limit(most).collect()


def _all_rows(sides: Sides, keys: list[str], kinds: dict[str, DataType]) -> DataFrame:
    key_types = {name: sides.online.schema[name].dataType for name in keys}
    each = [_one_side(side, frame, key_types, kinds) for side, frame in _frames(sides).items()]
    return reduce(DataFrame.unionByName, each)


def _by_key(all_rows: DataFrame, sides: Sides, keys: list[str], kinds: dict[str, DataType]) -> DataFrame:
    """One row a key: its rows on each side, how many came late, and how the sides differ."""
    grouped = _measured(all_rows.groupBy(*_columns(keys)), sides, kinds)
    return _judged(_with_late_rows(grouped, sides.late), sides, kinds, rows_of_key=F.col("n_o"))


def _row_by_row(
    all_rows: DataFrame, coarse: DataFrame, sides: Sides, keys: list[str], kinds: dict[str, DataType]
) -> DataFrame:
    """The same for the keys of ``coarse``, with a row for each number of a key."""
    key = F.struct(*_columns(keys)).alias("_key")
    rows = all_rows.select(key, "_side", "_row").join(coarse.select(key), "_key", "left_semi")
    stream, *answers = _frames(sides)
    numbered = number_rows(rows, kinds, stream, answers, sides.tolerance)
    grouped = _measured(numbered.groupBy("_key", "_number"), sides, kinds)
    rows_of_key = F.sum("n_o").over(Window.partitionBy("_key"))
    grouped = grouped.withColumn("_rows_of_key", rows_of_key).select("_key.*", "*")
    with_late_rows = _with_late_rows(grouped, sides.late)
    found = _judged(with_late_rows, sides, kinds, rows_of_key=F.col("_rows_of_key"))
    return found.drop("_key", "_number", "_rows_of_key")


def _several() -> Column:
    """Whether the key has several rows on a side."""
    return F.greatest(F.col("n_s"), F.col("n_o"), F.col("n_h")) > 1


def _key_column(name: str) -> str:
    """The column that has a key here. A user's name may be one that a comparison uses itself."""
    if name == _WINDOW:
        return name
    return f"{_KEY}{name}"


def _key_name(column: str) -> str:
    return column.removeprefix(_KEY)


def _columns(names: list[str]) -> list[Column]:
    return [F.col(f"`{name}`") for name in names]


def _one_side(
    side: str, frame: DataFrame, keys: Mapping[str, DataType], kinds: Mapping[str, DataType]
) -> DataFrame:
    """The keys of the rows, the side they are of, and their values in one struct that can be ordered."""
    key_columns = [
        _orderable(F.col(f"`{name}`"), kind).alias(_key_column(name)) for name, kind in keys.items()
    ]
    values = [_orderable(F.col(f"`{name}`"), kind).alias(name) for name, kind in kinds.items()]
    row = F.struct(F.lit(1).alias("_one"), *values)
    return frame.select(*key_columns, F.lit(side).alias("_side"), row.alias("_row"))


def _orderable(value: Column, kind: DataType) -> Column:
    """Maps can be neither grouped by nor ordered, wherever they stand: compare their sorted entries."""
    if not _holds_a_map(kind):
        return value
    if isinstance(kind, MapType):
        entries = F.map_entries(value)
        if _holds_a_map(kind.valueType):
            entries = F.transform(entries, lambda entry: _orderable_entry(entry, kind.valueType))
        return F.array_sort(entries)
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda element: _orderable(element, kind.elementType))
    assert isinstance(kind, StructType)
    fields = [_orderable(value[field.name], field.dataType).alias(field.name) for field in kind.fields]
    return F.when(value.isNotNull(), F.struct(*fields))


def _orderable_entry(entry: Column, kind: DataType) -> Column:
    """An entry of a map whose values are of this type. Keys hold no maps."""
    return F.struct(entry["key"].alias("key"), _orderable(entry["value"], kind).alias("value"))


def _holds_a_map(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return True
    if isinstance(kind, ArrayType):
        return _holds_a_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_holds_a_map(field.dataType) for field in kind.fields)
    return False


def _measured(groups: GroupedData, sides: Sides, kinds: Mapping[str, DataType]) -> DataFrame:
    """How many rows each side has in a group, and its row; of several rows the least value of each column."""
    hindsight = _HINDSIGHT
    if sides.has_one_answer:
        hindsight = _ONLINE
    measures: list[Column] = []
    for name, side in ((_STREAM, _STREAM), (_ONLINE, _ONLINE), (_HINDSIGHT, hindsight)):
        rows = F.count_if(F.col("_side") == side)
        measures.append(rows.alias(f"n_{name}"))
        measures.append(F.when(rows > 0, _least(side, kinds)).alias(f"{name}_row"))
    return groups.agg(*measures)


def _least(side: str, kinds: Mapping[str, DataType]) -> Column:
    """The least value of each column, as one struct.

    Column by column: Spark keeps the least of numbers in a hash table, but sorts for the least of structs.
    """
    values = [F.min(F.when(F.col("_side") == side, F.col("_row")[name])).alias(name) for name in kinds]
    return F.struct(F.lit(1).alias("_one"), *values)


def _with_late_rows(grouped: DataFrame, late: DataFrame | None) -> DataFrame:
    """With ``late_rows``: how many rows came late for the window of the key."""
    if late is None:
        return grouped.withColumn("late_rows", F.lit(0).cast("long"))
    by_window = late.select(F.col("end_ms").alias("_end_ms"), F.col("late_rows"))
    same_window = F.unix_millis("window.end") == F.col("_end_ms")
    joined = grouped.join(F.broadcast(by_window), same_window, "left")
    return joined.drop("_end_ms").fillna(0, ["late_rows"])


def _judged(grouped: DataFrame, sides: Sides, kinds: dict[str, DataType], rows_of_key: Column) -> DataFrame:
    """With the differences from the online answer and from hindsight, and what explains them.

    ``rows_of_key``: how many rows the online answer has of the key.
    """
    in_stream = F.col("n_s")
    in_online = F.col("n_o")
    in_hindsight = F.col("n_h")
    online = _states(kinds, sides.tolerance, _ONLINE)
    hindsight = online
    if not sides.has_one_answer:
        hindsight = _states(kinds, sides.tolerance, _HINDSIGHT)

    in_stream_and_online = (in_stream > 0) & (in_online > 0)
    in_stream_and_hindsight = (in_stream > 0) & (in_hindsight > 0)
    ratios = _ratio_states(kinds, sides.ratio_bound)
    columns = {
        "changed_columns": _columns_in_state("changed", online, in_stream_and_online),
        "rounded_columns": _columns_in_state("rounding", online, in_stream_and_online),
        "beyond_columns": _columns_in_state("beyond", ratios, in_stream_and_hindsight),
        "no_ratio_columns": _columns_in_state("no ratio", ratios, in_stream_and_hindsight),
    }

    differs = _any([state == "changed" for state in hindsight.values()])
    held = in_stream_and_hindsight & ~differs
    counts = {
        "missing": F.greatest(in_online - in_stream, F.lit(0)),
        "extra": F.when(rows_of_key == 0, in_stream).otherwise(0),
        "doubled": F.when(rows_of_key > 0, F.greatest(in_stream - in_online, F.lit(0))).otherwise(0),
        "changed": F.size("changed_columns") > 0,
        "rounding": F.size("rounded_columns") > 0,
        "beyond_bound": F.size("beyond_columns") + F.size("no_ratio_columns") > 0,
        "hindsight_differs": (in_hindsight != in_stream) | (in_stream_and_hindsight & differs),
        "held": F.when(held, F.least(in_stream, in_hindsight)).otherwise(0),
    }

    rows_differ = F.col("missing") + F.col("extra") + F.col("doubled") > 0
    unexplained = rows_differ | F.col("changed")
    # Only late rows may set hindsight apart. A difference without any means that two runs of the same rows
    # disagree.
    may_differ = (F.col("late_rows") > 0) | F.lit(sides.foresight)
    only_hindsight_differs = F.col("hindsight_differs") & ~F.col("unexplained")
    explained = only_hindsight_differs & may_differ
    nondeterministic = only_hindsight_differs & ~F.col("explained")
    different = _any([F.col(name) for name in ("unexplained", "explained", "rounding", "beyond_bound")])
    return (
        grouped.withColumns(columns)
        .withColumns(counts)
        .withColumn("unexplained", unexplained)
        .withColumn("explained", explained)
        .withColumn("nondeterministic", nondeterministic)
        .withColumn("different", different | F.col("nondeterministic"))
    )


def _columns_in_state(wanted: str, states: Mapping[str, Column], compared: Column) -> Column:
    """The names of the columns that are in this state, as an array; empty for keys that are not compared."""
    if not states:
        return F.array().cast("array<string>")
    names = [F.when(compared & (state == wanted), name) for name, state in states.items()]
    return F.array_compact(F.array(*names))


def _states(kinds: Mapping[str, DataType], tolerance: Mapping[str, float], side: str) -> dict[str, Column]:
    """``same``, ``rounding`` or ``changed`` of each column, by the row of each side."""
    states: dict[str, Column] = {}
    for name, kind in kinds.items():
        mine = F.col("s_row")[name]
        theirs = F.col(f"{side}_row")[name]
        states[name] = value_state(mine, theirs, kind, tolerance.get(name))
    return states


def _ratio_states(kinds: Mapping[str, DataType], bounds: Mapping[str, float]) -> dict[str, Column]:
    """``within``, ``beyond`` or ``no ratio`` of each column that has a bound.

    A ratio that exceeds its bound by rounding alone is within. There is no ratio if hindsight alone is 0, or
    the values differ and one of them is negative, null, infinite or not-a-number: nothing then shows that the
    bound is kept.
    """
    states: dict[str, Column] = {}
    for name, bound in bounds.items():
        if name not in kinds:
            continue
        stream = F.col("s_row")[name]
        hindsight = F.col("h_row")[name]
        ratio = _cost_ratio(name)
        state = F.when(stream.eqNullSafe(hindsight), "within").when(ratio.isNull(), "no ratio")
        rounding = rounding_limit(kinds[name]) or 0.0
        states[name] = state.when(ratio > bound * (1 + rounding), "beyond").otherwise("within")
    return states


def _any(conditions: list[Column]) -> Column:
    return reduce(or_, conditions, F.lit(False))


def _totals_of(found: DataFrame, sides: Sides, keys: list[str], kinds: dict[str, DataType]) -> Row:
    totals = found.agg(*_totals(sides, keys, kinds)).first()
    assert totals is not None
    return totals


def _totals(sides: Sides, keys: list[str], kinds: dict[str, DataType]) -> Iterator[Column]:
    """The aggregates over all keys, as :func:`_comparison` reads them."""
    yield F.count_if(_several()).alias("several")
    windows = F.lit(0)
    if _WINDOW in keys:
        windows = F.count_distinct(F.col("window"))
    yield windows.alias("windows_compared")
    yield F.sum(F.greatest("n_s", "n_o")).alias("rows_compared")
    for name in ("missing", "extra", "doubled", "held", "n_h"):
        yield F.sum(name).alias(name)
    for name in ("changed", "rounding", "explained", "nondeterministic", "different"):
        yield F.count_if(F.col(name)).alias(name)
    yield F.count_if(F.col("unexplained") & (F.col("late_rows") > 0)).alias("unexplained_late")
    for name in kinds:
        yield F.count_if(F.array_contains("changed_columns", name)).alias(f"changed_{name}")
    exact_or_rounded = {name: kind for name, kind in kinds.items() if name not in sides.tolerance}
    yield _greatest_rounding(exact_or_rounded).alias("greatest_rounding")
    for name in _numeric(kinds):
        ratio = _ratio(name)
        yield F.sum(ratio).alias(f"sum_{name}")
        yield F.count(ratio).alias(f"ratios_{name}")
        yield F.max_by(ratio, F.abs(ratio - 1)).alias(f"worst_{name}")
    for name in _named(sides.ratio_bound, kinds):
        yield F.max(_cost_ratio(name)).alias(f"greatest_ratio_{name}")
        yield F.count_if(F.array_contains("beyond_columns", name)).alias(f"beyond_{name}")
        yield F.count_if(F.array_contains("no_ratio_columns", name)).alias(f"no_ratio_{name}")
    for name in _named(sides.tolerance, kinds):
        difference = absolute_difference(F.col("s_row")[name], F.col("o_row")[name], kinds[name])
        # Large values may differ by more and be equal but for relative rounding: that exceeds nothing.
        is_judged = (difference <= sides.tolerance[name]) | F.array_contains("changed_columns", name)
        yield F.max(F.when(is_judged, difference)).alias(f"greatest_difference_{name}")


def _greatest_rounding(kinds: dict[str, DataType]) -> Column:
    """The greatest relative difference that counts as rounding, of any of these columns; 0.0 if there is
    none.
    """
    sizes: list[Column] = []
    for name, kind in kinds.items():
        if rounding_limit(kind) is None:
            continue
        rounded = F.array_contains("rounded_columns", name)
        size = relative_difference(F.col("s_row")[name], F.col("o_row")[name])
        sizes.append(F.when(rounded, size))
    # `greatest` takes two columns at least, so that zero stands twice.
    return F.max(F.greatest(*sizes, F.lit(0.0), F.lit(0.0)))


def _ratio(name: str) -> Column:
    """Stream / hindsight of one row; null if either side lacks a finite value, or hindsight alone is 0."""
    stream = F.col("s_row")[name].cast("double")
    hindsight = F.col("h_row")[name].cast("double")
    both_zero = (stream == 0) & (hindsight == 0)
    divisible = finite(stream) & finite(hindsight) & (hindsight != 0)
    return F.when(both_zero, 1.0).when(divisible, stream / hindsight)


def _cost_ratio(name: str) -> Column:
    """The same for costs, which are not negative."""
    stream = F.col("s_row")[name].cast("double")
    hindsight = F.col("h_row")[name].cast("double")
    return F.when((stream >= 0) & (hindsight >= 0), _ratio(name))


def _named(bounds: Mapping[str, float], kinds: Mapping[str, DataType]) -> list[str]:
    """The columns with a bound that are compared."""
    return [name for name in bounds if name in kinds]


def _numeric(kinds: dict[str, DataType]) -> list[str]:
    return [name for name, kind in kinds.items() if isinstance(kind, NumericType)]


def _comparison(
    totals: Mapping[str, Any], sides: Sides, kinds: dict[str, DataType], samples: tuple[Difference, ...]
) -> Comparison:
    return Comparison(
        windows_compared=_count(totals, "windows_compared"),
        rows_compared=_count(totals, "rows_compared"),
        missing=_count(totals, "missing"),
        extra=_count(totals, "extra"),
        changed=_count(totals, "changed"),
        doubled=_count(totals, "doubled"),
        rounding=_count(totals, "rounding"),
        nondeterministic=_count(totals, "nondeterministic"),
        late_differences=_count(totals, "explained"),
        greatest_rounding=float(totals["greatest_rounding"] or 0.0),
        captured_results=_captured_results(totals),
        ratios=_ratios(totals, kinds),
        by_column=_changes_by_column(totals, kinds),
        unexplained_late=_count(totals, "unexplained_late"),
        samples=samples,
        ratio_bounds=_ratio_bounds(totals, sides, kinds),
        tolerances=_tolerances(totals, sides, kinds),
    )


def _ratio_bounds(
    totals: Mapping[str, Any], sides: Sides, kinds: dict[str, DataType]
) -> dict[str, BoundFound]:
    found: dict[str, BoundFound] = {}
    for name in _named(sides.ratio_bound, kinds):
        without = _count(totals, f"no_ratio_{name}")
        found[name] = BoundFound(
            bound=sides.ratio_bound[name],
            greatest=_finite_or_none(totals[f"greatest_ratio_{name}"]),
            beyond=_count(totals, f"beyond_{name}") + without,
            without_figure=without,
        )
    return found


def _tolerances(totals: Mapping[str, Any], sides: Sides, kinds: dict[str, DataType]) -> dict[str, BoundFound]:
    found: dict[str, BoundFound] = {}
    for name in _named(sides.tolerance, kinds):
        found[name] = BoundFound(
            bound=sides.tolerance[name],
            greatest=_finite_or_none(totals[f"greatest_difference_{name}"]),
            beyond=_count(totals, f"changed_{name}"),
        )
    return found


def _finite_or_none(value: float | None) -> float | None:
    """JSON has no infinity."""
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def _count(totals: Mapping[str, Any], name: str) -> int:
    # The sum over no rows is null.
    return int(totals[name] or 0)


def _captured_results(totals: Mapping[str, Any]) -> float:
    """The share of the rows in hindsight that the stream holds; 1.0 if there are none."""
    rows = _count(totals, "n_h")
    if rows == 0:
        return 1.0
    return _count(totals, "held") / rows


def _ratios(totals: Mapping[str, Any], kinds: dict[str, DataType]) -> dict[str, dict[str, float]]:
    ratios: dict[str, dict[str, float]] = {}
    for name in _numeric(kinds):
        compared = _count(totals, f"ratios_{name}")
        if compared:
            mean = float(totals[f"sum_{name}"]) / compared
            ratios[name] = {"worst": float(totals[f"worst_{name}"]), "mean": mean}
    return ratios


def _changes_by_column(totals: Mapping[str, Any], kinds: dict[str, DataType]) -> dict[str, int]:
    changes: dict[str, int] = {}
    for name in kinds:
        count = _count(totals, f"changed_{name}")
        if count:
            changes[name] = count
    return changes


def _samples(row: Row) -> Iterator[Difference]:
    """The differences of one key, or of one of its rows."""
    stream = _values(row["s_row"])
    online = _values(row["o_row"])
    hindsight = _values(row["h_row"])
    keys = row["keys"]
    if row["explained"] or row["nondeterministic"]:
        yield Difference(
            kind=_kind_in_hindsight(row),
            cause=_cause_in_hindsight(row),
            keys=keys,
            stream_value=_text(stream),
            hindcast_value=_text(hindsight),
            late_rows=row["late_rows"],
        )
    for kind in (Kind.MISSING, Kind.EXTRA, Kind.DOUBLED):
        if row[kind.value]:
            yield Difference(
                kind=kind,
                cause=Cause.UNEXPLAINED,
                keys=keys,
                stream_value=_text(stream),
                hindcast_value=_text(online),
            )
    for name in (*row["beyond_columns"], *row["no_ratio_columns"]):
        yield _changed_column(keys, name, Cause.BOUND, stream, hindsight, Kind.RATIO)
    for name in row["changed_columns"]:
        yield _changed_column(keys, name, Cause.UNEXPLAINED, stream, online)
    for name in row["rounded_columns"]:
        yield _changed_column(keys, name, Cause.ROUNDING, stream, online)


def _changed_column(
    keys: str,
    name: str,
    cause: Cause,
    stream: dict[str, Any] | None,
    hindcast: dict[str, Any] | None,
    kind: Kind = Kind.CHANGED,
) -> Difference:
    return Difference(
        kind=kind,
        cause=cause,
        keys=keys,
        column=name,
        stream_value=_text((stream or {}).get(name)),
        hindcast_value=_text((hindcast or {}).get(name)),
    )


def _kind_in_hindsight(row: Row) -> Kind:
    if row["n_s"] < row["n_h"]:
        return Kind.MISSING
    if row["n_s"] > row["n_h"]:
        return Kind.EXTRA
    return Kind.CHANGED


def _cause_in_hindsight(row: Row) -> Cause:
    if row["nondeterministic"]:
        return Cause.UNEXPLAINED
    if row["late_rows"]:
        return Cause.LATE_ROWS
    return Cause.ONLINE


def _values(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    values = row.asDict(recursive=True)
    del values["_one"]  # it only keeps a row without value columns from being empty
    return values


def _text(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, default=str)
