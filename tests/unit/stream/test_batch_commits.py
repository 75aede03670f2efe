"""Who writes the rows of a batch: the executors, or this process if they are surely few."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.trades_stats import trades_stats

from hindcast import Window
from hindcast.spark.batch_metrics import state_bytes
from hindcast.stream import batch_commits
from hindcast.stream.batch_commits import BatchCommits
from hindcast.tables.fenced_sink import Fence

SMALL = 32 * 1024 * 1024


def progress(*operators: int) -> Any:
    """What Spark reports of a batch whose operators' states take so many bytes."""
    return SimpleNamespace(stateOperators=[SimpleNamespace(memoryUsedBytes=size) for size in operators])


def test_the_state_is_that_of_all_operators() -> None:
    """A query without state reports none, which is not an empty one."""
    assert state_bytes(progress(3, 4)) == 7
    assert state_bytes(progress(0)) == 0
    assert state_bytes(progress()) is None


class Writes:
    """Who has written, batch by batch, in place of Spark and Parquet."""

    def __init__(self) -> None:
        self.by: list[str] = []

    def write_rows(self, rows: pa.Table, *_: Any) -> Sequence[Any]:
        self.by.append("driver")
        return [SimpleNamespace(rows=rows.num_rows)]

    def write_files(self, *_: Any) -> Sequence[Any]:
        self.by.append("executors")
        return [SimpleNamespace(rows=2)]


@pytest.mark.parametrize(
    ("window", "state", "records", "by"),
    [
        (Window("1 second"), SMALL, 50_000, "driver"),
        (Window("1 second"), 0, 0, "driver"),
        (Window("1 second"), SMALL + 1, 50_000, "executors"),
        (Window("1 second"), SMALL, 50_001, "executors"),
        (Window("1 second"), None, 1, "executors"),  # nothing is known of the state
        (None, 0, 1, "executors"),  # a row may become any number of rows
    ],
)
def test_a_result_that_is_surely_small_is_written_by_the_driver(
    monkeypatch: pytest.MonkeyPatch, window: Window | None, state: int | None, records: int, by: str
) -> None:
    """Both say how many rows there are."""
    writes = Writes()
    monkeypatch.setattr(batch_commits, "parquet_writer", writes)
    of_shard: Any = SimpleNamespace(
        pipeline=trades_stats(window), state_bytes=state, lease=SimpleNamespace(status_value="v1.g0.s0")
    )
    sink: Any = SimpleNamespace(url="t", storage_options={})
    unused: Any = SimpleNamespace(opened=lambda: None)
    commits = BatchCommits(
        of_shard,
        unused,
        sink,
        unused,
        unused,
        unused,
        excluded={},
        draining=threading.Event(),
        give_way=lambda: None,
    )
    frame: Any = SimpleNamespace(toArrow=lambda: pa.table({"n": [1, 2]}))
    _, rows = commits._written(frame, Fence(1, 1), records)
    assert (writes.by, rows) == ([by], 2)
