"""A take-over writes its seal only into a sink that holds all that the ledger knows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from hindcast.control.leases import Lease
from hindcast.control.ledger import Ledger
from hindcast.control.shards import app_id, create
from hindcast.control.tables import ControlTables
from hindcast.errors import SinkCommitsLostError
from hindcast.settings import Settings
from hindcast.stream import takeover
from hindcast.stream.fenced_table import BatchCommit, Fence, FencedTable
from hindcast.testing import MemoryStore

SCHEMA = pa.schema([("n", pa.int64())])
PIPELINE: Any = SimpleNamespace(name="p")


def taken(settings: Settings, lease: Lease) -> FencedTable:
    """The sink as the owner of the lease sees it, sealed."""
    shard = lease.status_value
    sink = FencedTable(settings.table("sinks", "t"), {}, app_id("p", shard))
    sink.create(SCHEMA)
    takeover.seal(sink, PIPELINE, lease, "w", Ledger(ControlTables(settings)).newest("p", 1))
    return sink


def test_no_shard_is_sealed_where_another_shards_batch_is_lost(settings: Settings) -> None:
    """The lost commit's place stays free, so restoring its file is all that is needed."""
    one, other = create(MemoryStore(), "p", 1, 2, {0: 0, 1: 0})
    sink = taken(settings, one)
    batch = BatchCommit(
        kind="batch",
        pipeline="p",
        version=1,
        shard=one.status_value,
        epoch=one.epoch,
        batch=1,
        worker="w",
        start_offsets={0: 0},
        end_offsets={0: 9},
        late_watermark_ms=0,
        watermark_ms=0,
    )
    sink.commit(Fence(one.epoch, 1), [], batch.as_metadata(), after=Fence(one.epoch, 0))
    Ledger(ControlTables(settings)).append([next(sink.commits()).as_ledger_row("topic")])
    newest = max((Path(sink.url) / "_delta_log").glob("*.json"))
    text = newest.read_text()
    newest.unlink()
    with pytest.raises(SinkCommitsLostError, match="Restore the table"):
        taken(settings, other)
    assert not newest.exists()
    newest.write_text(text)
    taken(settings, other)
    assert DeltaTable(sink.url).version() == int(newest.stem) + 1
