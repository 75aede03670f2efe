"""What is checked before a new version starts. Each refusal says what is wrong, and changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.live_stream import MODULE
from support.opened_tables import record_opened_tables
from support.shapes import SHAPES

from hindcast import catalog
from hindcast.errors import (
    BadInputError,
    BadRangeError,
    TryLaterError,
    UnknownPipelineError,
    UnknownVersionError,
    VersionRefusedError,
)
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import ShardState
from hindcast.leases.store import swap
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import InactiveState, InactiveVersion
from hindcast.shards.version_changes import Versions
from hindcast.spark import query_signature
from hindcast.spark.query_signature import QuerySignature
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.table_names import ControlTable
from hindcast.testing import MemoryStore
from hindcast.versions import start as start_module
from hindcast.versions.start import began_at, query_columns, start_offsets, start_version, stored_columns

NAME = "stock_stats"
COLUMNS = {"window": "struct", "ticker": "string", "trades": "long"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: What the error of a version that is not started names.
STARTED = {"pipeline": NAME, "version": 2, "action": "started"}


class Topic:
    """A topic of two partitions that has dropped the first 10 records of partition 0; stands in for a
    broker.
    """

    def __init__(self, settings: Settings) -> None:
        self.opened = bool(settings.bootstrap_servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened = False

    def earliest(self, _: str) -> dict[int, int]:
        return {0: 10, 1: 0}

    def latest(self, _: str) -> dict[int, int]:
        return {0: 100, 1: 50}

    def at_time(self, _: str, at: datetime) -> dict[int, int]:
        if at < NOW:
            return {0: 10, 1: 0}
        return {0: 60, 1: 30}


def declare(folder: Path, version: int, *, table: str = "", topic: str = "t") -> None:
    table = table or f"{NAME}_v{version}"
    text = MODULE.replace('Table("{name}"', f'Table("{table}"')
    (folder / f"{NAME}_{version}.py").write_text(
        text.format(topic=topic, name=NAME, version=version, shards=1)
    )


@pytest.fixture
def live(
    settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Version 1 has read all of its topic; version 2 is declared."""
    settings = settings_factory(pipelines_dir=tmp_path)
    for version in (1, 2):
        declare(tmp_path, version)
    store = LeaseTable(settings)
    DesiredStates(store).declare(catalog.load(tmp_path)[NAME], 1)
    resharding.create(store, NAME, 1, 1, {0: 0, 1: 0})
    first = batch(1, {0: 0, 1: 0}, {0: 60, 1: 30}, 20_000)
    second = batch(2, {0: 60, 1: 30}, {0: 100, 1: 50}, 30_000)
    Ledger(ControlTables(settings)).append([first, second])
    monkeypatch.setattr(start_module, "TopicOffsets", Topic)
    monkeypatch.setattr(start_module, "stored_columns", lambda *_: COLUMNS)
    monkeypatch.setattr(start_module, "query_columns", lambda *_: COLUMNS)
    return settings


def batch(
    number: int, start: dict[int, int], end: dict[int, int], newest_ms: int, version: int = 1
) -> LedgerRow:
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

    return start_version(session, Installation(settings), NAME, version, text, **given)


def test_a_version_starts_with_its_shards_and_an_event(live: Settings) -> None:
    """It starts at the first record that the topic holds. Older records are gone, so there is a seam."""
    tables = (f"sinks/{NAME}_v2", f"corrections/{NAME}_v2")
    assert start(live, who="ada") == {
        "pipeline": NAME,
        "version": 2,
        "active": 1,
        "tables": list(tables),
        "offsets": {"0": 10, "1": 0},
        "seam_ms": 25_000,
        "changes": [],
    }
    rollout = Versions(LeaseTable(live)).of(NAME)
    assert rollout.active == 1
    assert rollout.beside == InactiveVersion(
        version=2, state=InactiveState.CATCHING_UP, shards=1, tables=tables, seam_ms=25_000
    )
    (shard,) = resharding.of_version(LeaseTable(live).leases(), NAME, 2)
    assert shard.checkpoint["start_offsets"] == {"0": 10, "1": 0}
    (event,) = ControlTables(live).rows(ControlTable.EVENTS)
    assert (event["kind"], json.loads(event["detail"])["who"]) == ("reprocess_started", "ada")


def test_the_event_names_nobody_if_no_name_was_given(live: Settings) -> None:
    """As for a version that a schedule starts."""
    start(live)
    (event,) = ControlTables(live).rows(ControlTable.EVENTS)
    assert "who" not in json.loads(event["detail"])


def test_the_seam_follows_from_what_the_active_version_read(live: Settings) -> None:
    """What another version has read counts for nothing, even if it was discarded since and its table's
    commits were earlier.
    """
    discarded = batch(1, {0: 0, 1: 0}, {0: 60, 1: 30}, 80_000, version=3)
    Ledger(ControlTables(live)).append([replace(discarded, sink_version=0)])
    assert start(live)["seam_ms"] == 25_000


def test_an_active_version_that_has_read_nothing_yet_began_where_its_shards_begin(live: Settings) -> None:
    """A later start lacks rows that the active version will read, so the seam is not known yet. Nothing is
    changed.
    """
    shutil.rmtree(live.table("control", "checkpoints"))
    with pytest.raises(TryLaterError, match="partition 0 up to 0, and version 2 is to begin at 10"):
        start(live)
    assert Versions(LeaseTable(live)).of(NAME).beside is None


def test_an_active_version_began_where_its_first_generation_did(live: Settings) -> None:
    """A later generation begins where the first one ended, and shards of others say nothing."""
    store = MemoryStore()
    (root,) = resharding.create(store, NAME, 1, 1, {0: 5, 1: 6})
    resharding.create(store, NAME, 3, 1, {0: 1, 1: 1})
    resharding.create(store, "other", 1, 1, {0: 2, 1: 2})
    resharding.reshard(store, NAME, 1, 2, {0: 0, 1: 0})
    ended = root.evolve(
        state=ShardState.TERMINATED, checkpoint={**root.checkpoint, "end_offsets": {"0": 8, "1": 9}}
    )
    swap(store, lambda _: [ended])
    swap(store, lambda snapshot: resharding.opened(snapshot.leases))
    leases = list(store.read().leases.values())
    children = resharding.newest_of_version(leases, NAME, 1)
    assert [child.checkpoint["start_offsets"] for child in children] == [{"0": 8}, {"1": 9}]
    assert began_at(leases, catalog.load(live.pipelines_dir).of(NAME, 1)) == {0: 5, 1: 6}


def test_it_may_start_at_a_time_or_at_offsets(live: Settings) -> None:
    """Either names an offset of each partition. The seam follows from what the active version read before
    them.
    """
    begun = start(live, text=(NOW + timedelta(minutes=1)).isoformat())
    assert (begun["offsets"], begun["seam_ms"]) == ({"0": 60, "1": 30}, 25_000)
    Versions(LeaseTable(live)).leave(NAME, 2)
    Versions(LeaseTable(live)).remove(NAME, 2)
    begun = start(live, text='{"0": 61, "1": 30}')
    assert (begun["offsets"], begun["seam_ms"]) == ({"0": 61, "1": 30}, 35_000)


def test_a_version_may_start_now(live: Settings) -> None:
    """Only a later time is in the future."""
    pipeline = catalog.load(live.pipelines_dir).of(NAME, 2)
    assert start_offsets(live, pipeline, NOW.isoformat(), NOW) == {0: 60, 1: 30}


def other_columns(monkeypatch: pytest.MonkeyPatch, columns: dict[str, str]) -> None:
    """The new version's query has these columns."""
    monkeypatch.setattr(start_module, "query_columns", lambda *_: columns)


def test_other_columns_need_to_be_meant(live: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that are added, removed or retyped are named; with --new-table they are accepted and named
    again.
    """
    other_columns(
        monkeypatch, {"window": "struct", "ticker": "string", "trades": "integer", "max_ask": "double"}
    )
    with pytest.raises(
        VersionRefusedError, match=r"max_ask is added; trades is integer, not long.*--new-table"
    ):
        start(live)
    with pytest.raises(VersionRefusedError, match=r"two types in one column \(trades\)") as caught:
        start(live, new_table=True)
    assert "--from earliest" in str(caught.value.fields["cure"])
    other_columns(monkeypatch, {"window": "struct", "ticker": "string", "max_ask": "double"})
    with pytest.raises(VersionRefusedError, match="max_ask is added; trades is removed"):
        start(live)
    other_columns(monkeypatch, {"window": "struct", "ticker": "integer", "trades": "integer"})
    with pytest.raises(VersionRefusedError, match=r"two types in one column \(ticker, trades\)"):
        start(live, new_table=True)
    other_columns(monkeypatch, {"window": "struct", "ticker": "string", "max_ask": "double"})
    assert start(live, new_table=True)["changes"] == ["max_ask is added", "trades is removed"]


def test_a_column_may_change_its_type_if_no_window_comes_from_the_old_version(
    live: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that starts where the active one did has every window itself."""
    other_columns(monkeypatch, {**COLUMNS, "trades": "integer"})
    monkeypatch.setattr(Topic, "earliest", lambda *_: {0: 0, 1: 0})
    assert start(live, new_table=True)["changes"] == ["trades is integer, not long"]


def test_other_keys_need_to_be_meant(live: Settings) -> None:
    """Otherwise readers who count on one row for each key would get several."""
    path = live.pipelines_dir / f"{NAME}_2.py"
    path.write_text(path.read_text().replace('keys=["window", "ticker"]', 'keys=["window"]'))
    with pytest.raises(VersionRefusedError, match=r"its keys are .*window.* \(append\)") as caught:
        start(live)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == STARTED
    (change,) = start(live, new_table=True)["changes"]
    assert change.startswith("its keys are")


def test_columns_are_those_of_the_table_if_there_is_one(live: Settings) -> None:
    """They have Delta's types. No JVM is started for that."""

    def session() -> Any:
        raise AssertionError("no JVM is needed here")

    window = pa.struct([("end", pa.int64())])
    schema = pa.schema([("window", window), ("ticker", pa.string()), ("trades", pa.int64())])
    write_deltalake(live.table("sinks", f"{NAME}_v1"), pa.Table.from_pylist([], schema=schema))
    found = stored_columns(session, live, catalog.load(live.pipelines_dir).of(NAME, 1))
    assert (found["ticker"], found["trades"]) == ("string", "long")
    assert '"struct"' in found["window"]


def columns_by_query(session: Any, settings: Settings, pipeline: Pipeline) -> dict[str, str]:
    """As :func:`stored_columns` is called."""
    return query_columns(session, pipeline)


@pytest.mark.parametrize("columns_of", [stored_columns, columns_by_query])
def test_a_version_without_a_table_is_analysed(
    live: Settings, monkeypatch: pytest.MonkeyPatch, columns_of: Callable[..., dict[str, str]]
) -> None:
    """Its columns are those of its query's result."""
    pipeline = catalog.load(live.pipelines_dir).of(NAME, 2)
    asked = []

    def signature_of(session: object, one: Pipeline) -> QuerySignature:
        asked.append((session, one))
        return QuerySignature(pa.schema([("ticker", pa.string()), ("trades", pa.int32())]), "")

    monkeypatch.setattr(query_signature, "signature_of", signature_of)
    monkeypatch.setattr(start_module, "query_columns", query_columns)
    found = columns_of(lambda: "a session", live, pipeline)
    assert found == {"ticker": "string", "trades": "integer"}
    assert asked == [("a session", pipeline)]


def analysed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, int]]:
    """Make a query's columns known without Spark.

    :returns: the session and the version of each query that is analysed
    """
    asked: list[tuple[object, int]] = []

    def signature_of(session: object, one: Pipeline) -> QuerySignature:
        asked.append((session, one.version))
        return QuerySignature(pa.schema([("ticker", pa.string())]), "")

    monkeypatch.setattr(query_signature, "signature_of", signature_of)
    return asked


def start_by_analysis(settings: Settings, monkeypatch: pytest.MonkeyPatch, **given: Any) -> list[str]:
    """Start version 2, with the columns of real tables and of analysed queries; return what changes for
    readers.
    """
    monkeypatch.setattr(start_module, "stored_columns", stored_columns)
    monkeypatch.setattr(start_module, "query_columns", query_columns)
    session: Any = "a session"
    changes: list[str] = start_version(lambda: session, Installation(settings), NAME, 2, "earliest", **given)[
        "changes"
    ]
    return changes


def test_the_columns_of_a_query_are_not_those_of_its_table(
    live: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the version has a table: of a new version counts what it will write."""
    asked = analysed(monkeypatch)
    write_deltalake(live.table("sinks", f"{NAME}_v1"), pa.table({"trades": [1]}))
    pipeline = catalog.load(live.pipelines_dir).of(NAME, 1)
    assert columns_by_query(lambda: "a session", live, pipeline) == {"ticker": "string"}
    assert asked == [("a session", 1)]


def test_the_active_versions_table_is_compared_with_the_new_versions_query(
    live: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the active version has no table yet, its query is analysed, too."""
    asked = analysed(monkeypatch)
    assert start_by_analysis(live, monkeypatch, new_table=True) == []
    assert asked == [("a session", 1), ("a session", 2)]
    Versions(LeaseTable(live)).leave(NAME, 2)
    Versions(LeaseTable(live)).remove(NAME, 2)
    write_deltalake(live.table("sinks", f"{NAME}_v1"), pa.table({"trades": [1]}))
    changes = start_by_analysis(live, monkeypatch, new_table=True)
    assert changes == ["ticker is added", "trades is removed"]
    assert asked[2:] == [("a session", 2)]


def test_tables_are_opened_with_the_stores_options(live: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them an object store refuses the request."""
    options = {"allow_http": "true"}

    analysed(monkeypatch)
    seen = record_opened_tables(monkeypatch)
    start_by_analysis(live.model_copy(update={"storage_options": options}), monkeypatch)
    assert [given for url, given in seen if url.split("/")[-2] == "sinks"] == [options] * 2


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
def test_a_start_that_the_topic_does_not_have_is_refused(live: Settings, text: str, says: str) -> None:
    """It is in the future, past the retention, of other partitions, or no start at all."""
    before = LeaseTable(live).leases()
    with pytest.raises(BadRangeError, match=says) as caught:
        start(live, text=text)
    assert caught.value.exit_code == 2
    assert caught.value.fields["range"] == text
    cure = str(caught.value.fields["cure"])
    assert "--from earliest" in cure
    assert ("from the active version" in cure) == ("retention" in says)
    assert LeaseTable(live).leases() == before
    assert ControlTables(live).rows(ControlTable.EVENTS) == []


@pytest.mark.parametrize("offsets", [{"0": 10, "1": 0}, {"0": 100, "1": 50}])
def test_a_start_may_be_the_first_or_the_next_record(live: Settings, offsets: dict[str, int]) -> None:
    """The topic holds the first, and the next one comes: neither is lost nor in the future."""
    assert start(live, text=json.dumps(offsets))["offsets"] == offsets


def test_a_time_is_refused_if_the_topic_has_lost_a_single_record_before_it(
    live: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic's first record is the second that was ever written: the time may be that of the lost one."""
    monkeypatch.setattr(Topic, "earliest", lambda *_: {0: 1, 1: 0})
    monkeypatch.setattr(Topic, "at_time", lambda *_, **__: {0: 1, 1: 0})
    with pytest.raises(BadRangeError, match="partition 0 begins at 1 now"):
        start(live, text="2025-12-31T00:00:00+00:00")


def test_a_time_before_the_first_record_is_no_loss_if_the_topic_has_lost_nothing(
    live: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is older than the first record that was ever written. The version starts where the active one
    did, so it lacks nothing.
    """
    monkeypatch.setattr(Topic, "earliest", lambda *_: {0: 0, 1: 0})
    monkeypatch.setattr(Topic, "at_time", lambda *_, **__: {0: 0, 1: 0})
    begun = start(live, text="2025-12-31T00:00:00+00:00")
    assert (begun["offsets"], begun["seam_ms"]) == ({"0": 0, "1": 0}, None)


def broken(settings: Settings) -> None:
    (settings.pipelines_dir / f"{NAME}_2.py").write_text("import nowhere_to_be_found\n")


def consumed_before(settings: Settings) -> None:
    Ledger(ControlTables(settings)).append([batch(1, {0: 0, 1: 0}, {0: 5, 1: 5}, 1, version=2)])


def table_there(settings: Settings) -> None:
    write_deltalake(settings.table("sinks", f"{NAME}_v2"), pa.table({"a": [1]}))


@pytest.mark.parametrize(
    ("prepare", "version", "error", "says"),
    [
        (broken, 2, UnknownVersionError, "does not import"),
        (lambda _: None, 3, UnknownVersionError, "No file declares version 3"),
        (lambda _: None, 1, VersionRefusedError, "version 1 is active"),
        (consumed_before, 2, VersionRefusedError, "it was consumed before"),
        (table_there, 2, VersionRefusedError, "there is a table"),
        (
            lambda settings: declare(settings.pipelines_dir, 2, topic="other"),
            2,
            VersionRefusedError,
            "they have no offsets in common",
        ),
        (start, 2, VersionRefusedError, "there is an inactive version already: version 2 is catching up"),
    ],
)
def test_a_version_that_cannot_start_is_refused(
    live: Settings, prepare: Callable[[Settings], object], version: int, error: type[BadInputError], says: str
) -> None:
    """It does not load, is not newer, was used before, or another version is there. Nothing was changed."""
    prepare(live)
    before = LeaseTable(live).leases()
    with pytest.raises(error, match=says) as caught:
        start(live, version)
    assert caught.value.exit_code == 2
    if error is VersionRefusedError:
        assert {name: caught.value.fields[name] for name in STARTED} == {**STARTED, "version": version}
        assert isinstance(caught.value.fields["cure"], str)
    assert LeaseTable(live).leases() == before


def test_the_refusal_of_a_version_that_was_consumed_before_names_the_next_number(live: Settings) -> None:
    """The cure names the least number that it may be declared as."""
    consumed_before(live)
    with pytest.raises(VersionRefusedError) as caught:
        start(live)
    assert "Declare it as version 3 or higher" in str(caught.value.fields["cure"])


def test_the_refusal_of_other_topics_names_those_of_both_versions(live: Settings) -> None:
    """All of them, in the order in which they are read."""
    new = SHAPES["join"].module(NAME, "other", 2, 1).replace(f'Table("{NAME}"', 'Table("joined"')
    (live.pipelines_dir / f"{NAME}_2.py").write_text(new)
    with pytest.raises(VersionRefusedError, match="it reads other, other-quotes, version 1 reads t: they"):
        start(live)
    old = SHAPES["join"].module(NAME, "t", 1, 1)
    (live.pipelines_dir / f"{NAME}_1.py").write_text(old)
    with pytest.raises(
        VersionRefusedError, match="it reads other, other-quotes, version 1 reads t, t-quotes: they"
    ):
        start(live)


def test_no_version_starts_of_a_pipeline_that_was_never_started(live: Settings) -> None:
    """There is no active version to compare it with."""
    with pytest.raises(UnknownPipelineError):
        start_version(lambda: None, Installation(live), "other", 2, "earliest")  # type: ignore[arg-type, return-value]
