"""Hindcast: supervised exactly-once streams, their batch replays, and a verdict on every difference.

A file of pipelines imports the names for a declaration; a script or a notebook imports :class:`Hindcast`, one
installation with all that can be done with it.
"""

from typing import TYPE_CHECKING, Any

from hindcast.pipeline import (
    Format,
    Lookup,
    Metadata,
    Mode,
    Pipeline,
    Policy,
    Served,
    Table,
    Topic,
    Window,
    pipeline,
    verified,
)

if TYPE_CHECKING:
    from hindcast.app import Hindcast
    from hindcast.serving.reading import Reading
    from hindcast.settings import Settings

__all__ = [
    "Format",
    "Hindcast",
    "Lookup",
    "Metadata",
    "Mode",
    "Pipeline",
    "Policy",
    "Served",
    "Table",
    "Topic",
    "Window",
    "pipeline",
    "read",
    "verified",
]


def read(pipeline: str, settings: "Settings | None" = None) -> "Reading":
    """The newest results of a pipeline, see :func:`hindcast.serving.reading.read`."""
    from hindcast.serving.reading import read as reading  # with deltalake, which a declaration does not need

    return reading(pipeline, settings)


def __getattr__(name: str) -> Any:
    # A declaration does not need an installation, which reads settings.
    if name == "Hindcast":
        from hindcast.app import Hindcast

        return Hindcast
    raise AttributeError(f"module 'hindcast' has no attribute {name!r}")
