"""Where a query begins to read so that its state is rebuilt, and when the topic no longer allows it."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from support.ledger_rows import batch

from hindcast.archive.archive_or_live import HeldRecords, Ranges
from hindcast.errors import OffsetsLostError, ReshardRefusedError
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets
from hindcast.pipeline import TOPIC_STRIDE, Mode
from hindcast.recovery.rebuild_state import check_reshard, check_retained, start_of
from hindcast.shards.resharding import create
from hindcast.tables.ledger_history import History
from hindcast.testing import MemoryStore

#: Windows of five seconds; batches that have read up to 5, 9 and 12, with rows of up to so many milliseconds.
HISTORY = History.of(
    [
        batch(1, {0: 2}, {0: 5}, max_event_ms=10_000),
        batch(2, {0: 5}, {0: 9}, max_event_ms=15_000),
        batch(3, {0: 9}, {0: 12}, max_event_ms=20_000),
    ]
)


def declared(**fields: Any) -> Any:
    topics = [SimpleNamespace(name="trades"), SimpleNamespace(name="quotes")]
    window = SimpleNamespace(length=timedelta(seconds=5))
    sink = SimpleNamespace(mode=Mode.APPEND)
    return SimpleNamespace(
        **{"name": "p", "topics": topics, "window": window, "sink": sink, "re_execute": False, **fields}
    )


UPSERT = SimpleNamespace(mode=Mode.UPSERT)


def topic(earliest: Offsets, archived: dict[int, Ranges] | None = None) -> HeldRecords:
    """What is held of a topic that begins at these offsets, and of its archive."""
    return HeldRecords(earliest, dict.fromkeys(earliest, 100), archived or {})


def test_what_an_archive_holds_is_not_lost() -> None:
    """A gap between archive and topic is, with its own first offset."""
    check_retained(declared(), "s0", {0: 4}, {0: 9}, topic({0: 6}, {0: ((3, 6),)}))
    with pytest.raises(OffsetsLostError, match="neither the topic nor its archive holds them") as caught:
        check_retained(declared(), "s0", {0: 4}, {0: 9}, topic({0: 8}, {0: ((3, 6),)}))
    assert caught.value.fields.items() >= {"start": 6, "end": 7}.items()


@pytest.mark.parametrize(
    ("floor_ms", "start"), [(14_999, 2), (15_000, 5), (19_999, 5), (20_000, 9), (24_999, 9), (25_000, 12)]
)
def test_windows_that_are_open_need_the_rows_of_their_whole_length(floor_ms: int, start: int) -> None:
    """A window that ends just after the floor has a row that came a length before, to the millisecond."""
    assert start_of(declared(), HISTORY, {0: 12}, {0: floor_ms}) == {0: start}


def test_without_a_floor_all_rows_are_needed() -> None:
    """Of a partition that no batch has read, none."""
    assert start_of(declared(), HISTORY, {0: 12, 1: 7}, {}) == {0: 2, 1: 7}


@pytest.mark.parametrize("fields", [{"sink": UPSERT}, {"re_execute": True}, {"sink": UPSERT, "window": None}])
def test_running_results_need_all_rows(fields: dict[str, Any]) -> None:
    """From the stream's beginning on, whatever is final; never from an offset after the end."""
    assert start_of(declared(**fields), HISTORY, {0: 12, 1: 7}, {0: 20_000}) == {0: 2, 1: 7}
    assert start_of(declared(**fields), HISTORY, {0: 1}, {}) == {0: 1}


def test_a_pipeline_without_state_reads_nothing_again() -> None:
    """It begins where the sink ends."""
    assert start_of(declared(window=None), HISTORY, {0: 12}, {0: 0}) == {0: 12}


def test_offsets_that_the_topic_has_dropped_are_named() -> None:
    """With the topic that they are of, and only such as are needed: nothing is lost at the earliest offset,
    nor if nothing is needed.
    """
    check_retained(declared(), "s0", {0: 4, 1: 9}, {0: 9, 1: 9}, topic({0: 4, 1: 20}))
    check_retained(declared(), "s0", {0: 0}, {0: 9}, topic({}))
    with pytest.raises(OffsetsLostError, match="no longer holds them") as caught:
        check_retained(declared(), "s0", {0: 4}, {0: 9}, topic({0: 6}))
    fields = {"topic": "trades", "partition": 0, "pipeline": "p", "shard": "s0", "start": 4, "end": 5}
    assert caught.value.fields.items() >= fields.items()
    of_the_second = TOPIC_STRIDE + 3
    with pytest.raises(OffsetsLostError) as caught:
        check_retained(declared(), "s0", {of_the_second: 4}, {of_the_second: 9}, topic({of_the_second: 60}))
    assert caught.value.fields.items() >= {"topic": "quotes", "partition": 3, "start": 4, "end": 8}.items()


def held(**checkpoint: Any) -> list[Lease]:
    """The one shard of partition 0, with this in its checkpoint, besides where it began."""
    (lease,) = create(MemoryStore(), "p", 1, 1, {0: 2})
    return [lease.evolve(checkpoint={**lease.checkpoint, **checkpoint})]


def test_a_reshard_needs_what_its_new_shards_read_again() -> None:
    """From where the shards of today end, under their watermarks and floors."""
    leases = held(end_offsets={"0": 12}, watermark_ms=16_000)
    check_reshard(declared(), HISTORY, leases, topic({0: 5}))
    with pytest.raises(OffsetsLostError) as caught:
        check_reshard(declared(), HISTORY, leases, topic({0: 6}))
    assert caught.value.fields.items() >= {"shard": leases[0].status_value, "start": 5, "end": 5}.items()
    above_a_floor = held(end_offsets={"0": 12}, watermark_ms=16_000, floors={"0": 21_000})
    check_reshard(declared(), HISTORY, above_a_floor, topic({0: 9}))
    with pytest.raises(OffsetsLostError):  # another partition's floor is none of its own
        check_reshard(
            declared(),
            HISTORY,
            held(end_offsets={"0": 12}, watermark_ms=16_000, floors={"1": 21_000}),
            topic({0: 6}),
        )


def test_a_reshard_of_state_that_depends_on_batches_is_refused() -> None:
    """Before anything is looked at."""
    with pytest.raises(ReshardRefusedError, match="p is not resharded"):
        check_reshard(declared(re_execute=True), HISTORY, held(), topic({}))
