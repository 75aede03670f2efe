"""What a consumer queued for the ledger is written once, whichever threads write it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from hindcast import catalog
from hindcast.control import shards
from hindcast.control.ledger import LedgerRow
from hindcast.settings import Settings, project_root
from hindcast.stream.consumer import ShardConsumer
from hindcast.testing import FakeClock, MemoryStore

WAIT_SECONDS = 5.0


class SlowLedger:
    """Takes a row only once it is let go on."""

    def __init__(self) -> None:
        self.rows: list[LedgerRow] = []
        self.asked, self.go_on = threading.Event(), threading.Event()

    def append(self, rows: list[LedgerRow]) -> None:
        self.asked.set()
        assert self.go_on.wait(WAIT_SECONDS)
        self.rows += rows


def test_two_threads_that_flush_write_a_batch_once(settings_factory: Callable[..., Settings]) -> None:
    """The one that comes second finds nothing left: a batch twice in the history would have its late and poison rows filed twice."""
    (lease,) = shards.create(MemoryStore(), "stock_stats", 1, 1, {0: 0})
    pipeline, ledger = catalog.load(project_root() / "include" / "pipelines")["stock_stats"], SlowLedger()
    nothing: Any = None
    consumer = ShardConsumer(nothing, settings_factory(), pipeline, lease, nothing, ledger, FakeClock(), lambda: 0.0)  # type: ignore[arg-type]
    known: Any = {"pipeline": "stock_stats", "version": 1, "shard": "v1.g0.s0", "worker": "w", "topic": "trades"}
    numbers = dict.fromkeys(("epoch", "batch", "late_watermark_ms", "watermark_ms", "output_rows", "sink_version"), 1)
    row = LedgerRow.unmeasured(**known, **numbers, start_offsets={0: 0}, end_offsets={0: 9}, committed_at=datetime.now(UTC))
    consumer._rows = [row]
    threads = [threading.Thread(target=consumer.flush) for _ in range(2)]
    threads[0].start()
    assert ledger.asked.wait(WAIT_SECONDS)
    threads[1].start()
    threads[1].join(0.2)  # time for it to do what it must not; it waits for the first
    ledger.go_on.set()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert (ledger.rows, consumer.history, consumer._rows) == ([row], [row], [])
