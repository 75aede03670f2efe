"""What readers get at a version that they name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.short_log import make_log_short

from hindcast.errors import BadInputError
from hindcast.pipeline import Table
from hindcast.serving.reading import Reading
from hindcast.settings import Settings

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
