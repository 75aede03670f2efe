"""The topic of the simulation: how many partitions it has, and what it grows to."""

from __future__ import annotations

PARTITIONS = 8
#: Shards that had all of the fewer partitions share keys in the more.
MORE_PARTITIONS = 12
