"""Compare the stream's table with both answers of a replay, key by key: one shuffle for all three.

Stream against the *online* answer is the verdict: any difference is unexplained, but for rounding, which is counted apart. Stream against
the answer in *hindsight* is the price of deciding online. A value that is null on both sides is equal; so is not-a-number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, MapType, NumericType

from hindcast.spark.session import cached

#: A greater relative difference between two doubles is never rounding. Adding n numbers in another order moves the sum by less than
#: n * 1.1e-16 of the sum of their magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 4.2): enough for 9,000 rows.
DOUBLE_ROUNDING = 1e-12
#: The same for 4-byte floats: four units in the last place.
FLOAT_ROUNDING = 4 * 2.0**-23


class Kind(StrEnum):
    """What differs. The first four are of rows; the others name what cannot be compared row by row."""

    MISSING = "missing"  # the stream lacks the row
    EXTRA = "extra"  # only the stream has the row
    CHANGED = "changed"
    DOUBLED = "doubled"  # the stream has the row more often
    COLUMNS = "columns"
    LATE_ROWS_TABLE = "late_rows_table"
    DEAD_LETTERS_TABLE = "dead_letters_table"


class Cause(StrEnum):
    LATE_ROWS = "late_rows"
    ONLINE = "online"  # decided before what came later was known
    ROUNDING = "rounding"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One sample. ``keys`` is JSON; ``column`` is empty where the whole row differs. Values are JSON or empty."""

    kind: Kind
    cause: Cause
    keys: str
    column: str = ""
    stream_value: str = ""
    hindcast_value: str = ""
    late_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Exact counts and some samples. Rows are counted as often as they stand in a table; ``changed`` and ``rounding`` count keys.

    ``by_column``: column -> in how many keys it differs from the online answer by more than rounding. ``unexplained_late``: the keys with
    unexplained differences in windows for which rows came late.

    ``ratios``: numeric column -> ``worst`` (farthest from 1) and ``mean`` of stream / hindsight over the keys that both hold.
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

    @property
    def unexplained(self) -> int:
        return self.missing + self.extra + self.changed + self.doubled + self.nondeterministic


@dataclass(frozen=True)
class Sides:
    """The three frames, with the same columns. ``late``: a window's ``end_ms`` and the ``late_rows`` it had; None without windows.

    ``foresight``: hindsight may differ without any late row, because it knows what came later.
    """

    stream: DataFrame
    online: DataFrame
    hindsight: DataFrame
    keys: Sequence[str]
    late: DataFrame | None = None
    foresight: bool = False


def compare(sides: Sides, samples: int) -> Comparison:
    """Count every difference; keep up to ``samples`` keys of them, unexplained ones first, in the order of the keys."""
    keys = list(sides.keys) or list(sides.online.columns)
    values = [column for column in sides.online.columns if column not in keys]
    kinds = {name: sides.online.schema[name].dataType for name in values}
    with cached(_classified(sides, keys, kinds)) as found:
        totals = found.agg(*_totals(keys, kinds)).first()
        assert totals is not None
        different = found.where("unexplained OR explained OR rounding OR nondeterministic")
        order = [F.col("unexplained").desc(), F.col("nondeterministic").desc(), F.col("rounding").desc(), F.col("keys")]
        kept = different.orderBy(*order).limit(samples).collect()
    return _comparison(totals, kinds, tuple(sample for row in kept for sample in _samples(row)))


def _orderable(name: str, kind: DataType) -> Column:
    """Maps can be neither grouped by nor ordered: compare their sorted entries."""
    return F.array_sort(F.map_entries(name)).alias(name) if isinstance(kind, MapType) else F.col(f"`{name}`")


def _classified(sides: Sides, keys: list[str], kinds: dict[str, DataType]) -> DataFrame:
    frames = []
    for side, frame in (("s", sides.stream), ("o", sides.online), ("h", sides.hindsight)):
        types = {field.name: field.dataType for field in sides.online.schema.fields}
        row = F.struct(F.lit(1).alias("_one"), *[_orderable(name, kinds[name]) for name in kinds])
        frames.append(frame.select(*[_orderable(name, types[name]) for name in keys], F.lit(side).alias("_side"), row.alias("_row")))
    both = reduce(DataFrame.unionByName, frames)
    measures = []
    for side in "soh":
        mine = F.col("_side") == side
        measures += [
            F.count_if(mine).alias(f"n_{side}"),
            F.min(F.when(mine, F.col("_row"))).alias(f"{side}_min"),
            F.max(F.when(mine, F.col("_row"))).alias(f"{side}_max"),
        ]
    grouped = both.groupBy(*[F.col(f"`{name}`") for name in keys]).agg(*measures)
    if sides.late is not None:
        here = F.unix_millis("window.end") == F.col("_end_ms")
        late = sides.late.select(F.col("end_ms").alias("_end_ms"), F.col("late_rows"))
        grouped = grouped.join(F.broadcast(late), here, "left").drop("_end_ms").fillna(0, ["late_rows"])
    else:
        grouped = grouped.withColumn("late_rows", F.lit(0).cast("long"))
    return _judged(
        grouped.withColumn("keys", F.to_json(F.struct(*[F.col(f"`{name}`") for name in keys]), {"ignoreNullFields": "false"})),
        kinds,
        foresight=sides.foresight,
    )


def _judged(grouped: DataFrame, kinds: dict[str, DataType], *, foresight: bool) -> DataFrame:
    s, o, h = F.col("n_s"), F.col("n_o"), F.col("n_h")
    online = {name: _verdict_of(name, kind, "o") for name, kind in kinds.items()}
    hindsight = {name: _verdict_of(name, kind, "h") for name, kind in kinds.items()}
    paired = (s > 0) & (o > 0)
    changed = (
        F.array_compact(F.array(*[F.when(paired & (state == "changed"), name) for name, state in online.items()]))
        if online
        else F.array().cast("array<string>")
    )
    rounded = (
        F.array_compact(F.array(*[F.when(paired & (state == "rounding"), name) for name, state in online.items()]))
        if online
        else F.array().cast("array<string>")
    )
    differs = _any([state == "changed" for state in hindsight.values()])
    held = (s > 0) & (h > 0) & ~differs
    return (
        grouped.withColumns({"changed_columns": changed, "rounded_columns": rounded})
        .withColumns(
            {
                "missing": F.greatest(o - s, F.lit(0)),
                "extra": F.when(o == 0, s).otherwise(0),
                "doubled": F.when(o > 0, F.greatest(s - o, F.lit(0))).otherwise(0),
                "changed": (F.size("changed_columns") > 0),
                "rounding": (F.size("rounded_columns") > 0),
                "priced": (h != s) | ((h > 0) & (s > 0) & differs),
                "held": F.when(held, F.least(s, h)).otherwise(0),
            }
        )
        .withColumn("unexplained", (F.col("missing") + F.col("extra") + F.col("doubled") > 0) | F.col("changed"))
        # Only rows that came late may set hindsight apart; a difference without any means that two runs of the same rows disagree.
        .withColumn("explained", F.col("priced") & ~F.col("unexplained") & ((F.col("late_rows") > 0) | F.lit(foresight)))
        .withColumn("nondeterministic", F.col("priced") & ~F.col("unexplained") & ~F.col("explained"))
    )


def _verdict_of(name: str, kind: DataType, side: str) -> Column:
    """``same``, ``rounding`` or ``changed`` of one column, the worse of the least and the greatest row where a key has several."""
    states = [_state(F.col(f"s_{which}")[name], F.col(f"{side}_{which}")[name], kind) for which in ("min", "max")]
    return (
        F.when((states[0] == "changed") | (states[1] == "changed"), "changed")
        .when((states[0] == "rounding") | (states[1] == "rounding"), "rounding")
        .otherwise("same")
    )


def _state(a: Column, b: Column, kind: DataType) -> Column:
    state = F.when(a.eqNullSafe(b), "same")
    if isinstance(kind, DoubleType | FloatType):
        limit = DOUBLE_ROUNDING if isinstance(kind, DoubleType) else FLOAT_ROUNDING
        state = state.when(_finite(a) & _finite(b) & (_relative(a, b) <= limit), "rounding")
    return state.otherwise("changed")


def _finite(value: Column) -> Column:
    return F.abs(value) < F.lit(float("inf"))  # false for NaN, which Spark orders above infinity; null stays null


def _relative(a: Column, b: Column) -> Column:
    return F.abs(a.cast("double") - b.cast("double")) / F.greatest(F.abs(a), F.abs(b)).cast("double")


def _any(conditions: list[Column]) -> Column:
    return reduce(or_, conditions, F.lit(False))


def _totals(keys: list[str], kinds: dict[str, DataType]) -> Iterator[Column]:
    yield (F.count_distinct(F.col("window")) if "window" in keys else F.lit(0)).alias("windows_compared")
    yield F.count_if((F.col("n_s") > 0) | (F.col("n_o") > 0)).alias("rows_compared")
    for name in ("missing", "extra", "doubled", "held", "n_h"):
        yield F.sum(name).alias(name)
    for name in ("changed", "rounding", "explained", "nondeterministic"):
        yield F.count_if(F.col(name)).alias(name)
    yield F.count_if(F.col("unexplained") & (F.col("late_rows") > 0)).alias("unexplained_late")
    for name in kinds:
        yield F.count_if(F.array_contains("changed_columns", name)).alias(f"changed_{name}")
    floats = [name for name, kind in kinds.items() if isinstance(kind, DoubleType | FloatType)]
    sizes = [F.when(F.array_contains("rounded_columns", name), _relative(F.col("s_min")[name], F.col("o_min")[name])) for name in floats]
    yield F.max(F.greatest(*sizes, F.lit(0.0), F.lit(0.0))).alias("greatest_rounding")
    for name in _numeric(kinds):
        s, h = F.col("s_min")[name].cast("double"), F.col("h_min")[name].cast("double")
        ratio = F.when((s == 0) & (h == 0), 1.0).when(_finite(s) & _finite(h) & (h != 0), s / h)
        yield F.avg(ratio).alias(f"mean_{name}")
        yield F.max_by(ratio, F.abs(ratio - 1)).alias(f"worst_{name}")


def _numeric(kinds: dict[str, DataType]) -> list[str]:
    return [name for name, kind in kinds.items() if isinstance(kind, NumericType)]


def _comparison(totals: Row, kinds: dict[str, DataType], samples: tuple[Difference, ...]) -> Comparison:
    counts = {
        name: int(totals[name] or 0)
        for name in ("windows_compared", "rows_compared", "missing", "extra", "changed", "doubled", "rounding", "nondeterministic")
    }
    means = {name: (totals[f"worst_{name}"], totals[f"mean_{name}"]) for name in _numeric(kinds)}
    ratios = {
        name: {"worst": float(worst), "mean": float(mean)}
        for name, (worst, mean) in means.items()
        if worst is not None and mean is not None
    }
    rows = int(totals["n_h"] or 0)
    return Comparison(
        **counts,
        late_differences=int(totals["explained"] or 0),
        greatest_rounding=float(totals["greatest_rounding"] or 0.0),
        captured_results=int(totals["held"]) / rows if rows else 1.0,
        ratios=ratios,
        by_column={name: int(totals[f"changed_{name}"]) for name in kinds if totals[f"changed_{name}"]},
        unexplained_late=int(totals["unexplained_late"] or 0),
        samples=samples,
    )


def _samples(row: Row) -> Iterator[Difference]:
    stream, online, hindsight = (_values(row[f"{side}_min"]) for side in "soh")
    if row["explained"] or row["nondeterministic"]:
        cause = Cause.UNEXPLAINED if row["nondeterministic"] else Cause.LATE_ROWS if row["late_rows"] else Cause.ONLINE
        kind = Kind.MISSING if row["n_s"] < row["n_h"] else Kind.EXTRA if row["n_s"] > row["n_h"] else Kind.CHANGED
        yield Difference(
            kind=kind,
            cause=cause,
            keys=row["keys"],
            stream_value=_text(stream),
            hindcast_value=_text(hindsight),
            late_rows=row["late_rows"],
        )
    for kind in (Kind.MISSING, Kind.EXTRA, Kind.DOUBLED):
        if row[kind.value]:
            yield Difference(kind=kind, cause=Cause.UNEXPLAINED, keys=row["keys"], stream_value=_text(stream), hindcast_value=_text(online))
    for columns, cause in ((row["changed_columns"], Cause.UNEXPLAINED), (row["rounded_columns"], Cause.ROUNDING)):
        for name in columns:
            here, there = _text((stream or {}).get(name)), _text((online or {}).get(name))
            yield Difference(kind=Kind.CHANGED, cause=cause, keys=row["keys"], column=name, stream_value=here, hindcast_value=there)


def _values(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    values = row.asDict(recursive=True)
    del values["_one"]  # it only keeps a row without value columns from being empty
    return values


def _text(value: Any) -> str:
    return "" if value is None else json.dumps(value, default=str)
