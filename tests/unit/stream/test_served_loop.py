"""Which served tables a worker keeps up to date, and what it does if that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast.errors import (
    BadInputError,
    HindcastError,
    ServedTableRefusedError,
    StoreUnavailableError,
    UnknownVersionError,
)
from hindcast.settings import Settings
from hindcast.stream import served_loop
from hindcast.stream.served_loop import ServedLoop
from hindcast.tables.event_log import EventKind

Factory = Callable[..., Settings]

PIPELINES = """
from hindcast import Served, Table, Topic, Window, pipeline


def declare(served):
    return pipeline(
        source=Topic("trades", schema="ticker string, ts timestamp", key="ticker"),
        event_time="ts", watermark="10 seconds", window=Window("5 seconds"),
        sink=Table({table!r}, keys=["window", "ticker"], served=served), version=1,
    )


@declare({served})
def {name}(trades):
    return trades
"""


def shard(pipeline: str, *partitions: int) -> Any:
    lease = SimpleNamespace(key=SimpleNamespace(stream_id=pipeline))
    return SimpleNamespace(runner=SimpleNamespace(lease=lease, end_offsets=dict.fromkeys(partitions, 5)))


class Tables:
    """Stands in for served tables: keeps whose were published, or raises."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.raises: HindcastError | None = None
        self.made = 0

    def __call__(self, _: Any, pipeline: str) -> Any:
        self.made += 1

        def publish() -> None:
            if self.raises is not None:
                raise self.raises
            self.published.append(pipeline)

        return SimpleNamespace(publish=publish)


class Warnings:
    def __init__(self) -> None:
        self.recorded: list[Any] = []

    def record(self, kind: EventKind, message: str, cure: str, pipeline: str, *, case: str) -> None:
        self.recorded.append((kind, pipeline, message == case, bool(cure)))


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    made = Tables()
    monkeypatch.setattr(served_loop, "ServedTable", made)
    return made


@pytest.fixture
def warnings() -> Warnings:
    return Warnings()


@pytest.fixture
def loop(settings_factory: Factory, tmp_path: Path, warnings: Warnings) -> ServedLoop:
    for name, served in (("one", "Served()"), ("two", "None")):
        text = PIPELINES.format(name=name, table=name, served=served)
        (tmp_path / f"{name}.py").write_text(text)
    running = [shard("one", 0, 2), shard("two", 0), shard("three", 1)]
    threads: Any = None
    made: Any = warnings
    return ServedLoop(settings_factory(pipelines_dir=tmp_path), lambda: running, threads, made)


def test_a_worker_with_the_first_partition_publishes(loop: ServedLoop, tables: Tables) -> None:
    """What has a served table alone. The object stays, so that it remembers what it has seen."""
    loop.publish()
    loop.publish()
    assert (tables.published, tables.made) == (["one", "one"], 1)


@pytest.mark.parametrize(
    ("error", "recorded", "made"),
    [
        (StoreUnavailableError(table="t", action="read", reason="away"), 0, 1),
        (BadInputError(problem="There is no table yet", cure="Wait."), 0, 1),
        (ServedTableRefusedError(pipeline="one", problem="no", cure="yes"), 1, 1),
        (UnknownVersionError(pipeline="one", version=2, known="1"), 0, 2),
    ],
)
def test_a_failure_is_left_to_the_next_look(
    loop: ServedLoop, tables: Tables, warnings: Warnings, error: HindcastError, recorded: int, made: int
) -> None:
    """What a person must mend is an event. If a version is not known, the files are read again."""
    tables.raises = error
    loop.publish()
    tables.raises = None
    loop.publish()
    assert (tables.published, tables.made) == (["one"], made)
    assert warnings.recorded == [(EventKind.SERVED_TABLE_REFUSED, "one", True, True)] * recorded
