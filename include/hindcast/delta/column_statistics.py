"""The statistics of each data file in Delta's log. By them readers skip files that cannot hold what they
search for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_LAST_INSTANT = datetime(9999, 12, 31, tzinfo=UTC)  # Python knows no later one


def statistics(table: pa.Table, bounded: Sequence[str] = ()) -> dict[str, Any]:
    """Delta's per-file statistics: the number of rows, and the bounds of the ``window`` column.

    :param bounded: further columns whose bounds are kept: texts, whole numbers, or instants of whole
        milliseconds, never null
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    if _has_windows(table):
        window = table["window"].combine_chunks()
        starts = _instants(pc.struct_field(window, "start"))
        ends = _instants(pc.struct_field(window, "end"))
        lowest["window"] = {"start": starts["min"], "end": ends["min"]}
        highest["window"] = {"start": starts["max"], "end": ends["max"]}
        nulls["window"] = {"start": 0, "end": 0}
    if table.num_rows == 0:
        bounded = ()
    for name in bounded:
        column = table[name]
        if not pa.types.is_timestamp(column.type):
            bounds = pc.min_max(column).as_py()
        elif _is_beyond_python(column):
            continue  # a producer chose this time: without bounds no reader skips the file
        else:
            bounds = _instants(column)
        lowest[name] = bounds["min"]
        highest[name] = bounds["max"]
        nulls[name] = 0
    stats: dict[str, Any] = {"numRecords": table.num_rows}
    if nulls:
        stats |= {"minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return stats


def _has_windows(table: pa.Table) -> bool:
    return "window" in table.column_names and pa.types.is_struct(table.schema.field("window").type)


def _is_beyond_python(column: pa.ChunkedArray) -> bool:
    later = pc.greater(column, pa.scalar(_LAST_INSTANT, column.type))
    return bool(pc.any(later).as_py())


def _instants(column: pa.ChunkedArray | pa.Array) -> dict[str, str]:
    """The least and the greatest instant, as ``min`` and ``max``."""
    bounds = pc.min_max(column).as_py()
    return {"min": _instant(bounds["min"]), "max": _instant(bounds["max"])}


def _instant(value: datetime) -> str:
    # Windows begin and end on whole milliseconds, which is as fine as Delta's statistics are.
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
