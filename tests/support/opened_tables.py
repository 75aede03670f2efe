"""Which Delta tables are opened, and with which options of the store."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

Opened = list[tuple[str, dict[str, str] | None]]


def record_opened_tables(patch: pytest.MonkeyPatch) -> Opened:
    """The address and the store's options of each table that is opened from now on."""
    seen: Opened = []
    opens = DeltaTable.__init__

    def opened(
        self: DeltaTable,
        table_uri: str,
        *arguments: Any,
        storage_options: dict[str, str] | None = None,
        **others: Any,
    ) -> None:
        seen.append((table_uri, storage_options))
        opens(self, table_uri, *arguments, storage_options=storage_options, **others)

    patch.setattr(DeltaTable, "__init__", opened)
    return seen
