"""Which batches an audit reads again: those that can have a late or a poison row, by what Spark measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.ledger_rows import batch
from support.trades_stats import trades_stats

from hindcast import Window
from hindcast.installation import Installation
from hindcast.partitions import app_id
from hindcast.settings import Settings
from hindcast.stream import late_and_dead_rows
from hindcast.stream.late_and_dead_rows import Audit, may_have_late_rows
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.table_names import ControlTable

#: What was final when the batches began, in epoch milliseconds.
FINAL_MS = 10_000


TUMBLING = trades_stats(Window("1 second"))


def measured(number: int, earliest_ms: int | None, **fields: Any) -> LedgerRow:
    """A batch of ten records, whose earliest event is at that time; None if it has no usable record."""
    usable = 0 if earliest_ms is None else 10
    row = batch(number, {0: 10 * number - 10}, {0: 10 * number}, late_watermark_ms=FINAL_MS)
    of_records = {"input_rows": usable, "poison_rows": 0, "min_event_ms": earliest_ms}
    return replace(row, **{**of_records, **fields})


@pytest.mark.parametrize(
    ("window", "latest_late_ms"),
    [
        (Window("1 second"), 9_999),  # in [9,000, 10,000)
        (Window("3 seconds", slide="1 second"), 9_999),  # its first window of three ends at 10,000
        (Window("4 seconds", slide="3 seconds"), 9_999),  # the first of its two windows is [6,000, 10,000)
    ],
)
def test_a_batch_whose_earliest_window_was_open_has_no_late_row(window: Window, latest_late_ms: int) -> None:
    """The least event time decides: a window that ends where the watermark stood was final."""
    made = trades_stats(window)
    assert may_have_late_rows(made, measured(1, latest_late_ms))
    assert not may_have_late_rows(made, measured(1, latest_late_ms + 1))


def test_without_windows_a_row_at_the_watermark_is_late() -> None:
    """If an operator with state waits for rows; of other results no row is ever late."""
    made = trades_stats(None, re_execute=True)
    assert may_have_late_rows(made, measured(1, FINAL_MS))
    assert not may_have_late_rows(made, measured(1, FINAL_MS + 1))
    assert not may_have_late_rows(trades_stats(None), measured(1, 0))


def test_the_partition_that_was_final_longest_counts() -> None:
    """A floor is of one partition. The earliest event may be of any."""
    row = replace(measured(1, 10_500), end_offsets={0: 10, 1: 5}, floors={1: 11_000})
    assert may_have_late_rows(TUMBLING, row)
    assert not may_have_late_rows(TUMBLING, replace(row, floors={1: 10_999}))
    assert not may_have_late_rows(TUMBLING, replace(row, floors={2: 11_000})), "of another shard"


def test_what_was_not_measured_may_be_late() -> None:
    """Unless nothing was final yet. A batch without usable records has no late one."""
    unknown = measured(1, None, input_rows=None, poison_rows=None)
    assert may_have_late_rows(TUMBLING, unknown)
    assert not may_have_late_rows(TUMBLING, replace(unknown, late_watermark_ms=0))
    assert may_have_late_rows(TUMBLING, measured(1, None, input_rows=3, poison_rows=2))
    assert not may_have_late_rows(TUMBLING, measured(1, None, input_rows=3, poison_rows=3))


class Reads:
    """The batches that audits have read, by their numbers."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def unaccounted(self, batches: Sequence[LedgerRow]) -> Any:
        self.batches.append([row.batch for row in batches])
        return SimpleNamespace(where=lambda _: "rows")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    made = Reads()

    @contextmanager
    def cached(rows: Any) -> Iterator[Any]:
        yield rows

    monkeypatch.setattr(Audit, "_unaccounted", lambda _, batches: made.unaccounted(batches))
    monkeypatch.setattr(late_and_dead_rows, "session", SimpleNamespace(cached=cached))
    monkeypatch.setattr(late_and_dead_rows, "F", SimpleNamespace(col=lambda _: 0))
    for name in ("late_rows", "dead_letters"):
        monkeypatch.setattr(late_and_dead_rows, name, lambda rows, _: rows)
    monkeypatch.setattr(late_and_dead_rows, "_as_table", lambda rows, *_: rows)
    monkeypatch.setattr(late_and_dead_rows, "parquet_writer", SimpleNamespace(write_files=lambda *_: []))
    return made


def audit(settings: Settings) -> Audit:
    spark: Any = None
    return Audit(spark, Installation(settings), TUMBLING, app_id("p", "v1.g0.s0"), 1)


def test_nothing_is_read_of_batches_without_such_rows(settings: Settings, reads: Reads) -> None:
    """They are filed all the same: a replay waits for that, and the next pass begins after them."""
    on_time = [measured(number, 10_500) for number in (1, 2, 3)]
    assert audit(settings).run(on_time) == 3
    assert reads.batches == []
    assert audit(settings).filed() == 3
    tables = Installation(settings).tables
    for name in (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS):
        assert tables.open(name).version() > 0, "each table has the fence"
    assert audit(settings).run(on_time) == 3
    assert reads.batches == []


def test_only_the_batches_that_may_have_such_rows_are_read(settings: Settings, reads: Reads) -> None:
    """One with poison, one that came late, and one that was not measured, with those between left out."""
    batches = [
        measured(1, 10_500),
        measured(2, 10_500, poison_rows=1),
        measured(3, 10_500),
        measured(4, 9_000),
        measured(5, None, input_rows=None, poison_rows=None),
        measured(6, 10_500),
    ]
    assert audit(settings).run(batches) == 6
    assert reads.batches == [[2, 4, 5]]
