"""Halving a batch finds each record that raises by itself, and asks no more often than it must."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

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
    """Whichever and however many they are. One among n takes a try for each power of 8 in n, and two more."""
    block = _block(bounds)
    places = _places(block)
    if not places:
        return
    bad = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=5, unique=True))
    tries = 0

    def first_raising(parts: Sequence[Block], without: Collection[Place]) -> int | None:
        nonlocal tries
        tries += 1
        assert len(parts) <= 8
        assert without or parts[0] is not block, "that the whole block raises is known"
        for number, part in enumerate(parts):
            if set(_places(part)) & set(bad) - set(without):
                return number
        return None

    assert find_raising(block, first_raising, most=5) == sorted(bad)
    halvings = math.ceil(math.log2(len(places))) + len(bounds)
    assert tries <= len(bad) * (math.ceil(halvings / 3) + 2)


@given(_BOUNDS)
def test_the_parts_of_a_block_are_the_block(bounds: dict[int, tuple[int, int]]) -> None:
    """In order, and none is empty unless the block is."""
    block = _block(bounds)
    assert block.offsets == len(_places(block))
    for parts in (block.halves(), block.parts()):
        places: list[Place] = []
        for part in parts:
            places += _places(part)
        assert places == _places(block)
        assert all(part.offsets for part in parts) or not block.offsets
        assert len(parts) > 1 or block.offsets < 2
    if len(block.start) == 1 and block.offsets >= 8:
        assert len(block.parts()) == 8


def test_it_stops_once_there_are_too_many() -> None:
    """Three of three are fine; the fourth ends the search."""
    bad = {(0, 1), (0, 50), (1, 3)}

    def first_raising(parts: Sequence[Block], without: Collection[Place]) -> int | None:
        for number, part in enumerate(parts):
            if bad & set(_places(part)) - set(without):
                return number
        return None

    block = Block({0: 0, 1: 0}, {0: 100, 1: 100})
    assert find_raising(block, first_raising, most=3) == sorted(bad)
    bad.add((1, 99))
    with pytest.raises(TooManyError):
        find_raising(block, first_raising, most=3)


def test_what_raises_in_company_alone_is_no_records_fault() -> None:
    """No part raises by itself, so nothing is found."""

    def first_raising(parts: Sequence[Block], _without: Collection[Place]) -> int | None:
        for number, part in enumerate(parts):
            if {(0, 10), (0, 90)} <= set(_places(part)):
                return number
        return None

    assert find_raising(Block({0: 0}, {0: 100}), first_raising, most=3) == []


def test_a_function_that_raises_on_all_records_is_soon_known() -> None:
    """Each record takes a try, and not a search of its own."""
    tries = 0

    def first_raising(parts: Sequence[Block], without: Collection[Place]) -> int | None:
        nonlocal tries
        tries += 1
        for number, part in enumerate(parts):
            if set(_places(part)) - set(without):
                return number
        return None

    with pytest.raises(TooManyError):
        find_raising(Block({0: 0}, {0: 8**4}), first_raising, most=20)
    assert tries < 21 + 3 * 6


def test_a_block_of_one_offset_is_its_only_part() -> None:
    """There is nothing to halve."""
    block = Block({3: 5, 4: 9}, {3: 6, 4: 9})
    (part,) = block.parts()
    assert (part.place, block.place) == ((3, 5), (3, 5))
    assert [half.place for half in block.halves()] == [(3, 5)]
