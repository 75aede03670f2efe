"""Hindcast: supervised exactly-once streams, their batch replays, and a verdict on every difference."""

from hindcast.pipeline import Pipeline, Table, Topic, Window, pipeline

__all__ = ["Pipeline", "Table", "Topic", "Window", "pipeline"]
