"""Offsets as JSON, and the names of shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.partitions import (
    AppShard,
    ShardId,
    app_id,
    as_json_object,
    by_partition,
    offsets_from_json,
    offsets_to_json,
)

OFFSETS = st.dictionaries(st.integers(min_value=0), st.integers(min_value=0))


@given(OFFSETS)
def test_offsets_come_back_from_json(offsets: dict[int, int]) -> None:
    """What is written is read again, as a text and as an object."""
    assert offsets_from_json(offsets_to_json(offsets)) == offsets
    assert by_partition(as_json_object(offsets)) == offsets


def test_offsets_are_written_in_the_order_of_their_partitions() -> None:
    """Equal offsets are equal texts, and partition 10 comes after partition 9."""
    assert offsets_to_json({10: 1, 9: 2}) == '{"9": 2, "10": 1}'


@given(st.tuples(*[st.integers(min_value=0)] * 3))
def test_a_shard_has_one_name(numbers: tuple[int, int, int]) -> None:
    """A name says all three numbers."""
    shard = ShardId(*numbers)
    assert ShardId.parse(str(shard)) == shard


def test_shards_are_in_the_order_of_their_numbers() -> None:
    """Shard 10 comes after shard 9, which their names alone do not say."""
    names = ["v1.g0.s10", "v1.g0.s9", "v1.g1.s0", "v2.g0.s0"]
    assert sorted(map(ShardId.parse, names)) == [(1, 0, 9), (1, 0, 10), (1, 1, 0), (2, 0, 0)]


@pytest.mark.parametrize(
    "name", ["", "v1", "v1.g0", "1.0.0", "v1.g0.s0.r3", "v1.g0.sx", " v1.g0.s0", "v1.g0.s0\n"]
)
def test_what_is_no_shard_has_no_numbers(name: str) -> None:
    """The name of something else is refused, and the error repeats it."""
    with pytest.raises(ValueError, match="is not the name of a shard"):
        ShardId.parse(name)


def test_a_shard_commits_under_its_pipeline_and_version() -> None:
    """Tables of users have this key in their logs: it stays as it is."""
    assert app_id("stock_stats", "v2.g0.s1") == "stock_stats/v2/v2.g0.s1"


def test_an_application_id_names_its_shard() -> None:
    """Those of a compaction or an archive name none."""
    assert AppShard.parse(app_id("trades", "v12.g3.s4")) == ("trades", 12, "v12.g3.s4")
    for other in ("archive", "hindcast-compaction", "a/b", "a/v1/b/c", "a/vx/b"):
        assert AppShard.parse(other) is None
