"""What `maintain` deletes, and what it keeps whatever its age."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from structlog.testing import capture_logs
from support.upkeep import maintain_all

from hindcast.delta.older_log import open_version
from hindcast.pipeline import Table
from hindcast.settings import Settings, project_root
from hindcast.tables import retention
from hindcast.tables.archive_schema import ARCHIVE_SCHEMA, BOUNDED, archive_url
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable
from hindcast.tables.ledger import Ledger
from hindcast.tables.proofs import Proof, Proofs
from hindcast.tables.retention import HINDCAST_DAYS
from hindcast.tables.table_names import ControlTable

NOW = datetime.now(UTC)


def run(settings: Settings, run_id: str, *, days: float, **fields: Any) -> None:
    """A run that ended so many days ago, and the folders of its result."""
    at = NOW - timedelta(days=days)
    row = {
        "pipeline": "p",
        "version": 1,
        "kind": "benchmark",
        "state": "succeeded",
        "versions": "{}",
        **fields,
    }
    ControlTables(settings).append(
        ControlTable.RUNS, [{"run_id": run_id, "started_at": at, "finished_at": at, **row}]
    )
    for root in ("hindcasts", "hindcast_rows"):
        folder = Path(settings.table(root)) / row["pipeline"] / run_id
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - days * 86_400,) * 2)


def left(settings: Settings, root: str = "hindcasts") -> set[str]:
    return {folder.name for folder in Path(settings.table(root)).glob("*/*")}


@pytest.fixture
def settings(settings_factory: Any, tmp_path: Path) -> Settings:
    """Settings without a pipeline: there are no sinks to maintain."""
    (tmp_path / "none").mkdir()
    made: Settings = settings_factory(pipelines_dir=tmp_path / "none")
    return made


def test_the_newest_benchmark_of_each_version_stays_whatever_its_age(settings: Settings) -> None:
    """The benchmarks are weekly and hindcasts are kept for a week: without this rule nothing would be left to
    compare with.
    """
    old = HINDCAST_DAYS + 1
    for kind in ("benchmark", "re-execution"):
        run(settings, f"{kind}-first", days=10 * old, kind=kind)
        run(settings, f"{kind}-newest", days=old, kind=kind)
        run(settings, f"{kind}-failed", days=old, kind=kind, state="failed")
        run(settings, f"{kind}-version-2", days=40 * old, kind=kind, version=2)
        run(settings, f"{kind}-other-spark", days=60 * old, kind=kind, versions='{"pyspark": "3"}')
        run(settings, f"{kind}-other-pipeline", days=60 * old, kind=kind, pipeline="q")
        run(settings, f"{kind}-recent", days=old - 2, kind=kind, version=3)
        run(settings, f"{kind}-before-recent", days=old, kind=kind, version=3)
    run(settings, "replay", days=old, kind="replay")
    run(settings, "replay-recent", days=1, kind="replay")
    maintain_all(settings)
    kept = {
        f"{kind}-{name}"
        for kind in ("benchmark", "re-execution")
        for name in ("newest", "version-2", "other-spark", "other-pipeline", "recent")
    }
    assert left(settings) == left(settings, "hindcast_rows") == {*kept, "replay-recent"}


def test_a_folder_of_another_pipeline_with_the_same_run_id_is_not_kept(settings: Settings) -> None:
    """A run is named by its pipeline and its id."""
    old = HINDCAST_DAYS + 1
    run(settings, "same", days=old)
    run(settings, "same", days=old, pipeline="q", kind="replay")
    maintain_all(settings)
    assert [
        str(folder.relative_to(settings.table("hindcasts")))
        for folder in Path(settings.table("hindcasts")).glob("*/*")
    ] == ["p/same"]


def test_an_object_store_expires_its_hindcasts_itself(
    settings_factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder of this host is searched for under its address."""
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "s3:/bucket/tables/hindcasts/p/old"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))
    elsewhere: Settings = settings_factory(pipelines_dir=tmp_path / "none", tables_url="s3://bucket/tables")
    assert list(retention._old_hindcasts(elsewhere, frozenset())) == []


def test_only_folders_are_hindcasts(settings: Settings) -> None:
    """A file among them is kept, whatever its age."""
    old = HINDCAST_DAYS + 1
    run(settings, "old", days=old, kind="replay")
    stray = Path(settings.table("hindcasts")) / "p" / "stray"
    stray.write_text("")
    os.utime(stray, (0, 0))
    maintain_all(settings)
    assert left(settings) == {"stray"}


@pytest.fixture
def busy(settings_factory: Any) -> Settings:
    """A platform whose ledger, sink, corrections and archive have three files each. The sink has one more,
    which is old and in no commit.
    """
    made: Settings = settings_factory(pipelines_dir=project_root() / "include" / "pipelines")
    tables = ControlTables(made)
    for number in range(3):
        tables.append(ControlTable.CHECKPOINTS, [{"pipeline": "p", "batch": number}])
        row = {
            "partition": number % 2,
            "offset": number,
            "timestamp": NOW,
            "timestamp_type": 0,
            "key": None,
            "value": None,
        }
        write_deltalake(
            archive_url(made, "trades"), pa.Table.from_pylist([row], schema=ARCHIVE_SCHEMA), mode="append"
        )
        for folder in ("sinks", "corrections"):
            write_deltalake(made.table(folder, "stock_stats"), pa.table({"n": [number]}), mode="append")
    orphan = Path(made.table("sinks", "stock_stats")) / "of-a-dead-worker.parquet"
    orphan.write_bytes(b"")
    os.utime(orphan, (0, 0))
    return made


def url_of(settings: Settings, name: str) -> str:
    """The address of a table that a report names."""
    if "/" not in name:
        return settings.table("control", name)
    folder, table = name.split("/")
    if folder == "archive":
        return archive_url(settings, table)
    return settings.table(folder, table)


def test_every_table_is_joined_and_loses_the_files_of_no_commit(
    busy: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report says of each table what was done. An archive is joined by partition. The leases are not
    joined, because each commit rewrites them.
    """
    joined = {}
    compact = retention.compact

    def noted(
        table: DeltaTable, storage_options: dict[str, str], bounded: Any = (), *, ordered_by: Any = ()
    ) -> None:
        joined[Path(table.table_uri).name] = (storage_options, (*bounded, *ordered_by))
        compact(table, storage_options, bounded, ordered_by=ordered_by)

    monkeypatch.setattr(retention, "compact", noted)
    done = {row["table"]: row for row in maintain_all(busy)}
    ours = ("checkpoints", "sinks/stock_stats", "corrections/stock_stats", "archive/trades")
    assert set(done) == {*ours, *(name.value for name in ControlTable)}
    found = {
        name: tuple(done[name][key] for key in ("files_before", "files_after", "files_deleted", "skipped"))
        for name in ours
    }
    assert found == {
        "checkpoints": (3, 1, 0, ""),
        "sinks/stock_stats": (3, 1, 1, ""),
        "corrections/stock_stats": (3, 1, 0, ""),
        "archive/trades": (3, 2, 0, ""),
    }
    assert not (Path(busy.table("sinks", "stock_stats")) / "of-a-dead-worker.parquet").exists()
    assert joined["trades"] == ({}, BOUNDED)
    assert joined["stock_stats"] == ({}, ())
    assert "leases" not in joined
    assert joined["checkpoints"] == ({}, ("pipeline", "version", "sink_version", "batch"))
    for name, row in done.items():
        url = url_of(busy, name)
        assert row["version"] == DeltaTable(url).version()
        assert (Path(url) / "_delta_log" / "_last_checkpoint").exists()
        assert isinstance(row["seconds"], float)
        assert 0 <= row["seconds"] < 60
        assert row["seconds"] == round(row["seconds"], 3)


@pytest.mark.parametrize("error", [CommitFailedError("a writer was faster"), OSError("the disk is full")])
def test_a_table_that_cannot_be_maintained_now_is_left_to_the_next_time(
    busy: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The report says why, and the others are maintained."""
    compact = retention.compact

    def refused(table: DeltaTable, *arguments: Any, **options: Any) -> None:
        if "sinks" in table.table_uri:
            raise error
        compact(table, *arguments, **options)

    monkeypatch.setattr(retention, "compact", refused)
    done = {row["table"]: row for row in maintain_all(busy)}
    left_alone = done["sinks/stock_stats"]
    assert (left_alone["skipped"], left_alone["files_after"], left_alone["files_deleted"]) == (
        str(error),
        3,
        0,
    )
    assert (done["archive/trades"]["skipped"], done["archive/trades"]["files_after"]) == ("", 2)


def test_a_torn_file_keeps_no_other_table_from_being_maintained(busy: Settings) -> None:
    """A machine that lost its power may leave one. The report of its table says why it was skipped."""
    torn = Path(DeltaTable(busy.table("sinks", "stock_stats")).file_uris()[0])
    torn.write_bytes(b"no Parquet")
    done = {row["table"]: row for row in maintain_all(busy)}
    assert "Parquet" in done["sinks/stock_stats"]["skipped"]
    assert done["sinks/stock_stats"]["files_after"] == 3
    assert (done["archive/trades"]["skipped"], done["archive/trades"]["files_after"]) == ("", 2)


def test_a_folder_that_is_no_archive_ends_nothing(busy: Settings) -> None:
    """Nor does a pipeline that has not run yet."""
    Path(archive_url(busy, "a-folder")).mkdir(parents=True)
    names = [row["table"] for row in maintain_all(busy)]
    assert "archive/trades" in names
    assert "archive/a-folder" not in names


def test_the_log_says_what_was_done(busy: Settings) -> None:
    """For each table, and for each hindcast that was deleted."""
    run(busy, "old", days=HINDCAST_DAYS + 1, kind="replay")
    with capture_logs() as logs:
        done = maintain_all(busy)
    found = [entry for entry in logs if "maintained" in entry["event"]]
    names = ("table", "files_before", "files_deleted", "seconds", "skipped")
    assert [{name: entry[name] for name in names} for entry in found] == [
        {name: row[name] for name in names} for row in done
    ]
    folders = [str(Path(busy.table(root)) / "p" / "old") for root in ("hindcasts", "hindcast_rows")]
    assert [entry["folder"] for entry in logs if "hindcast was deleted" in entry["event"]] == folders


def test_a_hindcast_is_deleted_once_it_is_a_week_old(settings: Settings) -> None:
    """To the second."""
    for name, more in (("before", -600), ("after", 2)):
        run(settings, name, days=HINDCAST_DAYS + more / 86_400, kind="replay")
    maintain_all(settings)
    assert left(settings) == {"before"}


def test_the_list_of_a_sinks_files_is_deleted_once_it_is_a_week_old(
    settings: Settings, settings_factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be gone by then. Those in an object store expire by the store's own rules."""
    folder = Path(settings.table("sink_files")) / "s" / "id"
    in_store = tmp_path / "s3:/bucket/tables/sink_files/s/id"
    for place in (folder, in_store):
        place.mkdir(parents=True)
        for name, more in (("before", 600), ("after", -2)):
            kept = place / f"{name}.parquet"
            kept.write_bytes(b"")
            os.utime(kept, (time.time() - HINDCAST_DAYS * 86_400 + more,) * 2)
    maintain_all(settings)
    assert [kept.name for kept in folder.iterdir()] == ["before.parquet"]
    monkeypatch.chdir(tmp_path)
    retention._delete_old_file_lists(
        settings_factory(pipelines_dir=tmp_path / "none", tables_url="s3://bucket/tables")
    )
    assert len(list(in_store.iterdir())) == 2


def test_every_access_of_the_maintenance_has_the_stores_options(
    busy: Settings, options_seen: list[Any]
) -> None:
    """To the control tables, the sinks, the corrections and the archives."""
    maintain_all(busy.model_copy(update={"storage_options": {"allow_http": "true"}}))
    assert len(options_seen) > len(ControlTable)
    assert set(map(str, options_seen)) == {"{'allow_http': 'true'}"}


@pytest.mark.parametrize("broken", ["events", "sinks/stock_stats", "archive/trades"])
def test_a_table_that_cannot_be_opened_keeps_no_other_table_from_being_maintained(
    busy: Settings, broken: str
) -> None:
    """Its row says why it was skipped. The error names the table."""
    before = {row["table"] for row in maintain_all(busy)}
    url = url_of(busy, broken)
    log = Path(url) / "_delta_log"
    newest = DeltaTable(url).version()
    (log / f"{newest + 1:020d}.json").write_text("no commit")
    write_deltalake(busy.table("corrections", "stock_stats"), pa.table({"n": [3]}), mode="append")
    with capture_logs() as logs:
        done = {row["table"]: row for row in maintain_all(busy)}
    assert set(done) == before
    skipped = done[broken]
    assert url in skipped["skipped"]
    assert "could not be opened" in skipped["skipped"]
    assert (skipped["version"], skipped["files_before"], skipped["files_after"]) == (None, 0, 0)
    assert skipped["files_deleted"] == 0
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [(entry["table"], entry["reason"]) for entry in warnings] == [(broken, skipped["skipped"])]
    assert "could not be read" in warnings[0]["event"]
    maintained = done["corrections/stock_stats"]
    assert (maintained["files_before"], maintained["files_after"], maintained["skipped"]) == (2, 1, "")
    others = [row["skipped"] for name, row in done.items() if name != broken]
    assert others == [""] * len(others)


def test_a_table_of_another_schema_keeps_no_other_table_from_being_maintained(busy: Settings) -> None:
    """A control table that lacks columns was not written by this Hindcast: it is skipped."""
    DeltaTable.create(busy.table("control", "events"), pa.schema([("x", pa.string())]))
    done = {row["table"]: row for row in maintain_all(busy)}
    assert "without event_id" in done["events"]["skipped"]
    assert done["sinks/stock_stats"]["files_after"] == 1
    assert done["archive/trades"]["files_after"] == 2


def test_a_table_that_breaks_during_its_upkeep_keeps_no_other_table_from_being_maintained(
    busy: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log can be read no more once its files are joined."""
    compact = retention.compact

    def torn_after(table: DeltaTable, *arguments: Any, **options: Any) -> None:
        compact(table, *arguments, **options)
        if "sinks" in table.table_uri:
            log = Path(busy.table("sinks", "stock_stats")) / "_delta_log"
            (log / f"{table.version() + 1:020d}.json").write_text("no commit")

    monkeypatch.setattr(retention, "compact", torn_after)
    done = {row["table"]: row for row in maintain_all(busy)}
    assert done["sinks/stock_stats"]["skipped"] != ""
    assert done["sinks/stock_stats"]["files_before"] == 3
    assert done["archive/trades"]["files_after"] == 2


def test_no_hindcast_is_deleted_if_the_runs_cannot_be_read(busy: Settings) -> None:
    """It is not known then which benchmarks are the newest. The tables are maintained, and the log says it."""
    run(busy, "old", days=HINDCAST_DAYS + 1, kind="replay")
    url = busy.table("control", "runs")
    newest = DeltaTable(url).version()
    (Path(url) / "_delta_log" / f"{newest + 1:020d}.json").write_text("no commit")
    with capture_logs() as logs:
        done = {row["table"]: row for row in maintain_all(busy)}
    assert done["sinks/stock_stats"]["files_after"] == 1
    assert left(busy) == {"old"}
    (warning,) = [entry for entry in logs if "hindcast was deleted" in entry["event"]]
    assert warning["log_level"] == "warning"
    assert url in warning["reason"]


def test_what_only_a_sinks_log_knows_is_filed_before_the_log_is_shortened(settings: Settings) -> None:
    """A worker died before it filed its second batch. After the log's retention the ledger alone has it."""
    tables = ControlTables(settings)
    ledger = Ledger(tables)
    sink = FencedTable(settings.table("sinks", "t"), {}, "p/v1/v1.g0.s0")
    sink.create(pa.schema([("n", pa.int64())]))
    for number in (1, 2):
        batch = BatchCommit(
            kind="batch",
            pipeline="p",
            version=1,
            shard="v1.g0.s0",
            epoch=1,
            batch=number,
            worker="w",
            start_offsets={0: number - 1},
            end_offsets={0: number},
            late_watermark_ms=0,
            watermark_ms=0,
        )
        after = Fence(1, number - 1) if number > 1 else None
        sink.commit(Fence(1, number), [], batch.as_metadata(), after=after)
    second, first = [commit.as_ledger_row("trades") for commit in sink.commits(sink.version())]
    ledger.append([first])
    declared: Any = SimpleNamespace(name="p", version=1, sink=Table("t"), late_sink=None)
    for _ in range(2):
        reports = retention.maintain(settings, tables, [declared])
        assert [report["skipped"] for report in reports if report["table"] == "sinks/t"] == [""]
    assert ledger.batches("p", 1) == [first, second]
    assert len(tables.rows(ControlTable.CHECKPOINTS)) == 2


def test_the_logs_of_sinks_are_short_and_the_older_ones_have_an_end(busy: Settings) -> None:
    """A version is found for half a day by every reader, and for the time of the table's log by ours."""
    url = busy.table("sinks", "stock_stats")
    log, older = (Path(url, folder, "_delta_log") for folder in (".", "_older"))
    newest = DeltaTable(url).version()

    def age(days: float) -> None:
        at = time.time() - days * 86_400
        for path in (*log.iterdir(), *older.glob("*")):
            os.utime(path, (at, at))

    maintain_all(busy)
    age(0.4)
    maintain_all(busy)
    assert not older.exists()
    age(0.6)
    maintain_all(busy)
    assert open_version(url, {}, newest).version() == newest
    assert not (log / f"{0:020d}.json").exists()
    assert (older / f"{0:020d}.json").exists()
    DeltaTable(url).alter.set_table_properties({"delta.logRetentionDuration": "interval 8 days"})
    maintain_all(busy)
    age(9)
    maintain_all(busy)
    assert not (older / f"{0:020d}.json").exists()
    assert DeltaTable(url).to_pyarrow_table().num_rows > 0


def test_the_table_of_late_rows_of_a_pipelines_own_is_maintained(settings: Settings) -> None:
    """As its sink is. Its commits say nothing of where a shard is."""
    tables = ControlTables(settings)
    url = settings.table("sinks", "late")
    late = FencedTable(url, {}, "p/v1/v1.g0.s0")
    late.create(pa.schema([("n", pa.int64())]))
    for number in range(3):
        write_deltalake(url, pa.table({"n": [number]}), mode="append")
    late.commit(Fence(1, 1), [], after=None)
    sink, late_sink = (Table(name) for name in ("t", "late"))
    declared: Any = SimpleNamespace(name="p", version=1, sink=sink, late_sink=late_sink)
    done = {row["table"]: row for row in retention.maintain(settings, tables, [declared])}
    assert (done["sinks/late"]["files_before"], done["sinks/late"]["files_after"]) == (3, 1)
    assert done["sinks/late"]["skipped"] == ""
    assert tables.rows(ControlTable.CHECKPOINTS) == []


def test_folders_that_no_proof_names_are_deleted_after_a_day(settings: Settings) -> None:
    """One that a proof names stays whatever its age, and one that is being written stays for a day."""
    root = Path(settings.table("proofs"), "words")
    for name, days in (("named", 30), ("forgotten", 2), ("being-written", 0.5)):
        (root / name / "v1.g0.s0").mkdir(parents=True)
        os.utime(root / name, (time.time() - days * 86_400,) * 2)
    proof = Proof(
        run_id="r",
        pipeline="words",
        version=1,
        first={0: 0},
        start={0: 0},
        end={0: 9},
        sink_version=1,
        based_on="",
        batches={},
        url=str(root / "named"),
        made_at=NOW - timedelta(days=30),
    )
    Proofs(ControlTables(settings)).add(proof)
    maintain_all(settings)
    assert left(settings, "proofs") == {"named", "being-written"}
