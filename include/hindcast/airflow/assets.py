"""The asset whose events tell `validate` that `replay` has made a hindcast."""

from __future__ import annotations

from airflow.sdk import Asset


def hindcast_asset(pipeline: str) -> Asset:
    """The asset of one pipeline's hindcasts.

    The ``extra`` of each of its events names one hindcast: ``{"run_id": ..., "pipeline": ...}``.
    """
    uri = f"hindcast://hindcasts/{pipeline}"
    return Asset(name=f"hindcasts.{pipeline}", uri=uri, group="hindcast")
