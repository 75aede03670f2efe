"""Tables as a stream leaves them after a million commits, written in seconds.

The log of a sink gets one checkpoint and the commits after it; the ledger gets its rows in bulk. Nothing of
it was committed by a stream, but each file has the form that a stream's commits have, and the times of the
files are those at which a stream would have written them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from hindcast.delta.commit import METADATA_KEY
from hindcast.delta.files import DataFile
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, StatusType
from hindcast.leases.store import swap
from hindcast.partitions import ShardId, app_id
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.schema import SCHEMAS
from hindcast.tables.table_names import SCHEMA_VERSION, ControlTable

SINK_SCHEMA = pa.schema([("n", pa.int64())])
#: Records that one batch reads.
RECORDS = 100
#: A batch's watermark advances by so much, in epoch milliseconds.
BATCH_MS = 10_000
#: Data files of a sink after its compaction.
FILES = 200
#: Rows of the ledger that are made at a time.
_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True)
class Stream:
    """A stream with so many commits behind it, by shards that take turns. Shard n reads partition n.

    ``tail``: the log holds so many of the last commits, and a checkpoint for those before. ``quiet``: one
    more shard has made one batch, right at the beginning of the tail. ``days``: for how long it has run.
    """

    settings: Settings
    pipeline: str
    commits: int
    tail: int
    shards: int = 4
    quiet: bool = True
    days: float = 30.0
    sink: str = "aged"

    @property
    def url(self) -> str:
        return self.settings.table("sinks", self.sink)

    @property
    def seconds_apart(self) -> float:
        return self.days * 86_400 / max(self.commits, 1)

    @property
    def quiet_shard(self) -> int:
        return self.shards

    def at_ms(self, version: int) -> int:
        """When the commit of this version was made, in epoch milliseconds; the last is made now."""
        before = (self.commits - version) * self.seconds_apart
        return int((time.time() - before) * 1000)

    def table(self, shard: int) -> FencedTable:
        return FencedTable(self.url, {}, app_id(self.pipeline, shard_name(shard)))

    def batch(self, shard: int, number: int, sink_version: int = -1) -> BatchCommit:
        """What the shard's batch of this number says of itself."""
        return BatchCommit(
            kind="batch",
            pipeline=self.pipeline,
            version=1,
            shard=shard_name(shard),
            epoch=1,
            batch=number,
            worker="w",
            start_offsets={shard: (number - 1) * RECORDS},
            end_offsets={shard: number * RECORDS},
            late_watermark_ms=(number - 1) * BATCH_MS,
            watermark_ms=number * BATCH_MS,
            checkpoint=shard_name(shard),
            base=1,
            output_rows=RECORDS,
            sink_version=sink_version,
        )

    @property
    def base(self) -> int:
        """The version of the checkpoint before the tail. The quiet shard's batch comes right after it."""
        return self.commits - self.tail

    def made(self, version: int) -> tuple[int, int]:
        """The shard whose batch the version of the sink is, from 1 on, and the batch's number."""
        turn = version
        if self.quiet and version > self.base:
            if version == self.base + 1:
                return self.quiet_shard, 1
            turn -= 1
        shard = turn % self.shards
        return shard, self._turns(shard, turn)

    def last_batch(self, shard: int) -> int:
        """The number of the shard's last batch; 0 if it has none."""
        if self.commits == 0:
            return 0
        if shard == self.quiet_shard:
            return 1
        return self._turns(shard, self.commits - self.quiet)

    def _turns(self, shard: int, turn: int) -> int:
        """How many batches the shard has made after so many turns. The first turn is shard 1's."""
        return len(range(shard or self.shards, turn + 1, self.shards))


def shard_name(shard: int) -> str:
    return str(ShardId(1, 0, shard))


def make(stream: Stream) -> None:
    """Make the stream's sink, ledger and leases."""
    _make_leases(stream)
    first = stream.table(0)
    first.create(SINK_SCHEMA)
    ControlTables(stream.settings).open(ControlTable.CHECKPOINTS)
    if stream.commits:
        _make_log(stream)
        _make_ledger(stream)


def age_sink(url: str, commits: int = 20_000) -> None:
    """Let a stream's sink be old, while nobody writes to it: since the stream's own last commit, others made so
    many.
    """
    table = DeltaTable(url)
    now_ms = int(time.time() * 1000)
    for version in range(table.version() + 1, table.version() + 1 + commits):
        info = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {}}
        path = Path(url, "_delta_log", f"{version:020d}.json")
        path.write_text(json.dumps({"commitInfo": info}) + "\n")
    DeltaTable(url).create_checkpoint()


def age_ledger(settings: Settings, rows: int = 1_000_000) -> None:
    """Let the ledger have the batches of another pipeline, that ran for a month."""
    _make_ledger(Stream(settings, "another", rows, tail=0))


def _rename_checkpoint(log: Path, made: int, version: int) -> None:
    """Let the table's only checkpoint be that of another version."""
    hint = json.loads((log / "_last_checkpoint").read_text())
    checkpoint = next(log.glob(f"{made:020d}.checkpoint*.parquet"))
    checkpoint.rename(log / f"{version:020d}.checkpoint.parquet")
    (log / "_last_checkpoint").write_text(json.dumps({**hint, "version": version}))


def _make_leases(stream: Stream) -> None:
    leases = []
    for shard in range(stream.shards + stream.quiet):
        last = stream.last_batch(shard)
        checkpoint: dict[str, Any] = {"start_offsets": {str(shard): 0}}
        if last:
            checkpoint |= {
                "batch": last,
                "end_offsets": {str(shard): last * RECORDS},
                "watermark_ms": last * BATCH_MS,
            }
        leases.append(
            Lease(
                stream_id=stream.pipeline,
                status_type=StatusType.SHARD,
                status_value=shard_name(shard),
                lease_owner="w",
                epoch=1,
                checkpoint=checkpoint,
                detail={"partitions": [shard]},
                updated_at=datetime.now(UTC),
            )
        )
    swap(LeaseTable(stream.settings), lambda _: leases)


def _make_log(stream: Stream) -> None:
    """One checkpoint, and the commits after it."""
    log = Path(stream.url) / "_delta_log"
    base = stream.base
    for version in range(base - stream.shards + 1, base + 1):
        shard, number = stream.made(version)
        files = []
        for file in range(FILES // stream.shards):
            stats = json.dumps({"numRecords": RECORDS})
            files.append(DataFile(f"{shard}-{file}.parquet", 1000, RECORDS, stats))
        batch = stream.batch(shard, number)
        stream.table(shard).commit(Fence(1, number), files, batch.as_metadata())
    table = DeltaTable(stream.url)
    table.create_checkpoint()
    made = table.version()
    template = (log / f"{made:020d}.json").read_text()
    _rename_checkpoint(log, made, base)
    for commit in log.glob("*.json"):
        commit.unlink()
    _write_commits(stream, log, template)
    _checkpoint_the_tail(stream)


def _write_commits(stream: Stream, log: Path, template: str) -> None:
    actions = [json.loads(line) for line in template.splitlines()]
    (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
    (transaction,) = (action["txn"] for action in actions if "txn" in action)
    now = time.time()
    for version in range(stream.base, stream.commits + 1):
        shard, number = stream.made(version)
        batch = stream.batch(shard, number)
        at_ms = int((now - (stream.commits - version) * stream.seconds_apart) * 1000)
        info |= {"timestamp": at_ms, METADATA_KEY: batch.as_metadata()}
        transaction |= {
            "appId": app_id(stream.pipeline, shard_name(shard)),
            "version": Fence(1, number).number,
            "lastUpdated": at_ms,
        }
        path = log / f"{version:020d}.json"
        path.write_text(json.dumps({"commitInfo": info}) + "\n" + json.dumps({"txn": transaction}) + "\n")
        os.utime(path, (at_ms / 1000, at_ms / 1000))


def _checkpoint_the_tail(stream: Stream) -> None:
    """The checkpoints that the commits would have written: all of the last ones, and some before."""
    log = Path(stream.url) / "_delta_log"
    wanted = set(range(stream.commits, max(stream.base, stream.commits - 1_000), -100))
    wanted |= set(range(stream.commits, stream.base, -5_000))
    for version in sorted(wanted):
        DeltaTable(stream.url, version=version).create_checkpoint()
        at = stream.at_ms(version) / 1000
        for path in log.glob(f"{version:020d}.checkpoint*"):
            os.utime(path, (at, at))


def _make_ledger(stream: Stream) -> None:
    """The rows of all batches, joined as the ledger's upkeep leaves them."""
    tables = ControlTables(stream.settings)
    url = tables.url(ControlTable.CHECKPOINTS)
    for first in range(1, stream.commits + 1, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE - 1, stream.commits)
        write_deltalake(url, _ledger_rows(stream, first, last), mode="append")
    tables.upkeep[ControlTable.CHECKPOINTS].run()
    tables.open(ControlTable.CHECKPOINTS).create_checkpoint()


def _ledger_rows(stream: Stream, first: int, last: int) -> pa.Table:
    """The rows of the batches that these versions of the sink hold, both included."""
    version = np.arange(first, last + 1)
    turn = version.copy()
    if stream.quiet:
        turn[version > stream.base] -= 1
    shard = turn % stream.shards
    # The first turn is shard 1's, so shard 0 makes its first batch last.
    number = (turn - shard) // stream.shards + np.where(shard > 0, 1, 0)
    if stream.quiet:
        shard[version == stream.base + 1] = stream.quiet_shard
        number[version == stream.base + 1] = 1
    before = (stream.commits - version) * stream.seconds_apart
    at = ((time.time() - before) * 1e6).astype("int64").astype("datetime64[us]")
    names = np.array([shard_name(one) for one in range(stream.shards + 1)])[shard]
    columns: dict[str, Any] = {
        "pipeline": stream.pipeline,
        "version": 1,
        "shard": names,
        "epoch": 1,
        "batch": number,
        "worker": "w",
        "topic": "trades",
        "start_offsets": _offsets(shard, (number - 1) * RECORDS),
        "end_offsets": _offsets(shard, number * RECORDS),
        "late_watermark_ms": (number - 1) * BATCH_MS,
        "watermark_ms": number * BATCH_MS,
        "floors": "{}",
        "min_event_ms": (number - 1) * BATCH_MS,
        "max_event_ms": number * BATCH_MS,
        "input_rows": RECORDS,
        "poison_rows": 0,
        "output_rows": RECORDS,
        "batch_seconds": 0.5,
        "cpu_seconds": 0.5,
        "sink_version": version,
        "started_at": at,
        "committed_at": at,
        "checkpoint": names,
        "base": 1,
        "schema_version": SCHEMA_VERSION,
    }
    schema = SCHEMAS[ControlTable.CHECKPOINTS]
    made = []
    for field in schema:
        values = columns.get(field.name)
        if not isinstance(values, np.ndarray | pa.Array):
            values = pa.repeat(pa.scalar(values, field.type), len(version))
        made.append(pa.array(values).cast(field.type))
    return pa.table(made, schema=schema)


def _offsets(shard: np.ndarray, offset: np.ndarray) -> pa.Array:
    """As the ledger has them: a JSON object of partition and offset."""
    partition = pa.array(shard).cast(pa.string())
    number = pa.array(offset).cast(pa.string())
    return pc.binary_join_element_wise('{"', partition, '": ', number, "}", "")


def rows_after(stream: Stream, shard: int) -> Iterator[LedgerRow]:
    """The rows of the shard's next batches, one after the other."""
    number = stream.last_batch(shard)
    version = stream.commits
    while True:
        number += 1
        version += 1
        yield stream.batch(shard, number, version).as_ledger_row("trades")
