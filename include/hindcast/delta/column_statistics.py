"""The statistics of each data file in Delta's log. By them readers skip files that cannot hold what they
search for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import FileMetaData, Statistics

#: A text's bound of more characters is left out: it would make the log long.
_LONGEST_BOUND = 100
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


def statistics_of_file(footer: FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Delta's per-file statistics of all columns, from what a Parquet file says of itself.

    There are no bounds for columns of floats, since Parquet's leave out NaN, which a reader may search for.
    Nor are there any for truth values, decimals, bytes and texts of more than 100 characters. A column within
    a list or a map has no statistics.
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for number in range(footer.num_columns):
        path = footer.schema.column(number).path.split(".")
        kind = _type_of(schema, path)
        chunks = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if kind is None or not all(chunk is not None and chunk.has_null_count for chunk in chunks):
            continue
        _put(nulls, path, sum(chunk.null_count for chunk in chunks))
        bounds = _bounds(kind, [chunk for chunk in chunks if chunk.num_values])
        if bounds is not None:
            _put(lowest, path, bounds[0])
            _put(highest, path, bounds[1])
    found: dict[str, Any] = {"numRecords": footer.num_rows}
    return found | {"minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _type_of(schema: pa.Schema, path: Sequence[str]) -> pa.DataType | None:
    """The type of a column, or of a field of a struct; None if the table has none of that name, or it is
    within a list or a map.
    """
    fields: dict[str, pa.DataType] = {column.name: column.type for column in schema}
    for name in path[:-1]:
        inner = fields.get(name)
        if inner is None or not pa.types.is_struct(inner):
            return None
        fields = {inner.field(number).name: inner.field(number).type for number in range(inner.num_fields)}
    kind = fields.get(path[-1])
    if kind is None or pa.types.is_nested(kind):
        return None
    return kind


def _bounds(kind: pa.DataType, chunks: Sequence[Statistics]) -> tuple[Any, Any] | None:
    """The least and the greatest value, as Delta writes them; None if they are not known."""
    if not chunks or not all(chunk.has_min_max for chunk in chunks):
        return None
    try:
        least = min(chunk.min for chunk in chunks)
        greatest = max(chunk.max for chunk in chunks)
    except OverflowError:  # an instant beyond Python's
        return None
    if pa.types.is_integer(kind):
        return least, greatest
    if pa.types.is_date(kind):
        return least.isoformat(), greatest.isoformat()
    if pa.types.is_timestamp(kind):
        return _instant(least), _instant(greatest)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text and max(len(least), len(greatest)) <= _LONGEST_BOUND:
        return least, greatest
    return None


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


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
