"""Spark: its session, its sources, and how a frame is written. Shared by all rooms that run Spark."""
