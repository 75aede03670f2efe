"""What late rows and dead letters hold of records: it can be erased, and it expires.

The row itself stays for ever: its place, its time and its reason. So a verdict still knows which records are
in no result, and a correction which windows lack some.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.delta.arrow_dataset import Condition
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.rewritten_rows import Mask, RowChange, rewrite_rows, with_values
from hindcast.tables.schema import ORDERED_BY
from hindcast.tables.table_names import ControlTable

#: The columns that hold something of a record.
CONTENTS: Mapping[ControlTable, tuple[str, ...]] = {
    ControlTable.LATE_ROWS: ("key", "value"),
    ControlTable.DEAD_LETTERS: ("key", "value", "traceback"),
}
#: The reasons of dead letters without contents.
ERASED = "erased"
EXPIRED = "expired"
WITHOUT_CONTENTS = frozenset({ERASED, EXPIRED})


def without_contents(name: ControlTable, reason: str, rows: pa.Table, mask: Mask) -> pa.Table:
    """The rows of a side table; those that the mask names without their contents.

    :param reason: of such dead letters from now on
    """
    gone: dict[str, str | None] = dict.fromkeys(CONTENTS[name])
    if name is ControlTable.DEAD_LETTERS:
        gone["reason"] = reason
    return with_values(rows, mask, gone)


def has_contents(name: ControlTable, rows: pa.Table) -> Mask:
    """Which of these rows hold something of a record. Columns that they lack hold nothing."""
    found: Mask = pa.repeat(pa.scalar(value=False), rows.num_rows)
    for column in CONTENTS[name]:
        if column in rows.column_names:
            found = pc.or_(found, pc.is_valid(rows[column]))
    return found


def expire_contents(
    tables: ControlTables, name: ControlTable, before: datetime, storage_options: dict[str, str]
) -> int:
    """Erase the contents of the rows whose records came to the broker before this instant; return how many.

    :raises StoreUnavailableError: if the table cannot be read or written
    """
    if tables.find(name) is None:
        return 0

    def find(rows: pa.Table) -> Mask:
        old = pc.fill_null(pc.less(rows["broker_at"], before), fill_value=False)
        return pc.and_(old, has_contents(name, rows))

    change = RowChange(("broker_at", *CONTENTS[name]), find, partial(without_contents, name, EXPIRED))
    old_ones: list[Condition] = [("broker_at", "<", before)]
    return rewrite_rows(
        partial(tables.open, name), change, storage_options, ORDERED_BY[name], may_have=old_ones
    )
