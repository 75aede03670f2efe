"""What a shard reads from archives before its topics: every offset once, in bounded batches, up to where the
topics hold all that comes next.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.archive.archive_or_live import HeldRecords
from hindcast.errors import OffsetsLostError
from hindcast.pipeline import TOPIC_STRIDE
from hindcast.recovery import archived_rounds
from hindcast.recovery.archived_rounds import base_end, rounds

PIPELINE: Any = SimpleNamespace(
    name="p", topics=[SimpleNamespace(name="trades"), SimpleNamespace(name="quotes")]
)
OTHER = TOPIC_STRIDE


def test_what_the_topics_hold_needs_no_archive() -> None:
    """At the first offset of a topic, too."""
    held = HeldRecords({0: 5, 1: 0}, {0: 9, 1: 9}, {0: ((0, 5),)})
    assert base_end(held, {0: 5, 1: 0}) == {0: 5, 1: 0}
    assert list(rounds(PIPELINE, "s", {0: 5, 1: 0}, 10, lambda: held)) == []


def test_the_other_partitions_are_read_along() -> None:
    """As far as the archive of their topic goes; of a topic that has dropped nothing, up to its end."""
    held = HeldRecords({0: 5, 1: 0, OTHER: 0}, {0: 90, 1: 90, OTHER: 70}, {0: ((0, 50),), 1: ((0, 60),)})
    assert base_end(held, {0: 3, 1: 2, OTHER: 1}) == {0: 50, 1: 60, OTHER: 70}
    assert base_end(held, {0: 3, 1: 75, OTHER: 80}) == {0: 50, 1: 75, OTHER: 80}


def test_a_topic_that_drops_more_meanwhile_is_asked_again() -> None:
    """Before each round; the shard follows the archive until it has caught up."""
    answers = iter(
        [
            HeldRecords({0: 5}, {0: 20}, {0: ((0, 10),)}),
            HeldRecords({0: 12}, {0: 30}, {0: ((0, 15),)}),
            HeldRecords({0: 12}, {0: 30}, {0: ((0, 15),)}),
        ]
    )
    found = list(rounds(PIPELINE, "s", {0: 2}, 100, lambda: next(answers)))
    assert [(one.start, one.end, one.seams) for one in found] == [
        ({0: 2}, {0: 10}, {0: 10}),
        ({0: 10}, {0: 15}, {0: 15}),
    ]


def test_a_gap_is_named_before_anything_is_read() -> None:
    """The archive ends before the topic begins."""
    held = HeldRecords({0: 8}, {0: 20}, {0: ((0, 6),)})
    with pytest.raises(OffsetsLostError, match="the shard has not read them yet") as caught:
        list(rounds(PIPELINE, "s", {0: 2}, 100, lambda: held))
    assert caught.value.fields.items() >= {"start": 6, "end": 7}.items()


@given(
    start=st.dictionaries(st.integers(0, 3), st.integers(0, 50), min_size=1),
    more=st.integers(1, 200),
    most=st.integers(1, 60),
    per_round=st.integers(1, 100),
    data=st.data(),
)
def test_every_offset_is_read_once_in_bounded_batches(
    start: dict[int, int], more: int, most: int, per_round: int, data: st.DataObject
) -> None:
    """Batch follows batch and round follows round; none takes more than it may, but for rounding."""
    ends = {partition: offset + data.draw(st.integers(0, more)) for partition, offset in start.items()}
    earliest = {
        partition: data.draw(st.integers(offset, ends[partition])) for partition, offset in start.items()
    }
    archived = {partition: ((0, end),) for partition, end in ends.items() if end}
    held = HeldRecords(earliest, ends, archived)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archived_rounds, "RECORDS_PER_ROUND", per_round)
        found = list(rounds(PIPELINE, "s", start, most, lambda: held))
    reached = start
    number = 0
    for one in found:
        assert one.start == reached
        assert len(one.batches) <= max(per_round // most, 1)
        for batch in one.batches:
            assert (batch.batch, batch.start_offsets) == (number, reached)
            taken = [batch.end_offsets[partition] - reached[partition] for partition in reached]
            assert min(taken) >= 0
            assert 0 < sum(taken) < most + len(start)
            reached = batch.end_offsets
            number += 1
        assert one.end == reached
        assert one.seams is not None
        for partition, seam in one.seams.items():
            assert one.start[partition] <= seam <= one.end[partition]
            if one.start[partition] < earliest[partition]:
                assert seam == one.end[partition]
    assert not held.dropped(reached)
    if not found:
        assert not held.dropped(start)
