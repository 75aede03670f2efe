"""What an archive holds and what a replay may take from it: the arithmetic of ranges, and the manifest of a
commit.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hindcast.archive import archive_or_live
from hindcast.archive.manifest import Gap, Manifest


@st.composite
def archived(draw: st.DrawFn) -> archive_or_live.Ranges:
    marks = sorted(draw(st.sets(st.integers(0, 60), max_size=8)))
    found: archive_or_live.Ranges = ()
    for first, last in zip(marks[::2], marks[1::2], strict=False):
        found = archive_or_live.extended(found, first, last)
    return found


@settings(max_examples=300)
@given(held=archived(), earliest=st.integers(0, 70), start=st.integers(0, 60), length=st.integers(0, 40))
def test_archive_and_topic_together_give_the_range_once(
    held: archive_or_live.Ranges, earliest: int, start: int, length: int
) -> None:
    """For any retention: what is missing is named exactly, and where nothing is, the seam parts the range
    into what each of them holds.
    """
    end = start + length
    archived_offsets = {offset for first, last in held for offset in range(first, last)}
    lacking = {offset for offset in range(start, end) if offset < earliest and offset not in archived_offsets}
    gaps = archive_or_live.missing(held, earliest, start, end)
    assert {offset for first, last in gaps for offset in range(first, last)} == lacking
    assert all(first < last for first, last in gaps)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(gaps))
    if not gaps:
        seam = archive_or_live.seam(held, earliest, start, end)
        assert start <= seam <= end
        assert set(range(start, seam)) <= archived_offsets
        assert seam == end or seam >= earliest
        assert seam == start or start < earliest


@settings(max_examples=100)
@given(
    starts=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    lengths=st.lists(st.integers(0, 99), min_size=4),
    most=st.integers(1, 50),
)
def test_steps_reach_the_end(starts: list[int], lengths: list[int], most: int) -> None:
    """Each step goes on, none is much larger than asked for, and together they end exactly at the end."""
    reached = dict(enumerate(starts))
    end = {partition: offset + lengths[partition] for partition, offset in reached.items()}
    while reached != end:
        stop = archive_or_live.next_step(reached, end, most)
        assert 0 < sum(stop[p] - reached[p] for p in stop) <= most + len(stop)
        assert all(reached[p] <= stop[p] <= end[p] for p in stop)
        reached = stop


def test_an_account_goes_through_its_own_metadata() -> None:
    """What a commit says of itself is read back as it was."""
    manifest = Manifest(topic="t").with_step(
        "a", {0: 5, 1: 0}, {0: 9, 1: 0}, rows=3, size=10, newest_at="2026", topic_id="x"
    )
    manifest = manifest.with_gaps("b", [Gap(0, 9, 12, "because")]).with_step(
        "c", {0: 12}, {0: 20}, rows=8, size=1, newest_at="2025"
    )
    assert Manifest.from_metadata(manifest.as_metadata()) == manifest
    assert (manifest.ends, manifest.ranges, manifest.newest_at) == (
        {0: 20, 1: 0},
        {0: ((5, 9), (12, 20))},
        "2026",
    )


def test_a_step_that_does_not_begin_where_the_archive_ends_is_no_step() -> None:
    """A gap or an overlap cannot be written."""
    manifest = Manifest(topic="t").with_step("a", {0: 0}, {0: 9}, rows=9, size=10, newest_at="")
    for start in (8, 10):
        with pytest.raises(ValueError, match="the archive ends at"):
            manifest.with_step("b", {0: start}, {0: 20}, rows=1, size=1, newest_at="")


@settings(max_examples=200)
@given(held=archived(), start=st.integers(0, 30), length=st.integers(0, 30))
def test_older_records_come_before_the_first(held: archive_or_live.Ranges, start: int, length: int) -> None:
    """They add their offsets, and touch or leave a gap; all ranges stay apart and in order."""
    shifted = tuple((first + 60, last + 60) for first, last in held)
    end = min(start + length, shifted[0][0]) if shifted else start + length
    found = archive_or_live.with_older(shifted, start, end)
    offsets = {offset for first, last in found for offset in range(first, last)}
    assert offsets == {
        *range(start, end),
        *(offset for first, last in shifted for offset in range(first, last)),
    }
    assert all(first < last for first, last in found)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


def test_a_manifest_grows_downwards() -> None:
    """By steps that touch its beginning; the ends stay, and so does what was counted."""
    empty = Manifest(topic="t")
    assert empty.first(0) is None
    first = empty.with_older("a", {0: 4}, {0: 9}, rows=5, size=50, newest_at="2026-01-02")
    assert (first.first(0), first.ends, first.ranges, first.number) == (4, {0: 9}, {0: ((4, 9),)}, 1)
    more = first.with_step("b", {0: 9, 1: 0}, {0: 12, 1: 0}, rows=3, size=30, newest_at="2026-01-03")
    whole = more.with_older("c", {0: 1, 1: 0}, {0: 4, 1: 0}, rows=2, size=20, newest_at="2026-01-01")
    assert (whole.ranges, whole.ends, whole.first(1)) == ({0: ((1, 12),)}, {0: 12, 1: 0}, 0)
    assert (whole.rows, whole.bytes, whole.number, whole.step) == (10, 100, 3, "c")
    assert whole.newest_at == "2026-01-03"
    assert Manifest.from_metadata(whole.as_metadata()) == whole
    for end in (0, 2):
        with pytest.raises(ValueError, match="partition 0 begins at 1"):
            whole.with_older("d", {0: 0}, {0: end}, rows=0, size=0, newest_at="")
