"""What is queued for the ledger is written once, whichever threads write it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hindcast import catalog
from hindcast.settings import Settings, project_root
from hindcast.stream.ledger_queue import LedgerQueue
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger, LedgerRow

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


def queue_of(ledger: Any) -> LedgerQueue:
    """The queue of a shard that has no query."""
    pipeline = catalog.load(project_root() / "include" / "pipelines")["stock_stats"]
    return LedgerQueue(ledger, pipeline, "v1.g0.s0")


def row(batch: int) -> LedgerRow:
    known: Any = {
        "pipeline": "stock_stats",
        "version": 1,
        "shard": "v1.g0.s0",
        "worker": "w",
        "topic": "trades",
        "batch": batch,
    }
    numbers = dict.fromkeys(("epoch", "late_watermark_ms", "watermark_ms", "output_rows", "sink_version"), 1)
    return LedgerRow.unmeasured(
        **known, **numbers, start_offsets={0: 0}, end_offsets={0: 9}, committed_at=datetime.now(UTC)
    )


def test_two_threads_that_flush_write_a_batch_once() -> None:
    """The one that comes second finds nothing left: a batch twice in the history would have its late and
    poison rows filed twice.
    """
    ledger = SlowLedger()
    queue = queue_of(ledger)
    queue._rows = [row(1)]
    threads = [threading.Thread(target=queue.flush, args=(None, 0)) for _ in range(2)]
    threads[0].start()
    assert ledger.asked.wait(WAIT_SECONDS)
    threads[1].start()
    threads[1].join(0.2)  # time for it to do what it must not; it waits for the first
    ledger.go_on.set()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert (len(ledger.rows), queue.unfiled(0), queue._rows) == (1, ledger.rows, [])


def test_what_is_filed_is_forgotten_and_what_others_committed_is_read(
    settings_factory: Callable[..., Settings],
) -> None:
    """A shard keeps the batches whose late and poison rows wait, its own and, from the ledger, those of
    owners before it; no others.
    """
    settings = settings_factory()
    ledger = Ledger(ControlTables(settings))
    ledger.append([row(batch) for batch in range(1, 6)])
    queue = queue_of(ledger)
    queue.begin([row(5)])  # as it is once the shard was taken over
    for batch in (6, 7):
        queue._rows = [row(batch)]
        queue.flush(None, 0)
    numbers = lambda filed: [entry.batch for entry in queue.unfiled(filed)]  # noqa: E731 - short
    assert numbers(5) == [6, 7]
    assert [entry.batch for entry in queue._history] == [6, 7]
    assert numbers(2) == [3, 4, 5, 6, 7]
    assert numbers(2) == [3, 4, 5, 6, 7]
    queue._rows = [row(8)]
    queue.flush(None, 0)
    assert numbers(6) == [7, 8]
    assert numbers(8) == [] == queue._history


@dataclass
class Reporting:
    """A query that runs, and its reports: by Spark's number of the batch, the rows that it read."""

    reports: list[tuple[int, int]] = field(default_factory=list)
    isActive: bool = True  # noqa: N815 - Spark's name

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802 - Spark's name
        return [self._report(*one) for one in self.reports]

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self.recentProgress[-1] if self.reports else None

    def _report(self, batch: int, rows: int) -> dict[str, Any]:
        measured = {"rows": rows, "poison": 0, "min_event_ms": 1, "max_event_ms": 2}
        return {"batchId": batch, "observedMetrics": {"source0": measured}, "durationMs": {}}


def written(queue: LedgerQueue, query: Reporting, ledger: SlowLedger) -> list[tuple[int, int | None]]:
    """The batches that are in the ledger after a flush, and how many rows Spark measured of each."""
    ledger.go_on.set()
    queue.flush(query, 1)  # type: ignore[arg-type] - a stand-in
    return [(row.batch, row.input_rows) for row in ledger.rows]


def test_the_newest_batch_waits_for_its_report_alone() -> None:
    """Spark reports a batch after it has run; a row in the ledger is never changed."""
    ledger = SlowLedger()
    queue = queue_of(ledger)
    queue.add(row(1))
    queue.add(row(2))
    query = Reporting([(0, 9)])
    assert written(queue, query, ledger) == [(1, None)]
    query.reports.append((1, 7))
    assert written(queue, query, ledger) == [(1, None), (2, 7)]


def test_a_query_that_has_become_idle_is_asked_for_the_report_before() -> None:
    """Its newest report is of the batch to come, and says nothing of the last one: a row would wait until records
    come again.
    """
    ledger = SlowLedger()
    queue = queue_of(ledger)
    queue.add(row(3))
    assert written(queue, Reporting([(2, 7), (3, 0), (3, 0)]), ledger) == [(3, 7)]


def test_a_batch_whose_report_is_forgotten_is_written_without_it() -> None:
    """What is not measured is measured by the audit, which reads the batch."""
    ledger = SlowLedger()
    queue = queue_of(ledger)
    queue.add(row(3))
    assert written(queue, Reporting([(3, 0)] * 100), ledger) == [(3, None)]
