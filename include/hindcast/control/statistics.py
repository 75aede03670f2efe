"""What Delta's log keeps of each data file, so that readers skip those that cannot hold what they look for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def statistics(table: pa.Table) -> dict[str, Any]:
    """Delta's per-file statistics: the number of rows, and the bounds of the ``window`` column by which readers prune files."""
    stats: dict[str, Any] = {"numRecords": table.num_rows}
    if "window" in table.column_names and pa.types.is_struct(table.schema.field("window").type):
        window = table["window"].combine_chunks()
        bounds = {part: pc.min_max(pc.struct_field(window, part)).as_py() for part in ("start", "end")}
        stats["minValues"] = {"window": {part: _instant(bound["min"]) for part, bound in bounds.items()}}
        stats["maxValues"] = {"window": {part: _instant(bound["max"]) for part, bound in bounds.items()}}
        stats["nullCount"] = {"window": dict.fromkeys(bounds, 0)}
    return stats


def _instant(value: datetime) -> str:
    # Windows begin and end on whole milliseconds, which is as fine as Delta's statistics are.
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
