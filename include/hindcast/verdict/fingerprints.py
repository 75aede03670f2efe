"""Which parts of the compared tables hold the same rows, told by fingerprints in one scan of each table.

A *part* is a share of the keys, and of one window if there are windows. Its fingerprint on a side is the
number of its rows there and the sum of their hashes, so the order of the rows does not matter. Sides that
have the same fingerprint of a part hold the same rows of it. Only the other parts need to be compared key by
key, which takes a shuffle of all their rows. Here only a small row of each part is shuffled.

A hash is XXH64 (https://github.com/Cyan4973/xxHash), of 64 bits. So a part that differs is taken for one that
does not about once in 2**64 times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

#: Parts of all keys, if there are no windows, and of the keys of one window.
_PARTS = 4096
_PARTS_OF_A_WINDOW = 8
_PART = ("_window", "_part")
#: The sums of the halves of hashes are kept apart, so that none exceeds a long with fewer than 2**31 rows.
_HALF = 32


@dataclass(frozen=True, kw_only=True)
class Same:
    """What the parts come to that are the same on all sides.

    ``rows``: the rows of each side in them. ``counts``: how many of those meet each condition.
    ``windows``: the windows of *all* parts. ``different_parts``, ``different_rows``: the parts that are not
    the same, and the most rows that a side has in them.
    """

    rows: int
    windows: int
    counts: Mapping[str, int]
    different_parts: int
    different_rows: int


@dataclass(frozen=True)
class Parts:
    """The parts of rows that have a ``_side``, key columns, and a ``_row`` with the values.

    ``sides``: the values of ``_side``. ``conditions``: name -> a condition over ``_row``, for
    :attr:`Same.counts`.
    """

    rows: DataFrame
    keys: Sequence[str]
    sides: Sequence[str]
    conditions: Mapping[str, Column]

    def fingerprints(self) -> DataFrame:
        """One row a part: for each side the number of rows and the sums of their hashes, whether they differ,
        and how many rows of the first side meet each condition.
        """
        first, *others = self.sides
        conditions = {f"meets_{place}": met for place, met in enumerate(self.conditions.values())}
        hashed = self._with_parts().select(
            *_PART,
            "_side",
            self._hash_of([*self.keys, "_row"]).alias("_hash"),
            *[met.alias(name) for name, met in conditions.items()],
        )
        measures = []
        for side in self.sides:
            of_side = F.col("_side") == side
            low = F.col("_hash").bitwiseAND(F.lit((1 << _HALF) - 1))
            high = F.shiftrightunsigned("_hash", _HALF)
            measures += [
                F.count_if(of_side).alias(f"n_{side}"),
                F.sum(F.when(of_side, low).otherwise(0)).alias(f"low_{side}"),
                F.sum(F.when(of_side, high).otherwise(0)).alias(f"high_{side}"),
            ]
        for place, name in enumerate(conditions):
            met = F.col(name) & (F.col("_side") == first)
            measures.append(F.count_if(met).alias(f"count_{place}"))
        differing = [
            F.col(f"{figure}_{side}") != F.col(f"{figure}_{first}")
            for side in others
            for figure in ("n", "low", "high")
        ]
        return hashed.groupBy(*_PART).agg(*measures).withColumn("differs", reduce(or_, differing))

    def same(self, fingerprints: DataFrame) -> Same:
        """What the parts that are the same come to.

        :param fingerprints: :meth:`fingerprints`, kept if it is to be read again
        """
        differs = F.col("differs")
        rows = F.greatest(*[F.col(f"n_{side}") for side in self.sides])
        counts = [
            F.sum(F.when(~differs, F.col(f"count_{place}"))).alias(f"count_{place}")
            for place in range(len(self.conditions))
        ]
        found = fingerprints.agg(
            F.sum(F.when(~differs, rows)).alias("rows"),
            F.count_distinct("_window").alias("windows"),
            F.count_if(differs).alias("different_parts"),
            F.sum(F.when(differs, rows)).alias("different_rows"),
            *counts,
        ).first()
        assert found is not None
        windows = 0
        if self._has_windows:
            windows = found["windows"]
        return Same(
            rows=found["rows"] or 0,
            windows=windows,
            counts={name: found[f"count_{place}"] or 0 for place, name in enumerate(self.conditions)},
            different_parts=found["different_parts"],
            different_rows=found["different_rows"] or 0,
        )

    def different_rows(self, fingerprints: DataFrame) -> DataFrame:
        """The rows of the parts that are not the same."""
        differing = fingerprints.where("differs").select(*_PART)
        return self._with_parts().join(F.broadcast(differing), list(_PART), "left_semi").drop(*_PART)

    @property
    def _has_windows(self) -> bool:
        return "window" in self.keys

    def _with_parts(self) -> DataFrame:
        window = F.lit(0).cast("long")
        parts = _PARTS
        if self._has_windows:
            window = F.xxhash64(*_tokens(F.col("window"), self.rows.schema["window"].dataType))
            parts = _PARTS_OF_A_WINDOW
        part = F.pmod(self._hash_of(self.keys), F.lit(parts))
        return self.rows.withColumns(dict(zip(_PART, (window, part), strict=True)))

    def _hash_of(self, columns: Sequence[str]) -> Column:
        tokens = [_tokens(F.col(f"`{name}`"), self.rows.schema[name].dataType) for name in columns]
        return F.xxhash64(*[token for of_column in tokens for token in of_column])


def _tokens(value: Column, kind: DataType) -> list[Column]:
    """What tells the value from all others of its type when it is hashed. Spark's hash passes over nulls,
    also inside of a value, and joins the elements of arrays to what follows.
    """
    tokens = [value.isNull()]
    if isinstance(kind, StructType):
        for field in kind.fields:
            tokens += _tokens(value[field.name], field.dataType)
    elif isinstance(kind, ArrayType):
        tokens += [F.size(value), F.transform(value, lambda element: _as_one(element, kind.elementType))]
    else:
        tokens.append(value)
    return tokens


def _as_one(element: Column, kind: DataType) -> Column:
    return F.struct(*[token.alias(f"_{place}") for place, token in enumerate(_tokens(element, kind))])
