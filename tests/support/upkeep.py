"""The upkeep of all tables of an installation, as the DAG `maintain` does it."""

from __future__ import annotations

from typing import Any

from hindcast.installation import Installation
from hindcast.settings import Settings
from hindcast.tables.retention import maintain


def maintain_all(settings: Settings) -> list[dict[str, Any]]:
    """What was done to each table."""
    installation = Installation(settings)
    return maintain(settings, installation.tables, installation.catalog.every())
