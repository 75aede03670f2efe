"""What a shard's lease says: the keys on disk and their meaning."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hindcast.leases.lease import Lease, StatusType
from hindcast.shards.shard_row import (
    DRAINED,
    REFUSED,
    ReportedCheckpoint,
    ReportedDetail,
    ShardCheckpoint,
    ShardDetail,
    awaits_rewind,
    without_marks,
    without_rewind,
)

OFFSETS = st.dictionaries(st.integers(0, 20), st.integers(min_value=0), min_size=1)
BEGUN = {"start_offsets": {"0": 5, "1": 7}, "floors": {"1": 60}}
DEALT = {"partitions": [0, 1], "modulus": 4}


def shard(checkpoint: dict[str, Any], detail: dict[str, Any]) -> Lease:
    return Lease(
        stream_id="p",
        status_type=StatusType.SHARD,
        status_value="v1.g0.s0",
        checkpoint=checkpoint,
        detail=detail,
    )


def test_a_shard_that_has_read_nothing_says_where_it_begins() -> None:
    """No batch, no watermark, no query; what its parents had final stays final."""
    checkpoint = ShardCheckpoint.of(shard(BEGUN, DEALT))
    assert checkpoint == ShardCheckpoint(start_offsets={0: 5, 1: 7}, floors={1: 60})
    assert checkpoint.to_json() == BEGUN
    assert checkpoint.read_to == {0: 5, 1: 7}
    assert [checkpoint.final_ms(partition) for partition in (0, 1)] == [0, 60]
    assert checkpoint.all_final_ms == 60


def test_a_checkpoint_without_floors_has_no_key_for_them() -> None:
    """The first generation's rows stay as they always were; so do rows that know no query."""
    assert ShardCheckpoint(start_offsets={1: 2}).to_json() == {"start_offsets": {"1": 2}}
    known = ShardCheckpoint(start_offsets={1: 2}, fingerprint="f")
    assert known.to_json() == {"start_offsets": {"1": 2}, "fingerprint": "f"}


@given(OFFSETS, st.integers(1, 9), st.integers(0, 99), st.integers(0, 9))
def test_what_a_worker_reports_is_read(
    ends: dict[int, int], batch: int, watermark: int, version: int
) -> None:
    """Each reported key has its field, and a batch's ends are where the shard is read to."""
    reported = ReportedCheckpoint(
        batch=batch,
        end_offsets={str(partition): offset for partition, offset in ends.items()},
        watermark_ms=watermark,
        sink_version=version,
        fingerprint="f",
    )
    checkpoint = ShardCheckpoint.of(shard({**BEGUN, **reported}, DEALT))
    assert checkpoint.read_to == checkpoint.end_offsets == ends
    assert (checkpoint.batch, checkpoint.watermark_ms) == (batch, watermark)
    assert (checkpoint.sink_version, checkpoint.fingerprint) == (version, "f")
    assert checkpoint.final_ms(1) == checkpoint.all_final_ms == max(watermark, 60)
    assert checkpoint.final_ms(0) == watermark


def test_a_shard_says_what_it_was_dealt() -> None:
    """Nothing else is known of a new one."""
    detail = ShardDetail.of(shard(BEGUN, DEALT))
    assert detail == ShardDetail(partitions=[0, 1], modulus=4)
    assert detail.to_json() == DEALT


def test_a_row_that_says_nothing_of_a_shard_is_read() -> None:
    """It consumes nothing, and its keys may go to any partition."""
    assert ShardDetail.of(shard({}, {})) == ShardDetail(partitions=[], modulus=1)


def test_what_is_reported_of_a_shard_is_read() -> None:
    """A lag of 0 is a lag, and an empty text says that nothing is wrong any more."""
    reported = ReportedDetail(lag_records=0, refused="torn", drained=True, rebuild="r", damaged="gone")
    detail = ShardDetail.of(shard(BEGUN, {**DEALT, **reported}))
    assert (detail.lag_records, detail.refused, detail.drained) == (0, "torn", True)
    assert (detail.rebuilt, detail.damaged) == ("r", "gone")
    mended = ShardDetail.of(shard(BEGUN, {**DEALT, **reported, **ReportedDetail(damaged="", refused="")}))
    assert (mended.damaged, mended.refused) == ("", "")


def test_a_shard_that_waits_for_a_rewind_says_so_until_it_ends() -> None:
    """Even of a rewind that keeps nothing of itself; the rest of the detail stays."""
    for record in ({}, {"id": "r"}):
        detail = ShardDetail(partitions=[0, 1], modulus=4, rewind=record)
        assert detail.to_json() == {**DEALT, "reset": record}
        waiting = shard(BEGUN, detail.to_json())
        assert awaits_rewind(waiting)
        assert ShardDetail.of(waiting).rewind == record
        assert without_rewind(waiting).detail == DEALT
        assert not awaits_rewind(without_rewind(waiting))
    assert ShardDetail.of(shard(BEGUN, DEALT)).rewind is None


def test_only_the_marks_that_are_named_are_cleared() -> None:
    """The lag and the other mark stay."""
    marked = shard(BEGUN, {**DEALT, "lag_records": 3, REFUSED: "torn", DRAINED: True})
    assert without_marks(marked, frozenset({REFUSED})).detail == {**DEALT, "lag_records": 3, DRAINED: True}
    assert without_marks(marked, frozenset({REFUSED, DRAINED})).detail == {**DEALT, "lag_records": 3}
