"""The assets by which `replay` tells `validate` that a hindcast is there."""

from __future__ import annotations

from airflow.sdk import Asset


def hindcast_asset(pipeline: str) -> Asset:
    """The hindcasts of one pipeline. Each event's ``extra`` names one: ``{"run_id": ..., "pipeline": ...}``."""
    return Asset(name=f"hindcasts.{pipeline}", uri=f"hindcast://hindcasts/{pipeline}", group="hindcast")
