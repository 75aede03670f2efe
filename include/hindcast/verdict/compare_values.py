"""Whether two values are the same, differ by rounding alone, or differ."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, DoubleType, FloatType

#: A greater relative difference between two doubles is never rounding. Adding n numbers in another order
#: moves the sum by less than n * 1.1e-16 of the sum of their magnitudes (Higham, Accuracy and Stability of
#: Numerical Algorithms, 4.2): enough for 9,000 rows.
DOUBLE_ROUNDING = 1e-12
#: The same for 4-byte floats: four units in the last place.
FLOAT_ROUNDING = 4 * 2.0**-23
#: Holds each integer of 8 bytes.
_WHOLE = DecimalType(20, 0)


def value_state(a: Column, b: Column, kind: DataType, tolerance: float | None = None) -> Column:
    """``same``, ``rounding`` or ``changed``.

    :param tolerance: the greatest absolute difference that is rounding, too; None if none was declared
    """
    state = F.when(a.eqNullSafe(b), "same")
    limit = rounding_limit(kind)
    if limit is not None:
        rounded = finite(a) & finite(b) & (relative_difference(a, b) <= limit)
        state = state.when(rounded, "rounding")
    if tolerance is not None:
        state = state.when(absolute_difference(a, b, kind) <= tolerance, "rounding")
    return state.otherwise("changed")


def rounding_limit(kind: DataType) -> float | None:
    """The greatest relative difference that may be rounding; None for types that are never rounded."""
    if isinstance(kind, DoubleType):
        return DOUBLE_ROUNDING
    if isinstance(kind, FloatType):
        return FLOAT_ROUNDING
    return None


def finite(value: Column) -> Column:
    """Whether it is neither infinite nor not-a-number; null stays null."""
    # Spark orders NaN above infinity.
    return F.abs(value) < F.lit(float("inf"))


def relative_difference(a: Column, b: Column) -> Column:
    """The distance of two values that differ, by the greater magnitude."""
    distance = F.abs(a.cast("double") - b.cast("double"))
    return distance / F.greatest(F.abs(a), F.abs(b)).cast("double")


def absolute_difference(a: Column, b: Column, kind: DataType) -> Column:
    """The distance of two numbers as a double; null if one of them is null, infinite or not-a-number.

    Integers and decimals are subtracted exactly before that.
    """
    if isinstance(kind, DoubleType | FloatType):
        distance = F.abs(a.cast("double") - b.cast("double"))
        return F.when(finite(a) & finite(b), distance)
    if not isinstance(kind, DecimalType):
        a = a.cast(_WHOLE)
        b = b.cast(_WHOLE)
    return F.abs(F.try_subtract(a, b).cast("double"))
