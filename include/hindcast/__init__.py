"""Hindcast: supervised exactly-once streams, their batch replays, and a verdict on every difference."""

from hindcast.pipeline import Format, Lookup, Mode, Pipeline, Table, Topic, Window, pipeline

__all__ = ["Format", "Lookup", "Mode", "Pipeline", "Table", "Topic", "Window", "pipeline"]
