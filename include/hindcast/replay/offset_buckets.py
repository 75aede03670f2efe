"""Buckets of offsets: what lets Spark find the range that an offset lies in by an equality.

A join on a range alone would compare each record with every range of its partition. So the smaller side of
such a join has each range once for each bucket that it touches, and the condition has an equality on
(partition, bucket) as well: a hash join, in which a record meets few ranges.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

_PER_BUCKET = 2  # ranges to compare with in a bucket of average size


def width_of(records: int, ranges: int) -> int:
    """How many offsets a bucket has.

    :param records: how many offsets all ranges have together
    :param ranges: how many ranges there are
    """
    return max(1, records * _PER_BUCKET // max(1, ranges))


def touched(start: int, end: int, width: int) -> range:
    """The buckets that hold an offset of [start, end), which is not empty."""
    return range(start // width, (end - 1) // width + 1)


def bucket(offset: str, width: int) -> Column:
    """The bucket of the offset in the column of this name."""
    return F.expr(f"{offset} div {width}L")
