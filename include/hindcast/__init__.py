"""Hindcast: supervised exactly-once streams, their batch replays, and a verdict on every difference."""

from typing import TYPE_CHECKING

from hindcast.pipeline import Format, Lookup, Mode, Pipeline, Policy, Table, Topic, Window, pipeline

if TYPE_CHECKING:
    from hindcast.serving.reading import Reading
    from hindcast.settings import Settings

__all__ = ["Format", "Lookup", "Mode", "Pipeline", "Policy", "Table", "Topic", "Window", "pipeline", "read"]


def read(pipeline: str, settings: "Settings | None" = None) -> "Reading":
    """The newest results of a pipeline, see :func:`hindcast.serving.reading.read`."""
    from hindcast.serving.reading import read as reading  # with deltalake, which a declaration does not need

    return reading(pipeline, settings)
