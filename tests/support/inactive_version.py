"""A pipeline whose version 2 runs over the past while version 1 is active, on real tables and without a
JVM.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from support.simulated_platform import SINK_SCHEMA, instant

from hindcast import read
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease
from hindcast.leases.store import Snapshot, swap
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.pipeline_row import InactiveState, InactiveVersion
from hindcast.shards.version_changes import Versions
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog
from hindcast.tables.table_names import ControlTable

NAME = "stock_stats"
#: A verdict's time is by the clock of the host that judged. It decides nothing.
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
#: What the error of a refused promotion names.
PROMOTED = {"pipeline": NAME, "version": 2, "action": "promoted"}


def put(settings: Settings, table: str, ends: Iterable[int], ticker: str, **more: Any) -> None:
    """A row for each window's end, in seconds."""
    rows = []
    for end in ends:
        window = {"start": instant(end * 1000 - 5000), "end": instant(end * 1000)}
        rows.append({"window": window, "ticker": ticker, "trades": 1, **more})
    schema = SINK_SCHEMA
    for name in more:
        schema = schema.append(pa.field(name, pa.float64()))
    write_deltalake(settings.table("sinks", table), pa.Table.from_pylist(rows, schema=schema), mode="append")


def begin(settings: Settings, seam_ms: int | None = None) -> None:
    """Start version 2. It has read nothing yet."""
    tables = (f"sinks/{NAME}_v2", f"corrections/{NAME}_v2")
    shadow = InactiveVersion(
        version=2, state=InactiveState.CATCHING_UP, shards=1, tables=tables, seam_ms=seam_ms
    )
    Versions(LeaseTable(settings)).begin(NAME, shadow, {0: 0}, columns_from=1)


def at(settings: Settings, version: int, end: int, watermark_ms: int, owner: str = "") -> None:
    """Let the lease of the version's shard say that it has read up to there."""

    def read_up_to(snapshot: Snapshot) -> list[Lease]:
        (lease,) = resharding.of_version(snapshot.leases.values(), NAME, version)
        checkpoint = {**lease.checkpoint, "end_offsets": {"0": end}, "watermark_ms": watermark_ms, "batch": 1}
        return [lease.evolve(checkpoint=checkpoint, lease_owner=owner)]

    swap(LeaseTable(settings), read_up_to)


def proved(
    settings: Settings,
    *,
    passed: bool = True,
    broken: Iterable[str] = (),
    failed: Iterable[str] = (),
    compared: bool = True,
    judged: bool = True,
    number: int = 1,
) -> None:
    """Version 2 has caught up; then it was judged and compared.

    :param broken: the expectations that failed in the verdict
    :param failed: what the comparison found
    :param number: of the verdict
    """
    versions = Versions(LeaseTable(settings))
    versions.note_caught_up(versions.of(NAME))
    change = versions.of(NAME).changes
    if judged:
        judge(
            settings,
            passed=passed,
            failed=json.dumps(list(broken)),
            unexplained=int(not passed),
            change=change,
            number=number,
        )
    if compared:
        compare(settings, failed=list(failed), change=change, number=1)


def judge(settings: Settings, **verdict: Any) -> None:
    """Version 2 gets a verdict. It passed, unless it is given otherwise."""
    row = {
        "run_id": "r",
        "pipeline": NAME,
        "version": 2,
        "passed": True,
        "failed": "[]",
        "unexplained": 0,
        "judged_at": LONG_AGO,
        **verdict,
    }
    ControlTables(settings).append(ControlTable.VERDICTS, [row])


def compare(settings: Settings, **comparison: Any) -> None:
    """Version 2 is compared with version 1."""
    EventLog(ControlTables(settings)).record(
        EventKind.VERSIONS_COMPARED,
        "Compared.",
        pipeline=NAME,
        comparison={"version": 2, "with": 1, **comparison},
    )


def caught_up(settings: Settings) -> None:
    """Version 2 has read what version 1 has, holds the same windows, and is proved."""
    begin(settings)
    put(settings, f"{NAME}_v2", range(5, 10), "two", max_ask=1.0)
    at(settings, 1, 50, 9_000)
    at(settings, 2, 50, 9_000)
    proved(settings)


def seen(settings: Settings) -> Counter[tuple[int, str]]:
    """What readers get: (end of the window in seconds, ticker) of each row."""
    rows = read(NAME, settings).arrow().to_pylist()
    return Counter((int(row["window"]["end"].timestamp()), row["ticker"]) for row in rows)


def event_kinds(settings: Settings) -> list[str]:
    """The pipeline's events, oldest first."""
    rows = ControlTables(settings).rows(ControlTable.EVENTS, [("pipeline", "=", NAME)])
    return [row["kind"] for row in sorted(rows, key=lambda row: row["at"])]


def reshard(settings: Settings, version: int, count: int = 2) -> list[Any]:
    """Write the version's next generation. It waits for the newest one to end."""
    return resharding.reshard(LeaseTable(settings), NAME, version, count, {0: 0, 1: 0})


def end_reshard(settings: Settings, version: int) -> None:
    """The parents end, and a worker opens their children."""

    def end(snapshot: Snapshot) -> list[Lease]:
        parents = resharding.superseded(snapshot.leases.values())
        ended = {}
        for lease in resharding.of_version(snapshot.leases.values(), NAME, version):
            if lease.key in parents:
                ended[lease.key] = lease.evolve(state="TERMINATED")
        return [*ended.values(), *resharding.opened({**snapshot.leases, **ended})]

    swap(LeaseTable(settings), end)
