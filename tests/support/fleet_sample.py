"""A fleet as its tables show it, written through the real tables: for the tests of the pages, and to look at
them.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import FIRST_STATES, REMOVED, Lease, ShardState, StatusType
from hindcast.leases.store import swap
from hindcast.settings import Settings
from hindcast.shards.pipeline_row import ACTIVE
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.table_names import ControlTable
from hindcast.tables.verdict_trends import VerdictTrends, point_of

JUDGED_AT = datetime.now(UTC) - timedelta(minutes=3)
RUN = "stock_stats-20261120T100000-abc123"
FAILED_RUN = "stock_stats-20261120T110000-def456"


def slot(
    number: int,
    owner: str = "",
    *,
    counter: int = 7,
    epoch: int = 1,
    age_seconds: float = 1.0,
    fleet: str = "default",
) -> Lease:
    """A slot row; without an owner it is free."""
    detail = (
        {
            "pid": 4000 + number,
            "host": "streams-1",
            "started_at": "2026-11-20T09:00:00+00:00",
            "log": "/var/log/worker.log",
        }
        if owner
        else {}
    )
    at = datetime.now(UTC) - timedelta(seconds=age_seconds)
    return Lease(
        stream_id=fleet,
        status_type=StatusType.SLOT,
        status_value=str(number),
        lease_owner=owner,
        lease_counter=counter,
        epoch=epoch,
        detail=detail,
        updated_at=at,
    )


def desired(
    pipeline: str = "stock_stats", state: str = "running", *, version: int = 1, shards: int = 2
) -> Lease:
    """The row that says what is wanted of a pipeline."""
    detail = {"version": version, "shards": shards, "workers": 2}
    return Lease(
        stream_id=pipeline,
        status_type=StatusType.PIPELINE,
        status_value=ACTIVE,
        state=state,
        detail=detail,
        updated_at=datetime.now(UTC),
    )


def shard(
    pipeline: str, index: int, owner: str, *, lag: int = 120, state: str = ShardState.OPEN, version: int = 1
) -> Lease:
    """A shard row that is 14 seconds behind in event time."""
    now = datetime.now(UTC)
    watermark_ms = int((now - timedelta(seconds=14)).timestamp() * 1000)
    return Lease(
        stream_id=pipeline,
        status_type=StatusType.SHARD,
        status_value=f"v{version}.g0.s{index}",
        lease_owner=owner,
        lease_counter=99,
        epoch=3,
        state=state,
        checkpoint={"batch": 512, "watermark_ms": watermark_ms},
        detail={"partitions": [index, index + 2], "lag_records": lag},
        updated_at=now - timedelta(seconds=2),
    )


def put(settings: Settings, *leases: Lease) -> None:
    """Write the rows, whatever is there. A shard that is closed or ended has been open before."""
    table = LeaseTable(settings)
    shards = [row for row in leases if row.status_type is StatusType.SHARD]
    opened = [row.evolve(state=ShardState.OPEN) for row in shards if row.state not in FIRST_STATES]
    swap(table, lambda _: [row.evolve(state=REMOVED) for row in shards])
    swap(table, lambda _: opened)
    swap(table, lambda _: leases)


def verdict(run_id: str = RUN, pipeline: str = "stock_stats", **changes: Any) -> dict[str, Any]:
    """A row of the table ``verdicts``: a passed one unless changed."""
    row = {
        "run_id": run_id,
        "pipeline": pipeline,
        "version": 1,
        "sink_version": 844,
        "windows_after_ms": 1_795_168_800_000,
        "windows_to_ms": 1_795_172_400_000,
        "windows_compared": 3600,
        "rows_compared": 35_990,
        "missing": 0,
        "extra": 0,
        "changed": 0,
        "doubled": 0,
        "unexplained": 0,
        "late_differences": 97,
        "rounding": 0,
        "captured": 0.99931,
        "captured_results": 0.9973,
        "ratios": json.dumps(
            {"avg_ask": {"worst": 1.0021, "mean": 1.000013}, "trades": {"worst": 0.9, "mean": 0.99991}}
        ),
        "bounds": json.dumps(
            {
                "tolerance": {
                    "avg_ask": {"bound": 1e-6, "greatest": 3.5e-9, "beyond": 0, "without_figure": 0}
                },
                "ratio_bound": {"fees": {"bound": 1.5, "greatest": 1.75, "beyond": 4, "without_figure": 0}},
            }
        ),
        "input_rows": 7_200_413,
        "late_rows": 201,
        "dead_letters": 7213,
        "passed": True,
        "failed": "[]",
        "data_docs": "",
        "judged_at": JUDGED_AT,
        "change": 0,
        "number": 1,
    }
    return {**row, **changes}


def run(run_id: str = RUN, pipeline: str = "stock_stats", **changes: Any) -> dict[str, Any]:
    """A row of the table ``runs``: a finished hindcast unless changed."""
    at = datetime.now(UTC) - timedelta(minutes=5)
    row = {
        "run_id": run_id,
        "pipeline": pipeline,
        "version": 1,
        "kind": "hindcast",
        "state": "done",
        "plan": "{}",
        "hindcast_url": "",
        "input_rows": 7_200_413,
        "output_rows": 35_990,
        "dead_letters": 7213,
        "late_rows": 201,
        "input_bytes": 612_000_000,
        "seconds": 41.2,
        "rows_per_second": 174_767.0,
        "cpu_seconds": 71.4,
        "peak_memory_bytes": 1_190_000_000,
        "stream_rows_per_second": 2000.4,
        "stream_cpu_seconds": 2210.7,
        "latency_p50_seconds": 1.42,
        "latency_p95_seconds": 2.61,
        "versions": "{}",
        "note": "",
        "started_at": at,
        "finished_at": at + timedelta(seconds=41),
    }
    return {**row, **changes}


def difference(run_id: str = FAILED_RUN, **changes: Any) -> dict[str, Any]:
    """A row of the table ``differences``: an unexplained change unless changed."""
    keys = {
        "window": {"start": "2026-11-20T10:14:03.000Z", "end": "2026-11-20T10:14:08.000Z"},
        "ticker": "NVDA",
    }
    row = {
        "run_id": run_id,
        "pipeline": "stock_stats",
        "kind": "changed",
        "cause": "unexplained",
        "keys": json.dumps(keys),
        "column": None,
        "stream_value": json.dumps({"min_ask": 131.07, "trades": 12, "avg_ask": 131.4}),
        "hindcast_value": json.dumps({"min_ask": 129.88, "trades": 12, "avg_ask": 131.4}),
        "late_rows": 0,
        "found_at": JUDGED_AT,
    }
    return {**row, **changes}


def write_sample(settings: Settings) -> None:
    """Two pipelines on two workers, a passed and a failed verdict, and the events of an eventful day."""
    first, second = "streams-1-4000-a1b2c3", "streams-1-4001-d4e5f6"
    put(
        settings,
        *(slot(0, first), slot(1, second, age_seconds=21.0)),
        *(desired(), desired("order_totals", "paused", shards=1)),
        *(
            shard("stock_stats", 0, first),
            shard("stock_stats", 1, second, lag=48_211),
            shard("order_totals", 0, "", lag=0, state=ShardState.CLOSED),
        ),
    )
    tables = ControlTables(settings)
    failed = {
        "changed": 1,
        "missing": 1,
        "unexplained": 2,
        "passed": False,
        "failed": '["unexplained is 2, it must be 0"]',
        "captured": 0.99218,
    }
    tables.append(
        ControlTable.VERDICTS,
        [verdict(judged_at=datetime.now(UTC) - timedelta(hours=1)), verdict(FAILED_RUN, **failed)],
    )
    tables.append(
        ControlTable.RUNS,
        [
            run(),
            run(
                FAILED_RUN,
                started_at=datetime.now(UTC) - timedelta(minutes=2),
                note="Slower than the median of the last ten runs by 31 %.",
            ),
        ],
    )
    trends = VerdictTrends(tables)
    history = {
        RUN: 0.997,
        "earlier-1": 0.9965,
        FAILED_RUN: 0.99218,
        "earlier-2": 0.9991,
        "earlier-3": 0.99931,
    }
    for number, (run_id, captured) in enumerate(history.items()):
        judged_at = datetime.now(UTC) - timedelta(hours=5 - number)
        judged = verdict(run_id, captured=captured, judged_at=judged_at)
        trends.add("stock_stats", 1, point_of(judged, run(run_id, latency_p95_seconds=2.61 + number % 3)))
    missing = {
        "kind": "missing",
        "stream_value": None,
        "hindcast_value": json.dumps({"min_ask": 88.1, "trades": 9}),
    }
    values = {"stream_value": json.dumps({"trades": 9}), "hindcast_value": json.dumps({"trades": 10})}
    late = {"cause": "late_rows", "late_rows": 1, **values}
    tables.append(
        ControlTable.DIFFERENCES,
        [difference(), difference(**missing), difference(**late), difference(RUN, **late)],
    )
    log = EventLog(tables, worker=first)
    log.record(EventKind.WORKER_STARTED, f"The worker {first} took slot 0 of the fleet default.")
    log.record(
        EventKind.SHARD_TAKEN,
        f"{first} took the shard v1.g0.s0 of stock_stats in epoch 3.",
        pipeline="stock_stats",
        shard="v1.g0.s0",
        epoch=3,
    )
    log.record(
        EventKind.SUPERVISOR_WOKE, f"No sign of life from {second} for 10 seconds.", severity=Severity.WARNING
    )
    log.record(
        EventKind.WORKER_LAUNCHED, "The supervisor launched the worker process 4107 for the fleet default."
    )
    log.record(
        EventKind.VERDICT_FAILED,
        "The verdict on the hindcast of 11:00 failed: 2 unexplained differences.",
        severity=Severity.ERROR,
        pipeline="stock_stats",
        cure="Look at the rows that differ.",
    )
