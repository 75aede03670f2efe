"""How the control tables are created, appended to and read."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import TableAlterer
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from hindcast.clock import utc_from_ms
from hindcast.delta import commit
from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.errors import SchemaVersionError, StoreUnavailableError
from hindcast.settings import Settings
from hindcast.tables import control_tables as tables_module
from hindcast.tables.control_tables import ControlTables, TableVersion
from hindcast.tables.schema import LATER, SCHEMAS, configuration
from hindcast.tables.table_names import SCHEMA_VERSION, ControlTable
from hindcast.testing import FakeClock


def test_only_rows_that_meet_every_condition_are_read(settings: Settings) -> None:
    """Conditions are joined by AND, whatever their operators. Only the requested columns are read."""
    tables = ControlTables(settings)
    now = datetime.now(UTC)
    rows = [
        {"event_id": str(number), "at": now, "pipeline": f"p{number % 2}", "kind": "k"} for number in range(6)
    ]
    tables.append(ControlTable.EVENTS, rows)
    where = [("pipeline", "=", "p1"), ("event_id", "in", ["1", "2", "5"])]
    assert Counter(row["event_id"] for row in tables.rows(ControlTable.EVENTS, where)) == {"1": 1, "5": 1}
    assert tables.read(ControlTable.EVENTS, where, ["kind"]).to_pylist() == [{"kind": "k"}] * 2
    assert len(tables.rows(ControlTable.EVENTS)) == len(rows)


def test_local_files_are_read_whatever_their_folders_name(tmp_path: Path) -> None:
    """Arrow's own file system finds the files of a folder, and of partitions, whose names need quoting in an
    address.

    deltalake's own would do, too, but a process that ends right after such a read is aborted now and then.
    """
    folder = tmp_path / "a folder, ü"
    folder.mkdir()
    rows = [{"x": 1, "p": "a b:c"}, {"x": 2, "p": "ü/%20"}, {"x": 3, "p": "plain"}]
    write_deltalake(str(folder), pa.Table.from_pylist(rows), partition_by=["p"])
    dataset = arrow_dataset(DeltaTable(str(folder)))
    assert isinstance(dataset.filesystem, SubTreeFileSystem)
    assert isinstance(dataset.filesystem.base_fs, LocalFileSystem)
    assert sorted(dataset.to_table().to_pylist(), key=lambda row: row["x"]) == rows


def test_files_of_an_object_store_are_not_searched_for_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of such an address names nothing here: deltalake's own file system reads them."""
    write_deltalake(str(tmp_path), pa.table({"x": [1]}))
    table = DeltaTable(str(tmp_path))
    monkeypatch.setattr(DeltaTable, "table_uri", "s3://bucket/t")
    assert arrow_dataset(table).to_table().to_pylist() == [{"x": 1}]


def event(number: int = 0) -> dict[str, Any]:
    return {"event_id": str(number), "at": datetime.now(UTC), "kind": "k"}


def torn(settings: Settings, name: ControlTable) -> str:
    """Make the table's log unreadable; return its address."""
    tables = ControlTables(settings)
    tables.append(name, [{}])
    url = tables.url(name)
    (Path(url) / "_delta_log" / f"{DeltaTable(url).version() + 1:020d}.json").write_text("no commit")
    return url


def test_a_row_is_stamped_and_made_whole(settings: Settings) -> None:
    """It says of which schema it is, unless the caller does. A column that is not given is null. No rows
    create no table.
    """
    tables = ControlTables(settings)
    tables.append(ControlTable.RUNS, [])
    assert tables.find(ControlTable.RUNS) is None
    assert not Path(tables.url(ControlTable.RUNS)).exists()
    tables.append(ControlTable.RUNS, [{"run_id": "a"}, {"run_id": "b", "schema_version": 7}])
    found = {row["run_id"]: row for row in tables.rows(ControlTable.RUNS)}
    assert (found["a"]["schema_version"], found["b"]["schema_version"], found["a"]["pipeline"]) == (
        SCHEMA_VERSION,
        7,
        None,
    )
    unstamped = [name for name in ControlTable if "schema_version" not in SCHEMAS[name].names]
    for name in unstamped:
        tables.append(name, [{}])
        assert len(tables.rows(name)) == 1


def test_a_table_is_created_with_its_name_and_properties(settings: Settings) -> None:
    """The first use creates it in the folder that has its name. The next use changes nothing."""
    tables = ControlTables(settings)
    for name in (ControlTable.LEASES, ControlTable.EVENTS):
        made = tables.open(name).metadata()
        assert (made.name, made.configuration) == (name.value, configuration(name))
        assert tables.url(name) == settings.table("control", name.value)
        assert tables.open(name).version() == 0


def test_reading_creates_no_table(settings: Settings) -> None:
    """A table that does not exist has no rows, with the requested columns."""
    tables = ControlTables(settings)
    assert tables.rows(ControlTable.EVENTS) == []
    assert tables.read(ControlTable.EVENTS).schema.names == SCHEMAS[ControlTable.EVENTS].names
    assert tables.read(ControlTable.EVENTS, columns=["kind", "at"]).schema.names == ["kind", "at"]
    assert not Path(tables.url(ControlTable.EVENTS)).exists()


@pytest.mark.parametrize("refused", [True, False])
def test_a_table_that_another_creates_at_the_same_moment_is_opened(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """One's own commit is refused, or it finds the other's table."""
    make = DeltaTable.create

    def another_is_faster(*arguments: Any, **options: Any) -> DeltaTable:
        monkeypatch.undo()
        ControlTables(settings).append(ControlTable.EVENTS, [event()])
        if refused:
            raise CommitFailedError("version 0 is there")
        return make(*arguments, **options)

    monkeypatch.setattr(DeltaTable, "create", another_is_faster)
    ControlTables(settings).append(ControlTable.EVENTS, [event(1)])
    assert {row["event_id"] for row in ControlTables(settings).rows(ControlTable.EVENTS)} == {"0", "1"}


def test_a_foreign_table_that_another_creates_at_the_same_moment_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names it, as for a table that was there before."""
    url = settings.table("control", "events")
    make = DeltaTable.create

    def another_is_faster(*_: Any, **__: Any) -> DeltaTable:
        make(url, pa.schema([("x", pa.string())]))
        raise CommitFailedError("version 0 is there")

    monkeypatch.setattr(DeltaTable, "create", another_is_faster)
    with pytest.raises(SchemaVersionError, match="without event_id") as caught:
        ControlTables(settings).open(ControlTable.EVENTS)
    assert caught.value.fields["table"] == url


@pytest.mark.parametrize("error", [DeltaError("the disk is away"), OSError("the disk is away")])
def test_a_table_that_cannot_be_created_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The error has the store's own reason."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(DeltaTable, "create", fail)
    with pytest.raises(StoreUnavailableError, match="could not be created: the disk is away") as caught:
        ControlTables(settings).open(ControlTable.EVENTS)
    assert caught.value.fields["table"] == settings.table("control", "events")


def test_a_table_that_cannot_be_opened_is_named(settings: Settings) -> None:
    """Whether it is opened, searched for or read."""
    url = torn(settings, ControlTable.EVENTS)
    for ask in (ControlTables(settings).open, ControlTables(settings).find, ControlTables(settings).rows):
        with pytest.raises(StoreUnavailableError, match="could not be opened") as caught:
            ask(ControlTable.EVENTS)
        assert caught.value.fields["table"] == url
        assert caught.value.fields["reason"] is caught.value.__cause__


@pytest.mark.parametrize("torn", [False, True])
def test_a_file_that_is_gone_or_torn_is_an_error_that_names_the_table(settings: Settings, torn: bool) -> None:
    """A read never leaves its rows out."""
    tables = ControlTables(settings)
    tables.append(ControlTable.EVENTS, [event()])
    for file in Path(tables.url(ControlTable.EVENTS)).glob("*.parquet"):
        file.unlink()
        if torn:
            file.write_bytes(b"as a machine that lost its power left it")
    with pytest.raises(StoreUnavailableError, match="could not be read") as caught:
        tables.rows(ControlTable.EVENTS)
    assert caught.value.fields["table"] == tables.url(ControlTable.EVENTS)
    assert caught.value.fields["reason"] is caught.value.__cause__


def test_a_table_without_a_column_is_refused(settings: Settings) -> None:
    """The error names what is missing, and the setting of the tables' place. More columns than are known do
    no harm.
    """
    url = settings.table("control", "events")
    schema = SCHEMAS[ControlTable.EVENTS]
    DeltaTable.create(url, pa.schema([field for field in schema if field.name not in {"kind", "pipeline"}]))
    with pytest.raises(SchemaVersionError) as caught:
        ControlTables(settings).open(ControlTable.EVENTS)
    missing = ", ".join(name for name in schema.names if name in {"kind", "pipeline"})
    expected = {"table": url, "found": f"without {missing}", "supported": SCHEMA_VERSION}
    assert expected.items() <= caught.value.fields.items()
    assert "HINDCAST_TABLES_URL" in caught.value.fields["cure"]
    DeltaTable.create(
        settings.table("control", "runs"), SCHEMAS[ControlTable.RUNS].append(pa.field("more", pa.string()))
    )
    ControlTables(settings).open(ControlTable.RUNS)


def older(settings: Settings) -> str:
    """A table of verdicts as an older Hindcast created it; its address."""
    url = settings.table("control", "verdicts")
    later = LATER[ControlTable.VERDICTS]
    DeltaTable.create(
        url, pa.schema([field for field in SCHEMAS[ControlTable.VERDICTS] if field.name not in later])
    )
    return url


def test_an_older_table_gets_its_new_columns_once(settings: Settings) -> None:
    """Those that it lacks and no others, with their types."""
    url = older(settings)
    found = ControlTables(settings).find(ControlTable.VERDICTS)
    assert found is not None
    assert found.version() == 1
    expected = Schema.from_arrow(SCHEMAS[ControlTable.VERDICTS]).fields
    assert sorted(map(str, DeltaTable(url).schema().fields)) == sorted(map(str, expected))
    assert ControlTables(settings).open(ControlTable.VERDICTS).version() == 1


@pytest.mark.parametrize("faster", [True, False])
def test_columns_that_another_adds_at_the_same_moment_are_found(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    """If the table lacks them afterwards, they could not be added, and the error says so."""
    url = older(settings)

    def another_is_faster(of: TableAlterer, *arguments: Any, **options: Any) -> None:
        if faster:
            monkeypatch.undo()
            ControlTables(settings).open(ControlTable.VERDICTS)
        raise DeltaError("a writer was faster")

    monkeypatch.setattr(TableAlterer, "add_columns", another_is_faster)
    if faster:
        assert ControlTables(settings).open(ControlTable.VERDICTS).version() == 1
        return
    with pytest.raises(
        StoreUnavailableError, match="could not be given its new columns: a writer was faster"
    ) as caught:
        ControlTables(settings).open(ControlTable.VERDICTS)
    assert caught.value.fields["table"] == url


class Writes:
    """Writes of rows: each of these errors is raised in turn before a write succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.left = list(errors)
        self.made = 0

    def __call__(self, *arguments: Any, **options: Any) -> None:
        self.made += 1
        if self.left:
            raise self.left.pop(0)
        write_deltalake(*arguments, **options)


@pytest.mark.parametrize("error", [DeltaError("the disk is away"), OSError("the disk is away")])
def test_rows_that_cannot_be_written_are_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """At once if the table was just opened. A kept handle may be the cause, so then the table is opened
    again, once.
    """
    writes = Writes(error)
    monkeypatch.setattr(tables_module, "write_deltalake", writes)
    tables = ControlTables(settings)
    with pytest.raises(StoreUnavailableError, match="could not be written: the disk is away") as caught:
        tables.append(ControlTable.EVENTS, [event()])
    assert (writes.made, caught.value.fields["table"]) == (1, tables.url(ControlTable.EVENTS))
    tables.append(ControlTable.EVENTS, [event(1)])
    writes.left = [error]
    tables.append(ControlTable.EVENTS, [event(2)])
    writes.left = [error, error]
    writes.made = 0
    with pytest.raises(StoreUnavailableError, match="could not be written: the disk is away"):
        tables.append(ControlTable.EVENTS, [event(3)])
    assert writes.made == 2
    assert {row["event_id"] for row in tables.rows(ControlTable.EVENTS)} == {"1", "2"}


def test_an_append_retries_by_the_one_policy(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy of all commits: the first wait is a hundredth of a second at most, and none is longer than
    half a second. After the last attempt the reason is raised.
    """
    writes = Writes(*[CommitFailedError("a writer was faster")] * 100)
    slept: list[float] = []
    monkeypatch.setattr(tables_module, "write_deltalake", writes)
    # Of tenacity alone: threads of other tests may sleep meanwhile.
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=slept.append))
    tables = ControlTables(settings)
    with pytest.raises(StoreUnavailableError, match="could not be written: a writer was faster") as caught:
        tables.append(ControlTable.EVENTS, [event()])
    assert caught.value.fields["table"] == tables.url(ControlTable.EVENTS)
    assert writes.made == commit._ATTEMPTS
    assert len(slept) == commit._ATTEMPTS - 1
    assert slept[0] <= 0.01
    assert 0.1 < max(slept) <= 0.5


def test_a_kept_handle_that_fails_asks_for_another_attempt(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handle may be the cause. The attempt has the store's own reason."""
    table = ControlTables(settings).open(ControlTable.EVENTS)
    monkeypatch.setattr(tables_module, "write_deltalake", Writes(OSError("the disk is away")))
    with pytest.raises(CommitFailedError, match="the disk is away"):
        tables_module._append_to_kept(table, SCHEMAS[ControlTable.EVENTS].empty_table())


@pytest.mark.parametrize(("seconds", "writes"), [(150, 1), (151, 40)])
def test_an_append_is_late_after_half_of_the_logs_retention(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, seconds: int, writes: int
) -> None:
    """To the second. An append that is always late is an error that says so."""
    clock = FakeClock()
    made = []

    def slow(*_: Any, **__: Any) -> None:
        made.append(1)
        clock.advance(seconds)

    monkeypatch.setattr(tables_module, "write_deltalake", slow)
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda _: None))
    tables = ControlTables(settings, clock)
    if writes == 1:
        tables.append(ControlTable.EVENTS, [event()])
    else:
        with pytest.raises(StoreUnavailableError, match="it landed 151 s after it was begun"):
            tables.append(ControlTable.EVENTS, [event()])
    assert len(made) == writes


def test_an_append_opens_its_table_once(settings: Settings, options_seen: list[Any]) -> None:
    """With the store's options, as every read and the creation of the table."""
    tables = ControlTables(settings.model_copy(update={"storage_options": {"allow_http": "true"}}))
    tables.append(ControlTable.EVENTS, [event()])
    made = len(options_seen)
    tables.append(ControlTable.EVENTS, [event(1)])
    assert len(options_seen) == made
    assert len(tables.rows(ControlTable.EVENTS)) == 2
    older(settings)
    options_seen.clear()
    tables.open(ControlTable.VERDICTS)
    assert options_seen
    assert set(map(str, options_seen)) == {"{'allow_http': 'true'}"}


def test_two_that_append_see_each_others_rows(settings: Settings) -> None:
    """A kept handle is first brought to the newest version, so that the upkeep gets the true number."""
    one = ControlTables(settings)
    two = ControlTables(settings)
    expected: list[int] = []
    for tables in (one, two):
        tables.upkeep[ControlTable.EVENTS].committed = expected.append  # type: ignore[method-assign]
    for number in range(6):
        (one, two)[number % 2].append(ControlTable.EVENTS, [event(number)])
    assert expected == [1, 2, 3, 4, 5, 6]
    assert len(one.rows(ControlTable.EVENTS)) == 6


def test_a_control_table_is_read_from_its_last_checkpoint_on(settings: Settings) -> None:
    """An empty commit before the checkpoint does no harm: its rows are in the checkpoint. After the
    checkpoint it makes every use of the table an error.
    """
    tables = ControlTables(settings)
    for number in range(3):
        tables.append(ControlTable.EVENTS, [event(number)])
    url = tables.url(ControlTable.EVENTS)
    DeltaTable(url, version=2).create_checkpoint()
    log = Path(url) / "_delta_log"
    (log / f"{1:020d}.json").write_text("")
    assert {row["event_id"] for row in ControlTables(settings).rows(ControlTable.EVENTS)} == {"0", "1", "2"}
    (log / f"{3:020d}.json").write_text("")
    for ask in (ControlTables(settings).open, ControlTables(settings).rows):
        with pytest.raises(StoreUnavailableError, match=f"the commit {3:020d}.json"):
            ask(ControlTable.EVENTS)


def test_milliseconds_are_an_instant_in_utc() -> None:
    """To the millisecond."""
    assert utc_from_ms(1_500) == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert utc_from_ms(0).tzinfo is UTC


def test_a_log_that_cannot_be_listed_is_an_error_that_names_the_table(settings: Settings) -> None:
    """Here a file is where the table's folder should be."""
    tables = ControlTables(settings)
    url = Path(tables.url(ControlTable.EVENTS))
    url.parent.mkdir(parents=True)
    url.write_text("no folder")
    with pytest.raises(StoreUnavailableError, match="could not be read") as caught:
        tables.find(ControlTable.EVENTS)
    assert caught.value.fields["table"] == str(url)
    assert isinstance(caught.value.__cause__, NotADirectoryError)
    assert caught.value.fields["reason"] is caught.value.__cause__


def test_an_older_table_that_can_be_opened_no_more_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, options_seen: list[Any]
) -> None:
    """It could not be given its new columns, and its log is torn now. It is opened with the store's options
    each time.
    """
    url = older(settings)
    options_seen.clear()
    options = {"allow_http": "true"}
    settings = settings.model_copy(update={"storage_options": options})

    def torn_meanwhile(_: TableAlterer, *__: Any, **___: Any) -> None:
        (Path(url) / "_delta_log" / f"{1:020d}.json").write_text("no commit")
        raise DeltaError("a writer was faster")

    monkeypatch.setattr(TableAlterer, "add_columns", torn_meanwhile)
    with pytest.raises(StoreUnavailableError, match="could not be opened") as caught:
        ControlTables(settings).open(ControlTable.VERDICTS)
    assert caught.value.fields["table"] == url
    assert options_seen == [options, options]


def _at(second: int) -> datetime:
    return datetime(2026, 1, 5, 12, 0, second, tzinfo=UTC)


def _events(tables: ControlTables) -> None:
    """Six events at the seconds 0 to 5, in no order; those at even seconds are of ``p``, the others of ``q``."""
    seconds = (3, 0, 5, 2, 4, 1)
    rows = [
        {"event_id": str(second), "at": _at(second), "pipeline": "pq"[second % 2], "kind": "k"}
        for second in seconds
    ]
    tables.append(ControlTable.EVENTS, rows)


@pytest.mark.parametrize(
    ("limit", "found"), [(0, []), (1, ["4"]), (2, ["4", "2"]), (3, ["4", "2", "0"]), (9, ["4", "2", "0"])]
)
def test_the_newest_rows_are_found(settings: Settings, limit: int, found: list[str]) -> None:
    """The newest first, of those that meet the conditions; with all columns."""
    tables = ControlTables(settings)
    assert tables.newest(ControlTable.EVENTS, "at", limit).to_pylist() == []
    _events(tables)
    where = (condition for condition in [("pipeline", "=", "p")])  # a caller's may be read once
    newest = tables.newest(ControlTable.EVENTS, "at", limit, where)
    assert newest["event_id"].to_pylist() == found
    assert newest.column_names == SCHEMAS[ControlTable.EVENTS].names


def test_rows_without_an_instant_are_the_oldest(settings: Settings) -> None:
    """A run that has not finished comes after those that have, whatever the limit."""
    tables = ControlTables(settings)
    rows = [
        {"run_id": "begun", "pipeline": "p", "started_at": _at(0)},
        {"run_id": "ended", "pipeline": "p", "started_at": _at(0), "finished_at": _at(1)},
        {"run_id": "begun", "pipeline": "p", "started_at": _at(0)},
    ]
    tables.append(ControlTable.RUNS, rows)
    for limit in (1, 2, 3):
        newest = tables.newest(ControlTable.RUNS, "finished_at", limit)
        assert newest["run_id"].to_pylist() == ["ended", "begun", "begun"][:limit]


def test_the_wide_columns_of_older_rows_are_not_read(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instants are read first. They say from when on whole rows are needed, if not all are."""
    tables = ControlTables(settings)
    _events(tables)
    reads: list[tuple[ControlTable, list[Any], list[str]]] = []
    read_version = TableVersion.read

    def read(version: TableVersion, where: Any, columns: Any) -> pa.Table:
        reads.append((version.name, list(where), columns))
        return read_version(version, where, columns)

    monkeypatch.setattr(TableVersion, "read", read)
    name = ControlTable.EVENTS
    everything = SCHEMAS[name].names
    conditions: dict[int, list[Any]] = {0: [], 1: [("at", ">=", _at(5))], 2: [("at", ">=", _at(4))], 6: []}
    for limit, of_rows in conditions.items():
        reads.clear()
        tables.newest(name, "at", limit)
        assert reads == [(name, [], ["at"]), (name, of_rows, everything)]
