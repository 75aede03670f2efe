"""Which offsets belong to which of the batches that are run again. No JVM."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from support.simulated_stream import simulate, trades

from hindcast import Table, Topic, pipeline
from hindcast.replay import offset_buckets
from hindcast.replay.recorded_batches import RecordedBatches, _by_bucket
from hindcast.tables.ledger import LedgerRow

NO_SPARK: Any = None
SHARDS = ("v1.g0.s0", "v1.g0.s1")


@pipeline(
    source=Topic("trades", schema="ticker string, ts timestamp, ask double"),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("plain"),
    version=1,
)
def plain(frame: Any) -> Any:
    return frame


@pytest.fixture(scope="module")
def by_shard() -> dict[str, list[LedgerRow]]:
    """Two shards of two partitions, and some hundred batches."""
    stream = simulate(trades(1, count=6_000, partitions=4), seed=1, shards=2)
    return {name: [row for row in stream.ledger if row.shard == name] for name in SHARDS}


def ranges_of(by_shard: dict[str, list[LedgerRow]], counts: dict[str, int]) -> list[Any]:
    return RecordedBatches(NO_SPARK, plain, NO_SPARK, counts)._ranges(plain.source, by_shard)


@pytest.mark.parametrize("fewest", [True, False])
def test_every_offset_is_in_the_batch_that_read_it(
    by_shard: dict[str, list[LedgerRow]], fewest: bool
) -> None:
    """If all but the last are dealt as one, the offsets of the last recorded batch alone are in the second."""
    counts = {name: 2 if fewest else len(rows) for name, rows in by_shard.items()}
    expected = {}
    for name, rows in by_shard.items():
        for number, row in enumerate(rows):
            dealt = max(0, number - len(rows) + counts[name])
            for partition, end in row.end_offsets.items():
                for offset in range(row.start_offsets[partition], end):
                    expected[partition, offset] = (name, dealt)
    found = {}
    for one in ranges_of(by_shard, counts):
        for offset in range(one.start, one.end):
            assert (one.partition, offset) not in found
            found[one.partition, offset] = (one.shard, one.number)
    assert found == expected


def test_batches_that_are_dealt_as_one_have_one_range_of_a_partition(
    by_shard: dict[str, list[LedgerRow]],
) -> None:
    """So a record meets two of them at most, however many were recorded."""
    assert min(len(rows) for rows in by_shard.values()) > 30
    ranges = ranges_of(by_shard, dict.fromkeys(SHARDS, 2))
    assert max(Counter((one.partition, one.shard) for one in ranges).values()) <= 2


def test_what_lies_between_two_batches_belongs_to_neither(by_shard: dict[str, list[LedgerRow]]) -> None:
    """Offsets that no batch of the shard has read: ranges that do not touch stay two."""
    rows = by_shard[SHARDS[0]]
    first = replace(rows[0], start_offsets={0: 0}, end_offsets={0: 10})
    second = replace(rows[0], start_offsets={0: 12}, end_offsets={0: 20})
    third = replace(rows[0], start_offsets={0: 20}, end_offsets={0: 25})
    found = ranges_of({SHARDS[0]: [first, second, third, third]}, {SHARDS[0]: 2})
    assert sorted((one.start, one.end, one.number) for one in found) == [(0, 10, 0), (12, 25, 0), (20, 25, 1)]


def test_a_record_meets_few_of_many_batches() -> None:
    """A bucket has the ranges that touch it, and a range is in each bucket that it touches."""
    stream = simulate(trades(1, count=6_000, partitions=1), seed=1, shards=1)
    rows = [row for row in stream.ledger if row.end_offsets != row.start_offsets]
    ranges = ranges_of({SHARDS[0]: rows}, {SHARDS[0]: len(rows)})
    assert len(ranges) == len(rows) > 200
    width = offset_buckets.width_of(sum(one.end - one.start for one in ranges), len(ranges))
    met = Counter((one[0], one[1]) for one in _by_bucket(ranges, width))
    assert max(met.values()) < 20
    assert sum(met.values()) < 3 * len(ranges)
    for bucket, _, start, end, *_ in _by_bucket(ranges, width):
        assert any(offset // width == bucket for offset in range(start, end))
    for one in ranges:
        in_buckets = {row[0] for row in _by_bucket([one], width)}
        assert in_buckets == {offset // width for offset in range(one.start, one.end)}
