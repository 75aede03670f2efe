"""What Delta's log keeps of each data file, so that readers skip those that cannot hold what they look for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_LAST_INSTANT = datetime(9999, 12, 31, tzinfo=UTC)  # Python knows no later one


def statistics(table: pa.Table, bounded: Sequence[str] = ()) -> dict[str, Any]:
    """Delta's per-file statistics: the number of rows, and the bounds of the ``window`` column by which readers prune files.

    :param bounded: further columns whose bounds are kept: whole numbers, or instants of whole milliseconds, never null
    """
    stats: dict[str, Any] = {"numRecords": table.num_rows}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    if "window" in table.column_names and pa.types.is_struct(table.schema.field("window").type):
        window = table["window"].combine_chunks()
        bounds = {part: pc.min_max(pc.struct_field(window, part)).as_py() for part in ("start", "end")}
        lowest["window"] = {part: _instant(bound["min"]) for part, bound in bounds.items()}
        highest["window"] = {part: _instant(bound["max"]) for part, bound in bounds.items()}
        nulls["window"] = dict.fromkeys(bounds, 0)
    for name in bounded if table.num_rows else ():
        column = table[name]
        if pa.types.is_timestamp(column.type):
            if pc.any(pc.greater(column, pa.scalar(_LAST_INSTANT, column.type))).as_py():
                continue  # a producer's own idea of the time: without bounds no reader skips the file
            bound = {end: _instant(instant) for end, instant in pc.min_max(column).as_py().items()}
        else:
            bound = pc.min_max(column).as_py()
        lowest[name], highest[name], nulls[name] = bound["min"], bound["max"], 0
    if nulls:
        stats |= {"minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return stats


def _instant(value: datetime) -> str:
    # Windows begin and end on whole milliseconds, which is as fine as Delta's statistics are.
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
