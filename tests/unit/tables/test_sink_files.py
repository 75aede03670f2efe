"""The files that a sink had at a version, from its log or as a replay kept them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.short_log import make_log_short

from hindcast.errors import BadInputError, StoreUnavailableError
from hindcast.pipeline import Table
from hindcast.settings import Settings
from hindcast.tables import sink_files
from hindcast.tables.compaction import compact
from hindcast.tables.sink_files import FOLDER, FileList, SinkFiles, VersionGoneError

PIPELINE: Any = SimpleNamespace(sink=Table("s"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose sink ``s`` has got three commits of one row each."""
    made = Settings(home=tmp_path)
    for number in range(3):
        append(made, number)
    return made


def append(settings: Settings, number: int) -> None:
    write_deltalake(settings.table("sinks", "s"), pa.table({"n": [number]}), mode="append")


def sink(settings: Settings) -> DeltaTable:
    return DeltaTable(settings.table("sinks", "s"))


def cut_the_log(settings: Settings) -> int:
    """Leave the newest version alone in the log; return it."""
    table = sink(settings)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table = sink(settings)
    table.create_checkpoint()
    table.cleanup_metadata()
    return table.version()


def values(settings: Settings, paths: list[str]) -> list[int]:
    """The rows of these files."""
    folder = Path(settings.table("sinks", "s"))
    tables = [pq.read_table(folder / path) for path in paths]
    return sorted(value for table in tables for value in table["n"].to_pylist())


def test_two_versions_differ_by_what_was_committed_between_them(settings: Settings) -> None:
    """A compaction is a difference in both directions, of the same rows."""
    files = SinkFiles(settings, PIPELINE)
    first, last = files.at(0), files.at(2)
    assert values(settings, last.without(first)) == [1, 2]
    assert first.without(last) == []
    compact(sink(settings), {})
    append(settings, 3)
    joined = files.at(4)
    assert values(settings, joined.without(last)) == [0, 1, 2, 3]
    assert values(settings, last.without(joined)) == [0, 1, 2]


def test_a_version_of_the_older_log_has_its_files(settings: Settings) -> None:
    """As long as a vacuum leaves them."""
    files = SinkFiles(settings, PIPELINE)
    before = [files.at(version) for version in range(3)]
    assert make_log_short(settings.table("sinks", "s")) == 2
    assert [files.at(version) for version in range(3)] == before
    append(settings, 3)
    assert values(settings, files.at(3).without(files.at(1))) == [2, 3]


def test_a_kept_list_outlives_the_log(settings: Settings) -> None:
    """It is the list of that version, whatever was committed since. A version that nobody kept is gone."""
    files = SinkFiles(settings, PIPELINE)
    before = files.at(1)
    files.keep(1)
    files.keep(1)
    newest = cut_the_log(settings)
    assert files.at(1) == before
    assert files.at(newest).paths == files.at(newest).paths | before.paths
    files.keep(1)
    with pytest.raises(VersionGoneError):
        files.at(2)
    with pytest.raises(VersionGoneError):
        files.keep(2)


def test_a_table_that_was_made_again_has_no_list_of_the_one_before(settings: Settings) -> None:
    """Its versions begin at 0 again and are other ones."""
    files = SinkFiles(settings, PIPELINE)
    files.keep(1)
    kept = files.at(1)
    write_deltalake(settings.table("sinks", "other"), pa.table({"n": [7]}))
    write_deltalake(settings.table("sinks", "other"), pa.table({"n": [8]}), mode="append")
    Path(settings.table("sinks", "s")).rename(settings.table("sinks", "old"))
    Path(settings.table("sinks", "other")).rename(settings.table("sinks", "s"))
    assert not files.at(1).paths & kept.paths


def test_a_list_that_cannot_be_read_is_no_absent_one(settings: Settings) -> None:
    """A torn file is told, as any other that the store does not give back."""
    files = SinkFiles(settings, PIPELINE)
    files.keep(1)
    (kept,) = Path(settings.table(FOLDER)).glob("*/*/*.parquet")
    kept.write_bytes(b"torn")
    with pytest.raises(StoreUnavailableError):
        files.at(1)


def test_a_list_that_cannot_be_written_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next try of the replay keeps it."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(sink_files.pq, "write_table", full)
    with pytest.raises(StoreUnavailableError, match="no space"):
        SinkFiles(settings, PIPELINE).keep(1)


def test_a_file_that_a_vacuum_deleted_is_named(settings: Settings) -> None:
    """The first of those asked for; None if all are there."""
    files = SinkFiles(settings, PIPELINE)
    paths = sorted(files.at(2).paths)
    assert files.lacking(paths) is None
    assert files.lacking([]) is None
    (Path(files.url) / paths[1]).unlink()
    assert files.lacking(paths) == paths[1]


def test_a_table_whose_files_hide_rows_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion vector takes rows from a file that stays: its list says nothing of it."""
    protocol = sink(settings).protocol()
    for changes, said in (
        ({"reader_features": ["deletionVectors"]}, "deletion vectors"),
        ({"reader_features": ["columnMapping"]}, "names of columns"),
        ({"min_reader_version": 2}, "names of columns"),
    ):
        hiding = protocol._replace(**changes)
        monkeypatch.setattr(DeltaTable, "protocol", lambda _, hiding=hiding: hiding)
        with pytest.raises(BadInputError, match=said):
            SinkFiles(settings, PIPELINE).at(1)


def test_a_partitioned_table_is_refused(tmp_path: Path) -> None:
    """The names of its folders hold columns that its files lack."""
    settings = Settings(home=tmp_path)
    write_deltalake(settings.table("sinks", "s"), pa.table({"n": [1], "p": [1]}), partition_by=["p"])
    with pytest.raises(BadInputError, match="names of its folders"):
        SinkFiles(settings, PIPELINE).at(0)


def test_a_list_is_read_back_as_it_was_kept() -> None:
    """With its columns, and without a file as well."""
    for paths in (frozenset({"a.parquet", "b=1/c.parquet"}), frozenset[str]()):
        listed = FileList('{"type":"struct","fields":[]}', paths)
        assert FileList.from_arrow(listed.to_arrow()) == listed
