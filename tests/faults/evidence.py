"""What a stream has left behind, read once from its tables: the only thing that the oracles look at.

The sink's commits are read from its Delta log itself, not through the code under test.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hindcast.control.ledger import Ledger, LedgerRow, Offsets, offsets_from_json
from hindcast.control.schema import LEASES_RETENTION_SECONDS, ControlTable
from hindcast.control.tables import ControlTables
from hindcast.settings import Settings

Place = tuple[int, int]  # partition, offset
#: The application under which files are joined; everything else that is committed is a shard's.
COMPACTION = "hindcast/compaction"


@dataclass(frozen=True)
class SinkCommit:
    """One commit of a shard in the sink's log: its fence as Delta keeps it, and what it says of itself."""

    version: int
    app: str
    epoch: int
    batch: int
    kind: str
    start_offsets: Offsets
    end_offsets: Offsets
    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class LeaseSeen:
    """A shard's lease in one version of the lease table. ``at`` is the file's time, in seconds: one clock for all writers."""

    at: float
    shard: str
    owner: str
    stealer: str
    epoch: int
    counter: int
    checkpoint: dict[str, Any]
    wanted: bool
    state: str
    parents: tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """A stream's tables. ``leases`` is the history of its shards' leases, the oldest first."""

    pipeline: str
    ledger: list[LedgerRow]
    commits: list[SinkCommit]
    dead_letters: list[Place]
    late_rows: list[Place]
    leases: list[LeaseSeen]
    events: list[dict[str, Any]] = field(default_factory=list)


def collect(settings: Settings, pipeline: str, since: datetime) -> Evidence:
    """Read everything of one pipeline; events of the whole fleet from the moment ``since`` on."""
    tables, mine = ControlTables(settings), [("pipeline", "=", pipeline)]
    events = sorted((row for row in tables.rows(ControlTable.EVENTS) if row["at"] >= since), key=lambda row: row["at"])
    return Evidence(
        pipeline,
        Ledger(tables).batches(pipeline),
        sink_commits(Path(settings.table("sinks", pipeline))),
        [(row["partition"], row["offset"]) for row in tables.rows(ControlTable.DEAD_LETTERS, mine)],
        [(row["partition"], row["offset"]) for row in tables.rows(ControlTable.LATE_ROWS, mine)],
        lease_history(Path(settings.table("control", "leases")), pipeline, since.timestamp()),
        events,
    )


def log_files(table: Path) -> list[Path]:
    """The commits of a table's log, in the order of their versions."""
    return sorted(path for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())


def actions(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def sink_commits(table: Path) -> list[SinkCommit]:
    """Every commit of the sink that carries a fence."""
    found = []
    for path in log_files(table):
        entries = actions(path)
        transactions = [entry["txn"] for entry in entries if "txn" in entry]
        said = next((json.loads(entry["commitInfo"]["hindcast"]) for entry in entries if "hindcast" in entry.get("commitInfo", {})), None)
        for transaction in transactions:
            number = transaction["version"]
            found.append(
                SinkCommit(
                    version=int(path.stem),
                    app=transaction["appId"],
                    epoch=number >> 32,
                    batch=number & 0xFFFFFFFF,
                    kind=said["kind"] if said else "",
                    start_offsets=offsets_from_json(said["start_offsets"]) if said else {},
                    end_offsets=offsets_from_json(said["end_offsets"]) if said else {},
                    added=tuple(entry["add"]["path"] for entry in entries if "add" in entry),
                    removed=tuple(entry["remove"]["path"] for entry in entries if "remove" in entry),
                )
            )
    return found


def lease_history(table: Path, pipeline: str, since: float) -> list[LeaseSeen]:
    """Each version of the lease table since a moment, as far as it is kept and tells of the pipeline's shards.

    The newest is read first: meanwhile the table's upkeep may cut off the old end. What it must still have kept is missed loudly; what is
    older than the moment is not looked at.
    """
    found: list[LeaseSeen] = []
    newer_at = math.inf
    for path in reversed(log_files(table)):
        try:
            if (at := path.stat().st_mtime) < since:
                break
            added = [table / entry["add"]["path"] for entry in actions(path) if "add" in entry]
            rows = [row for file in added for row in pq.ParquetFile(file).read().to_pylist()]
        except FileNotFoundError:
            assert time.time() - newer_at >= LEASES_RETENTION_SECONDS - 1, f"{path} was deleted too early"
            break
        newer_at = at
        mine = [row for row in rows if row["stream_id"] == pipeline]
        wanted = any(row["status_type"] == "pipeline" and row["state"] == "running" for row in mine)
        found += [_seen(row, at, wanted=wanted) for row in reversed(mine) if row["status_type"] == "shard"]
    return found[::-1]


def _seen(row: dict[str, Any], at: float, *, wanted: bool) -> LeaseSeen:
    refused = "refused" in json.loads(row["detail"] or "{}")
    return LeaseSeen(
        at=at,
        shard=row["status_value"],
        owner=row["lease_owner"],
        stealer=row["lease_stealer"],
        epoch=row["epoch"],
        counter=row["lease_counter"],
        checkpoint=json.loads(row["checkpoint"] or "{}"),
        wanted=wanted and not refused and row["state"] != "TERMINATED",
        state=row["state"],
        parents=tuple(row["parent_shard_ids"] or ()),
    )
