"""Number the rows of keys that have several, so that rows which match have the same number on each side.

The rows of the stream are numbered in order. Each other side is paired with them in three passes, each over
what the one before left: equal rows; rows that are equal but for rounding; any others of the key, in order,
which have changed. Rows that stay alone have numbers that the stream does not use.

A key with its number has one row on each side. Equal multisets of rows are paired completely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from hindcast.verdict.compare_values import rounding_limit, value_state

# A pair: a row of the stream with its number, and the row of the other side. Either may be null.
_NUMBER = "_number"
_MINE = "_mine"
_THEIRS = "_theirs"

#: Values whose logarithms differ by less than so many limits of rounding are put side by side; of a column
#: with a tolerance, those that differ by less than so many tolerances.
_LIMITS_SIDE_BY_SIDE = 1000


def number_rows(
    rows: DataFrame,
    kinds: Mapping[str, DataType],
    stream: str,
    others: Sequence[str],
    tolerance: Mapping[str, float],
) -> DataFrame:
    """Add ``_number`` to rows of ``_key``, ``_side`` and ``_row``.

    ``kinds`` are the types of a row's columns. ``stream`` and ``others`` are values of ``_side``.
    ``tolerance``: column -> the greatest difference that counts as rounding.
    """
    # All that follows stays within a key, so that this is the one shuffle.
    by_key = rows.repartition("_key")
    numbered = [by_key.where(F.col("_side") == stream).withColumn(_NUMBER, _place_in_order())]
    for side in others:
        both = by_key.where(F.col("_side").isin(stream, side))
        numbered.append(_numbered_like_the_stream(both, kinds, stream, side, tolerance))
    return reduce(DataFrame.unionByName, numbered)


def _place_in_order() -> Column:
    return F.row_number().over(Window.partitionBy("_key", "_side").orderBy("_row"))


def _numbered_like_the_stream(
    both: DataFrame, kinds: Mapping[str, DataType], stream: str, side: str, tolerance: Mapping[str, float]
) -> DataFrame:
    """The rows of the side."""
    is_mine = F.col("_side") == stream
    row = F.col("_row")
    pairs = both.withColumn("_place", _place_in_order()).select(
        "_key",
        F.when(is_mine, F.col("_place")).alias(_NUMBER),
        F.when(is_mine, row).alias(_MINE),
        F.when(~is_mine, row).alias(_THEIRS),
    )
    either = F.coalesce(F.col(_MINE), F.col(_THEIRS))
    pairs = _paired(pairs, either, [F.lit(1)])
    names = [name for name, kind in kinds.items() if rounding_limit(kind) is not None or name in tolerance]
    inexact = {name: kinds[name] for name in names}
    if inexact:
        others = [either[name].alias(name) for name in kinds if name not in inexact]
        rest = F.struct(F.lit(1).alias("_one"), *others)
        pairs = _paired(pairs, rest, _side_by_side(either, inexact, tolerance))
        pairs = _without_changed_pairs(pairs, inexact, tolerance)
    pairs = _paired(pairs, F.lit(1), [either])
    alone = F.col(_NUMBER).isNull()
    in_order = Window.partitionBy("_key", alone).orderBy(_THEIRS)
    number = F.coalesce(F.col(_NUMBER), -F.row_number().over(in_order))
    theirs = pairs.where(F.col(_THEIRS).isNotNull())
    return theirs.select(
        "_key", F.lit(side).alias("_side"), F.col(_THEIRS).alias("_row"), number.alias(_NUMBER)
    )


def _paired(pairs: DataFrame, same: Column, order: Sequence[Column]) -> DataFrame:
    """Pair rows that are still alone: of those that are the same in this, the first with the first."""
    is_mine = F.col(_MINE).isNotNull()
    is_theirs = F.col(_THEIRS).isNotNull()
    together = pairs.select("*", same.alias("_same"), (is_mine & is_theirs).alias("_done"))
    in_order = Window.partitionBy("_key", "_same", "_done", is_mine).orderBy(*order)
    placed = together.withColumn("_place", F.row_number().over(in_order))
    return (
        placed.groupBy("_key", "_same", "_done", "_place")
        .agg(
            F.max(_NUMBER).alias(_NUMBER),
            F.first(_MINE, ignorenulls=True).alias(_MINE),
            F.first(_THEIRS, ignorenulls=True).alias(_THEIRS),
        )
        .select("_key", _NUMBER, _MINE, _THEIRS)
    )


def _side_by_side(
    row: Column, inexact: Mapping[str, DataType], tolerance: Mapping[str, float]
) -> list[Column]:
    """An order in which rows that differ by rounding alone have the same places on both sides.

    Ordered by the values, rounding in the first column could swap two rows that the second tells apart. So
    rounded logarithms come first; for a column with a tolerance, rounded values. Rounding can move one across
    the border of two cells, which is rare; the rows are then called changed if there is also another row in
    one of the cells.
    """
    cells: list[Column] = []
    values: list[Column] = []
    for name, kind in inexact.items():
        value = row[name].cast("double")
        if name in tolerance:
            cells.append(F.rint(value / (_LIMITS_SIDE_BY_SIDE * tolerance[name])))
        else:
            limit = rounding_limit(kind)
            assert limit is not None
            cells.append(F.signum(value))
            cells.append(F.rint(F.ln(F.abs(value)) / (_LIMITS_SIDE_BY_SIDE * limit)))
        values.append(value)
    return [*cells, *values]


def _without_changed_pairs(
    pairs: DataFrame, inexact: Mapping[str, DataType], tolerance: Mapping[str, float]
) -> DataFrame:
    """Take pairs apart that differ by more than rounding."""
    number = F.col(_NUMBER)
    mine = F.col(_MINE)
    theirs = F.col(_THEIRS)
    near = F.lit(True)
    for name, kind in inexact.items():
        near = near & (value_state(mine[name], theirs[name], kind, tolerance.get(name)) != "changed")
    alone = mine.isNull() | theirs.isNull()
    types = {name: pairs.schema[name].dataType for name in (_NUMBER, _MINE, _THEIRS)}
    nothing = {name: F.lit(None).cast(kind) for name, kind in types.items()}
    together = _pair(number, mine, theirs)
    of_stream = _pair(number, mine, nothing[_THEIRS])
    of_other_side = _pair(nothing[_NUMBER], nothing[_MINE], theirs)
    parts = F.when(alone | near, F.array(together)).otherwise(F.array(of_stream, of_other_side))
    return pairs.select("_key", F.inline(parts))


def _pair(number: Column, mine: Column, theirs: Column) -> Column:
    return F.struct(number.alias(_NUMBER), mine.alias(_MINE), theirs.alias(_THEIRS))
