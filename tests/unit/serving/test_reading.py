"""What readers get at a version that they name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.short_log import make_log_short

from hindcast.errors import BadInputError
from hindcast.pipeline import Table
from hindcast.serving.reading import Reading, files_with_windows
from hindcast.settings import Settings

_INSTANT = pa.timestamp("us", tz="UTC")
PIPELINE: Any = SimpleNamespace(name="p", version=1, sink=Table("s"))


def test_a_version_is_read_whether_or_not_its_log_is_short(settings: Settings) -> None:
    """The newest one by default. Without a table there is nothing to read."""
    with pytest.raises(BadInputError, match="There is no table"):
        Reading.pin(settings, PIPELINE)
    url = settings.table("sinks", "s")
    for number in range(3):
        write_deltalake(url, pa.table({"n": [number]}), mode="append")

    def read(version: int | None) -> list[int]:
        return sorted(Reading.pin(settings, PIPELINE, version).arrow()["n"].to_pylist())

    every = {None: [0, 1, 2], 0: [0], 1: [0, 1], 2: [0, 1, 2]}
    assert {version: read(version) for version in every} == every
    make_log_short(url)
    assert {version: read(version) for version in every} == every
    assert Reading.pin(settings, PIPELINE).sink_version == 2


def test_files_without_a_wanted_window_are_left_out(settings: Settings) -> None:
    """A window ends after the one instant, and not after the other. The first file has
    no bounds, so it may have it.
    """
    url = settings.table("sinks", "s")
    begin = datetime(2026, 1, 5, tzinfo=UTC)
    for minute in range(4):
        end = begin + timedelta(minutes=minute)
        window = pa.array([{"start": begin, "end": end}], pa.struct([("start", _INSTANT), ("end", _INSTANT)]))
        configuration = {"delta.dataSkippingNumIndexedCols": "1"} if minute == 0 else None
        write_deltalake(
            url, pa.table({"n": [minute], "window": window}), mode="append", configuration=configuration
        )
        if minute == 0:
            DeltaTable(url).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "32"})
    table = DeltaTable(url)
    begin_ms = int(begin.timestamp() * 1000)

    def held(after_s: int, to_s: int) -> list[int]:
        paths = files_with_windows(table, begin_ms + after_s * 1000, begin_ms + to_s * 1000)
        return sorted(pq.read_table(f"{url}/{path}")["n"][0].as_py() for path in paths)

    assert held(1, 60) == [0, 1]
    assert held(61, 180) == [0, 2, 3]
    assert held(181, 900) == [0]
