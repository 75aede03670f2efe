"""The shapes of pipeline under faults: each is one that loads, and its answer is what its records and their
lateness make it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.live_stream import declare
from support.shapes import APPEND, OF_ONE_TOPIC, SHAPES, WINDOWED, Shape
from support.simulated_stream import BASE_MS, Record, trades

from hindcast import catalog
from hindcast.pipeline import TOPIC_STRIDE, Mode
from hindcast.settings import Settings

EARLY, LATE = 0, BASE_MS + 60_000  # watermarks before and after everything below


def records(*event_ms: int | None) -> list[Record]:
    """One record for each moment after the beginning, all of one ticker and partition, each a dollar more."""
    return [
        Record(0, offset, "T0", None if shift is None else BASE_MS + shift, float(offset + 1))
        for offset, shift in enumerate(event_ms)
    ]


def thresholds(made: list[Record], *late: int) -> dict[tuple[int, int], int]:
    """The watermark before each record's batch; those at these positions were late for everything."""
    return {record.place: LATE if number in late else EARLY for number, record in enumerate(made)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_shape_is_a_pipeline_that_loads(shape: Shape, settings: Settings) -> None:
    """It keeps to every rule of a declaration, reads its topics, and writes its tables."""
    settings = settings.model_copy(update={"pipelines_dir": settings.home / "pipelines"})
    declare(settings, "t", shards=2, name="p", shape=shape)
    found = catalog.load(settings.pipelines_dir)["p"]
    assert tuple(topic.name for topic in found.topics) == shape.topics("t")
    assert tuple(table.name for table in found.tables) == shape.tables("p")
    assert (found.sink.mode is Mode.UPSERT) == shape.upserts
    assert found.re_execute == (shape.name not in OF_ONE_TOPIC)
    assert (found.window is not None) == (shape.name in WINDOWED)


def test_windows_hold_what_came_in_time_and_are_closed() -> None:
    """A late record is in no window, poison neither; a window that is not closed is not there yet."""
    made = records(500, 700, 900, None)
    found = APPEND.expected(made, thresholds(made, 1), {0: BASE_MS + 2_000})
    assert found == {(BASE_MS + end * 1000, "T0"): (1.0, 2, 2.0) for end in (1, 2)}


def test_totals_hold_every_record() -> None:
    """Nothing is late for a running total."""
    made = records(500, 700, None, 900)
    assert SHAPES["upsert"].expected(made, thresholds(made, 0, 1), {}) == {"T0": (1.0, 3, 7.0 / 3)}
    assert SHAPES["upsert"].windows_late(made[0], LATE) == 0


def test_a_join_pairs_what_came_in_time() -> None:
    """A trade meets the quotes of the second before it, both ends included; a late record meets nobody."""
    quotes = [replace(record, partition=TOPIC_STRIDE) for record in records(0, 500, 2_001, 600)]
    sold = records(1_000)
    made = [*quotes, *sold]
    met = {("T0", "0-0", "10000-0"): None, ("T0", "0-0", "10000-1"): None}
    join = SHAPES["join"]
    assert join.expected(made, thresholds(made, 3), {}) == met
    assert join.expected(made, thresholds(made, 4), {}) == {}
    assert [join.windows_late(sold[0], BASE_MS + ms) for ms in (999, 1_000)] == [0, 1]


def test_a_join_is_fed_on_both_topics() -> None:
    """The feed alternates, and a record is named by its place."""
    feed = SHAPES["join"].spread(trades(1, count=10, partitions=4))
    assert {record.partition // TOPIC_STRIDE for record in feed[::2]} == {0}
    assert {record.partition // TOPIC_STRIDE for record in feed[1::2]} == {1}
    value = SHAPES["join"].value(replace(feed[1], event_ms=BASE_MS))
    assert value is not None
    assert json.loads(value)["id"] == f"{feed[1].partition}-{feed[1].offset}"


def test_avro_is_written_by_its_specification() -> None:
    """A length and a text, a zigzag number of milliseconds, eight bytes of a double."""
    made = Record(0, 0, "T0", -65, 1.0)
    assert SHAPES["avro"].value(made) == b"\x04T0" + b"\x81\x01" + b"\x00\x00\x00\x00\x00\x00\xf0\x3f"
    assert SHAPES["avro"].value(replace(made, event_ms=None)) == b"{bad"


def test_a_declaration_is_written_to_a_file_of_its_name(settings: Settings, tmp_path: Path) -> None:
    """So that a test may change it."""
    settings = settings.model_copy(update={"pipelines_dir": tmp_path})
    assert declare(settings, "t", name="p") == tmp_path / "p.py"
