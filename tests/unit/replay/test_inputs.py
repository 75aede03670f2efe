"""What a plan depends on, as far as it is more than a look-up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable

from hindcast import Table, Topic, Window, pipeline
from hindcast.installation import Installation
from hindcast.partitions import app_id
from hindcast.replay.inputs import read_ledger, uncorrected_ends_ms, unknown_commits
from hindcast.serving.corrected_windows import NOTHING, Corrected, CorrectedRange
from hindcast.settings import Settings
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable, sink_end
from hindcast.tables.ledger import LedgerRow


@pipeline(
    source=Topic("trades", schema="ticker string, ts timestamp"),
    event_time="ts",
    watermark="10 seconds",
    window=Window("2 seconds", slide="1 second"),
    sink=Table("stats", keys=["window", "ticker"]),
    version=1,
)
def stats(frame: Any) -> Any:
    return frame


def late(*rows: tuple[int, int, str, int]) -> pd.DataFrame:
    """Late rows: partition, offset, event time in UTC, watermark in ms."""
    found = pd.DataFrame(rows, columns=["partition", "offset", "event_at", "watermark_ms"])
    times = found["event_at"].to_numpy().astype("datetime64[us]")
    return found.assign(event_at=pd.Series(times).dt.tz_localize("UTC"))


def test_the_late_windows_are_those_that_no_correction_has_with_the_row() -> None:
    """Of a row only the windows count that were final when it came, each window once, oldest first."""
    rows = late((0, 5, "1970-01-01T00:00:10.500", 11_000), (1, 7, "1970-01-01T00:00:03", 9_000))
    assert uncorrected_ends_ms(stats, rows, NOTHING) == [4_000, 5_000, 11_000]
    corrected = Corrected(
        1, (CorrectedRange(0, 4_000, "r", {1: 8}), CorrectedRange(4_000, 20_000, "r", {1: 7}))
    )
    assert uncorrected_ends_ms(stats, rows, corrected) == [5_000, 11_000]
    assert not uncorrected_ends_ms(stats, rows[:0], NOTHING)


def test_a_row_of_the_year_1_was_late_for_windows_before_the_epoch() -> None:
    """Event times are whole microseconds, so that none is out of bounds."""
    found = uncorrected_ends_ms(stats, late((0, 0, "0001-01-01", 0)), NOTHING)
    first = int(np.datetime64("0001-01-01", "ms").astype("int64"))
    assert found == [first + 1_000, first + 2_000]


def commit(sink: FencedTable, shard: str, number: int) -> LedgerRow:
    """The next batch of a shard in the sink; its row of the ledger."""
    batch = BatchCommit(
        kind="batch",
        pipeline="p",
        version=1,
        shard=shard,
        epoch=1,
        batch=number,
        worker="w",
        start_offsets={0: number - 1},
        end_offsets={0: number},
        late_watermark_ms=0,
        watermark_ms=0,
    )
    after = Fence(1, number - 1) if number > 1 else None
    version = sink.commit(Fence(1, number), [], batch.as_metadata(), after=after)
    return replace(batch, sink_version=version).as_ledger_row("trades")


def test_the_first_batch_of_each_shard_that_the_ledger_lacks_is_found(settings: Settings) -> None:
    """Of a shard that the ledger does not know, it is the first. Another version's batches do not count. If
    the log has lost it, it is taken to come right after the last that is known.
    """
    declared: Any = SimpleNamespace(name="p", version=1, sink=Table("t"))
    url = settings.table("sinks", "t")
    shards = {name: FencedTable(url, {}, app_id("p", name)) for name in ("v1.g0.s0", "v1.g0.s1", "v2.g0.s0")}
    for sink in shards.values():
        sink.create(pa.schema([("n", pa.int64())]))
    first = commit(shards["v1.g0.s0"], "v1.g0.s0", 1)
    other = commit(shards["v1.g0.s1"], "v1.g0.s1", 1)
    commit(shards["v2.g0.s0"], "v2.g0.s0", 1)
    second = commit(shards["v1.g0.s0"], "v1.g0.s0", 2)
    commit(shards["v1.g0.s0"], "v1.g0.s0", 3)

    def unknown(*known: LedgerRow) -> list[int]:
        end = sink_end(url, {})
        assert end is not None
        return sorted(unknown_commits(settings, declared, end, {row.shard: row for row in known}))

    assert unknown() == [first.sink_version, other.sink_version]
    assert unknown(first, other) == [second.sink_version]
    DeltaTable(url).create_checkpoint()
    for path in (Path(url) / "_delta_log").glob("*.json"):
        path.unlink()
    assert unknown(first, other) == [first.sink_version + 1]
    assert unknown(other) == [0]


def test_a_batch_that_came_into_the_ledger_meanwhile_is_unknown_to_the_plan(settings: Settings) -> None:
    """The ledger is read in parts, and the sink in between. A batch that landed after the first part, and is in
    the ledger before the last one, is in the sink's version and not in the history.
    """
    declared: Any = SimpleNamespace(name="p", version=1, sink=Table("t"))
    installation = Installation(settings)
    sink = FencedTable(settings.table("sinks", "t"), {}, app_id("p", "v1.g0.s0"))
    sink.create(pa.schema([("n", pa.int64())]))
    installation.ledger.append([commit(sink, "v1.g0.s0", 1)])
    ledger = read_ledger(installation, declared)
    (history,) = ledger.histories()
    second = commit(sink, "v1.g0.s0", 2)
    installation.ledger.append([second])
    end = sink_end(sink.url, {})
    assert end is not None
    assert history.committed == {0: 1}
    assert unknown_commits(settings, declared, end, ledger.reached()) == [second.sink_version]
    assert next(ledger.histories()) == history, "all readings are of one moment"
