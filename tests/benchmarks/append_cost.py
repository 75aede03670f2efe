"""What appending to a control table costs: a part of ``make bench-leases``."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from deltalake import DeltaTable
from support.benchmark_figures import Figure, cold_reads, expect

from hindcast.settings import Settings
from hindcast.tables import control_tables
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.schema import APPENDED_LOG_RETENTION_SECONDS, SCHEMAS, configuration
from hindcast.tables.table_names import ControlTable

#: Rows a second in the ledger of eight shards at a trigger of two seconds.
APPEND_RATE = 4.0


def appended(base: Path, appends: int = 5_000) -> list[Figure]:
    """What thousands of appends of one row leave behind, beside the same rows in one append."""
    many, one, warm = (ControlTables(Settings(home=base / name)) for name in ("many", "one", "warm"))
    rows = [
        {
            "event_id": str(number),
            "at": datetime.now(UTC),
            "severity": "info",
            "kind": "shard_taken",
            "message": "m",
            "detail": "{}",
        }
        for number in range(appends)
    ]
    one.append(ControlTable.EVENTS, rows)
    started = time.perf_counter()
    for row in rows[:200]:
        warm.append(ControlTable.EVENTS, [row])
    faster = 200 / (time.perf_counter() - started) / APPEND_RATE
    seconds = max(1, round(APPENDED_LOG_RETENTION_SECONDS / faster))
    kept = {**configuration(ControlTable.EVENTS), "delta.logRetentionDuration": f"interval {seconds} seconds"}
    url = Path(many.url(ControlTable.EVENTS))
    url.mkdir(parents=True)
    DeltaTable.create(str(url), SCHEMAS[ControlTable.EVENTS], configuration=kept)
    # A process that stands still for longer than half of the log's retention repeats its append, here as in
    # life. Else a machine that is busy for some seconds would lose one.
    control_tables._BELIEVED_SECONDS = seconds / 2
    times = []
    for row in rows:
        started = time.perf_counter()
        many.append(ControlTable.EVENTS, [row])
        times.append(time.perf_counter() - started)
    many.upkeep[ControlTable.EVENTS].wait()
    ids = Counter(row["event_id"] for row in many.rows(ControlTable.EVENTS))
    expect(ids.keys() == {str(number) for number in range(appends)}, f"all {appends} events are there")
    reads = cold_reads({"many": base / "many", "one": base / "one"}, "events")
    tenth = appends // 10
    return [
        Figure("appends a second, so faster than in life by", faster, unit="x"),
        Figure("retention of the log, shortened by as much", seconds, unit="s"),
        Figure("appends that were repeated, since they landed late", ids.total() - appends),
        Figure("files that a read opens", len(many.open(ControlTable.EVENTS).file_uris())),
        Figure("an append, first tenth", 1000 * statistics.median(times[:tenth]), unit="ms"),
        Figure("an append, last tenth", 1000 * statistics.median(times[-tenth:]), unit="ms"),
        Figure("cold read, all rows in one append", 1000 * statistics.median(reads["one"]), unit="ms"),
        Figure(f"cold read, {appends:,} appends", 1000 * statistics.median(reads["many"]), unit="ms"),
    ]
