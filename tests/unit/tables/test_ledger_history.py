"""What the ledger says of a stream's past, at the edges of offsets and watermarks."""

from __future__ import annotations

from support.ledger_rows import batch

from hindcast.tables.ledger_history import History, may_hold


def test_a_shard_of_which_nothing_is_filed_is_audited_up_to_its_beginning() -> None:
    """Not even its first batch counts. Of another shard all batches count up to the one that is filed."""
    rows = [batch(1, {0: 3}, {0: 5}), batch(2, {0: 5}, {0: 8}), batch(1, {1: 4}, {1: 6}, shard="s1")]
    assert History.of(rows).audited({"s0": 1}) == {0: 5, 1: 4}
    assert History.of(rows).audited({"s0": 2, "s1": 1}) == {0: 8, 1: 6}


def test_a_gap_ends_the_chain_of_its_partition_alone() -> None:
    """Later batches of the partition are not added, even one that would fit. The chains of other
    partitions continue.
    """
    rows = [
        batch(1, {0: 0, 1: 0}, {0: 5, 1: 5}),
        batch(2, {0: 6, 1: 5}, {0: 8, 1: 7}),
        batch(3, {0: 8, 1: 7}, {0: 9, 1: 9}),
        batch(4, {0: 5, 1: 9}, {0: 6, 1: 11}),
    ]
    assert History.of(rows).committed == {0: 5, 1: 11}
    assert History.of(rows).first == {0: 0, 1: 0}


def test_a_partition_that_a_batch_found_new_begins_at_its_first_offset() -> None:
    """The batch has no start for it."""
    history = History.of([batch(1, {0: 3}, {0: 5, 1: 2})])
    assert history.first == {0: 3, 1: 0}
    assert history.committed == {0: 5, 1: 2}


def test_a_window_is_open_until_a_watermark_reaches_its_end() -> None:
    """The last batch after which it was open counts. A window that was final from the first batch on was open
    only before it.
    """
    rows = [
        batch(1, {0: 3, 1: 2}, {0: 5, 1: 2}, 100),
        batch(2, {0: 5, 1: 2}, {0: 8, 1: 4}, 200),
        batch(3, {0: 8, 1: 4}, {0: 9, 1: 7}, 300),
        batch(4, {0: 9, 1: 7}, {0: 12, 1: 8}, 400),
    ]
    history = History.of(rows)
    assert history.before_final(100) == {0: 3, 1: 2}
    assert history.before_final(101) == {0: 5, 1: 2}
    assert history.before_final(301) == {0: 9, 1: 7}
    assert history.before_final(500) == {0: 12, 1: 8}


def test_a_window_that_an_empty_batch_made_final_was_open_before_the_last_record() -> None:
    """At the end of the last batch that read something the empty ones after it count as well, so the window
    would be final there. A partition of which that batch read nothing stays where it is.
    """
    rows = [
        batch(1, {0: 0, 1: 0}, {0: 3, 1: 2}, 100),
        batch(2, {0: 3, 1: 2}, {0: 5, 1: 2}, 200),
        batch(3, {0: 5, 1: 2}, {0: 5, 1: 2}, 250),
        batch(4, {0: 5, 1: 2}, {0: 5, 1: 2}, 300),
        batch(5, {0: 5, 1: 2}, {0: 8, 1: 4}, 400),
    ]
    history = History.of(rows)
    for end in (201, 250, 251, 300):
        assert history.before_final(end) == {0: 3, 1: 2}
        assert history.horizon_ms(history.before_final(end), [0, 1]) == 100
    assert history.before_final(301) == {0: 5, 1: 2}
    assert History.of([batch(1, {0: 3}, {0: 3}, 100)]).before_final(100) == {0: 3}


def test_no_window_is_final_for_a_partition_that_no_batch_has_read() -> None:
    """Without partitions no window is final either."""
    history = History.of([batch(1, {0: 0}, {0: 5}, 100)])
    assert history.horizon_ms({0: 5, 1: 0}, [0]) == 100
    assert history.horizon_ms({0: 5, 1: 0}, [0, 1]) == 0
    assert history.horizon_ms({0: 5}, []) == 0


def test_what_was_final_before_the_first_batch_stays_final() -> None:
    """A shard that follows another begins with floors, before it has read anything of its own. Without a
    floor nothing is final.
    """
    history = History.of([batch(1, {0: 3, 1: 0}, {0: 5, 1: 2}, 100, floors={0: 70})])
    assert history.horizon_ms({0: 3, 1: 0}, [0]) == 70
    assert history.horizon_ms({0: 3, 1: 0}, [1]) == 0
    assert history.horizon_ms({0: 5, 1: 2}, [0]) == 100
    history = History.of([batch(1, {0: 3}, {0: 5}, 60, floors={0: 70})])
    assert history.horizon_ms({0: 5}, [0]) == 70, "its watermark was behind what was final already"


def test_a_batch_that_has_read_of_a_partition_that_is_not_requested_is_not_whole() -> None:
    """Its watermark holds for its partitions together, even if only a single record is past the offsets."""
    rows = [batch(1, {0: 0, 1: 0}, {0: 5, 1: 0}, 100), batch(2, {0: 5, 1: 0}, {0: 6, 1: 1}, 200)]
    assert History.of(rows).horizon_ms({0: 6}, [0]) == 100
    assert History.of(rows).horizon_ms({0: 6, 1: 1}, [0]) == 200


def test_a_batch_is_read_if_it_shares_an_offset_with_the_range() -> None:
    """A batch that only touches the range is not read, nor an empty one. A partition that no batch has read
    has none.
    """
    rows = [
        batch(1, {0: 0}, {0: 5}),
        batch(2, {0: 5}, {0: 5}),
        batch(3, {0: 5}, {0: 8}),
        batch(4, {0: 8}, {0: 9}),
    ]
    history = History.of(rows)
    assert [row.batch for row in history.batches({0: 5, 7: 0}, {0: 8, 7: 3})] == [3]
    assert [row.batch for row in history.batches({0: 4}, {0: 9})] == [1, 3, 4]


def test_reading_begins_at_the_first_batch_that_may_hold_what_is_needed() -> None:
    """Event times decide, to the millisecond. A batch that read nothing of the partition holds nothing of it."""
    rows = [
        batch(1, {0: 0, 1: 0}, {0: 0, 1: 9}, max_event_ms=999),
        batch(2, {0: 0, 1: 9}, {0: 5, 1: 9}, max_event_ms=99),
        batch(3, {0: 5, 1: 9}, {0: 9, 1: 9}, max_event_ms=100),
        batch(4, {0: 9, 1: 9}, {0: 12, 1: 9}, max_event_ms=500),
    ]
    history = History.of(rows)
    assert history.first_needed({0: 12}, {0: 100}) == {0: 5}
    assert history.first_needed({0: 12}, {0: 101}) == {0: 9}
    assert history.first_needed({0: 9, 7: 2}, {0: 101, 7: 0}) == {0: 9, 7: 2}
    assert may_hold(rows[1], 99)
    assert not may_hold(rows[1], 100)
