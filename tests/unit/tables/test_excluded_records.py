"""Records that a stream left out, as commits, the ledger and plans name them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.ledger_rows import batch

from hindcast.installation import Installation
from hindcast.tables.excluded_records import (
    Excluded,
    count,
    excluded_from_json,
    excluded_to_json,
    together,
    within,
)

_EXCLUDED = st.dictionaries(
    st.integers(0, 20_000),
    st.dictionaries(st.integers(0, 2**50), st.text(min_size=1, max_size=9), min_size=1, max_size=4),
    max_size=3,
)


@given(_EXCLUDED)
def test_what_is_written_is_read(excluded: Excluded) -> None:
    """Whatever an error is called. No record is no text at all."""
    written = excluded_to_json(excluded)
    assert excluded_from_json(written) == excluded
    assert bool(written) == bool(excluded)
    assert excluded_from_json(None) == {}


@given(_EXCLUDED, _EXCLUDED)
def test_parts_are_put_together(first: Excluded, second: Excluded) -> None:
    """Each record of either is there, and nothing is changed in them."""
    before = excluded_to_json(first)
    both = together([first, second])
    for part in (first, second):
        for partition, offsets in part.items():
            assert offsets.keys() <= both[partition].keys()
    assert excluded_to_json(first) == before
    assert together([second, second]) == second
    assert count(together([first, first])) == count(first)


def test_a_range_has_what_lies_in_it() -> None:
    """Its end is exclusive. A partition that the range does not have is left out."""
    excluded = {0: {4: "A", 5: "B", 9: "C"}, 7: {5: "D"}}
    assert within(excluded, {0: 5, 1: 0}, {0: 9, 1: 3}) == {0: {5: "B"}}
    assert within(excluded, {0: 0, 7: 0}, {0: 4, 7: 6}) == {7: {5: "D"}}
    assert within(excluded, {0: 6}, {0: 9}) == {}


def test_the_ledger_finds_the_batches_that_left_records_out(installation: Installation) -> None:
    """And no others. What a reset took back is left out no longer."""
    ledger = installation.ledger
    rows = [
        batch(1, {0: 0}, {0: 5}),
        batch(2, {0: 5}, {0: 9}, excluded={0: {6: "KeyError"}}),
        batch(3, {0: 9}, {0: 12}),
        batch(4, {0: 12}, {0: 15}, excluded={0: {13: "ValueError (p.py, line 3)"}}),
    ]
    ledger.append(rows)
    name = rows[0].pipeline
    found = ledger.excluding(name, 1)
    assert [row.batch for row in found] == [2, 4]
    assert together(row.excluded for row in found) == {0: {6: "KeyError", 13: "ValueError (p.py, line 3)"}}
    assert ledger.batches(name)[0].excluded == {}
    ledger.append([batch(-1 - 3, {0: 9}, {0: 9})])
    assert [row.batch for row in ledger.excluding(name, 1)] == [2]
