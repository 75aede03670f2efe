"""What is found out before a new version begins: each refusal is clear, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from live_stream import MODULE

from hindcast import catalog
from hindcast.control import shards
from hindcast.control.desired import DesiredStates
from hindcast.control.lease_table import LeaseTable
from hindcast.control.ledger import Ledger, LedgerRow
from hindcast.control.schema import ControlTable
from hindcast.control.standing import BesideState
from hindcast.control.tables import ControlTables
from hindcast.control.versions import Versions
from hindcast.errors import BadInputError, BadRangeError, UnknownPipelineError, UnknownVersionError, VersionRefusedError
from hindcast.settings import Settings
from hindcast.versions import beginning
from hindcast.versions.beginning import begin

NAME = "stock_stats"
COLUMNS = {"window": "struct", "ticker": "string", "trades": "long"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Topic:
    """A topic of two partitions that has dropped the first 10 records of partition 0; stands in for a broker."""

    def __init__(self, *_: Any) -> None:
        self.opened = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened = False

    def earliest(self, _: str) -> dict[int, int]:
        return {0: 10, 1: 0}

    def latest(self, _: str) -> dict[int, int]:
        return {0: 100, 1: 50}

    def at_time(self, _: str, at: datetime) -> dict[int, int]:
        return {0: 10, 1: 0} if at < NOW else {0: 60, 1: 30}


def declare(folder: Path, version: int, *, table: str = "", topic: str = "t") -> None:
    text = MODULE.replace('Table("{name}"', f'Table("{table or f"{NAME}_v{version}"}"')
    (folder / f"{NAME}_{version}.py").write_text(text.format(topic=topic, name=NAME, version=version, shards=1))


@pytest.fixture
def live(settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Version 1 has read all of its topic; version 2 is declared."""
    settings = settings_factory(pipelines_dir=tmp_path)
    for version in (1, 2):
        declare(tmp_path, version)
    store = LeaseTable(settings)
    DesiredStates(store).declare(catalog.load(tmp_path)[NAME], 1)
    shards.create(store, NAME, 1, 1, {0: 0, 1: 0})
    Ledger(ControlTables(settings)).append(
        [batch(1, {0: 0, 1: 0}, {0: 60, 1: 30}, 20_000), batch(2, {0: 60, 1: 30}, {0: 100, 1: 50}, 30_000)]
    )
    monkeypatch.setattr(beginning, "TopicOffsets", Topic)
    monkeypatch.setattr(beginning, "columns_of", lambda *_, **__: COLUMNS)
    return settings


def batch(number: int, start: dict[int, int], end: dict[int, int], newest_ms: int, version: int = 1) -> LedgerRow:
    return LedgerRow(
        pipeline=NAME,
        version=version,
        shard=f"v{version}.g0.s0",
        epoch=1,
        batch=number,
        worker="w",
        topic="t",
        start_offsets=start,
        end_offsets=end,
        late_watermark_ms=0,
        watermark_ms=0,
        min_event_ms=0,
        max_event_ms=newest_ms,
        input_rows=90,
        poison_rows=0,
        output_rows=0,
        batch_seconds=1.0,
        cpu_seconds=1.0,
        sink_version=number,
        started_at=None,
        committed_at=NOW,
    )


def start(settings: Settings, version: int = 2, text: str = "earliest", **given: Any) -> dict[str, Any]:
    def session() -> Any:
        raise AssertionError("no JVM is needed here")

    return begin(session, settings, NAME, version, text, **given)


def test_a_version_begins_with_its_shards_and_an_event(live: Settings) -> None:
    """From the first record that the topic holds; as that lacks what is older, there is a seam."""
    begun = start(live, who="ada")
    assert (begun["offsets"], begun["active"], begun["changes"]) == ({"0": 10, "1": 0}, 1, [])
    assert begun["seam_ms"] == 25_000
    standing = Versions(LeaseTable(live)).of(NAME)
    assert standing.beside is not None
    assert (standing.active, standing.beside.version, standing.beside.state) == (1, 2, BesideState.CATCHING_UP)
    (shard,) = shards.of_version(LeaseTable(live).leases(), NAME, 2)
    assert shard.checkpoint["start_offsets"] == {"0": 10, "1": 0}
    (event,) = ControlTables(live).rows(ControlTable.EVENTS)
    assert (event["kind"], json.loads(event["detail"])["who"]) == ("reprocess_started", "ada")


def test_it_may_begin_at_a_time_or_at_offsets(live: Settings) -> None:
    """Both name a place of each partition; the seam follows from what the active version read before it."""
    begun = start(live, text=(NOW + timedelta(minutes=1)).isoformat())
    assert (begun["offsets"], begun["seam_ms"]) == ({"0": 60, "1": 30}, 25_000)
    Versions(LeaseTable(live)).leave(NAME, 2)
    Versions(LeaseTable(live)).remove(NAME, 2)
    begun = start(live, text='{"0": 61, "1": 30}')
    assert (begun["offsets"], begun["seam_ms"]) == ({"0": 61, "1": 30}, 35_000)


def more_columns(monkeypatch: pytest.MonkeyPatch, columns: dict[str, str]) -> None:
    monkeypatch.setattr(beginning, "columns_of", lambda *_, stored=False: COLUMNS if stored else columns)


def test_other_columns_need_to_be_meant(live: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes, goes or changes its type is named; with --new-table it is accepted and named again."""
    more_columns(monkeypatch, {"window": "struct", "ticker": "string", "trades": "integer", "max_ask": "double"})
    with pytest.raises(VersionRefusedError, match=r"max_ask comes; trades is integer, not long.*--new-table"):
        start(live)
    with pytest.raises(VersionRefusedError, match=r"two types in one column \(trades\)"):
        start(live, new_table=True)
    more_columns(monkeypatch, {"window": "struct", "ticker": "string", "max_ask": "double"})
    with pytest.raises(VersionRefusedError, match="max_ask comes; trades goes"):
        start(live)
    assert start(live, new_table=True)["changes"] == ["max_ask comes", "trades goes"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("yesterday", "is none of earliest"),
        ("2026-01-01T00:00:00", "is none of earliest"),
        ("latest", "can be compared with nothing"),
        ("2999-01-01T00:00:00+00:00", "it is in the future"),
        ("2025-12-31T00:00:00+00:00", "past the topic's retention: partition 0 begins at 10 now"),
        ('{"0": 9, "1": 0}', "past the topic's retention: partition 0 begins at 10 now"),
        ('{"0": 101, "1": 0}', "it is in the future: partition 0 ends at 100"),
        ('{"0": 20}', "the partitions are 0, 1"),
        ('{"0": 20, "1": 0, "2": 0}', "the partitions are 0, 1"),
    ],
)
def test_a_start_that_the_topic_has_not_is_refused(live: Settings, text: str, says: str) -> None:
    """In the future, past the retention, of other partitions, or no start at all."""
    before = LeaseTable(live).leases()
    with pytest.raises(BadRangeError, match=says) as caught:
        start(live, text=text)
    assert caught.value.exit_code == 2
    assert LeaseTable(live).leases() == before
    assert ControlTables(live).rows(ControlTable.EVENTS) == []


def broken(settings: Settings) -> None:
    (settings.pipelines_dir / f"{NAME}_2.py").write_text("import nowhere_to_be_found\n")


def consumed_before(settings: Settings) -> None:
    Ledger(ControlTables(settings)).append([batch(1, {0: 0, 1: 0}, {0: 5, 1: 5}, 1, version=2)])


def table_there(settings: Settings) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(settings.table("sinks", f"{NAME}_v2"), pa.table({"a": [1]}))


@pytest.mark.parametrize(
    ("prepare", "version", "error", "says"),
    [
        (broken, 2, UnknownVersionError, "does not import"),
        (lambda _: None, 3, UnknownVersionError, "No file declares version 3"),
        (lambda _: None, 1, VersionRefusedError, "version 1 is active"),
        (consumed_before, 2, VersionRefusedError, "it was consumed before"),
        (table_there, 2, VersionRefusedError, "there is a table"),
        (lambda s: declare(s.pipelines_dir, 2, topic="other"), 2, VersionRefusedError, "they have no offsets in common"),
        (start, 2, VersionRefusedError, "version 2 is catching up beside the active one"),
    ],
)
def test_a_version_that_cannot_begin_is_refused(
    live: Settings, prepare: Callable[[Settings], object], version: int, error: type[BadInputError], says: str
) -> None:
    """One that does not load, is not newer, was used before, or has no place: nothing was changed."""
    prepare(live)
    before = LeaseTable(live).leases()
    with pytest.raises(error, match=says) as caught:
        start(live, version)
    assert caught.value.exit_code == 2
    assert LeaseTable(live).leases() == before


def test_nothing_begins_beside_a_pipeline_that_was_never_wanted(live: Settings) -> None:
    """There is no active version that it could be compared with."""
    with pytest.raises(UnknownPipelineError):
        begin(lambda: None, live, "other", 2, "earliest")  # type: ignore[arg-type, return-value]
