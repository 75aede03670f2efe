"""What a stream has left behind, read once from its tables: the only thing that the oracles look at.

The sink's commits are read from its Delta log itself, not through the code under test.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from hindcast.partitions import Offsets, offsets_from_json
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.schema import LEASES_RETENTION_SECONDS
from hindcast.tables.table_names import ControlTable

Place = tuple[int, int]  # partition, offset
#: The application under which files are joined; everything else that is committed is a shard's.
COMPACTION = "hindcast/compaction"
#: How often the lease table's log is looked at: far more often than it is cut off.
FOLLOWED_EVERY_SECONDS = 0.3


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
    """A shard's lease in one version of the lease table. ``at`` is the time of the log's entry, in seconds: one
    clock for all writers.
    """

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


def collect(settings: Settings, pipeline: str, since: datetime, leases: LeaseHistory) -> Evidence:
    """Read everything of one pipeline; events of the whole fleet from the moment ``since`` on."""
    tables, mine = ControlTables(settings), [("pipeline", "=", pipeline)]
    events = sorted(
        (row for row in tables.rows(ControlTable.EVENTS) if row["at"] >= since), key=lambda row: row["at"]
    )
    return Evidence(
        pipeline,
        Ledger(tables).batches(pipeline),
        sink_commits(TableFolder(settings.table("sinks", pipeline), settings.storage_options)),
        [(row["partition"], row["offset"]) for row in tables.rows(ControlTable.DEAD_LETTERS, mine)],
        [(row["partition"], row["offset"]) for row in tables.rows(ControlTable.LATE_ROWS, mine)],
        leases.of(pipeline, since.timestamp()),
        events,
    )


def log_files(table: Path) -> list[Path]:
    """The commits of a table's log, in the order of their versions."""
    return sorted(path for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())


def actions(path: Path) -> list[dict[str, Any]]:
    return _actions(path.read_text())


def _actions(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


class LogEntry(NamedTuple):
    """A commit in the log of a table: its path in the table's folder, and when it was written, in seconds."""

    path: str
    at: float


@dataclass(frozen=True)
class TableFolder:
    """The folder of a table, on a local disk or in an object store."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def files(self) -> FileSystem:
        if "://" in self.url:
            return PyFileSystem(DeltaStorageHandler(self.url, dict(self.options)))
        return SubTreeFileSystem(self.url, LocalFileSystem())

    def log(self) -> dict[int, LogEntry]:
        """The commits of the table's log, by version, in their order."""
        found = {}
        for info in self.files.get_file_info(FileSelector("_delta_log", allow_not_found=True)):
            name, _, kind = info.base_name.partition(".")
            if kind == "json" and name.isdigit():
                found[int(name)] = LogEntry(f"_delta_log/{info.base_name}", info.mtime.timestamp())
        return dict(sorted(found.items()))

    def read(self, path: str) -> bytes:
        with self.files.open_input_stream(path) as file:
            content: bytes = file.read()
            return content


def sink_commits(table: TableFolder) -> list[SinkCommit]:
    """Every commit of the sink that carries a fence."""
    found = []
    for version, entry_of_log in table.log().items():
        entries = _actions(table.read(entry_of_log.path).decode())
        transactions = [entry["txn"] for entry in entries if "txn" in entry]
        said = next(
            (
                json.loads(entry["commitInfo"]["hindcast"])
                for entry in entries
                if "hindcast" in entry.get("commitInfo", {})
            ),
            None,
        )
        for transaction in transactions:
            number = transaction["version"]
            found.append(
                SinkCommit(
                    version=version,
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


class LeaseHistory:
    """Follows the log of a lease table while a test runs: the table itself forgets after two minutes what its
    leases were.

    Only changes are kept, so that a long run with many pipelines needs little memory. Start it before what is
    to be seen; it reads in a thread of its own.
    """

    def __init__(self, table: TableFolder) -> None:
        self._table = table
        self._next: int | None = None
        self._found: dict[str, list[LeaseSeen]] = defaultdict(list)
        self._last: dict[tuple[str, str], LeaseSeen] = {}
        self._held_at: int | None = None
        self._lost: list[tuple[int, float]] = []  # versions that were deleted unread, and when
        self._reading, self._stopped = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        self._thread = threading.Thread(target=self._follow, name="lease-history", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def of(self, pipeline: str, since: float = 0.0) -> list[LeaseSeen]:
        """How the leases of a pipeline's shards changed since a moment, the oldest first, up to the newest
        version there is.

        :raises AssertionError: where a version is missing that had to be read
        """
        self._read()
        assert self._held_at is None, f"version {self._held_at} of {self._table.url} cannot be read"
        lost = [version for version, at in self._lost if at >= since]
        assert not lost, f"the versions {lost} of {self._table.url} were deleted before they were read"
        return [seen for seen in self._found[pipeline] if seen.at >= since]

    def _follow(self) -> None:
        while not self._stopped.wait(FOLLOWED_EVERY_SECONDS):
            self._read()

    def _read(self) -> None:
        """Read on to the newest version. One that is torn or missing for now is tried again with the next
        call.
        """
        with self._reading:
            log = self._table.log()
            if not log:
                return
            if self._next is None:
                self._next = min(log)
            while self._next <= max(log):
                following = min(version for version in log if version >= self._next)
                if not self._take(log.get(self._next), log[following].at):
                    self._held_at = self._next
                    return
            self._held_at = None

    def _take(self, entry: LogEntry | None, at: float) -> bool:
        """Read one version; False where that has to be tried again. One that the table's upkeep has deleted
        is lost.

        :param at: when it was written, or the next one that is there
        """
        assert self._next is not None
        try:
            if entry is None:
                raise FileNotFoundError  # noqa: TRY301 - as where its rows are gone
            text = self._table.read(entry.path).decode()
            if not text.strip():
                return False  # torn
            for action in _actions(text):
                if "add" in action:
                    rows = pa.BufferReader(self._table.read(action["add"]["path"]))
                    self._note(pq.ParquetFile(rows).read().to_pylist(), at)
        except (FileNotFoundError, ValueError, pa.ArrowException):
            if time.time() - at < LEASES_RETENTION_SECONDS:
                return False
            self._lost.append((self._next, at))
        self._next += 1
        return True

    def _note(self, rows: list[dict[str, Any]], at: float) -> None:
        wanted = {
            row["stream_id"] for row in rows if row["status_type"] == "pipeline" and row["state"] == "running"
        }
        for row in rows:
            if row["status_type"] != "shard":
                continue
            key, seen = (
                (row["stream_id"], row["status_value"]),
                _seen(row, at, wanted=row["stream_id"] in wanted),
            )
            last = self._last.get(key)
            if last is None or replace(last, at=at) != seen:
                self._last[key] = seen
                self._found[row["stream_id"]].append(seen)


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
