"""The protocols of streams in simulated worlds: drawn histories."""

from __future__ import annotations

import os

import pytest
from protocols import random_histories

#: Drawn histories that are played in all.
DRAWN, PARTS = int(os.environ.get("HISTORIES", "1200")) // 10, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_histories_hold(part: int) -> None:
    """No oracle breaks, whatever the seed. An error names it."""
    for number in range(DRAWN // PARTS):
        random_histories.play(f"{part}/{number}")


def test_histories_take_every_way() -> None:
    """Nothing is promised of what never happens in them."""
    lacking = set(random_histories.WAYS)
    for number in range(60):
        seen = random_histories.play(f"ways/{number}").seen
        lacking -= {way for way in lacking if seen[way]}
        if not lacking:
            return
    raise AssertionError(lacking)


def test_a_seed_repeats_its_history() -> None:
    """To the step."""
    first, second = (random_histories.play("7") for _ in range(2))
    assert first.sink.kept == second.sink.kept
    assert first.seen == second.seen
