"""Halving a batch finds each record that raises by itself, and asks no more often than it must."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.recovery.halving import Block, Place, TooManyError, find_raising

_BOUNDS = st.dictionaries(
    st.integers(0, 5), st.tuples(st.integers(0, 1000), st.integers(0, 300)), min_size=1, max_size=4
)


def _block(bounds: dict[int, tuple[int, int]]) -> Block:
    """A block of so many offsets from a first one on, by partition."""
    start = {partition: first for partition, (first, _) in bounds.items()}
    end = {partition: first + size for partition, (first, size) in bounds.items()}
    return Block(start, end)


def _places(block: Block) -> list[Place]:
    places = []
    for partition, stop in sorted(block.end.items()):
        places += [(partition, offset) for offset in range(block.start[partition], stop)]
    return places


@given(_BOUNDS, st.data())
def test_each_record_that_raises_is_found_and_no_other(
    bounds: dict[int, tuple[int, int]], data: st.DataObject
) -> None:
    """Whichever and however many they are. Of one among n some 2 log n tries find it."""
    block = _block(bounds)
    places = _places(block)
    if not places:
        return
    bad = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=5, unique=True))
    tries = 0

    def raises(part: Block) -> bool:
        nonlocal tries
        tries += 1
        return any(place in bad for place in _places(part))

    assert find_raising(block, raises, most=5) == sorted(bad)
    depth = math.ceil(math.log2(len(places))) + len(bounds)
    assert tries <= 2 * len(bad) * depth


@given(_BOUNDS)
def test_the_halves_of_a_block_are_the_block(bounds: dict[int, tuple[int, int]]) -> None:
    """In order, and neither is empty."""
    block = _block(bounds)
    assert block.offsets == len(_places(block))
    if block.offsets < 2:
        return
    first, second = block.halves()
    assert _places(first) + _places(second) == _places(block)
    assert first.offsets and second.offsets


def test_it_stops_once_there_are_too_many() -> None:
    """Three of three are fine; the fourth ends the search."""
    bad = {(0, 1), (0, 50), (1, 3)}

    def raises(part: Block) -> bool:
        return bool(bad & set(_places(part)))

    block = Block({0: 0, 1: 0}, {0: 100, 1: 100})
    assert find_raising(block, raises, most=3) == sorted(bad)
    bad.add((1, 99))
    with pytest.raises(TooManyError):
        find_raising(block, raises, most=3)


def test_what_raises_in_company_alone_ends_at_some_record() -> None:
    """Whoever asks must try that record by itself."""

    def raises(part: Block) -> bool:
        return {(0, 10), (0, 90)} <= set(_places(part))

    (found,) = find_raising(Block({0: 0}, {0: 100}), raises, most=3)
    assert not raises(Block({0: found[1]}, {0: found[1] + 1}))
