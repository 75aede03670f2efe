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


def commit(sink: FencedTable, lease: Lease, *, watermark_ms: int = 0) -> None:
    """The owner's first batch: nine records, none of which is in a row."""
    batch = BatchCommit(
        kind="batch",
        pipeline="p",
        version=1,
        shard=lease.status_value,
        epoch=lease.epoch,
        batch=1,
        worker="w",
        start_offsets={0: 0},
        end_offsets={0: 9},
        late_watermark_ms=0,
        watermark_ms=watermark_ms,
    )
    sink.commit(Fence(lease.epoch, 1), [], batch.as_metadata(), after=Fence(lease.epoch, 0))


def test_a_batch_that_lands_while_the_sink_is_read_is_where_the_new_owner_starts(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner was in time: its batch came before the seal, so the seal stands on it, and the ledger gets it."""
    (old,) = create(MemoryStore(), "p", 1, 1, {0: 0})
    its = taken(settings, old)
    sink = FencedTable(its.url, {}, its.app)
    read_version = sink.version

    def meanwhile() -> int:
        monkeypatch.setattr(sink, "version", read_version)
        version = read_version()
        commit(its, old, watermark_ms=500)
        return version

    monkeypatch.setattr(sink, "version", meanwhile)
    new = old.given_to("new")
    position, missing = takeover.seal(sink, PIPELINE, new, "new", [])
    assert (position.fence, position.end_offsets, position.watermark_ms) == (Fence(new.epoch, 1), {0: 9}, 500)
    assert [batch.batch for batch in missing] == [1]
    assert sink.recorded() == Fence(new.epoch, 1)


def test_no_shard_is_sealed_where_another_shards_batch_is_lost(settings: Settings) -> None:
    """The lost commit's place stays free, so restoring its file is all that is needed."""
    one, other = create(MemoryStore(), "p", 1, 2, {0: 0, 1: 0})
    sink = taken(settings, one)
    commit(sink, one)
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
