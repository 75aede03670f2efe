"""Spark: its session, its sources, and how a frame is written. Shared by streams, replays, archives and verdicts."""
