"""What a generator gives to the load: one record, and when it is due."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """One record to send, ``due_seconds`` after the start.

    ``poison`` names what is wrong with it, "" for a good row. ``topic`` is one of the generator's topics,
    "" for its main one. Without a key the producer chooses the partition.
    """

    due_seconds: float
    key: bytes | None
    value: bytes | None
    late: bool = False
    poison: str = ""
    topic: str = ""
