"""What Airflow asks a provider's package about itself; the package's entry point names this function."""

from __future__ import annotations

from typing import Any


def provider_info() -> dict[str, Any]:
    """The object of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "hindcast",
        "name": "Hindcast",
        "description": "Exactly-once streams under supervision, their batch replays, and verdicts",
    }
